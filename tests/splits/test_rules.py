# SPDX-License-Identifier: MIT
"""Oracle: worked values of the cases (computed by hand from the seed's rule), and what every rule must hold to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_bench.model.shape import ceil_div
from dsa_bench.splits.rules import MAX_SPLITS, capped_splits, grouped_splits, seed_wave

counts = st.integers(1, 5000)


@pytest.mark.parametrize(
    ("tiles", "row_heads", "cta_slots"), [(0, 2, 396), (32, 0, 396), (32, 2, 0), (0, 0, 0), (-1, 2, 396), (32, 2, -1)]
)
def test_nothing_to_do_is_no_launch(tiles: int, row_heads: int, cta_slots: int) -> None:
    """D3, Dao-AILab/flash-attention#2503: rows, candidates, KV heads or resident CTAs of zero."""
    assert seed_wave(tiles, row_heads, cta_slots) == 0
    assert capped_splits(tiles, seed_wave(tiles, row_heads, cta_slots)) == 0


@pytest.mark.parametrize("shape", [(0, 1, 2, 12), (2048, 0, 2, 12), (2048, 1, 0, 12), (2048, 1, 2, 0), (-1, 1, 1, 1)])
def test_the_grouped_rule_has_no_launch_either(shape: tuple[int, int, int, int]) -> None:
    """D3, Dao-AILab/flash-attention#2503."""
    assert grouped_splits(*shape) == 0


@pytest.mark.parametrize(
    ("candidates", "rows", "splits"), [(1, 1, 1), (64, 1, 1), (65, 1, 2), (2048, 1, 32), (2048, 8, 4), (2048, 1000, 1)]
)
def test_the_grouped_rule_asks_for_128_ctas(candidates: int, rows: int, splits: int) -> None:
    """2 KV heads of 12 query heads are 4 blocks a row: 32 splits for one row, 4 for 8."""
    assert grouped_splits(candidates, rows, kv_heads=2, group=12) == splits


@given(counts, counts, counts)
def test_the_automatic_rule_is_the_least_power_of_two_in_one_wave(tiles: int, row_heads: int, cta_slots: int) -> None:
    per_split = seed_wave(tiles, row_heads, cta_slots)
    assert per_split.bit_count() == 1

    def fits(value: int) -> bool:
        return row_heads * ceil_div(tiles, value) <= cta_slots

    assert fits(per_split) or per_split >= tiles
    assert per_split == 1 or not fits(per_split // 2)


@given(counts, counts)
def test_caps_keep_splits_in_range(tiles: int, per_split: int) -> None:
    splits = capped_splits(tiles, per_split)
    assert 1 <= splits <= min(tiles, MAX_SPLITS)
    assert splits == MAX_SPLITS or ceil_div(tiles, splits) <= per_split


@given(counts, counts, counts, st.integers(1, 64))
def test_the_grouped_rule_leaves_no_split_without_a_tile(candidates: int, rows: int, kv_heads: int, group: int) -> None:
    splits = grouped_splits(candidates, rows, kv_heads, group)
    assert 1 <= splits <= ceil_div(candidates, 64)
