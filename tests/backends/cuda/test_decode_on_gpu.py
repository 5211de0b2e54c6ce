# SPDX-License-Identifier: MIT
"""Both decode kernels on the device against FP64: every shape, list and alignment that they take."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda.memory import allocate, download_bf16, upload
from dsa_bench.backends.cuda.sparse import DeviceInputs
from dsa_bench.backends.cuda.workspaces import Workspace
from dsa_bench.bench.check import POISON, compare, run_poisoned
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import TILE, SparseShape, ceil_div
from dsa_bench.oracle.attention import reference, relative_rms

pytestmark = pytest.mark.gpu

KERNELS = ("previous", "int8-tc")


def plan(kernel: str, shape: SparseShape, splits: int) -> VariantPlan:
    requested = (1,) if kernel == "int8-tc" else ()
    return VariantPlan(kernel, requested, SplitPlan(shape.tiles, splits), shape.row_heads * splits)


def check(backend: Any, inputs: SparseInputs, kernel: str, splits: int) -> float:
    """Run once over a poisoned output; fails beyond the derived bound. Returns the relative RMS error."""
    buffers = backend.load(inputs, "warm")
    out = run_poisoned(buffers.launcher(plan(kernel, inputs.shape, splits)), buffers)
    oracle = reference(inputs)
    checked = compare(out, oracle.out, backend.bound(kernel, inputs, oracle.rows, oracle.out), oracle.rows)
    assert checked.status == "ok", f"{inputs.shape.key}, {kernel}, {splits} splits: {checked.reason}"
    assert checked.rms_error is not None
    return checked.rms_error


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("candidates", [1, 64, 65, 509, 2048, 2112, 8192])
def test_every_list_length_with_few_and_many_splits(backend: Any, kernel: str, candidates: int) -> None:
    tiles = ceil_div(candidates, TILE)
    for rows, splits in itertools.product((1, 3, 8), sorted({1, 2, 3, tiles, tiles + 3})):
        inputs = sparse_inputs(SparseShape(rows, 8300, candidates), DataSpec(seed=candidates + rows))
        check(backend, inputs, kernel, splits)


@pytest.mark.parametrize("query_heads", [2, 6, 8, 12, 20, 24, 32, 64])
def test_every_group(backend: Any, query_heads: int) -> None:
    spec = DataSpec(seed=query_heads, invalid_fraction=0.3)
    inputs = sparse_inputs(SparseShape(3, 700, 509, query_heads), spec)
    for splits in (1, 8, 3):
        check(backend, inputs, "previous", splits)
        if query_heads <= 32:
            check(backend, inputs, "int8-tc", splits)
        else:
            with pytest.raises(VariantRefused, match="up to 16 query heads"):
                check(backend, inputs, "int8-tc", splits)


@pytest.mark.parametrize("kernel", KERNELS)
def test_invalid_entries_anywhere_and_duplicates(backend: Any, kernel: str) -> None:
    """D1, vllm-project/vllm#48364: a first tile of nothing but invalid entries, and rows of nothing else."""
    inputs = sparse_inputs(SparseShape(8, 4096, 512), DataSpec(seed=5))
    outside = np.array([-1, 4096, np.iinfo(np.int32).min, np.iinfo(np.int32).max], np.int32)
    inputs.selected[0, :192] = outside[np.arange(192) % 4]
    inputs.selected[1, 100:300] = -1
    inputs.selected[2, 1:] = -1
    inputs.selected[3, :-1] = 4096
    inputs.selected[4] = 17
    inputs.selected[5] = outside[np.arange(512) % 4]
    inputs.selected[6, 256:] = inputs.selected[6, :256]
    for splits in (1, 2, 8, 11):
        check(backend, inputs, kernel, splits)
        buffers = backend.load(inputs, "warm")
        out = run_poisoned(buffers.launcher(plan(kernel, inputs.shape, splits)), buffers)
        assert not out[5].any(), "a row without a candidate is zeros"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_needle_at_every_boundary_of_tiles_and_splits(backend: Any, kernel: str) -> None:
    """All weight on one candidate: losing any single one of 509 would show."""
    shape = SparseShape(1, 1024, 509)
    for place, splits in itertools.product((0, 1, 63, 64, 127, 128, 191, 255, 256, 448, 507, 508), (1, 3, 8)):
        inputs = sparse_inputs(shape, DataSpec(seed=place))
        needle = inputs.selected[0, place]
        inputs.key[:, :, 0] = -127
        inputs.key[:, needle, 0] = 127
        inputs.query[:, :, 0] = 60.0
        check(backend, inputs, kernel, splits)


