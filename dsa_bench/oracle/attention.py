# SPDX-License-Identifier: MIT
"""FP64 sparse attention over the same INT8 codes and scales that the kernels read.

Written for one thing, being evidently right; it shares no index code with any backend.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import BF16, DecodeInputs

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The oracle's answer: `rows` [checked], ascending row numbers; `out` [checked, query_heads, head_size] FP64."""

    rows: NDArray[np.int64]
    out: F64

    @property
    def rounding_floor(self) -> float:
        """RMS(bf16(out) - out) / RMS(out): the error of a perfect kernel. 0 where the output is all zeros."""
        return relative_rms(self.out.astype(BF16).astype(np.float64), self.out)


def reference(inputs: DecodeInputs, max_rows: int = 64) -> Reference:
    """Evaluate up to `max_rows` evenly spaced rows; the first and the last are always among them.

    logit[h, c] = scale * sum_d query[h, d] * key_scale[d] * key[c, d]
    out[h, d]   = value_scale[d] * sum_c softmax(logit)[h, c] * value[c, d]; a row without a candidate gives zeros.
    """
    shape = inputs.shape
    rows = np.unique(np.linspace(0, shape.rows - 1, min(max_rows, shape.rows)).round().astype(np.int64))
    out = np.zeros((len(rows), shape.query_heads, shape.head_size))
    for at, row in enumerate(rows):
        positions = [int(entry) for entry in inputs.selected[row] if 0 <= entry < shape.context]
        for kv_head in range(shape.kv_heads if positions else 0):
            heads = slice(kv_head * shape.group, (kv_head + 1) * shape.group)
            keys = inputs.key[kv_head, positions].astype(np.float64)
            values = inputs.value[kv_head, positions].astype(np.float64)
            folded = inputs.query[row, heads].astype(np.float64) * inputs.key_scale[kv_head].astype(np.float64)
            logits = inputs.scale * (folded @ keys.T)
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[at, heads] = weights @ values * inputs.value_scale[kv_head].astype(np.float64)
    return Reference(rows, out)


def logit_shift(inputs: DecodeInputs, rows: NDArray[np.int64]) -> F64:
    """[len(rows), query_heads] nats: the largest change of a logit when fp32(query * key_scale) is rounded to FP16.

    Evaluated on the keys that each row selects, so that it is far below the bound that holds for any key.
    """
    shape = inputs.shape
    shift = np.zeros((len(rows), shape.query_heads))
    for at, row in enumerate(rows):
        positions = [int(entry) for entry in inputs.selected[row] if 0 <= entry < shape.context]
        for kv_head in range(shape.kv_heads if positions else 0):
            heads = slice(kv_head * shape.group, (kv_head + 1) * shape.group)
            folded = inputs.query[row, heads].astype(np.float32) * inputs.key_scale[kv_head]
            rounding = folded.astype(np.float16).astype(np.float64) - folded.astype(np.float64)
            keys = inputs.key[kv_head, positions].astype(np.float64)
            shift[at, heads] = inputs.scale * np.abs(rounding @ keys.T).max(axis=1)
    return shift


def relative_rms(out: F64, expected: F64) -> float:
    """RMS(out - expected) / RMS(expected); 0 if both are all zeros, infinity if only the expectation is."""
    error = float(np.sqrt(np.mean(np.square(out - expected))))
    size = float(np.sqrt(np.mean(np.square(expected))))
    return error / size if size else (0.0 if error == 0.0 else float("inf"))
