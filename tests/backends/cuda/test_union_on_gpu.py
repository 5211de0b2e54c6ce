# SPDX-License-Identifier: MIT
"""`int8-union` on the device against FP64: which groups of rows it unites, and that no row feels its neighbour."""

import dataclasses
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from dsa_bench.bench.check import POISON, compare, run_poisoned
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.request import UNION, DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.attention import reference
from dsa_bench.oracle.cases.case import Setting
from dsa_bench.oracle.cases.catalog import PREFILL_CASES
from dsa_bench.oracle.emulation_union import ROWS, attend_neighbours

pytestmark = pytest.mark.gpu

PATHS = ("union", "two", "four", "single")
OVERLAP = DataSpec(seed=3, selection="overlap:0.95")


def shape_of(rows: int, context: int, candidates: int, query_heads: int = 24) -> SparseShape:
    return SparseShape(rows, context, candidates, query_heads, 2, op="prefill")


def check(backend: Any, inputs: SparseInputs) -> float:
    """Run once over a poisoned output; fails beyond the derived bound. Returns the relative RMS error."""
    buffers = backend.load(inputs, "warm")
    out = run_poisoned(buffers.launcher(backend.geometry.plan(UNION, inputs.shape, None)), buffers)
    assert not (out.astype(np.float32) == np.float32(POISON)).any(), "an element was not written"
    oracle = reference(inputs)
    checked = compare(out, oracle.out, backend.bound(UNION, inputs, oracle.rows, oracle.out), oracle.rows)
    assert checked.status == "ok", f"{inputs.shape.key}: {checked.reason}"
    assert checked.rms_error is not None
    return checked.rms_error


def taken(backend: Any, inputs: SparseInputs, forced: int = -1) -> dict[str, int]:
    """Path -> rows and KV heads that took it, of those that any took."""
    paths = backend.load(inputs, "warm").paths(backend.geometry.plan(UNION, inputs.shape, None), forced)
    assert list(paths) == list(PATHS)
    return {path: count for path, count in paths.items() if count}


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (OVERLAP, "union"),
        (dataclasses.replace(OVERLAP, query_std=45.0), "four"),
        (DataSpec(seed=3), "two"),
        (DataSpec(seed=3, query_std=45.0), "four"),
        (dataclasses.replace(OVERLAP, query_std=5.6, value_scale_multiplier=1.2e7), "single"),
        (DataSpec(seed=3, query_std=5.6, value_scale_multiplier=1.2e7), "single"),
    ],
)
def test_groups_take_the_path_that_their_inputs_need(prefill_backend: Any, data: DataSpec, path: str) -> None:
    inputs = sparse_inputs(shape_of(20, 8192, 1024), data)
    assert taken(prefill_backend, inputs) == {path: inputs.shape.row_heads}
    check(prefill_backend, inputs)


@pytest.mark.parametrize("setting", PREFILL_CASES["neighbour-sinks"].settings, ids=lambda setting: setting.label)
def test_rows_of_the_cases_of_sinks_share(prefill_backend: Any, setting: Setting) -> None:
    inputs = setting.build()
    assert taken(prefill_backend, inputs) == {"union": inputs.shape.row_heads}


@pytest.mark.parametrize("setting", PREFILL_CASES["neighbours"].settings, ids=lambda setting: setting.label)
def test_rows_share_where_the_emulation_says_so(prefill_backend: Any, setting: Setting) -> None:
    inputs = setting.build()
    emulated: Counter[str] = Counter()
    for first, kv_head in itertools.product(range(0, inputs.shape.rows, ROWS), range(inputs.shape.kv_heads)):
        for one in attend_neighbours(inputs, first, kv_head):
            emulated += one.paths
    assert taken(prefill_backend, inputs) == emulated


