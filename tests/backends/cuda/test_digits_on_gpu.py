# SPDX-License-Identifier: MIT
"""`int8-digits` on the device: every geometry and path against FP64, and the same bits however it is launched."""

import itertools
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda.launch import KernelLaunch
from dsa_bench.backends.cuda.memory import allocate, download_bf16, upload
from dsa_bench.backends.cuda.sparse import DeviceInputs, DigitsWorkspace, Paths
from dsa_bench.bench.check import compare, run_poisoned
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.jit.optional import load
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import DIGITS, DataSpec
from dsa_bench.model.shape import SparseShape, ceil_div
from dsa_bench.oracle.attention import reference
from dsa_bench.splits.digits import ALL_HEADS, CLUSTERS, FEW_HEADS

pytestmark = pytest.mark.gpu

INTEGER, WIDE = 0, 1
PORTABLE = "decode_digits_portable"


def plan(shape: SparseShape, heads: int, splits: int) -> VariantPlan:
    ctas = shape.row_heads * ceil_div(shape.group, heads) * splits
    return VariantPlan(DIGITS, (), SplitPlan(shape.tiles, splits), ctas, heads=heads)


def geometries(backend: Any) -> list[tuple[int, int]]:
    if not backend.clusters:
        return [(ALL_HEADS, splits) for splits in (1, 3, 8, 32)]
    return [(heads, splits) for heads in (FEW_HEADS, ALL_HEADS) for splits in CLUSTERS]


class Judge:
    """FP64 and the bound of one set of inputs, computed once: on the host they take longer than any kernel."""

    def __init__(self, backend: Any, inputs: SparseInputs) -> None:
        self._key = inputs.shape.key
        self._oracle = reference(inputs, max_rows=8)
        self._bound = backend.bound(DIGITS, inputs, self._oracle.rows, self._oracle.out)

    def check(self, variant: VariantPlan, out: np.ndarray) -> None:
        checked = compare(out, self._oracle.out, self._bound, self._oracle.rows)
        assert checked.status == "ok", f"{self._key}, {variant}: {checked.reason}"


def run(backend: Any, inputs: SparseInputs, variant: VariantPlan, forced: int = -1) -> np.ndarray:
    out = upload(np.full(inputs.query.shape, 0x7FC0, np.uint16))
    (call,) = backend.calls(variant, inputs, [DeviceInputs.upload(inputs)], out, Paths(forced))
    for launch in call:
        launch.enqueue()
    backend.synchronize()
    return download_bf16(out)


def portable(backend: Any, inputs: SparseInputs, splits: int, launches: int = 1) -> list[np.ndarray]:
    """What the kernel without clusters gives, also where the device has clusters, in so many launches."""
    kernels = {PORTABLE: backend._kernels[PORTABLE]}
    launcher = type(backend._launcher)(kernels, backend.stream, programmatic=False, sms=backend.device.sm_count)
    variant = plan(inputs.shape, ALL_HEADS, splits)
    workspace = DigitsWorkspace.allocate(variant, kernels[PORTABLE], inputs.shape)
    out, device = allocate(inputs.query.shape, BF16), DeviceInputs.upload(inputs)
    (launch,) = launcher.digits(variant, inputs.shape, device, workspace, out)
    outs: list[np.ndarray] = []
    for _ in range(launches):
        launch.enqueue()
        backend.synchronize()
        outs.append(download_bf16(out))
    return outs


@pytest.mark.parametrize("candidates", [1, 64, 65, 128, 509, 2048, 2112, 8192])
def test_every_list_length_in_every_geometry(backend: Any, candidates: int) -> None:
    inputs = sparse_inputs(SparseShape(3, 8300, candidates), DataSpec(seed=candidates, invalid_fraction=0.2))
    judge = Judge(backend, inputs)
    for heads, splits in geometries(backend):
        variant = plan(inputs.shape, heads, splits)
        judge.check(variant, run(backend, inputs, variant))
    judge.check(plan(inputs.shape, ALL_HEADS, 7), portable(backend, inputs, 7)[0])


