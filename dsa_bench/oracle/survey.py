# SPDX-License-Identifier: MIT
"""What the tolerances must know of a head's exact logits on the keys that its row selects."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.oracle.attention import F64, candidate_positions, folded_query, logits
from dsa_bench.oracle.rounding import dequantised

Rounded = Literal["query", "keys"]
"""What a kernel rounds before it multiplies: fp32(query * key_scale) to FP16, or fp32(code * key_scale) to BF16."""
BLOCK = 1024
"""Positions whose rounding errors are looked at together."""


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Of each row and query head, [rows, query_heads]:

    largest     nats: the largest magnitude of a logit
    others_log  natural logarithm of the weight of all positions but the heaviest, over that one's; -inf without any
    shift       nats: the largest change of a logit when `rounded` is rounded
    """

    largest: F64
    others_log: F64
    shift: F64


Look = Callable[[SparseInputs, NDArray[np.int64], Rounded], Survey]
"""`survey`, or one that gives upper bounds of its figures for less: Norms.survey."""


def survey(inputs: SparseInputs, rows: NDArray[np.int64], rounded: Rounded = "query") -> Survey:
    """Look at every logit of `rows`. Entries of one position share its logit, so they count as one candidate."""
    shape = inputs.shape
    largest, shift = np.zeros((2, len(rows), shape.query_heads))
    others_log = np.full((len(rows), shape.query_heads), -np.inf)
    for at, row in enumerate(rows):
        positions, counts = np.unique(np.array(candidate_positions(inputs, row), np.int64), return_counts=True)
        for kv_head in range(shape.kv_heads if positions.size else 0):
            heads = slice(kv_head * shape.group, (kv_head + 1) * shape.group)
            with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
                x = logits(inputs, row, kv_head, positions.tolist())
                largest[at, heads] = np.abs(x).max(axis=1)
                weight = np.sort(x + np.log(counts), axis=1)
                others_log[at, heads] = _log_sum(weight[:, :-1] - weight[:, -1:])
                moved = _logit_changes(inputs, row, kv_head, positions, rounded)
                shift[at, heads] = inputs.scale * np.abs(moved).max(axis=1)
    return Survey(largest, others_log, shift)


def key_rounding(inputs: SparseInputs, kv_head: int, positions: NDArray[np.int64] | slice) -> F64:
    """[positions, head_size]: what rounding fp32(code * key_scale) to BF16 changes, that FP32 product included."""
    codes, scale = inputs.key[kv_head, positions], inputs.key_scale[kv_head]
    exact = codes.astype(np.float64) * scale.astype(np.float64)
    return dequantised(codes, scale).astype(np.float64) - exact


def query_rounding(folded: F64) -> F64:
    """What rounding fp32(folded) to FP16 changes of it."""
    single = folded.astype(np.float32)
    return single.astype(np.float16).astype(np.float64) - single


def _logit_changes(
    inputs: SparseInputs, row: int | np.int64, kv_head: int, positions: NDArray[np.int64], rounded: Rounded
) -> F64:
    """[group, positions], before the softmax scale."""
    if rounded == "query":
        keys = inputs.key[kv_head, positions].astype(np.float64)
        return query_rounding(folded_query(inputs, row, kv_head)) @ keys.T
    group = inputs.shape.group
    query = inputs.query[row, kv_head * group : (kv_head + 1) * group].astype(np.float64)
    return query @ key_rounding(inputs, kv_head, positions).T


class Norms:
    """Upper bounds of a survey from the lengths of vectors: |sum a b| <= sqrt(sum a^2) * sqrt(sum b^2).

    Nothing is gathered, so thousands of rows take seconds. A length is the largest over the whole cache; which
    candidate dominates stays unknown.
    """

    def __init__(self, inputs: SparseInputs) -> None:
        self._inputs = inputs

    def survey(self, inputs: SparseInputs, rows: NDArray[np.int64], rounded: Rounded) -> Survey:
        """Bounds for rows of the inputs that this was made for."""
        query = inputs.query[rows].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            folded = query * inputs.key_scale.astype(np.float64).repeat(inputs.shape.group, axis=0)
            changed = query_rounding(folded) if rounded == "query" else query
            lengths = self._keys if rounded == "query" else self._key_rounding
            group = inputs.shape.group
            largest = inputs.scale * _length(folded) * self._keys.repeat(group)
            shift = inputs.scale * _length(changed) * lengths.repeat(group)
        return Survey(largest, np.full(largest.shape, np.inf), shift)

    @cached_property
    def _keys(self) -> F64:
        """[kv_heads]: the longest vector of codes."""
        return self._longest(lambda kv_head, part: self._inputs.key[kv_head, part].astype(np.float64))

    @cached_property
    def _key_rounding(self) -> F64:
        """[kv_heads]: the longest vector of what BF16 changes."""
        return self._longest(lambda kv_head, part: key_rounding(self._inputs, kv_head, part))

    def _longest(self, vectors: Callable[[int, slice], F64]) -> F64:
        shape = self._inputs.shape
        parts = [slice(first, first + BLOCK) for first in range(0, shape.context, BLOCK)]
        return np.array([max(_length(vectors(head, part)).max() for part in parts) for head in range(shape.kv_heads)])


def _length(vectors: F64) -> F64:
    """Over the last axis, and no less than it is: its own roundings are allowed for."""
    return np.sqrt(np.einsum("...d,...d->...", vectors, vectors)) * (1 + 2.0**-40)


def _log_sum(x: F64) -> F64:
    """log sum exp over the last axis of ascending numbers; -inf for none."""
    if not x.shape[1]:
        return np.full(len(x), -np.inf)
    return x[:, -1] + np.log(np.exp(x - x[:, -1:]).sum(axis=1))
