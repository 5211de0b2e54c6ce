# SPDX-License-Identifier: MIT
"""The hyper-connection kernels on the device: against FP64, each other, all bit patterns and every way to launch."""

from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda.hyper import DeviceGate, DeviceMix, HyperLauncher, open_launcher
from dsa_bench.backends.cuda.memory import allocate, download_bf16, upload
from dsa_bench.backends.cuda.probe import missing_gpu
from dsa_bench.data.hyper import gate_inputs, mix_inputs
from dsa_bench.model.hyper import LAUNCH_MODES, SIGMOIDS, GateShape, LaunchMode, MixShape, Sigmoid
from dsa_bench.model.hyper_inputs import GateInputs, MixInputs
from dsa_bench.model.inputs import BF16
from dsa_bench.oracle import hyper as oracle
from dsa_bench.oracle.attention import F64, Reference

pytestmark = pytest.mark.gpu

POISON = 0x7F7F
"""The bits of the largest finite BF16 number, which no output here comes near."""
ALL_PATTERNS = 2**32


@pytest.fixture(scope="module")
def mix() -> HyperLauncher:
    return _open("mix")


@pytest.fixture(scope="module")
def gate() -> HyperLauncher:
    return _open("gate")


def _open(op: Any) -> HyperLauncher:
    missing = missing_gpu()
    if missing is not None:
        pytest.skip(missing)
    return open_launcher(op)


def poison(launcher: HyperLauncher, *tensors: Any) -> None:
    with launcher.stream:
        for tensor in tensors:
            tensor.fill(POISON)
    launcher.stream.synchronize()


def assert_within(out: Any, judged: tuple[Reference, F64], what: str) -> None:
    assert not (out.view(np.uint16) == POISON).any(), f"{what}: an element was not written"
    reference, bound = judged
    found = out[reference.rows].astype(np.float64)
    with np.errstate(invalid="ignore"):
        off = ~(np.abs(found - reference.out) <= bound)
    if off.any():
        at = tuple(np.argwhere(off)[0])
        pytest.fail(
            f"{what}: {off.sum()} elements, first {at}: {found[at]}, not {reference.out[at]} +- {bound[at]:.2g}"
        )


def run_mix(launcher: HyperLauncher, form: Sigmoid, inputs: MixInputs) -> tuple[Any, Any]:
    tensors = DeviceMix.upload(inputs)
    poison(launcher, tensors.mixed, tensors.activated)
    launcher.pre_mix(form, inputs.shape, tensors).enqueue()
    launcher.scaled_silu(form, inputs.shape, tensors).enqueue()
    launcher.stream.synchronize()
    return download_bf16(tensors.mixed), download_bf16(tensors.activated)


def run_pair(launcher: HyperLauncher, mode: LaunchMode, inputs: GateInputs) -> tuple[Any, Any]:
    tensors = DeviceGate.upload(inputs)
    poison(launcher, tensors.out)
    for launch in launcher.pair(mode, inputs.shape, tensors):
        launch.enqueue()
    launcher.stream.synchronize()
    return download_bf16(tensors.x), download_bf16(tensors.out)


def bits_of_sample(launcher: HyperLauncher, first: int, patterns: int) -> tuple[int, int]:
    count, lowest = upload(np.zeros(1, np.uint64)), upload(np.full(1, 2**32 - 1, np.uint32))
    launcher.sigmoid_differences(first, patterns, count, lowest).enqueue()
    launcher.stream.synchronize()
    return int(count.get()[0]), int(lowest.get()[0])


@pytest.mark.parametrize(("reads", "vectors"), [(1, 1), (1, 129), (1, 5000), (8, 1), (8, 257), (8, 5000)])
def test_a_copy_reads_and_writes_every_vector(mix: HyperLauncher, reads: int, vectors: int) -> None:
    source = np.random.default_rng(vectors).integers(0, 2**32, (reads, 4 * vectors), np.uint32)
    target = upload(np.zeros(4 * vectors, np.uint32))
    mix.copy(upload(source), target).enqueue()
    mix.stream.synchronize()
    assert np.array_equal(target.get(), np.bitwise_xor.reduce(source))


