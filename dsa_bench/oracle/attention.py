# SPDX-License-Identifier: MIT
"""FP64 sparse attention over the same INT8 codes and scales that the kernels read.

Written for one thing, being evidently right; it shares no index code with any backend.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import BF16, SparseInputs

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The oracle's answer: `rows` [checked], ascending row numbers; `out` [checked, query_heads, head_size] FP64."""

    rows: NDArray[np.int64]
    out: F64

    @property
    def rounding_floor(self) -> float:
        """RMS(bf16(out) - out) / RMS(out): the error of a perfect kernel. 0 where the output is all zeros."""
        with np.errstate(over="ignore", invalid="ignore"):
            return relative_rms(self.out.astype(BF16).astype(np.float64), self.out)


def reference(inputs: SparseInputs, max_rows: int = 64) -> Reference:
    """Evaluate up to `max_rows` evenly spaced rows; the first and the last are always among them.

    logit[h, c] = scale * sum_d query[h, d] * key_scale[d] * key[c, d]
    out[h, d]   = value_scale[d] * sum_c softmax(logit)[h, c] * value[c, d]; a row without a candidate gives zeros.
    What is not finite goes its way: NaN and infinities come out where FP64 arithmetic makes them.
    """
    shape = inputs.shape
    rows = np.unique(np.linspace(0, shape.rows - 1, min(max_rows, shape.rows)).round().astype(np.int64))
    out = np.zeros((len(rows), shape.query_heads, shape.head_size))
    for at, row in enumerate(rows):
        positions = candidate_positions(inputs, row)
        for kv_head in range(shape.kv_heads if positions else 0):
            with np.errstate(invalid="ignore"):  # inf - inf, 0 * inf
                x = logits(inputs, row, kv_head, positions)
                weights = np.exp(x - x.max(axis=1, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)
                values = inputs.value[kv_head, positions].astype(np.float64)
                heads = slice(kv_head * shape.group, (kv_head + 1) * shape.group)
                out[at, heads] = weights @ values * inputs.value_scale[kv_head].astype(np.float64)
    return Reference(rows, out)


def candidate_positions(inputs: SparseInputs, row: int | np.int64) -> list[int]:
    """The entries of a row's list that are candidates, in their order, duplicates and all."""
    context = inputs.shape.context
    return [int(entry) for entry in inputs.selected[row] if 0 <= entry < context]


def folded_query(inputs: SparseInputs, row: int | np.int64, kv_head: int) -> F64:
    """[group, head_size]: query * key_scale of a KV head's query heads. Exact: 8 and 24 significant bits."""
    group = inputs.shape.group
    query = inputs.query[row, kv_head * group : (kv_head + 1) * group].astype(np.float64)
    return query * inputs.key_scale[kv_head].astype(np.float64)


def logits(inputs: SparseInputs, row: int | np.int64, kv_head: int, positions: Sequence[int]) -> F64:
    """[group, len(positions)] nats."""
    keys = inputs.key[kv_head, positions].astype(np.float64)
    return inputs.scale * (folded_query(inputs, row, kv_head) @ keys.T)


def rms(values: F64) -> float:
    """Root of the mean square over all elements."""
    return float(np.sqrt(np.mean(np.square(values))))


def relative_rms(out: F64, expected: F64) -> float:
    """RMS(out - expected) / RMS(expected); 0 if both are all zeros, infinity if only the expectation is."""
    error, size = rms(out - expected), rms(expected)
    return error / size if size else (0.0 if error == 0.0 else float("inf"))
