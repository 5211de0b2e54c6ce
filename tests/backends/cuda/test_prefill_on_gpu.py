# SPDX-License-Identifier: MIT
"""The prefill kernels on the device against FP64: every shape, list and alignment that they take."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda.backend import MODULES, CudaBackend
from dsa_bench.backends.cuda.launch import Kernel
from dsa_bench.backends.cuda.memory import allocate, download_bf16, upload
from dsa_bench.backends.cuda.sparse import DeviceInputs
from dsa_bench.bench.check import POISON, compare, run_poisoned
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.jit.load import load_module
from dsa_bench.jit.modules import compile_modules
from dsa_bench.jit.target import Target
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.attention import reference
from dsa_bench.splits.geometry import unsplit_plan

pytestmark = pytest.mark.gpu

FORMS_OF_WS = ("int8-ws", "int8-ws many", "int8-ws portable", "int8-ws portable many")
"""Many: what it launches for many CTAs, whatever their number. Portable: as GPUs without wgmma run it."""
DIGIT_KERNELS = ("int8-tc", *FORMS_OF_WS)
KERNELS = ("previous", *DIGIT_KERNELS)


@pytest.fixture(scope="module")
def portable_backend() -> Iterator[Any]:
    """A backend whose `int8-ws` is compiled without the instructions that only this device's architecture has."""
    backend = CudaBackend("prefill")
    (module,) = compile_modules(MODULES["prefill"]["int8-ws"], Target(backend._target.number))
    loaded = load_module(module)
    backend._kernels.update({name: Kernel(loaded, name) for name in module.kernels})
    yield backend
    backend.close()


@pytest.fixture
def prefill_backend(request: pytest.FixtureRequest, prefill_backend: Any) -> Any:
    """The backend that a test's `kernel` needs."""
    kernel = request.node.callspec.params.get("kernel", "") if hasattr(request.node, "callspec") else ""
    return request.getfixturevalue("portable_backend") if "portable" in kernel else prefill_backend


def shape_of(rows: int, context: int, candidates: int, query_heads: int = 24, kv_heads: int = 2) -> SparseShape:
    return SparseShape(rows, context, candidates, query_heads, kv_heads, op="prefill")


def plan(kernel: str, shape: SparseShape) -> VariantPlan:
    planned = unsplit_plan(kernel.partition(" ")[0], shape)
    return dataclasses.replace(planned, ctas=10**6) if kernel.endswith(" many") else planned