@pytest.mark.parametrize("query_heads", [2, 6, 8, 12, 20, 24, 26, 32])
def test_every_group_on_both_paths(backend: Any, query_heads: int) -> None:
    inputs = sparse_inputs(SparseShape(3, 700, 509, query_heads), DataSpec(seed=query_heads, invalid_fraction=0.3))
    judge = Judge(backend, inputs)
    for (heads, splits), path in itertools.product(geometries(backend)[::2], (INTEGER, WIDE)):
        variant = plan(inputs.shape, heads, splits)
        judge.check(variant, run(backend, inputs, variant, path))


@pytest.mark.parametrize("query_heads", [2, 12, 24, 32])
def test_steps_of_three_runs_and_one_of_two_on_both_paths(backend: Any, query_heads: int) -> None:
    if not backend.clusters:
        pytest.skip("without clusters a step is one run")
    inputs = sparse_inputs(SparseShape(3, 1100, 1000, query_heads), DataSpec(seed=query_heads, invalid_fraction=0.3))
    judge = Judge(backend, inputs)
    for splits, path in itertools.product((1, 3), (INTEGER, WIDE)):
        variant = plan(inputs.shape, ALL_HEADS, splits)
        judge.check(variant, run(backend, inputs, variant, path))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 40])
def test_its_own_geometry_for_every_number_of_rows(backend: Any, rows: int) -> None:
    for spec in (DataSpec(seed=rows), DataSpec(seed=rows, query_std=89.6), DataSpec(seed=rows, invalid_fraction=0.5)):
        inputs = sparse_inputs(SparseShape(rows, 4096, 2048), spec)
        buffers = backend.load(inputs, "warm")
        variant = backend.geometry.plan(DIGITS, inputs.shape, None)
        Judge(backend, inputs).check(variant, run_poisoned(buffers.launcher(variant), buffers))


def test_one_huge_channel_ragged_rows_and_rows_without_a_candidate(backend: Any) -> None:
    inputs = sparse_inputs(SparseShape(8, 4096, 2048), DataSpec(seed=9))
    inputs.query[:, :, 77] = 3000.0
    for row in range(8):
        inputs.selected[row, 2048 - 300 * row :] = -1
    inputs.selected[7] = np.resize(np.array([-1, 4096, -(2**31), 2**31 - 1], np.int32), 2048)
    judge = Judge(backend, inputs)
    for heads, splits in geometries(backend):
        variant = plan(inputs.shape, heads, splits)
        out = run(backend, inputs, variant)
        judge.check(variant, out)
        assert not out[7].any(), "a row without a candidate is zeros"


@pytest.mark.parametrize("path", [INTEGER, WIDE])
def test_rows_without_a_candidate_are_zeros_whatever_the_query_and_the_scales_hold(backend: Any, path: int) -> None:
    inputs = sparse_inputs(SparseShape(2, 4096, 2048), DataSpec(seed=3))
    inputs.query[:, 3, 1] = np.inf
    inputs.key_scale[1, 7] = np.nan
    inputs.selected[0] = -1
    for heads, splits in geometries(backend):
        out = run(backend, inputs, plan(inputs.shape, heads, splits), path).astype(np.float32)
        assert not out[0].any()
        assert np.isnan(out[1, [3, *range(12, 24)]]).all()
        assert np.isfinite(np.delete(out[1, :12], 3, axis=0)).all()


def test_what_it_does_not_take_is_refused(backend: Any) -> None:
    for shape in (SparseShape(1, 600, 512, 64), SparseShape(1, 600, 512, 24, 2, 128)):
        with pytest.raises(VariantRefused):
            backend.load(sparse_inputs(shape, DataSpec()), "warm").launcher(plan(shape, ALL_HEADS, 1))
    shape = SparseShape(1, 600, 512)
    with pytest.raises(VariantRefused, match="other numbers of splits than 33"):
        backend.load(sparse_inputs(shape, DataSpec()), "warm").launcher(plan(shape, ALL_HEADS, 33))


