# SPDX-License-Identifier: MIT
"""Oracle: the arithmetic of the cases, and the shapes of design.md."""

import pytest

from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import BadInput
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.shape import CELL_KEY, SparseShape, cache_row_offset


def test_a_row_offset_passes_two_to_the_31() -> None:
    """D6, vllm-project/vllm#47671: the first cached row that a signed 32-bit offset cannot reach, and its neighbour."""
    assert cache_row_offset(1, 4_194_303, context=4_194_305, head_size=256) == 2**31
    assert cache_row_offset(1, 4_194_302, context=4_194_305, head_size=256) == 2_147_483_392


def test_a_capacity_beyond_32_bit_offsets_is_accepted() -> None:
    """D6, vllm-project/vllm#47671: offsets are 64 bits wide; positions are INT32, and that limit is told."""
    assert SparseShape(rows=1, context=4_194_305).context == 4_194_305
    assert SparseShape(rows=1, context=2**31 - 1).context == 2**31 - 1
    with pytest.raises(BadInput, match=r"--context 2147483648: must be at most 2147483647"):
        SparseShape(rows=1, context=2**31)


@pytest.mark.parametrize("name", ["rows", "context", "candidates", "query_heads", "kv_heads", "head_size"])
@pytest.mark.parametrize("value", [0, -1])
def test_every_dimension_is_positive(name: str, value: int) -> None:
    with pytest.raises(BadInput, match=rf"--{name.replace('_', '-')} {value}: must be at least 1"):
        SparseShape(**{"rows": 1, name: value})


def test_heads_divide_and_rows_fit() -> None:
    with pytest.raises(BadInput, match="--query-heads 25: must be a multiple of --kv-heads 2"):
        SparseShape(rows=1, query_heads=25)
    with pytest.raises(BadInput, match="--rows 9: must be at most --context 8"):
        SparseShape(rows=9, context=8)
    assert SparseShape(rows=8, context=8).rows == 8


@pytest.mark.parametrize(("candidates", "tiles"), [(1, 1), (64, 1), (65, 2), (2048, 32), (2049, 33)])
def test_tiles(candidates: int, tiles: int) -> None:
    assert SparseShape(rows=1, candidates=candidates).tiles == tiles


def test_a_key_names_each_dimension() -> None:
    shape = SparseShape(rows=3, query_heads=8, kv_heads=4)
    assert shape.key == "op=decode,rows=3,context=8192,candidates=2048,query_heads=8,kv_heads=4,head_size=256"
    assert CELL_KEY.fullmatch(shape.key)
    assert (shape.group, shape.row_heads) == (2, 12)


@pytest.mark.parametrize("splits", [1, 2, 3, 5, 8, 32, 40])
@pytest.mark.parametrize("tiles", [1, 2, 7, 32, 33])
def test_runs_of_tiles_partition_the_row(tiles: int, splits: int) -> None:
    plan = SplitPlan(tiles, splits)
    owned = [plan.tile_range(split) for split in range(splits)]
    assert [tile for run in owned for tile in run] == list(range(tiles))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    assert max(map(len, owned)) == plan.tiles_per_split
    candidates = tiles * 64 - 5
    listed = [entry for split in range(splits) for entry in range(candidates)[plan.candidate_slice(split, candidates)]]
    assert listed == list(range(candidates))


@pytest.mark.parametrize(("tiles", "splits"), [(0, 1), (1, 0), (-1, 1), (1, -1)])
def test_a_plan_without_work_has_no_split(tiles: int, splits: int) -> None:
    """D3, Dao-AILab/flash-attention#2503."""
    assert SplitPlan(0, 0).tiles_per_split == 0
    with pytest.raises(ValueError, match="no plan"):
        SplitPlan(tiles, splits)


def test_equal_launches_have_equal_names() -> None:
    one, other = (VariantPlan("int8-tc", (asked,), SplitPlan(32, 16), 32) for asked in (0, 2))
    assert one.name == other.name == "int8-tc/splits=16"
    assert VariantPlan("previous", (), SplitPlan(32, 1), 2).name == "previous"


def test_a_device_slug_is_a_folder_name() -> None:
    assert DeviceFacts("cuda", "NVIDIA H200 (141 GB)", 132).slug == "nvidia-h200-141-gb"