def test_the_toy_row(backend: Any) -> None:
    """D1: (10 + 20 e) / (1 + e) = 17.3106, 17.25 in BF16, with the two candidates behind a tile of padding."""
    inputs = sparse_inputs(SparseShape(1, 64, 512, 8, 2), DataSpec())
    inputs.query[:] = 0.0
    inputs.query[:, :, 0] = 16.0
    inputs.key_scale[:] = 1.0
    inputs.value_scale[:] = 1.0
    inputs.key[:, 3, 0], inputs.key[:, 4, 0] = 0, 1
    inputs.value[:, 3], inputs.value[:, 4] = 10, 20
    inputs.selected[:] = -1
    inputs.selected[0, 64:66] = 3, 4
    for kernel, splits in itertools.product(KERNELS, (1, 3, 8)):
        buffers = backend.load(inputs, "warm")
        out = run_poisoned(buffers.launcher(plan(kernel, inputs.shape, splits)), buffers)
        assert (out.astype(np.float32) == 17.25).all(), (kernel, splits)


@pytest.mark.parametrize("head_size", [1, 40, 96, 255, 256])
def test_previous_takes_every_head_size_and_alignment(backend: Any, head_size: int) -> None:
    """D7, vllm-project/vllm#45466: a view that starts one element in is contiguous and misaligned."""
    shape = SparseShape(3, 600, 300, 24, 2, head_size)
    inputs = sparse_inputs(shape, DataSpec(seed=head_size, invalid_fraction=0.1))
    oracle = reference(inputs)
    bound = backend.bound("previous", inputs, oracle.rows, oracle.out)
    for shifted in (False, True):
        place = _one_element_in if shifted else upload
        device = DeviceInputs(*map(place, inputs.tensors.values()), inputs.scale)
        variant = plan("previous", shape, 4)
        out = _one_element_in(np.full(inputs.query.shape, POISON, BF16))
        for launch in backend._launcher.launches(variant, shape, device, Workspace.allocate(shape, variant.split), out):
            launch.enqueue()
        backend.synchronize()
        checked = compare(download_bf16(out), oracle.out, bound, oracle.rows)
        assert checked.status == "ok", checked.reason
    with pytest.raises(VariantRefused, match="head size 256") if head_size != 256 else _no_refusal():
        check(backend, inputs, "int8-tc", 4)


def _one_element_in(host: Any) -> Any:
    """A device copy that starts one element behind an aligned address."""
    flat = allocate((host.size + 1,), host.dtype)
    view = flat[1:].reshape(host.shape)
    view.set(np.ascontiguousarray(host.view(np.uint16) if host.dtype == BF16 else host))
    return view


class _no_refusal:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("kernel", KERNELS)
def test_offsets_beyond_two_to_the_31(backend: Any, kernel: str) -> None:
    """D6, vllm-project/vllm#47671: head 1, position 4,194,303 of context 4,194,305 starts at byte 2^31."""
    import cupy

    context = 4_194_305
    small = sparse_inputs(SparseShape(1, 64, 2), DataSpec(seed=6))
    shape = SparseShape(1, context, 2)
    positions = [4_194_302, 4_194_303]
    caches = []
    for codes in (small.key, small.value):
        cache = allocate((2, context, 256), np.int8)
        with backend.stream:
            cache.fill(99)
            cache[:, positions] = cupy.asarray(codes[:, :2])
        caches.append(cache)
    backend.synchronize()
    selected = upload(np.array([positions], np.int32))
    device = DeviceInputs(
        upload(small.query), *caches, upload(small.key_scale), upload(small.value_scale), selected, small.scale
    )
    expected_of = dataclasses.replace(small, selected=np.array([[0, 1]], np.int32))
    oracle = reference(expected_of)
    variant = plan(kernel, shape, 1)
    out = allocate(small.query.shape, BF16)
    for launch in backend._launcher.launches(variant, shape, device, Workspace.allocate(shape, variant.split), out):
        launch.enqueue()
    backend.synchronize()
    bound = backend.bound(kernel, expected_of, oracle.rows, oracle.out)
    assert compare(download_bf16(out), oracle.out, bound, oracle.rows).status == "ok"


def test_the_error_is_the_rounding_of_the_output(backend: Any) -> None:
    """Relative RMS at most 1.04 of the floor, pooled over 16 data seeds for one row."""
    errors: dict[str, list[float]] = {kernel: [] for kernel in KERNELS}
    floors: list[float] = []
    for seed in range(16):
        inputs = sparse_inputs(SparseShape(1, 8192, 2048), DataSpec(seed=seed))
        floors.append(reference(inputs).rounding_floor)
        for kernel in KERNELS:
            errors[kernel].append(check(backend, inputs, kernel, 32))
    floor = float(np.sqrt(np.mean(np.square(floors))))
    for kernel in KERNELS:
        assert np.sqrt(np.mean(np.square(errors[kernel]))) <= 1.04 * floor, kernel


PATHS = {
    "half": DataSpec(seed=2),
    "digits": DataSpec(seed=2, query_std=11.2),
    "single": DataSpec(seed=2, query_std=5.6, value_scale_multiplier=1.2e7),
}