def check(backend: Any, inputs: SparseInputs, kernel: str) -> float:
    """Run once over a poisoned output; fails beyond the derived bound. Returns the relative RMS error."""
    buffers = backend.load(inputs, "warm")
    variant = plan(kernel, inputs.shape)
    out = run_poisoned(buffers.launcher(variant), buffers)
    assert not (out.astype(np.float32) == np.float32(POISON)).any(), "an element was not written"
    oracle = reference(inputs)
    checked = compare(out, oracle.out, backend.bound(variant.kernel, inputs, oracle.rows, oracle.out), oracle.rows)
    assert checked.status == "ok", f"{inputs.shape.key}, {kernel}: {checked.reason}"
    assert checked.rms_error is not None
    return checked.rms_error


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("query_heads", [2, 12, 24, 32])
def test_every_group_and_list_length(prefill_backend: Any, kernel: str, query_heads: int) -> None:
    """The sweep of seed 000's prefill test."""
    for candidates, invalid in itertools.product((1, 64, 65, 509), (0.0, 0.3)):
        spec = DataSpec(seed=candidates + query_heads, invalid_fraction=invalid)
        check(prefill_backend, sparse_inputs(shape_of(13, 700, candidates, query_heads), spec), kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_that_see_their_own_past(prefill_backend: Any, kernel: str) -> None:
    """rows == context: row r has r + 1 candidates, and whole tiles without one."""
    check(prefill_backend, sparse_inputs(shape_of(300, 300, 260), DataSpec(seed=1)), kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_tiles_without_a_candidate_anywhere(prefill_backend: Any, kernel: str) -> None:
    inputs = sparse_inputs(shape_of(10, 4096, 512), DataSpec(seed=5))
    outside = np.array([-1, 4096, np.iinfo(np.int32).min, np.iinfo(np.int32).max], np.int32)
    inputs.selected[0, :192] = outside[np.arange(192) % 4]
    inputs.selected[1, 64:320] = -1
    inputs.selected[2, 1:] = -1
    inputs.selected[3, :-1] = 4096
    inputs.selected[4] = 17
    inputs.selected[5] = outside[np.arange(512) % 4]
    inputs.selected[6, 256:] = inputs.selected[6, :256]
    inputs.selected[7, np.arange(512) // 64 % 2 == 0] = -1
    inputs.selected[8, 64:448] = -1
    check(prefill_backend, inputs, kernel)
    buffers = prefill_backend.load(inputs, "warm")
    out = run_poisoned(buffers.launcher(plan(kernel, inputs.shape)), buffers)
    assert not out[5].any(), "a row without a candidate is zeros"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_needle_at_every_boundary_of_tiles(prefill_backend: Any, kernel: str) -> None:
    """All weight on one candidate: losing any single one of 509 would show."""
    for place in (0, 1, 63, 64, 127, 128, 191, 255, 256, 448, 507, 508):
        inputs = sparse_inputs(shape_of(1, 1024, 509), DataSpec(seed=place))
        needle = inputs.selected[0, place]
        inputs.key[:, :, 0] = -127
        inputs.key[:, needle, 0] = 127
        inputs.query[:, :, 0] = 60.0
        check(prefill_backend, inputs, kernel)


def test_previous_takes_every_alignment_and_the_others_say_what_they_take(prefill_backend: Any) -> None:
    """D7, vllm-project/vllm#45466: a view that starts one element in is contiguous and misaligned."""
    shape = shape_of(9, 600, 300)
    inputs = sparse_inputs(shape, DataSpec(seed=3, invalid_fraction=0.1))
    oracle = reference(inputs)
    bound = prefill_backend.bound("previous", inputs, oracle.rows, oracle.out)
    for places in itertools.product((upload, one_element_in), repeat=2):
        device = DeviceInputs(*map(places[0], inputs.tensors.values()), inputs.scale)
        out = places[1](np.full(inputs.query.shape, POISON, BF16))
        for launch in prefill_backend._launcher.prefill(plan("previous", shape), shape, device, out):
            launch.enqueue()
        prefill_backend.synchronize()
        checked = compare(download_bf16(out), oracle.out, bound, oracle.rows)
        assert checked.status == "ok", checked.reason
    for other, limit in (
        (SparseShape(9, 600, 300, 34, 2, op="prefill"), "up to 16 query heads"),
        (SparseShape(9, 600, 300, 24, 2, 128, op="prefill"), "head size 256"),
    ):
        for kernel in KERNELS:
            with pytest.raises(VariantRefused, match=limit):
                check(prefill_backend, sparse_inputs(other, DataSpec()), kernel)
    steep = dataclasses.replace(inputs, scale=1.5)
    check(prefill_backend, steep, "previous")
    for kernel in DIGIT_KERNELS:
        with pytest.raises(VariantRefused, match="softmax scales from 0 to 1"):
            check(prefill_backend, steep, kernel)


def one_element_in(host: Any) -> Any:
    """A device copy that starts one element behind an aligned address."""
    flat = allocate((host.size + 1,), host.dtype)
    view = flat[1:].reshape(host.shape)
    view.set(np.ascontiguousarray(host.view(np.uint16) if host.dtype == BF16 else host))
    return view


@pytest.mark.parametrize("kernel", KERNELS)
def test_offsets_beyond_two_to_the_31(prefill_backend: Any, kernel: str) -> None:
    """D6, vllm-project/vllm#47671: head 1, position 4,194,303 of context 4,194,305 starts at byte 2^31."""
    import cupy

    context = 4_194_305
    small = sparse_inputs(shape_of(1, 64, 2), DataSpec(seed=6))
    positions = [4_194_302, 4_194_303]
    caches = []
    for codes in (small.key, small.value):
        cache = allocate((2, context, 256), np.int8)
        with prefill_backend.stream:
            cache.fill(99)
            cache[:, positions] = cupy.asarray(codes[:, :2])
        caches.append(cache)
    prefill_backend.synchronize()
    shape = shape_of(1, context, 2)
    selected = upload(np.array([positions], np.int32))
    device = DeviceInputs(
        upload(small.query), *caches, upload(small.key_scale), upload(small.value_scale), selected, small.scale
    )
    expected_of = dataclasses.replace(small, selected=np.array([[0, 1]], np.int32))
    oracle = reference(expected_of)
    out = allocate(small.query.shape, BF16)
    for launch in prefill_backend._launcher.prefill(plan(kernel, shape), shape, device, out):
        launch.enqueue()
    prefill_backend.synchronize()
    bound = prefill_backend.bound(plan(kernel, shape).kernel, expected_of, oracle.rows, oracle.out)
    assert compare(download_bf16(out), oracle.out, bound, oracle.rows).status == "ok"


def test_the_error_of_int8_tc_is_the_rounding_of_the_output(prefill_backend: Any) -> None:
    """Relative RMS at most 1.04 of the floor; `previous`, which rounds K and V too, shows some 2.5 of it."""
    inputs = sparse_inputs(shape_of(128, 8192, 2048), DataSpec(seed=4))
    floor = reference(inputs).rounding_floor
    assert check(prefill_backend, inputs, "int8-tc") <= 1.04 * floor
    assert check(prefill_backend, inputs, "previous") <= 3.0 * floor


@pytest.mark.parametrize("kernel", FORMS_OF_WS)
@pytest.mark.parametrize("data", [DataSpec(seed=4), DataSpec(seed=4, query_std=3.0, invalid_fraction=0.2)])
def test_the_error_of_int8_ws_is_the_rounding_of_the_output(prefill_backend: Any, data: DataSpec, kernel: str) -> None:
    """Relative RMS at most 1.02 of the floor."""
    inputs = sparse_inputs(shape_of(128, 8192, 2048), data)
    floor = reference(inputs).rounding_floor
    assert check(prefill_backend, inputs, kernel) <= 1.02 * floor


PATHS = {
    "half": DataSpec(seed=2),
    "digits": DataSpec(seed=2, query_std=11.2),
    "single": DataSpec(seed=2, query_std=5.6, value_scale_multiplier=1.2e7),
}


WS_PATHS = {"two": DataSpec(seed=2), "four": DataSpec(seed=2, query_std=45.0), "single": PATHS["single"]}


@pytest.mark.parametrize("kernel", FORMS_OF_WS)
@pytest.mark.parametrize("query_heads", [24, 32])
@pytest.mark.parametrize("path", WS_PATHS)
def test_every_cta_of_int8_ws_takes_the_path_that_its_inputs_need(
    prefill_backend: Any, path: str, query_heads: int, kernel: str
) -> None:
    inputs = sparse_inputs(shape_of(20, 4096, 1024, query_heads), WS_PATHS[path])
    taken = prefill_backend.load(inputs, "warm").paths(plan(kernel, inputs.shape))
    assert taken == dict.fromkeys(WS_PATHS, 0) | {path: inputs.shape.row_heads}
    check(prefill_backend, inputs, kernel)


@pytest.mark.parametrize("path", PATHS)
def test_every_cta_takes_the_path_that_its_inputs_need(prefill_backend: Any, path: str) -> None:
    inputs = sparse_inputs(shape_of(20, 4096, 1024), PATHS[path])
    variant = plan("int8-tc", inputs.shape)
    taken = prefill_backend.load(inputs, "warm").paths(variant)
    assert taken == dict.fromkeys(PATHS, 0) | {path: variant.ctas}
    check(prefill_backend, inputs, "int8-tc")


@pytest.mark.parametrize("kernel", DIGIT_KERNELS)
@pytest.mark.parametrize("tile", [0, 1, 9, 22, 23])
def test_a_tail_in_any_tile_loses_nothing(prefill_backend: Any, tile: int, kernel: str) -> None:
    """Digits until the tile that holds a candidate 25 nats deep, whose value alone is in channel 0; then single."""
    inputs = sparse_inputs(shape_of(9, 4096, 1500), DataSpec(seed=8, query_std=4.0, value_scale_multiplier=4e7))
    inputs.query[:, :, 0], inputs.key[:, :, 0], inputs.key_scale[:, 0] = 8.0, 127, 0.02
    inputs.value[:, :, 0] = 0
    for row in range(9):
        deep = inputs.selected[row, min(64 * tile + 13, 1499)]
        inputs.key[:, deep], inputs.value[:, deep, 0] = -127, 127
    taken = prefill_backend.load(inputs, "warm").paths(plan(kernel, inputs.shape))
    assert list(taken.values()) == [0, 0, inputs.shape.row_heads]
    check(prefill_backend, inputs, kernel)


@pytest.mark.parametrize("kernel", DIGIT_KERNELS)
@pytest.mark.parametrize("forced", range(3))
def test_every_path_is_right_on_ordinary_data(prefill_backend: Any, forced: int, kernel: str) -> None:
    inputs = sparse_inputs(shape_of(40, 4096, 1500), DataSpec(seed=7, invalid_fraction=0.2))
    buffers = prefill_backend.load(inputs, "warm")
    oracle = reference(inputs)
    variant = plan(kernel, inputs.shape)
    bound = prefill_backend.bound(variant.kernel, inputs, oracle.rows, oracle.out)
    buffers.fill_output(POISON)
    assert list(buffers.paths(variant, forced).values())[forced] == inputs.shape.row_heads
    checked = compare(buffers.output(), oracle.out, bound, oracle.rows)
    assert checked.status == "ok", checked.reason


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_same_input_gives_the_same_bits_and_other_rows_change_nothing(prefill_backend: Any, kernel: str) -> None:
    inputs = sparse_inputs(shape_of(200, 8192, 2048), DataSpec(seed=1))
    buffers = prefill_backend.load(inputs, "warm")
    launch = buffers.launcher(plan(kernel, inputs.shape))
    first = run_poisoned(launch, buffers).view(np.uint16)
    for _ in range(50):
        assert np.array_equal(run_poisoned(launch, buffers).view(np.uint16), first)
    inputs.query[1:] = 3.0
    inputs.selected[1:] = -1
    other = prefill_backend.load(inputs, "warm")
    out = run_poisoned(other.launcher(plan(kernel, inputs.shape)), other)
    assert np.array_equal(out.view(np.uint16)[0], first[0])
    assert not out[1:].any()
