# SPDX-License-Identifier: MIT
"""Cases of whole rows of random candidates: lists, heads, scales."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import e

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.oracle.attention import F64, candidate_positions, logits
from dsa_bench.oracle.cases.case import BOUND, Case, Setting, Tolerance

HEAD_SIZE = 256
EVERY_SPLIT = (0, 1, 2, 3, 64)
Draw = Callable[..., SparseInputs]


def row_inputs(
    rows: int = 3,
    valid: int = 509,
    entries: int = 512,
    query_heads: int = 24,
    kv_heads: int = 2,
    seed: int = 0,
    query_std: float = 1.4,
    key_std: float = 40.0,
) -> SparseInputs:
    """Data like a model's: `valid` distinct positions in random order, then entries that are no candidates."""
    rng = np.random.default_rng([seed, rows, valid, query_heads])
    context = max(valid, rows) + 11
    key, value = _codes(rng, key_std, (kv_heads, context)), _codes(rng, 40.0, (kv_heads, context))
    selected = rng.choice([-1, context, 2**31 - 1, -(2**31)], (rows, entries)).astype(np.int32)
    for row in range(rows):
        selected[row, :valid] = rng.permutation(context)[:valid]
    query = (rng.standard_normal((rows, query_heads, HEAD_SIZE)) * query_std).astype(BF16)
    key_scale, value_scale = (
        rng.uniform(low, high, (kv_heads, HEAD_SIZE)).astype(np.float32) for low, high in ((0.02, 0.06), (0.002, 0.03))
    )
    return SparseInputs(query, key, value, key_scale, value_scale, selected)


def _codes(rng: np.random.Generator, std: float, cache: tuple[int, int]) -> NDArray[np.int8]:
    normal = rng.standard_normal((*cache, HEAD_SIZE), dtype=np.float32)
    return np.clip(np.rint(normal * np.float32(std)), -127, 127).astype(np.int8)


def _by_rows(draw: Draw) -> tuple[Setting, ...]:
    return tuple(Setting(f"{rows} rows", partial(draw, rows=rows)) for rows in (1, 3, 8))


def model_like(rows: int, seed: int) -> SparseInputs:
    return row_inputs(rows=rows, valid=2048, entries=2048, seed=seed)


def _invalid(where: slice | None, seed: int = 3) -> SparseInputs:
    """Entries of every row's list that are no candidates: a slice, or about half, anywhere."""
    inputs = row_inputs(valid=512, seed=seed)
    entries = np.arange(512)[where] if where else np.random.default_rng(seed).permutation(512)[:256]
    inputs.selected[:, entries] = np.resize(np.array([-1, inputs.shape.context, 2**31 - 1]), len(entries))
    return inputs


def _duplicates(distinct: int) -> SparseInputs:
    inputs = row_inputs(valid=512, seed=4)
    inputs.selected[:] = inputs.selected[:, np.arange(512) % distinct]
    return inputs


def _toy(first: int) -> SparseInputs:
    """D1, vllm-project/vllm#48364: 10 and 20, one nat apart, behind `first` entries that are no candidates."""
    inputs = row_inputs(rows=1, valid=8, query_heads=24)
    for tensor, value in ((inputs.query, 0), (inputs.key_scale, 1), (inputs.value_scale, 1), (inputs.selected, -1)):
        tensor[:] = value
    inputs.query[:, :, 0] = 16
    inputs.key[:, 3, 0], inputs.key[:, 4, 0], inputs.value[:, 3], inputs.value[:, 4] = 0, 1, 10, 20
    inputs.selected[0, first : first + 2] = 3, 4
    return inputs


def _two_scales() -> SparseInputs:
    """D9, lightseekorg/tokenspeed#759: scales that differ between K and V, heads and channels."""
    head, channel = np.arange(2)[:, None], np.arange(HEAD_SIZE)[None, :]
    return replace(
        row_inputs(rows=4, valid=512),
        key_scale=(0.01 * (1 + head) * (1 + channel / 256)).astype(np.float32),
        value_scale=(0.02 * (1 + 2 * head) * (1 + channel / 512)).astype(np.float32),
    )


def _huge_queries(of: tuple[slice | int, ...]) -> SparseInputs:
    """Some queries times 2^28."""
    inputs = row_inputs(seed=1)
    inputs.query[of] = (inputs.query[of].astype(np.float32) * 2.0**28).astype(BF16)
    return inputs


def _value_scales(spread: float) -> SparseInputs:
    """value_scale between 2^14 and 2^17; key scales such that a head's logits spread over `spread` nats on average."""
    inputs = row_inputs(seed=2)
    rng = np.random.default_rng(2)
    inputs.value_scale[:] = 2.0 ** rng.uniform(14, 17, inputs.value_scale.shape)
    drawn = np.mean([np.ptp(x, axis=1) for _, _, x in row_logits(inputs)])
    return replace(inputs, key_scale=(inputs.key_scale * (spread / drawn)).astype(np.float32))


