# SPDX-License-Identifier: MIT
"""The arithmetic of prefill's `previous` in NumPy: keys, values and probabilities in BF16 on tensor cores, FP32 sums.

Not emulated, as in oracle/emulation.py: the hardware's ex2, and the bits that tensor cores drop while they align.
"""

import numpy as np

from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.shape import TILE
from dsa_bench.oracle.attention import F64
from dsa_bench.oracle.emulation import LOG2E, MMA_K, maximum, rescale_factor, without_infinity
from dsa_bench.oracle.rounding import F32, dequantised, exp2, toward_zero


@np.errstate(all="ignore")
def attend_row_bf16(inputs: SparseInputs, row: int, kv_head: int) -> F32:
    """[group, head_size]: one row and KV head, tile by tile, before the output is rounded to BF16."""
    group = inputs.shape.group
    listed = inputs.selected[row]
    valid = np.flatnonzero((listed >= 0) & (listed < inputs.shape.context))
    query = inputs.query[row, kv_head * group : (kv_head + 1) * group].astype(np.float64)
    m, l = np.full(group, -np.inf, np.float32), np.zeros(group, np.float32)  # noqa: E741 - the maths
    acc = np.zeros((group, inputs.shape.head_size), np.float32)
    for tile in np.unique(valid // TILE):
        positions = listed[valid[valid // TILE == tile]]
        keys = dequantised(inputs.key[kv_head, positions], inputs.key_scale[kv_head]).astype(np.float64)
        values = dequantised(inputs.value[kv_head, positions], inputs.value_scale[kv_head]).astype(np.float64)
        x = _products(np.zeros((group, len(positions)), np.float32), query, keys.T) * np.float32(inputs.scale)
        top = maximum(m, x)
        rescale, m = rescale_factor(m, top), top
        p = exp2((x - without_infinity(m)[:, None]) * LOG2E)
        l = l * rescale + p.sum(axis=1, dtype=np.float32)  # noqa: E741
        acc = _products(acc * rescale[:, None], p.astype(BF16).astype(np.float64), values)
    return np.where(l[:, None] == 0, np.float32(0), acc / l[:, None])


def _products(acc: F32, one: F64, other: F64) -> F32:
    """acc + one @ other, MMA_K products at a time."""
    for first in range(0, one.shape[1], MMA_K):
        part = slice(first, first + MMA_K)
        acc = toward_zero(acc + one[:, part] @ other[part])
    return acc
