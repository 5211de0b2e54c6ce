# SPDX-License-Identifier: MIT
"""Oracle: what design.md section 4 says of the inputs, and one pinned digest."""

import itertools
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_bench.data.synthetic import selected_positions, sparse_inputs
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape

SHAPE = SparseShape(rows=3, context=500, candidates=128, query_heads=8, kv_heads=2, head_size=64)
TENSORS = ["query", "key", "value", "key_scale", "value_scale", "selected"]


def same(one: SparseInputs, other: SparseInputs) -> dict[str, bool]:
    return {name: getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in TENSORS}


def test_same_seed_same_bytes_for_ever() -> None:
    """A changed digest means that records from before cannot be resumed or compared: change it knowingly."""
    assert sparse_inputs(SHAPE, DataSpec()).digest() == "faf4ed4087f9557e"
    assert sparse_inputs(SHAPE, DataSpec(seed=1)).digest() != "faf4ed4087f9557e"


def test_tensors_have_the_shapes_and_types_of_the_design() -> None:
    inputs = sparse_inputs(SHAPE, DataSpec())
    assert {name: (getattr(inputs, name).dtype, getattr(inputs, name).shape) for name in TENSORS} == {
        "query": (BF16, (3, 8, 64)),
        "key": (np.int8, (2, 500, 64)),
        "value": (np.int8, (2, 500, 64)),
        "key_scale": (np.float32, (2, 64)),
        "value_scale": (np.float32, (2, 64)),
        "selected": (np.int32, (3, 128)),
    }
    assert inputs.shape == SHAPE
    assert inputs.scale == 1 / 16


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        ({"query_std": 2.8}, "query"),
        ({"key_scale_multiplier": 2.0}, "key_scale"),
        ({"value_scale_multiplier": 2.0}, "value_scale"),
        ({"invalid_fraction": 0.1}, "selected"),
        ({"selection": "random"}, "selected"),
        ({"selection": "blocks:16"}, "selected"),
        ({"selection": "overlap:0.5"}, "selected"),
    ],
)
def test_each_knob_changes_its_tensor_only(change: dict[str, Any], tensor: str) -> None:
    before, after = sparse_inputs(SHAPE, DataSpec()), sparse_inputs(SHAPE, DataSpec(**change))
    assert same(before, after) == {name: name != tensor for name in TENSORS}
    assert before.digest() != after.digest()
    if tensor != "selected":
        np.testing.assert_array_equal(
            getattr(after, tensor).astype(np.float64), 2 * getattr(before, tensor).astype(np.float64)
        )


def test_a_seed_changes_every_tensor() -> None:
    assert not any(same(sparse_inputs(SHAPE, DataSpec()), sparse_inputs(SHAPE, DataSpec(seed=1))).values())


@pytest.mark.parametrize("tensor", TENSORS)
def test_the_digest_sees_every_tensor(tensor: str) -> None:
    inputs = sparse_inputs(SHAPE, DataSpec())
    touched = getattr(inputs, tensor).copy()
    touched.reshape(-1)[-1] += 1
    assert replace(inputs, **{tensor: touched}).digest() != inputs.digest()
    assert replace(inputs, scale=0.1).digest() != inputs.digest()


def test_values_are_distributed_as_the_design_says() -> None:
    inputs = sparse_inputs(SparseShape(rows=64, context=2000), DataSpec())
    for codes in (inputs.key, inputs.value):
        assert np.std(codes.astype(float)) == pytest.approx(40, rel=0.01)
        assert abs(np.mean(codes.astype(float))) < 0.2
        assert (codes.min(), codes.max()) == (-127, 127)
    assert np.std(inputs.query.astype(float)) == pytest.approx(1.4, rel=0.01)
    for scale, (low, high) in ((inputs.key_scale, (0.02, 0.06)), (inputs.value_scale, (0.002, 0.03))):
        assert low <= scale.min() < low * 1.2
        assert high * 0.95 < scale.max() <= high * (1 + 1e-6)
    assert not np.array_equal(inputs.key_scale[0], inputs.key_scale[1])
    assert not np.array_equal(inputs.key, inputs.value)


shapes = st.builds(
    lambda rows, extra, candidates: SparseShape(rows, rows + extra, candidates),
    st.integers(1, 9),
    st.integers(0, 300),
    st.integers(1, 200),
)
selections = st.one_of(
    st.sampled_from(["sorted", "random", "overlap:0", "overlap:1"]),
    st.integers(1, 400).map(lambda run: f"blocks:{run}"),
    st.integers(0, 9999).map(lambda share: f"overlap:{share / 10000:g}"),
)


@given(shapes, selections, st.integers(0, 9))
def test_each_list_holds_distinct_positions_of_its_past(shape: SparseShape, selection: str, seed: int) -> None:
    selected = selected_positions(shape, DataSpec(seed=seed, selection=selection))
    for row, listed in enumerate(selected):
        past = shape.context - shape.rows + row + 1
        count = int(np.count_nonzero(listed != -1))
        chosen = listed[:count]
        assert (listed[count:] == -1).all(), "padding stands at the end"
        assert len(set(chosen.tolist())) == count
        assert (chosen >= 0).all()
        assert (chosen < past).all()
        if not selection.startswith("blocks"):
            assert count == min(shape.candidates, past)
        if selection != "random":
            assert (np.diff(chosen) > 0).all()


