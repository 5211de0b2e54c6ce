# SPDX-License-Identifier: MIT
"""What the tolerances must know of a head's exact logits on the keys that its row selects."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.oracle.attention import F64, candidate_positions, folded_query, logits


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Of each row and query head, [rows, query_heads]:

    largest     nats: the largest magnitude of a logit
    others_log  natural logarithm of the weight of all positions but the heaviest, over that one's; -inf without any
    shift       nats: the largest change of a logit when fp32(query * key_scale) is rounded to FP16
    """

    largest: F64
    others_log: F64
    shift: F64


def survey(inputs: SparseInputs, rows: NDArray[np.int64]) -> Survey:
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
                folded = folded_query(inputs, row, kv_head).astype(np.float32)
                rounding = folded.astype(np.float16).astype(np.float64) - folded
                keys = inputs.key[kv_head, positions].astype(np.float64)
                shift[at, heads] = inputs.scale * np.abs(rounding @ keys.T).max(axis=1)
    return Survey(largest, others_log, shift)


def _log_sum(x: F64) -> F64:
    """log sum exp over the last axis of ascending numbers; -inf for none."""
    if not x.shape[1]:
        return np.full(len(x), -np.inf)
    return x[:, -1] + np.log(np.exp(x - x[:, -1:]).sum(axis=1))
