# SPDX-License-Identifier: MIT
"""Grids, arguments and launch attributes of the hyper-connection kernels; doubles stand in for kernels and driver."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda import hyper
from dsa_bench.backends.cuda.hyper import DeviceGate, DeviceMix, HyperLauncher
from dsa_bench.jit.target import Target
from dsa_bench.model.errors import CannotMeasure, VariantRefused
from dsa_bench.model.hyper import LAUNCH_MODES, GateShape, LaunchMode, MixShape

FACTS: dict[str, tuple[int, dict[str, int]]] = {
    "pre_mix_branchy": (64, {}),
    "pre_mix_branch_free": (64, {}),
    "scaled_silu_branchy": (64, {"tile": 128}),
    "scaled_silu_branch_free": (64, {"tile": 128}),
    "sigmoid_differences": (256, {}),
    "gate_mul": (64, {}),
    "gate_mul_early": (64, {}),
    "hyper_down_few": (512, {"tile": 3, "max_rows": 8, "width": 10240}),
    "hyper_down_many": (256, {"tile": 160, "tile_rows": 128}),
}
MIX = DeviceMix("normed", "up", "low_rank", "mixed", "activated")
GATE = DeviceGate("attention", "gate", "weight", "x", "out")


@dataclass
class Launch:
    kernel: Any
    grid: tuple[int, int, int]
    arguments: Any
    stream: Any
    dependent: bool = False

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def values(self) -> list[Any]:
        return [argument if isinstance(argument, str) else int(argument) for argument in self.arguments]


@pytest.fixture(autouse=True)
def recorded_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hyper, "KernelLaunch", Launch)


def launcher(programmatic: bool = True) -> HyperLauncher:
    kernels: dict[str, Any] = {
        name: SimpleNamespace(name=name, threads=threads, facts=SimpleNamespace(constants=constants))
        for name, (threads, constants) in FACTS.items()
    }
    return HyperLauncher(kernels, "stream", sm_count=132, programmatic=programmatic)


def test_the_elementwise_launches_cover_every_vector() -> None:
    shape = MixShape(3)
    mix: Any = launcher().pre_mix("branch-free", shape, MIX)
    assert (mix.name, mix.grid) == ("pre_mix_branch_free", (15, 1, 1))
    assert mix.values == ["normed", "up", "mixed", 3 * 320, 320]
    silu: Any = launcher().scaled_silu("branchy", shape, MIX)
    assert (silu.name, silu.grid) == ("scaled_silu_branchy", (1, 1, 1))
    assert silu.values == ["low_rank", "activated", 120]
    assert {type(value) for value in mix.arguments[3:]} == {np.uint32}


@pytest.mark.parametrize(("patterns", "ctas"), [(1, 1), (257, 2), (2**32, 8 * 132)])
def test_the_check_of_the_sigmoids_takes_any_range(patterns: int, ctas: int) -> None:
    check: Any = launcher().sigmoid_differences(2**31, patterns, "count", "lowest")
    assert check.grid == (ctas, 1, 1)
    assert check.values == [2**31, patterns, "count", "lowest"]
    assert [type(value) for value in check.arguments[:2]] == [np.uint32, np.uint64]


@pytest.mark.parametrize(
    ("mode", "gate", "dependent"),
    [("plain", "gate_mul", False), ("pdl", "gate_mul", True), ("pdl-early", "gate_mul_early", True)],
)
def test_only_the_successor_is_launched_programmatically(mode: LaunchMode, gate: str, dependent: bool) -> None:
    first, second = (one for one in launcher().pair(mode, GateShape(8), GATE))
    pair: Any = first, second
    assert [one.name for one in pair] == [gate, "hyper_down_few"]
    assert [one.dependent for one in pair] == [False, dependent]
    assert pair[0].grid == (96, 1, 1)
    assert pair[0].values == ["attention", "gate", "x", 8 * 768, 768, 1280]
    assert pair[1].grid == (107, 1, 1)
    assert pair[1].values == ["weight", "x", "out", 8, 320]


@pytest.mark.parametrize("mode", LAUNCH_MODES)
def test_below_sm_90_every_mode_is_launched_plainly_and_says_so(mode: LaunchMode) -> None:
    old = launcher(programmatic=False)
    pair: Any = old.pair(mode, GateShape(8), GATE)
    assert [one.dependent for one in pair] == [False, False]
    assert old.launched_as(mode) == "plain"
    assert launcher().launched_as(mode) == mode


@pytest.mark.parametrize(
    ("shape", "kernel", "grid"),
    [
        (GateShape(9), "hyper_down_many", (2, 1, 1)),
        (GateShape(8192), "hyper_down_many", (2, 64, 1)),
        (GateShape(8, 64, 128, 328), "hyper_down_many", (3, 1, 1)),
        (GateShape(1, rank=8), "hyper_down_few", (3, 1, 1)),
    ],
)
def test_the_projection_of_a_shape(shape: GateShape, kernel: str, grid: tuple[int, int, int]) -> None:
    assert launcher().down_kernel(shape) == kernel
    down: Any = launcher().pair("plain", shape, GATE)[1]
    assert (down.name, down.grid) == (kernel, grid)
    assert down.values[3:] == [shape.rows, shape.rank] + ([shape.width] if kernel == "hyper_down_many" else [])


def test_what_a_grid_or_a_device_does_not_take_is_refused() -> None:
    with pytest.raises(VariantRefused, match=r"hyper_down_many takes up to 8388480 rows, not op=gate,rows=8388481"):
        launcher().pair("plain", GateShape(8_388_481, 32, 32), GATE)
    with pytest.raises(CannotMeasure, match=r"SM 8.0 or newer and this is SM 7.5; --backend cpu"):
        hyper.refuse_old_device(Target(75))
    hyper.refuse_old_device(Target(80))


@pytest.mark.parametrize(("capability", "mode"), [("8.6", "plain"), ("8.9", "plain"), ("9.0", "pdl"), ("12.0", "pdl")])
def test_a_device_is_launched_programmatically_from_sm_90_on(
    monkeypatch: pytest.MonkeyPatch, capability: str, mode: LaunchMode
) -> None:
    monkeypatch.setattr(hyper, "cuda_device", lambda: SimpleNamespace(compute_capability=capability, sm_count=84))
    monkeypatch.setattr(hyper, "compile_modules", lambda *_, **__: [])
    assert hyper.open_launcher("mix", stream="stream").launched_as("pdl") == mode