def test_both_sigmoids_agree_on_all_bit_patterns(mix: HyperLauncher) -> None:
    """Seed 000: bit-identical for all 2^32."""
    assert bits_of_sample(mix, 0, ALL_PATTERNS) == (0, 2**32 - 1)


def test_the_check_counts_what_differs(mix: HyperLauncher, tmp_path: Any) -> None:
    """The same module with a sigmoid that is 1 ulp off at 2.5 and -2.5: found, counted, and the lowest named."""
    import shutil

    from dsa_bench.jit.sources import kernels_folder

    folder = tmp_path / "kernels"
    shutil.copytree(kernels_folder(), folder)
    header = folder / "hyper/sigmoid.cuh"
    text = header.read_text()
    right = "return divide(v >= 0.f ? 1.f : e, __fadd_rn(1.f, e));"
    assert right in text
    wrong = "const float s = divide(v >= 0.f ? 1.f : e, __fadd_rn(1.f, e));\n  return fabsf(v) == 2.5f ? "
    header.write_text(text.replace(right, wrong + "__uint_as_float(__float_as_uint(s) + 1) : s;"))
    tampered = open_launcher("mix", kernels=folder)
    lowest = int(np.float32(2.5).view(np.uint32))
    assert bits_of_sample(tampered, 0, ALL_PATTERNS) == (2, lowest)
    assert bits_of_sample(tampered, lowest + 1, ALL_PATTERNS - lowest - 1) == (1, lowest | 1 << 31)
    assert bits_of_sample(tampered, lowest, 1) == (1, lowest)
    assert bits_of_sample(tampered, 0, lowest) == (0, 2**32 - 1)


@pytest.mark.parametrize("form", SIGMOIDS)
@pytest.mark.parametrize(
    "shape",
    [
        *(MixShape(rows) for rows in (1, 8, 2048)),
        MixShape(1, 8, rank=8),
        MixShape(3, 24, rank=40),
        MixShape(65, 520, rank=1032),
        MixShape(127, 2568, rank=312),
    ],
    ids=lambda shape: shape.key,
)
def test_mix_lies_within_its_bounds(mix: HyperLauncher, form: Sigmoid, shape: MixShape) -> None:
    inputs = mix_inputs(shape, seed=shape.rows)
    mixed, activated = run_mix(mix, form, inputs)
    rows = oracle.checked_rows(shape.rows)
    assert_within(mixed, oracle.mixed(inputs, rows), f"{shape.key}, PreMix")
    assert_within(activated, oracle.activated(inputs, rows), f"{shape.key}, ScaledSilu")


@pytest.mark.parametrize("form", SIGMOIDS)
def test_tiny_and_huge_gates(mix: HyperLauncher, form: Sigmoid) -> None:
    """Sigmoids that are subnormal (FP32 denormals are kept), zero and one; values up to BF16's ends."""
    inputs = mix_inputs(MixShape(4, 640, rank=64))
    inputs.up[:] = np.linspace(-120, 120, inputs.up.size).reshape(inputs.up.shape)
    inputs.low_rank[:] = np.linspace(-480, 480, inputs.low_rank.size).reshape(inputs.low_rank.shape)
    inputs.normed[0], inputs.normed[1], inputs.normed[2] = 3e37, 1e-38, 2.0**100
    mixed, activated = run_mix(mix, form, inputs)
    rows = np.arange(4)
    assert_within(mixed, oracle.mixed(inputs, rows), "PreMix")
    assert_within(activated, oracle.activated(inputs, rows), "ScaledSilu")


