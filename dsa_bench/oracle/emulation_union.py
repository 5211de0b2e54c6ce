# SPDX-License-Identifier: MIT
"""The arithmetic of `int8-union` in NumPy: which four rows share tiles, and what those tiles do to numbers.

As kernels/dsa/prefill_int8_union.cu; the other rows are those of `int8-ws`. Not emulated: what oracle/emulation_ws.py
does not, and the order in which candidates of a tile are added.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.request import UNION_CONTEXT, UNION_GROUP, UNION_KV_HEADS
from dsa_bench.model.shape import TILE
from dsa_bench.oracle import emulation_ws
from dsa_bench.oracle.attention import F64, candidate_positions, folded_query
from dsa_bench.oracle.emulation import LOG2E, PREFILL, Emulated
from dsa_bench.oracle.emulation_ws import HEADROOM, LARGEST, TOP, add_values, attend_row_ws, two_digits
from dsa_bench.oracle.rounding import F32, exp2
from dsa_bench.oracle.tolerance import FP32_MAX, two_digit_error

PATHS = ("union", *emulation_ws.PATHS)
"""The kernel's, in the order of their numbers."""
ROWS = 4
"""That share tiles."""
MOST_CANDIDATES = 4096
"""Of a union."""
FIRST = 32
"""Entries of a list that say whether rows are alike."""
RUN, SPAN = 16, 4096
"""So many candidates of a union span less than so many positions."""
SHIFT = TOP - HEADROOM
"""log2 of what the FP16 probability tile holds of a reference."""
MARGIN = np.float32(3)
"""Bits of a new reference above the tile's maximum."""
EVEN = np.float32(10)
"""Bits by which the maxima of the tile's quarters differ at most for that."""
NONE = np.float32(-(2.0**31))
"""The score of no candidate."""


def attend_neighbours(inputs: SparseInputs, first_row: int, kv_head: int) -> list[Emulated]:
    """Up to ROWS rows and a KV head: together if they share and two digits suffice, else as `int8-ws`."""
    union = shared_candidates(inputs, first_row)
    if len(union) and _two_digits_suffice(inputs, first_row, kv_head):
        return [Emulated(out, Counter(union=1)) for out in attend_union(inputs, first_row, kv_head, union)]
    rows = range(first_row, min(first_row + ROWS, inputs.shape.rows))
    return [attend_row_ws(inputs, row, kv_head) for row in rows]


def shared_candidates(inputs: SparseInputs, first_row: int) -> NDArray[np.int64]:
    """The union of the lists of ROWS rows, ascending; nothing if they do not share it."""
    nothing = np.zeros(0, np.int64)
    rows = range(first_row, first_row + ROWS)
    if rows.stop > inputs.shape.rows or inputs.shape.context > UNION_CONTEXT or not _look_alike(inputs, rows):
        return nothing
    lists = [candidate_positions(inputs, row) for row in rows]
    listed = sum(map(len, lists))
    union = np.unique(np.concatenate(lists)).astype(np.int64)
    repeated = any(len(set(positions)) < len(positions) for positions in lists)
    if repeated or len(union) > MOST_CANDIDATES or 3 * len(union) > 2 * listed:
        return nothing
    return nothing if bool((np.diff([*union[::RUN], union[-1]]) >= SPAN).any()) else union


def _look_alike(inputs: SparseInputs, rows: Sequence[int]) -> bool:
    """Half of each list's first candidates, at least, are among those of the list before."""
    first = [inputs.selected[row, :FIRST] for row in rows]
    first = [entries[(entries >= 0) & (entries < inputs.shape.context)] for entries in first]
    return all(len(own) > 0 and 2 * np.isin(own, before).sum() >= len(own) for before, own in pairwise(first))


def _two_digits_suffice(inputs: SparseInputs, first_row: int, kv_head: int) -> bool:
    folded = _folded(inputs, first_row, kv_head)
    within = two_digit_error(folded, inputs.scale) <= PREFILL.query_budget
    small = np.abs(inputs.value_scale[kv_head]) <= PREFILL.tail_scale
    fits = np.abs(folded) < FP32_MAX
    few = inputs.shape.group <= UNION_GROUP and inputs.shape.kv_heads <= UNION_KV_HEADS
    return few and bool(within.all() and small.all() and fits.all())


def _folded(inputs: SparseInputs, first_row: int, kv_head: int) -> F64:
    """[ROWS * group, head_size]"""
    return np.concatenate([folded_query(inputs, row, kv_head) for row in range(first_row, first_row + ROWS)])


@np.errstate(all="ignore")
def attend_union(
    inputs: SparseInputs, first_row: int, kv_head: int, union: NDArray[np.int64], margin: np.float32 = MARGIN
) -> F32:
    """[ROWS, group, head_size] before it is rounded to BF16."""
    listed = inputs.selected[first_row : first_row + ROWS]
    has = np.stack([np.isin(union, entries) for entries in listed]).repeat(inputs.shape.group, axis=0)
    keys, values = (codes[kv_head, union].astype(np.float64) for codes in (inputs.key, inputs.value))
    digits, exponent = two_digits(_folded(inputs, first_row, kv_head))
    scores = (digits @ keys.T).astype(np.float32)
    to_log2 = np.ldexp(np.float64(inputs.scale), exponent).astype(np.float32) * LOG2E
    offset = np.full(len(to_log2), np.inf, np.float32)  # the first candidate moves the reference
    l, acc = np.zeros(len(to_log2), np.float32), np.zeros((len(to_log2), values.shape[1]), np.float32)  # noqa: E741
    for first in range(0, len(union), TILE):
        own = slice(first, first + TILE)
        x = _tile(np.where(has[:, own], scores[:, own], NONE))
        p = _weigh(x, to_log2, offset)
        if bool((p.reshape(len(p), -1, 2).sum(axis=2) > LARGEST).any()):  # of a lane, which has two that follow
            moved = np.minimum(offset, _reference(x, to_log2, margin))
            factor = np.where(moved < offset, exp2(moved - offset), np.float32(1))
            offset, l, acc = moved, l * factor, acc * factor[:, None]  # noqa: E741
            p = _weigh(x, to_log2, offset)
        l = l + p.sum(axis=1, dtype=np.float32)  # noqa: E741
        acc = add_values(acc, p.astype(np.float16).astype(np.float64)[:, : len(values[own])], values[own])
    out = acc * (np.float32(1) / l)[:, None] * inputs.value_scale[kv_head]
    return out.reshape(ROWS, inputs.shape.group, -1)


def _tile(scores: F32) -> F32:
    """With no candidate in the places behind the last."""
    return np.pad(scores, ((0, 0), (0, TILE - scores.shape[1])), constant_values=NONE)


def _weigh(x: F32, to_log2: F32, offset: F32) -> F32:
    """What the probability tile holds before it is FP16."""
    log2 = (x.astype(np.float64) * to_log2[:, None] + offset[:, None]).astype(np.float32)
    return np.where(x == NONE, np.float32(0), exp2(log2))


def _reference(x: F32, to_log2: F32, margin: np.float32) -> F32:
    """[heads]: the tile's reference, as what it adds to log2 of a probability; infinite without a candidate."""
    maxima = x.reshape(len(x), 2, 8, 2, 2).max(axis=(2, 4))  # of the quarters: two of each four candidates of a half
    top = maxima.max(axis=(1, 2)) * to_log2
    spread = top - maxima.min(axis=(1, 2)) * to_log2
    reference = np.where(spread <= EVEN, SHIFT - margin, SHIFT) - top
    return np.where((x == NONE).all(axis=1), np.float32(np.inf), reference)
