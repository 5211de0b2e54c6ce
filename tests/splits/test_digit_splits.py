# SPDX-License-Identifier: MIT
"""The geometry of `int8-digits`."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsa_bench.model.shape import SparseShape
from dsa_bench.splits.digits import (
    ALL_HEADS,
    CLUSTERS,
    FEW_HEADS,
    NO_CLUSTERS,
    PLANNED_CLUSTERS,
    DigitSplits,
    asked_digit_splits,
    asked_splits,
    digit_splits,
    smallest_digit_target,
)
from dsa_bench.splits.explain import explain_cell
from dsa_bench.splits.geometry import CudaSparse, effective_variants
from dsa_bench.splits.registry import RULES

H200 = PLANNED_CLUSTERS[132]
FEW_CLUSTER, CLUSTER, RESIDENT = (FEW_HEADS, 3, True), (ALL_HEADS, 1, True), (ALL_HEADS, 1, False)


def launch(splits: int, how: tuple[int, int, bool]) -> DigitSplits:
    heads, parts, clustered = how
    return DigitSplits(heads, splits, parts, clustered)


@pytest.mark.parametrize(
    ("candidates", "rows", "splits", "how"),
    [
        (512, 1, 4, FEW_CLUSTER),
        (512, 4, 4, FEW_CLUSTER),
        (512, 8, 2, FEW_CLUSTER),
        (2048, 1, 16, FEW_CLUSTER),
        (2048, 2, 8, FEW_CLUSTER),
        (2048, 4, 8, CLUSTER),
        (2048, 7, 8, CLUSTER),
        (2048, 8, 8, RESIDENT),  # 16 clusters of 8, and 15 fit
        (2048, 66, 1, RESIDENT),
        (2048, 500, 1, RESIDENT),
        (4096, 4, 16, RESIDENT),
        (8192, 1, 16, FEW_CLUSTER),
        (8192, 2, 32, RESIDENT),
        (8192, 3, 22, RESIDENT),
        (8192, 8, 8, RESIDENT),
    ],
)
def test_an_h200(candidates: int, rows: int, splits: int, how: tuple[int, int, bool]) -> None:
    assert digit_splits(candidates // 64, rows, 2, 12, 132, H200) == launch(splits, how)


def test_a_device_without_clusters_fills_its_multiprocessors() -> None:
    assert digit_splits(32, 8, 2, 12, 108) == launch(6, RESIDENT)
    assert digit_splits(128, 1, 2, 12, 108) == launch(32, RESIDENT)
    assert digit_splits(32, 200, 2, 16, 108) == DigitSplits(ALL_HEADS, 1, 2, clustered=False)


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
    heads, splits, parts, clustered = digit_splits(tiles, rows, kv_heads, group, sms, clusters)
    if not all((tiles, rows, kv_heads, group, sms)):
        assert splits == 0
        return
    assert 1 <= splits <= min(tiles, 32)
    assert parts == -(-group // heads)
    row_parts = rows * kv_heads * parts
    if clustered:
        assert splits in CLUSTERS
        assert row_parts <= clusters[splits]
    else:
        assert heads == ALL_HEADS
        assert splits == 1 or row_parts * splits <= sms


def test_a_plan_has_the_ctas_of_its_parts() -> None:
    geometry = CudaSparse(396, 3, H200)
    plan = geometry.plan("int8-digits", SparseShape(1), None)
    assert (plan.name, plan.heads, plan.ctas, plan.split.splits) == ("int8-digits", FEW_HEADS, 96, 16)
    many = geometry.plan("int8-digits", SparseShape(8), None)
    assert (many.heads, many.ctas, many.split.splits, many.clustered) == (ALL_HEADS, 128, 8, False)


@pytest.mark.parametrize(
    ("rows", "target", "splits", "how"),
    [
        (1, 1, 32, RESIDENT),
        (1, 2, 16, FEW_CLUSTER),
        (1, 3, 8, FEW_CLUSTER),  # 11 asked
        (1, 5, 7, FEW_CLUSTER),
        (1, 100, 1, RESIDENT),
        (2, 2, 16, CLUSTER),  # 12 clusters of few heads, and 7 fit
        (4, 1, 16, RESIDENT),  # 32 splits would be 256 CTAs
        (4, 2, 16, RESIDENT),
        (8, 4, 8, RESIDENT),
        (8, 2, 16, CLUSTER),  # in three waves
    ],
)
def test_what_a_target_becomes_on_an_h200(rows: int, target: int, splits: int, how: tuple[int, int, bool]) -> None:
    assert asked_digit_splits(32, rows, 2, 12, target, 132, H200) == launch(splits, how)


def test_a_target_keeps_to_what_the_device_holds() -> None:
    assert asked_digit_splits(32, 1, 2, 12, 2, 132, {16: 0, 8: 4, 6: 9}) == launch(8, CLUSTER)
    assert asked_digit_splits(32, 1, 2, 12, 5, 132, {16: 0, 8: 4, 6: 9}) == launch(6, FEW_CLUSTER)
    assert asked_digit_splits(64, 1, 2, 12, 1, 132) == launch(32, RESIDENT)
    assert asked_digit_splits(64, 8, 2, 12, 1, 132) == launch(8, RESIDENT)


@example(tiles=32, rows=4, clusters=H200, targets=(1, 2))
@given(
    tiles=st.integers(1, 300), rows=st.integers(1, 40), clusters=st.sampled_from([NO_CLUSTERS, H200, {8: 4}]),
    targets=st.tuples(st.integers(1, 300), st.integers(1, 300)),
)  # fmt: skip
def test_launches_of_as_many_splits_are_one_launch(
    tiles: int, rows: int, clusters: dict[int, int], targets: tuple[int, int]
) -> None:
    """So that their number names them; also the automatic one."""
    launches = [asked_digit_splits(tiles, rows, 2, 12, target, 132, clusters) for target in targets]
    launches.append(digit_splits(tiles, rows, 2, 12, 132, clusters))
    assert len(set(launches)) == len({one.splits for one in launches})


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
    _, splits, parts, clustered = asked_digit_splits(tiles, rows, 2, group, target, 132, clusters)
    assert (splits == 0) == (parts == 0) == (not all((tiles, rows, group)))
    assert splits <= min(tiles, 32)
    assert not clustered or splits in CLUSTERS
    assert clustered or splits <= 1 or rows * 2 * parts * splits <= 132


@given(
    tiles=st.integers(0, 300), splits=st.integers(0, 33), clusters=st.sampled_from([NO_CLUSTERS, H200, {8: 4, 1: 9}])
)
def test_the_smallest_target_is_the_first_that_becomes_so_many_splits(
    tiles: int, splits: int, clusters: dict[int, int]
) -> None:
    becomes = (target for target in range(1, tiles + 1) if asked_splits(tiles, target, clusters) == splits)
    assert smallest_digit_target(tiles, splits, clusters) == next(becomes, None)


def test_the_smallest_target_of_a_huge_row_takes_no_walk_over_its_tiles() -> None:
    start_s = time.process_time()
    assert smallest_digit_target(2**40, 1, H200) == 2**40
    assert smallest_digit_target(2**40, 31, H200) is None
    assert time.process_time() - start_s < 1


def test_a_sweep_has_each_of_its_geometries_once_under_all_its_names() -> None:
    variants = effective_variants(CudaSparse(396, 3, H200), SparseShape(2), ["int8-digits"], [0, 1, 2, 3, 4, 8])
    assert [(one.name, one.heads, one.clustered, one.requested) for one in variants] == [
        ("int8-digits/splits=8", FEW_HEADS, True, (0, 3, 4)),
        ("int8-digits/splits=32", ALL_HEADS, False, (1,)),
        ("int8-digits/splits=16", ALL_HEADS, True, (2,)),
        ("int8-digits/splits=4", FEW_HEADS, True, (8,)),
    ]


def test_named_rules_choose_splits_of_int8_tc_alone() -> None:
    variants = effective_variants(CudaSparse(396, 3, H200), SparseShape(8), ["int8-digits"], [0], RULES)
    assert [variant.name for variant in variants] == ["int8-digits/splits=8"]


def test_an_explanation_says_how_splits_merge() -> None:
    lines = explain_cell(CudaSparse(396, 3, H200), SparseShape(1), ["int8-digits"], [0, 2, 8])
    assert lines[1:] == [
        "  int8-digits, automatic: clusters of 16 with 4 query heads a CTA, predicted 4.1 us, the least of all "
        "launches that the device holds at once -> 16 splits of at most 2 tiles, 96 CTAs",
        "  int8-digits, 2 tiles per split asked, at most 32 splits, and in clusters one of those that the device holds "
        "-> 16 splits of at most 2 tiles, 96 CTAs",
        "  int8-digits, 8 tiles per split asked, at most 32 splits, and in clusters one of those that the device holds "
        "-> 4 splits of at most 8 tiles, 24 CTAs",
    ]
    (_, many) = explain_cell(CudaSparse(396, 3, H200), SparseShape(500), ["int8-digits"], [0])
    assert "unsplit, because the device does not hold more CTAs at once" in many
    (_, resident) = explain_cell(CudaSparse(216, 2), SparseShape(8), ["int8-digits"], [0])
    assert "automatic: 6 splits, all CTAs resident, with 12 query heads a CTA" in resident