def row_logits(inputs: SparseInputs) -> Iterator[tuple[int, int, F64]]:
    """(row, KV head, logits [group, candidates])."""
    for row in range(inputs.shape.rows):
        for kv_head in range(inputs.shape.kv_heads):
            yield row, kv_head, logits(inputs, row, kv_head, candidate_positions(inputs, row))


def _value_scale_case(spread: float, path: str) -> Case:
    return Case(
        f"value-scales-{spread:g}",
        f"value scales of 2^14 to 2^17 with logits that spread over {spread:g} nats",
        _one(f"{spread:g} nats", partial(_value_scales, spread)),
        tolerance=BOUND,
        path=path,
    )


def _one(label: str, build: Callable[[], SparseInputs]) -> tuple[Setting, ...]:
    return (Setting(label, build),)


def _valid_case(valid: int) -> Case:
    settings = _by_rows(partial(row_inputs, valid=valid))
    return Case(f"valid-{valid}", f"{valid} candidates, then padding to 512 entries", settings, EVERY_SPLIT, BOUND)


def _list_case(entries: int) -> Case:
    settings = _by_rows(partial(row_inputs, valid=entries, entries=entries))
    shows = f"every candidate of {entries} reaches the merge, whatever the splits"
    return Case(f"list-{entries}", shows, settings, EVERY_SPLIT, BOUND)


def _heads_case(heads: int) -> Case:
    settings = _one(f"{heads} heads", partial(row_inputs, query_heads=heads, valid=300))
    return Case(f"heads-{heads}", f"{heads} query heads on 2 KV heads", settings, EVERY_SPLIT, BOUND)


LISTS = (
    *map(_valid_case, (1, 64, 65, 509)),
    *map(_list_case, (2048, 2112, 8192)),
    *map(_heads_case, (8, 12, 24, 32)),
    Case(
        "invalid-entries",
        "tiles and splits without a candidate; a row without any is zeros",
        (
            Setting("front", partial(_invalid, slice(0, 300))),
            Setting("middle", partial(_invalid, slice(100, 400))),
            Setting("scattered", partial(_invalid, None)),
            Setting("all", partial(_invalid, slice(0, 512))),
        ),
        EVERY_SPLIT,
        BOUND,
    ),
    Case(
        "duplicates",
        "a position that is listed twice counts twice",
        tuple(Setting(f"{distinct} positions", partial(_duplicates, distinct)) for distinct in (1, 3, 100)),
        EVERY_SPLIT,
        BOUND,
    ),
    Case(
        "toy-row",
        "D1: a first tile without a candidate leaves the running maximum at minus infinity",
        tuple(Setting(f"behind {first}", partial(_toy, first)) for first in (0, 64, 200)),
        expected=(10 + 20 * e) / (1 + e),
        path="half",
    ),
)

SCALES = (
    Case(
        "two-scales",
        "D9: scales that differ between K and V, heads and channels",
        _one("4 rows", _two_scales),
        tolerance=Tolerance("rms", 2e-3),
    ),
    Case(
        "model-like-1",
        "1 row of data like a model's, pooled over 16 seeds",
        tuple(Setting(f"seed {seed}", partial(model_like, 1, seed)) for seed in range(16)),
        (0, 1),
        Tolerance("rms over floor", 1.04),
        path="half",
    ),
    Case(
        "model-like-8",
        "8 rows of data like a model's",
        _one("8 rows", partial(model_like, 8, 0)),
        (0, 2),
        Tolerance("rms over floor", 1.04),
        path="half",
    ),
    Case(
        "huge-queries",
        "all queries times 2^28: beyond FP16, and logits that FP32 rounds by many nats",
        _one("all", partial(_huge_queries, (slice(None),))),
        tolerance=BOUND,
        path="digits",
    ),
    Case(
        "huge-queries-some",
        "one head's query times 2^28: its CTAs leave the fast path alone",
        _one("row 1, head 5", partial(_huge_queries, (1, 5))),
        tolerance=BOUND,
        path="digits",
    ),
    Case(
        "folded-products",
        "products that are no FP16 numbers, on both sides of the budget",
        tuple(
            Setting(f"queries times {factor}", partial(row_inputs, query_std=1.4 * factor, key_std=5.0))
            for factor in (2, 4)
        ),
        tolerance=BOUND,
        path="digits",
    ),
    *(_value_scale_case(spread, path) for spread, path in ((0.7, "digits"), (11.0, "digits"), (22.0, "single"))),
)