def test_graph_replays_with_interleaved_geometries_give_the_same_bits(backend: Any) -> None:
    """100,000 launches: 10,000 replays of a graph of ten, of several geometries over the inputs of three cells."""
    cupy = load("cupy")
    cells = [sparse_inputs(SparseShape(rows, 4096, 2048), DataSpec(seed=rows)) for rows in (1, 3, 8)]
    calls: list[tuple[KernelLaunch, Any, Any]] = []
    mixed = [(FEW_HEADS, 16), (ALL_HEADS, 8), (ALL_HEADS, 6)] if backend.clusters else [(ALL_HEADS, 8), (ALL_HEADS, 32)]
    for inputs, (heads, splits) in itertools.product(cells, mixed):
        out = allocate(inputs.query.shape, BF16)
        (call,) = backend.calls(plan(inputs.shape, heads, splits), inputs, [DeviceInputs.upload(inputs)], out)
        calls.append((call[0], out, inputs))
    calls = (calls * 2)[:10]
    backend.stream.begin_capture()
    for launch, _, _ in calls:
        launch.enqueue()
    graph = backend.stream.end_capture()
    graph.launch(backend.stream)
    backend.synchronize()
    first = [out.copy() for _, out, _ in calls]
    for _ in range(100):  # waited for often, so that a replay that does not end is seen where it is
        for _ in range(100):
            graph.launch(backend.stream)
        backend.synchronize()
        for (_, out, inputs), expected in zip(calls, first, strict=True):
            assert bool((out == expected).all()), inputs.shape.key
        for _, out, _ in calls:  # the tenth launch writes where the first one does
            out.fill(0)
        cupy.cuda.Device().synchronize()


def test_the_kernel_without_clusters_gives_the_same_bits_every_time(backend: Any) -> None:
    """Whichever CTA comes last, splits merge in their order; and the counters are 0 again."""
    inputs = sparse_inputs(SparseShape(8, 4096, 2048), DataSpec(seed=4))
    outs = portable(backend, inputs, 8, launches=50)
    Judge(backend, inputs).check(plan(inputs.shape, ALL_HEADS, 8), outs[0])
    for out in outs[1:]:
        assert (out.view(np.uint16) == outs[0].view(np.uint16)).all()


def test_two_streams_beside_a_kernel_that_fills_the_device(backend: Any) -> None:
    """No CTA waits for one that may not be resident: clusters are placed whole, and without them nobody waits."""
    cupy = load("cupy")
    busy = cupy.RawKernel(
        'extern "C" __global__ void busy(long long clocks) { long long end = clock64() + clocks; '
        "while (clock64() < end) {} }",
        "busy",
    )
    inputs = sparse_inputs(SparseShape(8, 4096, 2048), DataSpec(seed=6))
    variant = backend.geometry.plan(DIGITS, inputs.shape, None)
    expected = run(backend, inputs, variant)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    outs: list[Any] = []
    launches: list[KernelLaunch] = []
    for stream in streams[:2]:
        launcher, out = backend.launcher(stream), allocate(inputs.query.shape, BF16)
        workspace = DigitsWorkspace.allocate(variant, launcher.digits_kernel(variant), inputs.shape)
        launches += launcher.digits(variant, inputs.shape, DeviceInputs.upload(inputs), workspace, out)
        outs.append(out)
    with streams[2]:
        busy((backend.device.sm_count * 16,), (1024,), (np.int64(200_000),))  # 8 waves of 0.1 ms
    for _ in range(20):
        for launch in launches:
            launch.enqueue()
    for stream in streams:
        stream.synchronize()
    for out in outs:
        assert (download_bf16(out).view(np.uint16) == expected.view(np.uint16)).all()
