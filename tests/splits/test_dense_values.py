# SPDX-License-Identifier: MIT
"""Chunks as a map's values, and the launches of a cell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_bench.model.dense import DenseShape
from dsa_bench.model.errors import BadInput
from dsa_bench.model.map_parts import Target
from dsa_bench.splits.dense import MAX_SPLITS, RULES, chunk_of, dense_variants, fixed, requested_chunk, seed_adaptive
from dsa_bench.splits.map_values import size_of, splits_of, target_of

SHAPE = DenseShape(4096, 2600)


@given(st.integers(1, 4096), st.integers(1, MAX_SPLITS))
def test_a_chunk_of_some_splits_launches_them_or_none_does(capacity: int, splits: int) -> None:
    chunk = chunk_of(capacity, splits)
    if chunk is not None:
        assert fixed(capacity, 16, chunk).splits == splits
    else:
        assert splits not in {fixed(capacity, 16, one).splits for one in range(1, capacity + 1)}


@given(st.integers(1, 40_000), st.integers(1, 50_000))
def test_equal_launches_have_one_chunk(capacity: int, asked: int) -> None:
    splits = fixed(capacity, 16, asked).splits
    chunk = chunk_of(capacity, splits)
    assert chunk is not None
    assert fixed(capacity, 16, chunk) == fixed(capacity, 16, asked)
    assert chunk_of(capacity, fixed(capacity, 16, chunk).splits) == chunk


@pytest.mark.parametrize("rows", [1, 3, 8, 16, 600])
def test_the_automatic_rule_has_a_chunk_at_every_capacity(rows: int) -> None:
    """Else a map could not say what the automatic rule chose."""
    for capacity in (*range(1, 4097), 8191, 8192, 16384, 32768):
        plan = seed_adaptive(capacity, rows)
        chunk = chunk_of(capacity, plan.splits)
        assert chunk is not None
        assert fixed(capacity, rows, chunk) == plan


@pytest.mark.parametrize(
    ("capacity", "splits", "chunk"),
    [(4096, 32, 128), (4096, 1, 4096), (129, 64, 2), (5, 4, None), (0, 1, None), (4096, 65, None), (4096, 0, None)],
)
def test_worked_chunks(capacity: int, splits: int, chunk: int | None) -> None:
    assert chunk_of(capacity, splits) == chunk


def test_launches_are_listed_once_with_every_rule_and_value() -> None:
    variants = dense_variants(("fast",), (*RULES, "fixed:128", "fixed:4096"), SHAPE, tuned=512)
    assert [(one.name, one.requested, one.rules) for one in variants] == [
        ("fast/off", (4096,), ("off", "fixed:4096")),
        ("fast/splits=16,chunk=256", (256,), ("fixed:256",)),
        ("fast/splits=32,chunk=128", (0, 128), ("seed-adaptive", "adaptive", "fixed:128")),
        ("fast/splits=32,chunk=live", (), ("live",)),
        ("fast/splits=8,chunk=512", (512,), ("map",)),
    ]  # fmt: skip
    (one,) = dense_variants(("previous",), ("seed-adaptive",), SHAPE, tuned=0)
    assert (one.requested, one.rules) == ((0,), ("seed-adaptive", "map"))
    with pytest.raises(BadInput, match="--rule no"):
        dense_variants(("fast",), ("no",), SHAPE)


def test_names_and_values() -> None:
    assert [requested_chunk(name) for name in ("fixed:0256", "seed-adaptive", "adaptive", "off")] == [
        256,
        0,
        None,
        None,
    ]
    chunk = Target("fast", 256)
    assert (size_of(SHAPE), splits_of(SHAPE, chunk, {}), target_of(SHAPE, "fast", 16, {})) == (4096, 16, chunk)
