# SPDX-License-Identifier: MIT
"""`int8-digits` on the device: every geometry and path against FP64, and the same bits however it is launched."""

import itertools
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda.launch import KernelLaunch
from dsa_bench.backends.cuda.memory import allocate, download_bf16, upload
from dsa_bench.backends.cuda.sparse import DeviceInputs, Paths
from dsa_bench.backends.cuda.workspaces import Mailboxes, empty_mailboxes
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
RESIDENT = (1, 2, 3, 7, 8, 9, 16, 17, 21, 32)
"""Splits that merge through mailboxes, at each number of teams to a line and its edges."""


def plan(shape: SparseShape, heads: int, splits: int) -> VariantPlan:
    """A launch with so many heads a CTA in clusters; with 0 heads, of CTAs that are all resident."""
    of_cta = heads or ALL_HEADS
    ctas = shape.row_heads * ceil_div(shape.group, of_cta) * splits
    return VariantPlan(DIGITS, (), SplitPlan(shape.tiles, splits), ctas, heads=of_cta, clustered=heads > 0)


def geometries(backend: Any, shape: SparseShape) -> list[tuple[int, int]]:
    """Heads and splits of every launch in clusters, and of those with all CTAs resident that the device holds."""
    row_parts = shape.row_heads * ceil_div(shape.group, ALL_HEADS)
    resident = [(0, splits) for splits in RESIDENT if splits == 1 or splits * row_parts <= backend.device.sm_count]
    clustered = itertools.product((FEW_HEADS, ALL_HEADS), CLUSTERS) if backend.clusters else ()
    return [*clustered, *resident]


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


@pytest.mark.parametrize("candidates", [1, 64, 65, 128, 509, 2048, 2112, 8192])
def test_every_list_length_in_every_geometry(backend: Any, candidates: int) -> None:
    inputs = sparse_inputs(SparseShape(3, 8300, candidates), DataSpec(seed=candidates, invalid_fraction=0.2))
    judge = Judge(backend, inputs)
    for heads, splits in geometries(backend, inputs.shape):
        variant = plan(inputs.shape, heads, splits)
        judge.check(variant, run(backend, inputs, variant))


@pytest.mark.parametrize("query_heads", [2, 6, 8, 12, 20, 24, 26, 32])
def test_every_group_on_both_paths(backend: Any, query_heads: int) -> None:
    inputs = sparse_inputs(SparseShape(3, 700, 509, query_heads), DataSpec(seed=query_heads, invalid_fraction=0.3))
    judge = Judge(backend, inputs)
    for (heads, splits), path in itertools.product(geometries(backend, inputs.shape)[::2], (INTEGER, WIDE)):
        variant = plan(inputs.shape, heads, splits)
        judge.check(variant, run(backend, inputs, variant, path))


@pytest.mark.parametrize("query_heads", [2, 12, 24, 32])
def test_steps_of_three_runs_and_one_of_two_on_both_paths(backend: Any, query_heads: int) -> None:
    if not backend.clusters:
        pytest.skip("without clusters a step is one run")
    inputs = sparse_inputs(SparseShape(3, 1100, 1000, query_heads), DataSpec(seed=query_heads, invalid_fraction=0.3))
    judge = Judge(backend, inputs)
    for (heads, splits), path in itertools.product(((ALL_HEADS, 2), (ALL_HEADS, 3), (0, 1), (0, 3)), (INTEGER, WIDE)):
        variant = plan(inputs.shape, heads, splits)
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
    for heads, splits in geometries(backend, inputs.shape):
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
    for heads, splits in geometries(backend, inputs.shape):
        out = run(backend, inputs, plan(inputs.shape, heads, splits), path).astype(np.float32)
        assert not out[0].any()
        assert np.isnan(out[1, [3, *range(12, 24)]]).all()
        assert np.isfinite(np.delete(out[1, :12], 3, axis=0)).all()


def test_what_it_does_not_take_is_refused(backend: Any) -> None:
    for shape in (SparseShape(1, 600, 512, 64), SparseShape(1, 600, 512, 24, 2, 128)):
        with pytest.raises(VariantRefused):
            backend.load(sparse_inputs(shape, DataSpec()), "warm").launcher(plan(shape, 0, 1))
    shape = SparseShape(1, 600, 512)
    with pytest.raises(VariantRefused, match="other numbers of splits than 33"):
        backend.load(sparse_inputs(shape, DataSpec()), "warm").launcher(plan(shape, 0, 33))


def test_more_ctas_than_the_device_holds_at_once_are_refused_by_the_driver(backend: Any) -> None:
    """They would wait for each other for ever."""
    inputs = sparse_inputs(SparseShape(40, 4096, 2048), DataSpec())
    variant = plan(inputs.shape, 0, 32)
    assert variant.ctas > backend.device.sm_count
    with pytest.raises(VariantRefused, match="decode_digits_resident: the driver refused the launch"):
        run(backend, inputs, variant)
    unsplit = plan(SparseShape(100, 4096, 2048), 0, 1)
    many = sparse_inputs(SparseShape(100, 4096, 2048), DataSpec())
    Judge(backend, many).check(unsplit, run(backend, many, unsplit))