@given(shapes, st.integers(1, 400))
def test_blocks_are_aligned_runs(shape: SparseShape, run: int) -> None:
    for row, listed in enumerate(selected_positions(shape, DataSpec(selection=f"blocks:{run}"))):
        past = shape.context - shape.rows + row + 1
        chosen = listed[listed >= 0].tolist()
        blocks = sorted({position // run for position in chosen})
        whole = [p for block in blocks for p in range(block * run, min((block + 1) * run, past))]
        assert chosen == whole[: shape.candidates], "only the row's past and the list's end may cut a run"
        short_last_run = run - (past - past // run * run) if past % run else 0
        assert len(chosen) >= min(shape.candidates, past) - short_last_run


def test_a_huge_run_is_the_whole_past() -> None:
    shape = SparseShape(rows=2, context=100, candidates=128)
    selected = selected_positions(shape, DataSpec(selection="blocks:100000000000000000"))
    assert selected[0].tolist() == [*range(99), *[-1] * 29]
    assert selected[1].tolist() == [*range(100), *[-1] * 28]


@given(st.integers(0, 10000).map(lambda parts: parts / 10000), st.integers(0, 9))
def test_overlap_keeps_its_share_exactly(share: float, seed: int) -> None:
    shape = SparseShape(rows=6, context=1000, candidates=100)
    selected = selected_positions(shape, DataSpec(seed=seed, selection=f"overlap:{share:g}"))
    for before, row in itertools.pairwise(selected):
        assert len(set(before.tolist()) & set(row.tolist())) == round(share * 100)


def test_random_lists_are_unordered_and_rows_differ() -> None:
    selected = selected_positions(SHAPE, DataSpec(selection="random"))
    assert all((np.diff(listed) < 0).any() for listed in selected)
    assert len({tuple(sorted(listed.tolist())) for listed in selected}) == 3


@given(st.floats(0, 1), st.integers(1, 100))
def test_the_invalid_share_is_exact_and_anywhere(fraction: float, candidates: int) -> None:
    shape = SparseShape(rows=4, context=1000, candidates=candidates)
    valid = selected_positions(shape, DataSpec())
    selected = selected_positions(shape, DataSpec(invalid_fraction=fraction))
    invalid = (selected < 0) | (selected >= 1000)
    assert (invalid.sum(axis=1) == round(fraction * candidates)).all()
    np.testing.assert_array_equal(selected[~invalid], valid[~invalid])


def test_invalid_entries_lie_on_both_sides_of_the_cache_and_in_front() -> None:
    """D1, vllm-project/vllm#48364: not only padding at the end."""
    shape = SparseShape(rows=64, context=1000, candidates=100)
    selected = selected_positions(shape, DataSpec(invalid_fraction=0.3))
    assert {-1, 1000, -(2**31), 2**31 - 1} == set(selected[(selected < 0) | (selected >= 1000)].tolist())
    assert (selected[:, 0] < 0).any()
    assert (selected[:, -1] >= 0).any()


def test_the_widest_context_still_has_a_position_outside() -> None:
    """D6, vllm-project/vllm#47671: positions are INT32."""
    shape = SparseShape(rows=1, context=2**31 - 1, candidates=4)
    selected = selected_positions(shape, DataSpec(selection="random", invalid_fraction=0.5))
    assert np.count_nonzero((selected < 0) | (selected >= 2**31 - 1)) == 2


@pytest.mark.parametrize("selection", ["sorted", "random", "blocks:16", "overlap:0.9"])
def test_thousands_of_rows_take_seconds(selection: str) -> None:
    """8192 rows over 32768 positions: about a second on one core, and no list sees a later position."""
    shape = SparseShape(rows=8192, context=32768, candidates=2048, op="prefill")
    start = time.process_time()
    selected = selected_positions(shape, DataSpec(selection=selection))
    assert time.process_time() - start < 6
    last = selected.max(axis=1)
    assert (last <= shape.context - shape.rows + np.arange(shape.rows)).all()
    assert (last[-1], selected.min()) > (20000, -1)


def test_rows_that_fill_the_context_pad_their_short_lists() -> None:
    """Row r has r + 1 positions to choose from, and takes all of them while they are too few."""
    shape = SparseShape(rows=500, context=500, candidates=128, op="prefill")
    for selection in ("sorted", "random", "overlap:0.9"):
        selected = selected_positions(shape, DataSpec(selection=selection))
        for row in (0, 1, 127, 128, 499):
            valid = selected[row][selected[row] >= 0]
            assert valid.size == min(row + 1, 128)
            assert (selected[row, valid.size :] == -1).all()
            assert valid.max() <= row


def test_the_operator_is_no_part_of_the_data() -> None:
    """A prefill and a decode cell of one shape hold the same bytes, so that kernels of both can be compared."""
    decode, prefill = (sparse_inputs(replace(SHAPE, op=op), DataSpec()) for op in ("decode", "prefill"))
    assert decode.digest() == prefill.digest()
    assert (decode.op, prefill.op) == ("decode", "prefill")
