# SPDX-License-Identifier: MIT
"""Synthetic inputs: same shape, spec and seed, same bytes."""

import math
import zlib
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape, ceil_div

CODE_STD = 40.0
KEY_SCALE_RANGE = (0.02, 0.06)
VALUE_SCALE_RANGE = (0.002, 0.03)
PADDING = -1
INT32 = np.iinfo(np.int32)

Positions = NDArray[np.int64]


def peak_bytes(shape: SparseShape) -> int:
    """Host memory that drawing a cell's tensors takes at its peak: both caches, and the bits behind the second."""
    cache = shape.kv_heads * shape.context * shape.head_size
    query = shape.rows * shape.query_heads * shape.head_size
    return 4 * cache + 10 * query + 4 * shape.rows * shape.candidates + 16 * shape.context


def sparse_inputs(shape: SparseShape, spec: DataSpec) -> SparseInputs:
    """Draw one cell's tensors. Every tensor has a stream of its own, so one knob changes one tensor."""
    cache_shape = (shape.kv_heads, shape.context, shape.head_size)
    return SparseInputs(
        query=_queries(shape, spec),
        key=_codes(_stream(spec.seed, "key"), cache_shape),
        value=_codes(_stream(spec.seed, "value"), cache_shape),
        key_scale=_scales(_stream(spec.seed, "key_scale"), shape, KEY_SCALE_RANGE, spec.key_scale_multiplier),
        value_scale=_scales(_stream(spec.seed, "value_scale"), shape, VALUE_SCALE_RANGE, spec.value_scale_multiplier),
        selected=selected_positions(shape, spec),
        op=shape.op,
    )


def selected_positions(shape: SparseShape, spec: DataSpec) -> NDArray[np.int32]:
    """One list per row, [rows, candidates]: row r stands at position context - rows + r and sees no later one."""
    rng = _stream(spec.seed, "selected")
    draw = _selection(spec.selection)
    selected = np.full((shape.rows, shape.candidates), PADDING, np.int32)
    previous = np.empty(0, np.int64)
    for row in range(shape.rows):
        past = shape.context - shape.rows + row + 1
        previous = draw(rng, past, shape.candidates, previous)
        selected[row, : len(previous)] = previous
    _invalidate(selected, _stream(spec.seed, "invalid"), spec.invalid_fraction, shape.context)
    return selected


def _stream(seed: int, tensor: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(tensor.encode())])


def _queries(shape: SparseShape, spec: DataSpec) -> NDArray[np.generic]:
    normal = _stream(spec.seed, "query").standard_normal(
        (shape.rows, shape.query_heads, shape.head_size), dtype=np.float32
    )
    return (normal * np.float32(spec.query_std)).astype(BF16)


def _codes(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int8]:
    """Normal codes of standard deviation 40, rounded and clipped to +-127: 16 random bits through a quantile table."""
    return _code_quantiles()[rng.integers(0, 1 << 16, shape, np.uint16)]


@cache
def _code_quantiles() -> NDArray[np.int8]:
    """The code at each of 2^16 equal steps of the cumulative distribution."""
    edges = [0.5 * (1.0 + math.erf((code + 0.5) / (CODE_STD * math.sqrt(2.0)))) for code in range(-127, 127)]
    steps = np.rint(np.array([0.0, *edges, 1.0]) * (1 << 16)).astype(np.int64)
    return np.repeat(np.arange(-127, 128, dtype=np.int8), np.diff(steps))


def _scales(
    rng: np.random.Generator, shape: SparseShape, limits: tuple[float, float], multiplier: float
) -> NDArray[np.float32]:
    uniform = rng.uniform(*limits, (shape.kv_heads, shape.head_size))
    return (uniform * multiplier).astype(np.float32)


def _selection(selection: str) -> Callable[[np.random.Generator, int, int, Positions], Positions]:
    """The drawing of one row's list: (rng, positions it may see, length, the row before's list) -> its list."""
    kind, _, parameter = selection.partition(":")
    if kind == "blocks":
        run = int(parameter)
        return lambda rng, past, length, _: _blocks(rng, past, length, run)
    if kind == "overlap":
        share = float(parameter)
        return lambda rng, past, length, before: _overlapping(rng, past, length, before, share)
    if kind == "random":
        return lambda rng, past, length, _: rng.choice(past, min(length, past), replace=False)
    return lambda rng, past, length, _: np.sort(rng.choice(past, min(length, past), replace=False, shuffle=False))


def _blocks(rng: np.random.Generator, past: int, length: int, run: int) -> Positions:
    """Aligned runs of `run` positions; the row's own, last run may be cut short by its past, the list by its length."""
    run = min(run, past)
    blocks = ceil_div(past, run)
    chosen = np.sort(rng.choice(blocks, min(ceil_div(length, run), blocks), replace=False, shuffle=False))
    positions = (chosen[:, None] * run + np.arange(run)).ravel()
    return positions[positions < past][:length]


def _overlapping(rng: np.random.Generator, past: int, length: int, before: Positions, share: float) -> Positions:
    """round(share * n) positions of the row before, the rest from the ones it did not select (while they last)."""
    length = min(length, past)
    unseen = np.ones(past, bool)
    unseen[before] = False
    fresh = np.flatnonzero(unseen)
    kept = min(len(before), max(round(share * length), length - len(fresh)))
    return np.sort(
        np.concatenate(
            [
                rng.choice(before, kept, replace=False, shuffle=False),
                rng.choice(fresh, length - kept, replace=False, shuffle=False),
            ]
        )
    )


def _invalidate(selected: NDArray[np.int32], rng: np.random.Generator, fraction: float, context: int) -> None:
    """Replace round(fraction * candidates) entries of each list, anywhere in it, by values outside [0, context)."""
    rows, candidates = selected.shape
    count = round(fraction * candidates)
    outside = np.array([-1, context, INT32.min, INT32.max], np.int32)
    for row in range(rows if count else 0):
        selected[row, rng.permutation(candidates)[:count]] = rng.choice(outside, count)
