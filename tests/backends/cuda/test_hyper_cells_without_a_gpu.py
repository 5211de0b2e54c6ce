# SPDX-License-Identifier: MIT
"""Copies, calls and notes of the hyper-connection cells on a GPU; doubles stand in for memory, kernels and driver."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda import hyper, hyper_cells, memory
from dsa_bench.backends.cuda.cold import cold_copies
from dsa_bench.backends.cuda.hyper import HyperLauncher
from dsa_bench.backends.cuda.hyper_cells import CudaGate, CudaMix
from dsa_bench.data.hyper import gate_inputs, mix_inputs
from dsa_bench.model.errors import OutOfDeviceMemory, VariantRefused
from dsa_bench.model.hyper import LAUNCH_MODES, GateShape, MixShape
from dsa_bench.model.hyper_request import CopyVariant, GateVariant, MixVariant
from dsa_bench.model.inputs import BF16

FACTS: dict[str, dict[str, int]] = {
    "pre_mix_branchy": {}, "pre_mix_branch_free": {}, "copy_1_to_1": {"tile": 256}, "copy_8_to_1": {"tile": 256},
    "gate_mul": {}, "gate_mul_early": {},
    "scaled_silu_branchy": {"tile": 128}, "scaled_silu_branch_free": {"tile": 128},
    "hyper_down_few": {"tile": 3, "max_rows": 8, "width": 10240}, "hyper_down_many": {"tile": 160, "tile_rows": 128},
}  # fmt: skip
enqueued: list["Launch"] = []


@dataclass
class Launch:
    kernel: Any
    grid: tuple[int, int, int]
    arguments: Any
    stream: Any
    dependent: bool = False
    ctas: int = field(init=False)

    def __post_init__(self) -> None:
        self.ctas = self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def name(self) -> str:
        return self.kernel.name

    def enqueue(self) -> None:
        enqueued.append(self)


@pytest.fixture(autouse=True)
def host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device memory is NumPy's."""
    enqueued.clear()
    monkeypatch.setattr(hyper, "KernelLaunch", Launch)

    def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
        return np.zeros(shape, np.uint16 if dtype == BF16 else dtype)

    def overwrite(device: Any, host: Any) -> None:
        device[...] = host.view(np.uint16) if host.dtype == BF16 else host

    for module in (hyper_cells, memory):
        monkeypatch.setattr(module, "allocate", allocate)
        monkeypatch.setattr(module, "overwrite", overwrite)
    monkeypatch.setattr(hyper_cells, "download_bf16", lambda device: device.copy().view(BF16))


def backend(programmatic: bool = True) -> Any:
    kernels: dict[str, Any] = {
        name: SimpleNamespace(name=name, threads=64, facts=SimpleNamespace(constants=constants))
        for name, constants in FACTS.items()
    }
    launcher = HyperLauncher(kernels, "stream", sm_count=132, programmatic=programmatic)

    def fill(tensor: Any, value: float) -> None:
        tensor.fill(int(np.array(value, np.float32).astype(BF16).view(np.uint16)))

    return SimpleNamespace(launcher=launcher, fill=fill, synchronize=lambda: None)


def test_cold_launches_rotate_through_copies_that_come_to_twice_the_l2() -> None:
    shape = MixShape(2, 64, rank=16)
    inputs = mix_inputs(shape)
    buffers = CudaMix(backend(), inputs, cold_bytes=5000)
    call = buffers.call(MixVariant("pre-mix", "branchy"))
    assert call.copies == 3  # of 2048 bytes that are read
    assert (call.kernels, call.ctas) == (("pre_mix_branchy",), 1)
    for number in range(4):
        call.launch(number)
    addresses = [launch.arguments[0].ctypes.data for launch in enqueued]
    assert np.diff(addresses).tolist() == [1024, 1024, -2048]
    assert all(np.array_equal(one.arguments[1], inputs.up.view(np.uint16)) for one in enqueued)
    assert buffers.call(MixVariant("pre-mix", "branch-free")).copies == 3
    assert buffers.call(MixVariant("scaled-silu", "branchy")).copies == 79  # of 64 bytes
    warm = CudaMix(backend(), inputs, cold_bytes=0)
    assert warm.call(MixVariant("scaled-silu", "branchy")).copies == 1


def test_a_copy_moves_exactly_the_bytes_of_its_kernel() -> None:
    shape = MixShape(1)
    buffers = CudaMix(backend(), mix_inputs(shape), cold_bytes=0)
    silu, plain, as_pre_mix = CopyVariant("scaled-silu"), CopyVariant("pre-mix"), CopyVariant("pre-mix", 8)
    for variant, moved in ((silu, shape.silu_bytes), (plain, shape.mix_bytes), (as_pre_mix, shape.mix_bytes)):
        call = buffers.call(variant)
        enqueued.clear()
        call.launch(0)
        source, target, vectors = enqueued[0].arguments
        assert source.nbytes + target.nbytes == (variant.reads + 1) * 16 * int(vectors) == moved
        assert call.kernels == (f"copy_{variant.reads}_to_1",)
    assert buffers.outputs(CopyVariant("pre-mix"), 0) == {}


