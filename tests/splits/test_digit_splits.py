# SPDX-License-Identifier: MIT
"""The geometry of `int8-digits`."""

import time

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
    asked_cluster,
    asked_digit_splits,
    digit_splits,
    smallest_digit_target,
)
from dsa_bench.splits.explain import explain_cell
from dsa_bench.splits.geometry import CudaSparse, effective_variants
from dsa_bench.splits.registry import RULES

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
    alone = geometry.plan("int8-digits", SparseShape(1, 64, 64), None)
    assert (alone.split.splits, alone.ctas) == (1, 4)  # two clusters of two: nobody sends to itself alone
    assert CudaSparse(216, 2).plan("int8-digits", SparseShape(1, 64, 64), None).ctas == 2


@pytest.mark.parametrize(
    ("rows", "target", "splits"),
    [
        (1, 1, DigitSplits(FEW_HEADS, 16, 3)),  # no cluster of 32
        (1, 3, DigitSplits(FEW_HEADS, 8, 3)),  # 11 asked
        (1, 5, DigitSplits(ALL_HEADS, 7, 1)),
        (1, 11, DigitSplits(ALL_HEADS, 3, 1)),
        (1, 100, DigitSplits(ALL_HEADS, 1, 1)),
        (2, 2, DigitSplits(ALL_HEADS, 16, 1)),  # 12 clusters of few heads, and 7 fit
        (8, 2, DigitSplits(ALL_HEADS, 16, 1)),  # in three waves
    ],
)
def test_what_a_target_becomes_on_an_h200(rows: int, target: int, splits: DigitSplits) -> None:
    assert asked_digit_splits(32, rows, 2, 12, target, H200) == splits


def test_a_target_keeps_to_clusters_that_the_device_holds() -> None:
    assert asked_digit_splits(32, 1, 2, 12, 2, {16: 0, 8: 4, 6: 9}) == DigitSplits(ALL_HEADS, 8, 1)
    assert asked_digit_splits(32, 1, 2, 12, 5, {16: 0, 8: 4, 6: 9}) == DigitSplits(ALL_HEADS, 6, 1)
    assert asked_digit_splits(64, 1, 2, 12, 1) == DigitSplits(ALL_HEADS, 32, 1)


@given(
    tiles=st.integers(0, 20000),
    rows=st.integers(0, 300),
    group=st.integers(0, 16),
    target=st.integers(1, 20000),
    clusters=st.sampled_from([NO_CLUSTERS, H200, {8: 4}]),
)
def test_a_target_never_asks_for_what_the_kernel_does_not_take(
    tiles: int, rows: int, group: int, target: int, clusters: dict[int, int]
) -> None:
    _, splits, parts = asked_digit_splits(tiles, rows, 2, group, target, clusters)
    assert (splits == 0) == (parts == 0) == (not all((tiles, rows, group)))
    assert splits <= tiles
    assert splits in (0, *CLUSTERS) if clusters else splits <= 32


@given(
    tiles=st.integers(0, 300), splits=st.integers(0, 33), clusters=st.sampled_from([NO_CLUSTERS, H200, {8: 4, 1: 9}])
)
def test_the_smallest_target_is_the_first_that_becomes_so_many_splits(
    tiles: int, splits: int, clusters: dict[int, int]
) -> None:
    becomes = (target for target in range(1, tiles + 1) if asked_cluster(tiles, target, clusters) == splits)
    assert smallest_digit_target(tiles, splits, clusters) == next(becomes, None)


def test_the_smallest_target_of_a_huge_row_takes_no_walk_over_its_tiles() -> None:
    start_s = time.process_time()
    assert smallest_digit_target(2**40, 1, H200) == 2**40
    assert smallest_digit_target(2**40, 32, H200) is None
    assert time.process_time() - start_s < 1


def test_a_sweep_has_each_of_its_geometries_once_under_all_its_names() -> None:
    variants = effective_variants(CudaSparse(396, 3, H200), SparseShape(2), ["int8-digits"], [0, 1, 2, 3, 4, 8])
    assert [(variant.name, variant.heads, variant.requested) for variant in variants] == [
        ("int8-digits/splits=8", FEW_HEADS, (0, 3, 4)),
        ("int8-digits/splits=16", ALL_HEADS, (1, 2)),
        ("int8-digits/splits=4", ALL_HEADS, (8,)),
    ]


def test_named_rules_choose_splits_of_int8_tc_alone() -> None:
    variants = effective_variants(CudaSparse(396, 3, H200), SparseShape(8), ["int8-digits"], [0], RULES)
    assert [variant.name for variant in variants] == ["int8-digits/splits=6"]


def test_an_explanation_counts_clusters() -> None:
    lines = explain_cell(CudaSparse(396, 3, H200), SparseShape(1), ["int8-digits"], [0, 2, 8])
    assert lines[1:] == [
        "  int8-digits, automatic: clusters of 16 with 4 query heads a CTA, the largest of which the device holds all "
        "6 at once -> 16 splits of at most 2 tiles, 96 CTAs",
        "  int8-digits, 2 tiles per split asked, at most 32 splits, and in clusters one of those that the device holds "
        "-> 16 splits of at most 2 tiles, 96 CTAs",
        "  int8-digits, 8 tiles per split asked, at most 32 splits, and in clusters one of those that the device holds "
        "-> 4 splits of at most 8 tiles, 8 CTAs",
    ]
    (_, many) = explain_cell(CudaSparse(396, 3, H200), SparseShape(500), ["int8-digits"], [0])
    assert "unsplit, because the device holds clusters of no size for all rows" in many
    (_, portable) = explain_cell(CudaSparse(216, 2), SparseShape(8), ["int8-digits"], [0])
    assert "automatic: one CTA for each of 108 SMs -> 6 splits" in portable
