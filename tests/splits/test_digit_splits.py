# SPDX-License-Identifier: MIT
"""The geometry of `int8-digits`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_bench.model.shape import SparseShape
from dsa_bench.splits.digits import (
    ALL_HEADS,
    CLUSTERS,
    FEW_HEADS,
    NO_CLUSTERS,
    PLANNED_CLUSTERS,
    DigitSplits,
    digit_splits,
)
from dsa_bench.splits.geometry import CudaSparse

H200 = PLANNED_CLUSTERS[132]


@pytest.mark.parametrize(
    ("rows", "splits"),
    [
        (1, DigitSplits(FEW_HEADS, 16, 3)),
        (2, DigitSplits(FEW_HEADS, 8, 3)),
        (3, DigitSplits(ALL_HEADS, 16, 1)),
        (4, DigitSplits(ALL_HEADS, 8, 1)),
        (7, DigitSplits(ALL_HEADS, 8, 1)),
        (8, DigitSplits(ALL_HEADS, 6, 1)),
        (15, DigitSplits(ALL_HEADS, 4, 1)),
        (66, DigitSplits(ALL_HEADS, 1, 1)),
        (500, DigitSplits(ALL_HEADS, 1, 1)),
    ],
)
def test_an_h200(rows: int, splits: DigitSplits) -> None:
    assert digit_splits(32, rows, 2, 12, 132, H200) == splits


def test_a_device_without_clusters_fills_its_multiprocessors() -> None:
    assert digit_splits(32, 8, 2, 12, 108) == DigitSplits(ALL_HEADS, 6, 1)
    assert digit_splits(32, 1, 2, 12, 108) == DigitSplits(ALL_HEADS, 32, 1)
    assert digit_splits(32, 200, 2, 16, 108) == DigitSplits(ALL_HEADS, 1, 2)


@given(
    tiles=st.integers(0, 20000),
    rows=st.integers(0, 300),
    kv_heads=st.integers(0, 9),
    group=st.integers(0, 16),
    sms=st.integers(0, 200),
    clusters=st.sampled_from([NO_CLUSTERS, H200, {8: 4}]),
)
def test_splits_are_what_the_kernel_takes(
    tiles: int, rows: int, kv_heads: int, group: int, sms: int, clusters: dict[int, int]
) -> None:
    heads, splits, parts = digit_splits(tiles, rows, kv_heads, group, sms, clusters)
    if not all((tiles, rows, kv_heads, group, sms)):
        assert splits == 0
        return
    assert 1 <= splits <= tiles
    assert parts == -(-group // heads)
    assert splits in CLUSTERS if clusters else splits <= 32


def test_a_plan_has_the_ctas_of_its_parts() -> None:
    geometry = CudaSparse(396, 3, H200)
    plan = geometry.plan("int8-digits", SparseShape(1), None)
    assert (plan.name, plan.heads, plan.ctas, plan.split.splits) == ("int8-digits", FEW_HEADS, 96, 16)
    assert geometry.plan("int8-digits", SparseShape(1, 64, 64), None).split.splits == 1