def test_infinities_and_nan_go_their_way(mix: HyperLauncher) -> None:
    inputs = mix_inputs(MixShape(1, 8, rank=8))
    inputs.up[:], inputs.normed[:] = 0.0, 1.0
    inputs.up[0, 0, :3] = (np.inf, -np.inf, np.nan)
    inputs.low_rank[0, :3] = (np.inf, -np.inf, np.nan)
    for form in SIGMOIDS:
        mixed, activated = (out.astype(np.float32)[0] for out in run_mix(mix, form, inputs))
        assert mixed[[0, 1, 3]].tolist() == [0.625, 0.375, 0.5]
        assert np.isnan(mixed).tolist() == [False, False, True] + 5 * [False]
        assert activated[0] == np.inf
        assert np.isnan(activated).tolist() == [False, True, True] + 5 * [False]


@pytest.mark.parametrize("rows", [1, 8, 2048])
def test_both_forms_write_the_same_bits(mix: HyperLauncher, rows: int) -> None:
    inputs = mix_inputs(MixShape(rows))
    for one, two in zip(*(run_mix(mix, form, inputs) for form in SIGMOIDS), strict=True):
        assert np.array_equal(one.view(np.uint16), two.view(np.uint16))


@pytest.mark.parametrize(
    "shape",
    [
        *(GateShape(rows) for rows in (*range(1, 9), 9, 127, 128, 129, 1000)),
        GateShape(8, 8),
        GateShape(5, 10240),
        *(GateShape(rows, rank=rank) for rows in (3, 200) for rank in (8, 160, 168, 328)),
        GateShape(8, 64, 128, 24),
        GateShape(130, 16, 32, 8),
        GateShape(130, 96, 96, 320),
    ],
    ids=lambda shape: shape.key,
)
def test_gate_lies_within_its_bounds(gate: HyperLauncher, shape: GateShape) -> None:
    inputs = gate_inputs(shape, seed=shape.rows)
    rows = oracle.checked_rows(shape.rows)
    few = gate.down_kernel(shape) == "hyper_down_few"
    for mode in LAUNCH_MODES:
        x, out = run_pair(gate, mode, inputs)
        assert_within(x[:, : shape.gated], oracle.gated(inputs, rows), f"{shape.key}, {mode}, gate-mul")
        assert np.array_equal(x[:, shape.gated :].view(np.uint16), inputs.ready.view(np.uint16))
        judged = oracle.projected(x, inputs.weight, rows, oracle.FEW_CHAIN if few else None)
        assert_within(out, judged, f"{shape.key}, {mode}, down")


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 129])
def test_every_channel_and_output_counts_once(gate: HyperLauncher, rows: int) -> None:
    """Whole numbers, exact in FP32: each row has one channel and each channel a weight that tells which it is.

    Losing, doubling or swapping any channel of any output shows, which a bound on the rounding of 10240 could hide.
    """
    shape = GateShape(rows)
    inputs = gate_inputs(shape)
    channel, output = np.arange(shape.width), np.arange(shape.rank)
    inputs.weight[:] = (1 + (channel[None, :] * 7 + output[:, None] * 13) % 251).astype(BF16)
    inputs.attention[:], inputs.gate[:], inputs.ready[:] = 0, 0, 0
    steps = range(0, shape.width, 37)  # 277 needles, each in a row of its own, some rows at a time
    for first in range(0, len(steps), rows):
        needles = list(steps)[first : first + rows]
        attention, ready = np.zeros((rows, shape.gated), BF16), np.zeros((rows, shape.width - shape.gated), BF16)
        for row, at in enumerate(needles):
            if at < shape.gated:
                attention[row, at] = 8.0  # half of it is left: sigmoid(0)
            else:
                ready[row, at - shape.gated] = 4.0
        _, out = run_pair(gate, "pdl-early", GateInputs(attention, inputs.gate, ready, inputs.weight))
        weights = inputs.weight.astype(np.float64)
        expected = np.array([oracle.silu(weights[:, at]) for at in needles]).astype(BF16).astype(np.float64)
        found = out[: len(needles)].astype(np.float64)
        limit = np.where(expected < 16.5, 2.0**-7, 2.0**-9) * expected  # from 17 on silu(w) is w, and exact
        assert (np.abs(found - expected) <= limit).all()
        assert not out[len(needles) :].any(), "a row of zeros gives zeros"