@pytest.mark.parametrize("rows", range(1, 10))
def test_rows_behind_the_last_four_are_alone(prefill_backend: Any, rows: int) -> None:
    inputs = sparse_inputs(shape_of(rows, 3000, 512), OVERLAP)
    together = {"union": rows // 4 * 8, "two": rows % 4 * 2}
    assert taken(prefill_backend, inputs) == {path: count for path, count in together.items() if count}
    check(prefill_backend, inputs)


def test_rows_that_no_union_takes_are_alone(prefill_backend: Any) -> None:
    """A repeated entry, an empty row, few in common, long unions, groups above 12: all four rows, or none."""
    mixed = sparse_inputs(shape_of(16, 3000, 512), OVERLAP)
    mixed.selected[1, 7] = mixed.selected[1, 8]
    mixed.selected[6] = -1
    assert taken(prefill_backend, mixed) == {"union": 16, "two": 16}
    check(prefill_backend, mixed)
    for alone in (
        sparse_inputs(shape_of(8, 3000, 512, query_heads=32), OVERLAP),
        sparse_inputs(shape_of(8, 3000, 512), dataclasses.replace(OVERLAP, selection="overlap:0.3")),
        sparse_inputs(shape_of(8, 9000, 4000), OVERLAP),
    ):
        assert taken(prefill_backend, alone) == {"two": 16}
        check(prefill_backend, alone)


@pytest.mark.parametrize("context", [131_072, 131_073])
def test_contexts_at_the_limit_and_spans_that_12_bits_do_not_hold(prefill_backend: Any, context: int) -> None:
    near = sparse_inputs(shape_of(8, 1000, 512), OVERLAP)
    caches = {name: np.resize(getattr(near, name), (2, context, 256)) for name in ("key", "value")}
    inputs = dataclasses.replace(near, **caches)
    inputs.selected[4:, 250:] += context - 1000
    expected = {"union": 8, "two": 8} if context == 131_072 else {"two": 16}
    assert taken(prefill_backend, inputs) == expected
    check(prefill_backend, inputs)


@pytest.mark.parametrize("context", [65_536, 65_537, 66_000, 70_000])
def test_unions_on_both_sides_of_16_bits(prefill_backend: Any, context: int) -> None:
    near = sparse_inputs(shape_of(8, 1000, 512), OVERLAP)
    caches = {name: np.resize(getattr(near, name), (2, context, 256)) for name in ("key", "value")}
    inputs = dataclasses.replace(near, **caches)
    inputs.selected[:] += min(context, 66_000) - 1000
    assert taken(prefill_backend, inputs) == {"union": 16}
    check(prefill_backend, inputs)


@pytest.mark.parametrize(("kv_heads", "path"), [(128, "union"), (129, "two")])
def test_up_to_128_kv_heads_share(prefill_backend: Any, kv_heads: int, path: str) -> None:
    inputs = sparse_inputs(SparseShape(4, 600, 512, kv_heads, kv_heads, op="prefill"), OVERLAP)
    assert taken(prefill_backend, inputs) == {path: 4 * kv_heads}
    check(prefill_backend, inputs)


def test_the_last_positions_of_the_largest_caches(prefill_backend: Any) -> None:
    """4 GiB each."""
    context, kv_heads = 131_072, 128
    near = sparse_inputs(SparseShape(4, 1000, 512, kv_heads, kv_heads, op="prefill"), OVERLAP)
    caches = {name: np.zeros((kv_heads, context, 256), np.int8) for name in ("key", "value")}
    for name, cache in caches.items():
        cache[:, -1000:] = getattr(near, name)
    inputs = dataclasses.replace(near, selected=near.selected + np.int32(context - 1000), **caches)
    assert taken(prefill_backend, inputs) == {"union": 4 * kv_heads}
    check(prefill_backend, inputs)


def test_lists_need_no_order(prefill_backend: Any) -> None:
    """Behind the first 32 entries, by which lists look alike or not. The bits are those of ascending lists."""
    inputs = sparse_inputs(shape_of(20, 8192, 2048), OVERLAP)
    variant = prefill_backend.geometry.plan(UNION, inputs.shape, None)

    def bits() -> Any:
        buffers = prefill_backend.load(inputs, "warm")
        return run_poisoned(buffers.launcher(variant), buffers).view(np.uint16)

    ascending = bits()
    rng = np.random.default_rng(0)
    for row in inputs.selected:
        row[32:] = rng.permutation(row[32:])
    assert taken(prefill_backend, inputs) == {"union": 40}
    assert np.array_equal(bits(), ascending)


@pytest.mark.parametrize(("size", "path"), [(4096, "union"), (4097, "two")])
def test_a_union_has_up_to_4096_candidates(prefill_backend: Any, size: int, path: str) -> None:
    inputs = sparse_inputs(shape_of(4, 5000, size), OVERLAP)
    inputs.selected[1:] = inputs.selected[0]
    assert taken(prefill_backend, inputs) == {path: 8}
    check(prefill_backend, inputs)


@pytest.mark.parametrize(("span", "path"), [(4095, "union"), (4096, "two")])
@pytest.mark.parametrize("far", [16, 31])
def test_runs_of_16_span_up_to_12_bits(prefill_backend: Any, far: int, span: int, path: str) -> None:
    """From the first of a run to the first of the next, or to the last candidate of all."""
    inputs = sparse_inputs(shape_of(4, 8192, 32), OVERLAP)
    inputs.selected[:] = np.arange(32)
    inputs.selected[:, far:] += (far - 1) // 16 * 16 + span - far
    assert taken(prefill_backend, inputs) == {path: 8}
    check(prefill_backend, inputs)


@pytest.mark.parametrize(("shared", "path"), [(16, "union"), (15, "two")])
def test_half_of_the_first_32_entries_say_that_lists_are_alike(prefill_backend: Any, shared: int, path: str) -> None:
    inputs = sparse_inputs(shape_of(4, 4096, 512), OVERLAP)
    inputs.selected[:] = np.arange(512)
    inputs.selected[3, shared:32] += 1000
    assert taken(prefill_backend, inputs) == {path: 8}
    check(prefill_backend, inputs)


@pytest.mark.parametrize(("own", "path"), [(150, "union"), (151, "two")])
def test_a_union_is_at_most_two_thirds_of_its_lists(prefill_backend: Any, own: int, path: str) -> None:
    """Of 120 candidates that all have, and as many of each list's own: 720 of 1080, and 724 of 1084."""
    inputs = sparse_inputs(shape_of(4, 4096, 512), OVERLAP)
    inputs.selected[:] = -1
    inputs.selected[:, :120] = np.arange(120)
    for row in range(4):
        inputs.selected[row, 120 : 120 + own] = 120 + own * row + np.arange(own)
    assert taken(prefill_backend, inputs) == {path: 8}
    check(prefill_backend, inputs)


@pytest.mark.parametrize("forced", range(len(PATHS)))
def test_every_path_is_right_on_ordinary_data(prefill_backend: Any, forced: int) -> None:
    inputs = sparse_inputs(shape_of(40, 4096, 1500), dataclasses.replace(OVERLAP, invalid_fraction=0.02))
    buffers = prefill_backend.load(inputs, "warm")
    variant = prefill_backend.geometry.plan(UNION, inputs.shape, None)
    buffers.fill_output(POISON)
    assert buffers.paths(variant, forced)[PATHS[forced]] == inputs.shape.row_heads
    oracle = reference(inputs)
    bound = prefill_backend.bound(UNION, inputs, oracle.rows, oracle.out)
    checked = compare(buffers.output(), oracle.out, bound, oracle.rows)
    assert checked.status == "ok", checked.reason


@pytest.mark.parametrize(
    "data",
    [
        OVERLAP,
        dataclasses.replace(OVERLAP, query_std=3.0, invalid_fraction=0.1),
        dataclasses.replace(OVERLAP, query_std=8.0),  # references move often
        dataclasses.replace(OVERLAP, selection="overlap:0.8"),
    ],
)
def test_the_error_is_the_rounding_of_the_output(prefill_backend: Any, data: DataSpec) -> None:
    """Relative RMS at most 1.02 of the floor."""
    inputs = sparse_inputs(shape_of(128, 8192, 2048), data)
    assert taken(prefill_backend, inputs) == {"union": inputs.shape.row_heads}
    assert check(prefill_backend, inputs) <= 1.02 * reference(inputs).rounding_floor


@pytest.mark.parametrize("candidates", [1, 2, 63, 64, 65, 128, 513])
def test_lists_of_few_candidates_and_broken_tiles(prefill_backend: Any, candidates: int) -> None:
    inputs = sparse_inputs(shape_of(8, 1100, candidates), OVERLAP)
    inputs.selected[1:4] = inputs.selected[0]
    inputs.selected[5:8] = inputs.selected[4][::-1]
    assert taken(prefill_backend, inputs)["union"] >= 8
    check(prefill_backend, inputs)


@pytest.mark.parametrize("query_heads", [2, 4, 10, 22, 24])
def test_groups_of_up_to_12_heads(prefill_backend: Any, query_heads: int) -> None:
    inputs = sparse_inputs(shape_of(12, 2048, 300, query_heads), OVERLAP)
    assert taken(prefill_backend, inputs) == {"union": 24}
    check(prefill_backend, inputs)


def test_rows_that_see_their_own_past(prefill_backend: Any) -> None:
    """rows == context: early rows list every earlier position, and whole tiles of padding."""
    inputs = sparse_inputs(shape_of(300, 300, 260), OVERLAP)
    assert taken(prefill_backend, inputs) == {"union": 600}
    check(prefill_backend, inputs)


@pytest.mark.parametrize("tile", [0, 1, 9, 22])
def test_a_tail_in_any_tile_of_one_row_sends_it_to_path_single(prefill_backend: Any, tile: int) -> None:
    """Values of such a scale are never shared; a candidate 25 nats deep, whose value alone is in channel 0."""
    data = dataclasses.replace(OVERLAP, query_std=4.0, value_scale_multiplier=4e7)
    inputs = sparse_inputs(shape_of(10, 4096, 1500), data)
    inputs.query[:, :, 0], inputs.key[:, :, 0], inputs.key_scale[:, 0] = 8.0, 127, 0.02
    inputs.value[:, :, 0] = 0
    for row in range(10):
        deep = inputs.selected[row, 64 * tile + 13]
        inputs.key[:, deep], inputs.value[:, deep, 0] = -127, 127
    assert taken(prefill_backend, inputs) == {"single": inputs.shape.row_heads}
    check(prefill_backend, inputs)


def test_the_same_input_gives_the_same_bits_and_other_groups_change_nothing(prefill_backend: Any) -> None:
    inputs = sparse_inputs(shape_of(200, 8192, 2048), OVERLAP)
    buffers = prefill_backend.load(inputs, "warm")
    launch = buffers.launcher(prefill_backend.geometry.plan(UNION, inputs.shape, None))
    first = run_poisoned(launch, buffers).view(np.uint16)
    for _ in range(20):
        assert np.array_equal(run_poisoned(launch, buffers).view(np.uint16), first)
    inputs.query[4:] = 3.0
    inputs.selected[4:] = -1
    other = prefill_backend.load(inputs, "warm")
    out = run_poisoned(other.launcher(prefill_backend.geometry.plan(UNION, inputs.shape, None)), other)
    assert np.array_equal(out.view(np.uint16)[:4], first[:4])
    assert not out[4:].any()