def test_too_many_copies_are_refused_with_a_way_out() -> None:
    assert cold_copies(0, 640, "x") == 1
    assert cold_copies(8192 * 640, 640, "x") == 8192
    with pytest.raises(VariantRefused, match=r"scaled-silu/branchy reads 640 bytes, .* 8193 copies .* use --l2 warm"):
        cold_copies(8192 * 640 + 1, 640, "scaled-silu/branchy")


def test_a_variant_without_room_is_refused_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: Any) -> Any:
        raise OutOfDeviceMemory("1 MiB of GPU memory are not there")

    monkeypatch.setattr(hyper_cells, "allocate", allocate)
    buffers = CudaMix(backend(), mix_inputs(MixShape(1, 8, rank=8)), cold_bytes=0)
    with pytest.raises(VariantRefused, match="pre-mix/branchy: 1 MiB of GPU memory are not there"):
        buffers.call(MixVariant("pre-mix", "branchy"))


def test_a_pair_is_one_call_of_two_kernels_over_tensors_that_the_modes_share() -> None:
    inputs = gate_inputs(GateShape(8))
    buffers = CudaGate(backend(), inputs, cold_bytes=inputs.nbytes + 1)
    calls = [buffers.call(GateVariant(mode)) for mode in LAUNCH_MODES]
    assert [call.copies for call in calls] == [2, 2, 2]
    assert calls[2].kernels == ("gate_mul_early", "hyper_down_few")
    assert calls[0].ctas == 96 + 107
    for call in calls:
        call.launch(1)
    assert [launch.dependent for launch in enqueued] == [False, False, False, True, False, True]
    assert len({launch.arguments[2].ctypes.data for launch in enqueued[::2]}) == 1


def test_poison_leaves_the_ready_columns_of_one_copy() -> None:
    shape = GateShape(2, 16, 32, 8)
    inputs = gate_inputs(shape)
    buffers = CudaGate(backend(), inputs, cold_bytes=2 * inputs.nbytes)
    buffers.poison(GateVariant("plain"), 1, 2.0)
    first, second = (buffers.outputs(GateVariant("plain"), copy) for copy in (0, 1))
    assert (second["x"][:, :16] == 2).all()
    assert (second["out"] == 2).all()
    assert np.array_equal(second["x"][:, 16:].view(np.uint16), inputs.ready.view(np.uint16))
    assert not first["out"].any()
    mix = CudaMix(backend(), mix_inputs(MixShape(1, 8, rank=8)), cold_bytes=0)
    variant = MixVariant("scaled-silu", "branchy")
    mix.call(variant)
    mix.poison(variant, 0, 3.0)
    assert {name: out.tolist() for name, out in mix.outputs(variant, 0).items()} == {"activated": [[3.0] * 8]}


def test_a_device_without_programmatic_launches_says_that_it_runs_plainly() -> None:
    note: Any = hyper_cells._note  # pyright: ignore[reportPrivateUsage]
    assert note("gate", backend(programmatic=False).launcher, "8.6") == (
        "SM 8.6 has no programmatic dependent launch, which needs 9.0: every mode is launched plainly"
    )
    assert note("gate", backend().launcher, "9.0") is None
    assert note("mix", backend(programmatic=False).launcher, "8.6") is None


def test_a_chain_takes_the_sets_in_turn_over_one_x_and_gives_each_launch_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hyper, "upload", lambda host: host.view(np.uint16))
    monkeypatch.setattr(hyper, "allocate", hyper_cells.allocate)
    shape = GateShape(2, 16, 32, 8)
    sets = gate_inputs(shape, 1), gate_inputs(shape, 2)
    device = object.__new__(hyper_cells.CudaHyper)
    device.launcher = backend().launcher
    monkeypatch.setattr(hyper_cells.CudaHyper, "synchronize", lambda self: None)
    assert device.chain(sets, "pdl-early", 4).shape == (4, 2, 8)
    gates, downs = enqueued[::2], enqueued[1::2]
    assert [launch.dependent for launch in enqueued] == [False, True] * 4
    for number, (gate, down) in enumerate(zip(gates, downs, strict=True)):
        assert np.array_equal(gate.arguments[0], sets[number % 2].attention.view(np.uint16))
        assert gate.arguments[2] is down.arguments[1] is gates[0].arguments[2]
        assert down.arguments[0] is downs[0].arguments[0]
    assert len({down.arguments[2].ctypes.data for down in downs}) == 4


def test_a_copy_has_the_hash_of_its_own_module() -> None:
    device = object.__new__(hyper_cells.CudaHyper)
    device._hashes = {"hyper/pre_mix": "a", "hyper/copy": "b"}  # pyright: ignore[reportPrivateUsage]
    assert device.kernel_hash(CopyVariant("pre-mix")) == "b"
    assert device.kernel_hash(MixVariant("pre-mix", "branchy")) == "a"
    device._hashes = {"hyper/gate_mul": "c", "hyper/down": "d"}  # pyright: ignore[reportPrivateUsage]
    assert device.kernel_hash(GateVariant("pdl")) == "c+d"
