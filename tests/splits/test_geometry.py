# SPDX-License-Identifier: MIT
"""Oracle: worked values on two GPUs and a CPU, through the caller that a run uses."""

import pytest

from dsa_bench.model.shape import SparseShape
from dsa_bench.splits.explain import explain_cell
from dsa_bench.splits.geometry import CpuSparse, CudaSparse, effective_variants

H200, A100 = CudaSparse(396), CudaSparse(216)


@pytest.mark.parametrize(
    ("geometry", "rows", "candidates", "per_split", "splits"),
    [
        (H200, 8, 2048, 2, 16),
        (H200, 1, 2048, 1, 32),
        (H200, 8, 2112, 2, 17),
        (H200, 4, 4096, 2, 32),
        (H200, 8, 8192, 8, 16),
        (H200, 1, 8192, 4, 32),  # 1 asked for by the rule, 4 after the cap of 32 splits
        (A100, 8, 2048, 4, 8),
    ],
)
def test_worked_values(geometry: CudaSparse, rows: int, candidates: int, per_split: int, splits: int) -> None:
    """D4, Dao-AILab/flash-attention#2901: KV heads, not query heads; tiles, not another dimension."""
    shape = SparseShape(rows, context=8192, candidates=candidates)
    (variant,) = effective_variants(geometry, shape, ["int8-tc"], [0])
    assert (variant.split.tiles_per_split, variant.split.splits) == (per_split, splits)
    assert variant.ctas == rows * 2 * splits


@pytest.mark.parametrize(("geometry", "per_split", "splits"), [(H200, 16, 2), (A100, 32, 1)])
def test_query_heads_in_the_place_of_kv_heads_would_show(geometry: CudaSparse, per_split: int, splits: int) -> None:
    """D4, Dao-AILab/flash-attention#2901: what 24 in place of 2 gives, and must not."""
    wrong = geometry.plan("int8-tc", SparseShape(8, kv_heads=24), 0).split
    assert (wrong.tiles_per_split, wrong.splits) == (per_split, splits)
    assert wrong != geometry.plan("int8-tc", SparseShape(8), 0).split


@pytest.mark.parametrize(("candidates", "splits"), [(1, 1), (64, 1), (65, 2)])
def test_small_lists(candidates: int, splits: int) -> None:
    """D3, Dao-AILab/flash-attention#2503."""
    assert H200.plan("int8-tc", SparseShape(1, candidates=candidates), 0).split.splits == splits


def test_equal_launches_are_measured_once_under_all_names() -> None:
    variants = effective_variants(H200, SparseShape(8), ["previous", "int8-tc"], [0, 1, 2, 4, 100, 32])
    assert [(variant.name, variant.requested) for variant in variants] == [
        ("previous", ()),
        ("int8-tc/splits=16", (0, 2)),
        ("int8-tc/splits=32", (1,)),
        ("int8-tc/splits=8", (4,)),
        ("int8-tc/splits=1", (100, 32)),
    ]


def test_a_target_keeps_to_the_cap() -> None:
    (variant,) = effective_variants(H200, SparseShape(1, context=99999, candidates=33 * 64), ["int8-tc"], [1])
    assert (variant.split.splits, variant.split.tiles_per_split) == (32, 2)


def test_cpu_workers_are_the_slots() -> None:
    two, many = CpuSparse(2), CpuSparse(64)
    assert two.plan("previous", SparseShape(8), None).ctas == 16
    assert two.plan("int8-tc", SparseShape(1), 0).split.splits == 1
    assert many.plan("int8-tc", SparseShape(1), 0).split.splits == 32
    assert many.plan("int8-tc", SparseShape(8), 0).split.splits == 4


def test_an_explanation_names_each_launch_and_each_value() -> None:
    lines = explain_cell(H200, SparseShape(8), ["previous", "int8-tc"], [0, 2, 4])
    assert lines[0] == "rows 8, context 8192, candidates 2048: 32 tiles a row"
    assert len(lines) == 5
    assert "previous: " in lines[1]
    assert "automatic: 2 tiles per split" in lines[2]
    assert "396 CTA slots" in lines[2]
    assert all("16 splits of at most 2 tiles, 256 CTAs" in line for line in lines[2:4])
    assert "4 tiles per split asked" in lines[4]