@pytest.mark.parametrize("path", PATHS)
def test_every_cta_takes_the_path_that_its_inputs_need(backend: Any, path: str) -> None:
    inputs = sparse_inputs(SparseShape(4, 4096, 1024), PATHS[path])
    buffers = backend.load(inputs, "warm")
    variant = plan("int8-tc", inputs.shape, 2)
    taken = buffers.paths(variant)
    assert list(taken) == list(PATHS), "the fastest first"
    assert taken == dict.fromkeys(PATHS, 0) | {path: variant.ctas}
    check(backend, inputs, "int8-tc", 2)


def test_rows_choose_for_themselves(backend: Any) -> None:
    """Large queries in one row of four send that row's CTAs to another path, and change no bit of the others."""
    inputs = sparse_inputs(SparseShape(4, 4096, 1024), DataSpec(seed=2))
    variant = plan("int8-tc", inputs.shape, 4)
    before = backend.load(inputs, "warm")
    usual = run_poisoned(before.launcher(variant), before).view(np.uint16)
    inputs.query[2] = (inputs.query[2].astype(np.float32) * 2.0**20).astype(BF16)
    buffers = backend.load(inputs, "warm")
    assert buffers.paths(variant) == {"half": 24, "digits": 8, "single": 0}
    mixed = run_poisoned(buffers.launcher(variant), buffers).view(np.uint16)
    assert np.array_equal(mixed[[0, 1, 3]], usual[[0, 1, 3]])


@pytest.mark.parametrize("forced", range(3))
def test_every_path_is_right_on_ordinary_data(backend: Any, forced: int) -> None:
    inputs = sparse_inputs(SparseShape(3, 4096, 1500), DataSpec(seed=7, invalid_fraction=0.2))
    buffers = backend.load(inputs, "warm")
    oracle = reference(inputs)
    bound = backend.bound("int8-tc", inputs, oracle.rows, oracle.out)
    for splits in (1, 5, 24):
        buffers.fill_output(POISON)
        variant = plan("int8-tc", inputs.shape, splits)
        assert list(buffers.paths(variant, forced).values())[forced] == variant.ctas
        checked = compare(buffers.output(), oracle.out, bound, oracle.rows)
        assert checked.status == "ok", checked.reason


@pytest.mark.parametrize("tile", [0, 1, 9, 22, 23])
def test_a_tail_in_any_tile_keeps_what_was_summed_before_it(backend: Any, tile: int) -> None:
    """Digits until the tile that holds a candidate 25 nats deep, whose value alone is in channel 0; single from it."""
    inputs = sparse_inputs(SparseShape(2, 4096, 1500), DataSpec(seed=8, query_std=4.0, value_scale_multiplier=4e7))
    inputs.query[:, :, 0], inputs.key[:, :, 0], inputs.key_scale[:, 0] = 8.0, 127, 0.02
    inputs.value[:, :, 0] = 0
    for row in range(2):
        deep = inputs.selected[row, min(64 * tile + 13, 1499)]
        inputs.key[:, deep], inputs.value[:, deep, 0] = -127, 127
    variant = plan("int8-tc", inputs.shape, 1)
    assert backend.load(inputs, "warm").paths(variant) == {"half": 0, "digits": 0, "single": variant.ctas}
    check(backend, inputs, "int8-tc", 1)
    check(backend, inputs, "int8-tc", 5)


def test_a_scale_above_one_is_refused(backend: Any) -> None:
    inputs = dataclasses.replace(sparse_inputs(SparseShape(1, 256, 128), DataSpec()), scale=1.5)
    with pytest.raises(VariantRefused, match="softmax scales from 0 to 1"):
        check(backend, inputs, "int8-tc", 2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_same_input_gives_the_same_bits_and_other_rows_change_nothing(backend: Any, kernel: str) -> None:
    inputs = sparse_inputs(SparseShape(8, 8192, 2048), DataSpec(seed=1))
    buffers = backend.load(inputs, "warm")
    launch = buffers.launcher(plan(kernel, inputs.shape, 4))
    first = run_poisoned(launch, buffers).view(np.uint16)
    for _ in range(1000):
        assert np.array_equal(run_poisoned(launch, buffers).view(np.uint16), first)
    inputs.query[1:] = 3.0
    inputs.selected[1:] = -1
    other = backend.load(inputs, "warm")
    out = run_poisoned(other.launcher(plan(kernel, inputs.shape, 4)), other)
    assert np.array_equal(out.view(np.uint16)[0], first[0])


def test_a_lost_tile_would_fail_the_check(backend: Any) -> None:
    """The check that guards every measurement sees one tile of 32 missing."""
    inputs = sparse_inputs(SparseShape(1, 8192, 2048), DataSpec(seed=3))
    oracle = reference(inputs)
    without = inputs.selected.copy()
    without[0, 640:704] = -1
    buffers = backend.load(dataclasses.replace(inputs, selected=without), "warm")
    for kernel in KERNELS:
        out = run_poisoned(buffers.launcher(plan(kernel, inputs.shape, 32)), buffers)
        bound = backend.bound(kernel, inputs, oracle.rows, oracle.out)
        assert compare(out, oracle.out, bound, oracle.rows).status == "wrong_result"
        assert relative_rms(out[oracle.rows].astype(np.float64), oracle.out) > 0.01
