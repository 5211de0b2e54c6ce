# SPDX-License-Identifier: MIT
"""Whether a cell's inputs keep `int8-tc` inside its error bounds, decided on the host before anything is measured."""

import numpy as np

from dsa_bench.model.errors import BadInput
from dsa_bench.model.inputs import DecodeInputs

FP16_MAX = 65504.0
QUERY_ERROR_BUDGET = 0.125
"""nats: bound on the shift of a logit by the rounding of q * key_scale to FP16 (seed 000, section 1)."""
MAX_VALUE_SCALE = 2.0**16
"""Beyond it a probability that FP16 flushes could still show in the output (seed 000, section 1)."""
MAX_SCALE = 1.0
CODE_MAX = 128


def refuse_beyond_fp16(inputs: DecodeInputs) -> None:
    """Raises BadInput naming the first condition that the inputs break and what to do."""
    shape = inputs.shape
    remedy = "measure --kernels previous, or choose smaller data"
    if not 0.0 <= inputs.scale <= MAX_SCALE:
        raise BadInput(f"softmax scale {inputs.scale:g}: int8-tc takes scales from 0 to {MAX_SCALE:g}; {remedy}")
    grouped = inputs.query.astype(np.float32).reshape(shape.rows, shape.kv_heads, shape.group, shape.head_size)
    folded = grouped * inputs.key_scale[None, :, None, :]
    largest = float(np.abs(folded).max())
    if not largest <= FP16_MAX:
        raise BadInput(f"query * key_scale reaches {largest:.3g}, beyond FP16's {FP16_MAX:g} in int8-tc; {remedy}")
    rounding = np.abs(folded.astype(np.float64) - folded.astype(np.float16)).sum(axis=-1)
    eps = inputs.scale * CODE_MAX * float(rounding.max())
    if eps > QUERY_ERROR_BUDGET:
        raise BadInput(
            f"rounding query * key_scale to FP16 may shift a logit by {eps:.3g} nats, above int8-tc's budget of "
            f"{QUERY_ERROR_BUDGET:g}; {remedy}"
        )
    scale = float(np.abs(inputs.value_scale).max())
    if not scale <= MAX_VALUE_SCALE:
        raise BadInput(f"value_scale reaches {scale:.3g}, above int8-tc's {MAX_VALUE_SCALE:g}; {remedy}")