def test_8192_rows_in_every_mode(mix: HyperLauncher, gate: HyperLauncher) -> None:
    inputs = mix_inputs(MixShape(8192))
    rows = oracle.checked_rows(8192)
    forms = [run_mix(mix, form, inputs) for form in SIGMOIDS]
    for one, two in zip(*forms, strict=True):
        assert np.array_equal(one.view(np.uint16), two.view(np.uint16))
    assert_within(forms[0][0], oracle.mixed(inputs, rows), "PreMix")
    assert_within(forms[0][1], oracle.activated(inputs, rows), "ScaledSilu")
    pair = gate_inputs(GateShape(8192))
    runs = [run_pair(gate, mode, pair) for mode in LAUNCH_MODES]
    for x, out in runs[1:]:
        assert np.array_equal(x.view(np.uint16), runs[0][0].view(np.uint16))
        assert np.array_equal(out.view(np.uint16), runs[0][1].view(np.uint16))
    assert_within(runs[0][0][:, : pair.shape.gated], oracle.gated(pair, rows), "gate-mul")
    assert_within(runs[0][1], oracle.projected(runs[0][0], pair.weight, rows), "down")


@pytest.mark.parametrize("mode", LAUNCH_MODES)
@pytest.mark.parametrize(("rows", "launches"), [(8, 10_000), (1, 10_000), (200, 1_000)])
def test_chained_launches_give_the_bits_of_a_single_one(
    gate: HyperLauncher, mode: LaunchMode, rows: int, launches: int
) -> None:
    """Two sets of inputs take turns over one x, and every launch has an output of its own: a projection that read x
    before gate-mul had written it would have the other set's in it."""
    import cupy

    shape = GateShape(rows)
    sets = [gate_inputs(shape, seed) for seed in (1, 2)]
    shared = [GateInputs(one.attention, one.gate, sets[0].ready, sets[0].weight) for one in sets]
    single = [run_pair(gate, "plain", one)[1].view(np.uint16) for one in shared]
    assert not np.array_equal(*single)
    tensors = [DeviceGate.upload(one) for one in shared]
    outs = allocate((launches, rows, shape.rank), BF16)
    poison(gate, outs)
    chain: list[Any] = []
    for n in range(launches):
        one = tensors[n % 2]
        views = DeviceGate(one.attention, one.gate, tensors[0].weight, tensors[0].x, outs[n])
        chain += gate.pair(mode, shape, views)
    for launch in chain:
        launch.enqueue()
    gate.stream.synchronize()
    for n in range(2):
        expected = cupy.asarray(single[n])
        wrong = cupy.flatnonzero((outs[n::2] != expected).any(axis=(1, 2)))
        assert wrong.size == 0, f"{wrong.size} of {launches // 2} launches, first {2 * int(wrong[0]) + n}"


def test_a_captured_pair_gives_the_bits_of_an_eager_one(gate: HyperLauncher) -> None:
    inputs = gate_inputs(GateShape(8))
    _, eager = run_pair(gate, "plain", inputs)
    for mode in LAUNCH_MODES:
        tensors = DeviceGate.upload(inputs)
        poison(gate, tensors.out)
        pair = gate.pair(mode, inputs.shape, tensors)
        with gate.stream:
            gate.stream.begin_capture()
            for launch in pair * 50:
                launch.enqueue()
            graph = gate.stream.end_capture()
        graph.launch(gate.stream)
        gate.stream.synchronize()
        assert np.array_equal(download_bf16(tensors.out).view(np.uint16), eager.view(np.uint16))