def test_graph_replays_with_interleaved_geometries_give_the_same_bits(backend: Any) -> None:
    """100,000 launches: 5,000 replays of a graph of twenty, of several geometries over the inputs of three cells, with
    the same mailboxes."""
    cupy = load("cupy")
    cells = [sparse_inputs(SparseShape(rows, 4096, 2048), DataSpec(seed=rows)) for rows in (1, 3, 8)]
    calls: list[tuple[KernelLaunch, Any, Any]] = []
    mailboxes = empty_mailboxes(4 * 2**20)  # of all geometries
    for inputs, (heads, splits) in itertools.product(cells, [(FEW_HEADS, 16), (0, 8), (0, 5), (0, 16), (0, 1)]):
        variant = plan(inputs.shape, heads, splits)
        if (heads and not backend.clusters) or (splits > 1 and not heads and variant.ctas > backend.device.sm_count):
            continue
        out, boxes = allocate(inputs.query.shape, BF16), Mailboxes.of(mailboxes, variant, inputs.shape)
        (call,) = backend._launcher.digits(variant, inputs.shape, DeviceInputs.upload(inputs), boxes, out)
        calls.append((call, out, inputs))
    calls = (calls * 2)[:20]
    backend.stream.begin_capture()
    for launch, _, _ in calls:
        launch.enqueue()
    graph = backend.stream.end_capture()
    graph.launch(backend.stream)
    backend.synchronize()
    first = [out.copy() for _, out, _ in calls]
    for _ in range(100):  # waited for often, so that a replay that does not end is seen where it is
        for _ in range(50):
            graph.launch(backend.stream)
        backend.synchronize()
        for (_, out, inputs), expected in zip(calls, first, strict=True):
            assert bool((out == expected).all()), inputs.shape.key
        for _, out, _ in calls:  # the last launches write where the first ones do
            out.fill(0)
        cupy.cuda.Device().synchronize()
    assert bool((mailboxes == 0xFFFFFFFF).all()), "a launch leaves its mailboxes empty"


def test_mailboxes_are_empty_after_any_number_of_splits(backend: Any) -> None:
    """Also those of CTAs that take no line or not every head, which launches of other sizes would read."""
    inputs = sparse_inputs(SparseShape(2, 4096, 2048), DataSpec(seed=8))
    mailboxes, judge = empty_mailboxes(4 * 2**20), Judge(backend, inputs)
    device, out = DeviceInputs.upload(inputs), allocate(inputs.query.shape, BF16)
    for splits, path in itertools.product(range(1, 33), (INTEGER, WIDE)):
        variant = plan(inputs.shape, 0, splits)
        if splits > 1 and variant.ctas > backend.device.sm_count:
            continue
        boxes = Mailboxes.of(mailboxes, variant, inputs.shape)
        (launch,) = backend._launcher.digits(variant, inputs.shape, device, boxes, out, Paths(path))
        launch.enqueue()
        backend.synchronize()
        judge.check(variant, download_bf16(out))
        assert bool((mailboxes == 0xFFFFFFFF).all()), splits


@pytest.mark.parametrize(("rows", "splits"), [(8, 8), (2, 32)])
def test_mailboxes_give_the_same_bits_every_time(backend: Any, rows: int, splits: int) -> None:
    """Whichever CTA comes first, splits merge in their order; on both paths, and also beside NaNs."""
    inputs = sparse_inputs(SparseShape(rows, 4096, 2048), DataSpec(seed=4))
    inputs.query[-1, 3, 1] = np.nan
    variant = plan(inputs.shape, 0, splits)
    for path in (INTEGER, WIDE):
        outs = [run(backend, inputs, variant, path).view(np.uint16) for _ in range(10)]
        assert all((out == outs[0]).all() for out in outs)
        assert np.isnan(outs[0].view(BF16)[-1, 3].astype(np.float32)).all()


@pytest.mark.parametrize(("heads", "splits"), [(ALL_HEADS, 6), (0, 8)])
def test_two_streams_beside_a_kernel_that_fills_the_device(backend: Any, heads: int, splits: int) -> None:
    """No CTA waits for one that may not be resident: a cluster is placed whole, as is a cooperative launch."""
    if heads and not backend.clusters:
        pytest.skip("no clusters")
    cupy = load("cupy")
    busy = cupy.RawKernel(
        'extern "C" __global__ void busy(long long clocks) { long long end = clock64() + clocks; '
        "while (clock64() < end) {} }",
        "busy",
    )
    inputs = sparse_inputs(SparseShape(8, 4096, 2048), DataSpec(seed=6))
    variant = plan(inputs.shape, heads, splits)
    expected = run(backend, inputs, variant)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    outs: list[Any] = []
    launches: list[KernelLaunch] = []
    for stream in streams[:2]:
        launcher, out = backend.launcher(stream), allocate(inputs.query.shape, BF16)
        boxes = Mailboxes.of(empty_mailboxes(2**21), variant, inputs.shape)
        launches += launcher.digits(variant, inputs.shape, DeviceInputs.upload(inputs), boxes, out)
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
