# SPDX-License-Identifier: MIT
"""Doubles that the tests share: timers, backends that compute something else, recorded runs, and the command itself."""

import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.backends.cpu.backend import CpuBackend, CpuSparseBuffers
from dsa_bench.backends.cuda.probe import missing_gpu
from dsa_bench.bench.variant import Checked, Timing, Variant
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.record import Check, Header, Line, Visit
from dsa_bench.model.run import Run, RunWriter

ROOT = Path(__file__).resolve().parent.parent
KERNEL_HASHES = {"previous": "0" * 16, "int8-tc": "1" * 16}


@pytest.fixture(autouse=True)
def plain_environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No option and no colour from outside; no GPU either, except for tests that are marked to need one."""
    for name in list(os.environ):
        if name.startswith(("DSA_BENCH_", "ORT_DSA_", "ONNX_GENAI_")) or name in (
            "FORCE_COLOR",
            "NO_COLOR",
            "PYTHONIOENCODING",
        ):
            monkeypatch.delenv(name)
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        if missing_gpu() is None:  # the driver was started before, with its devices
            monkeypatch.setattr("dsa_bench.backends.cuda.probe.missing_gpu", lambda: "the driver's devices are hidden")


@dataclass
class FakeTimer:
    """Maps (variant, call number of that variant, total time so far in us) to a time; launches nothing."""

    time_us: Callable[[str, int, float], float]
    min_visit_us: float = 40.0
    name: str = "wall"
    calls: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    elapsed_us: float = 0.0

    def time(self, variant: Variant, launches: int) -> Timing:
        seen = sum(name == variant.name for name, _ in self.calls)
        self.calls.append((variant.name, launches))
        read = self.time_us(variant.name, seen, self.elapsed_us)
        self.elapsed_us += read * launches
        return Timing(read, read)

    def forget(self) -> None:
        """Nothing was kept."""


@pytest.fixture
def fake_timer() -> type[FakeTimer]:
    return FakeTimer


@pytest.fixture
def fake_variants() -> Callable[..., list[Variant]]:
    def make(*names: str) -> list[Variant]:
        return [Variant(name, lambda _: None, lambda: Checked("ok", None, 0.0)) for name in names]

    return make


class TamperedBackend(CpuBackend):
    """The CPU backend, but after each launch `tamper(variant, output)` may change what the kernel wrote."""

    def __init__(self, tamper: Callable[[VariantPlan, Any], None]) -> None:
        super().__init__()
        self._tamper = tamper

    def load(self, inputs: SparseInputs, *mode: str) -> "TamperedBuffers":
        return TamperedBuffers(inputs, self._run, self._tamper)


class TamperedBuffers(CpuSparseBuffers):
    def __init__(self, inputs: SparseInputs, run: Any, tamper: Callable[[VariantPlan, Any], None]) -> None:
        super().__init__(inputs, run)
        self._tamper = tamper

    def launcher(self, variant: VariantPlan) -> Callable[[int], None]:
        launch = super().launcher(variant)

        def launch_and_tamper(call: int) -> None:
            launch(call)
            self._tamper(variant, self._out)

        return launch_and_tamper


@pytest.fixture
def tampered_backend() -> type[TamperedBackend]:
    return TamperedBackend


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on stderr of a command that printed nothing and failed as expected."""
        assert self.out == "", f"stdout holds {self.out!r}"
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("dsa-bench: error: ")
        return lines[0]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`command("decode", "--rows", "1")` runs that command line in this process."""
    from dsa_bench.cli.main import run

    def call(*argv: str) -> Outcome:
        capsys.readouterr()
        code = run(list(argv))
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., Outcome]:
    """`process("decode", env={...})` runs `python -m dsa_bench decode` in an empty folder."""

    def call(*argv: str, env: dict[str, str | None] | None = None, python: Sequence[str] = ()) -> Outcome:
        done = subprocess.run(
            [sys.executable, *python, "-m", "dsa_bench", *argv],
            env=child_environment(env), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return Outcome(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def environment_of_children() -> Callable[..., dict[str, str]]:
    return child_environment


def child_environment(changes: dict[str, str | None] | None = None) -> dict[str, str]:
    """This environment with the source tree on PYTHONPATH and some changes; None removes a variable."""
    merged = {**os.environ, "PYTHONPATH": str(ROOT), **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


@pytest.fixture
def root() -> Path:
    return ROOT


def cell_key(rows: int, context: int = 8192) -> str:
    return f"op=decode,rows={rows},context={context},candidates=2048,query_heads=24,kv_heads=2,head_size=256"


@dataclass
class RunMaker:
    """Builds recorded runs whose times are given, as fixed as they need to be for golden text."""

    lines: list[Line] = field(default_factory=list[Line])

    def header(self, **changes: Any) -> "RunMaker":
        fields: dict[str, Any] = {
            "created": "2026-01-02T03:04:05Z", "version": "0.1.0", "commit": None, "dirty": None, "argv": ("decode",),
            "seed": 0, "device": {"backend": "cpu", "name": "CPU", "sm_count": 2}, "versions": {"numpy": "2.0.0"},
            "plan": {"op": "decode"}, "kernel_hashes": KERNEL_HASHES,
        }  # fmt: skip
        self.lines.append(Header(**(fields | changes)))
        return self

    def check(self, variant: str, rows: int = 1, **changes: Any) -> "RunMaker":
        kernel, _, geometry = variant.partition("/splits=")
        splits = geometry.partition(",")[0]
        fields: dict[str, Any] = {
            "cell": cell_key(rows), "variant": variant, "kernel": kernel, "kernel_hash": KERNEL_HASHES.get(kernel, ""),
            "requested": (0,) if splits else (), "tiles_per_split": 32 // int(splits or 1), "splits": int(splits or 1),
            "ctas": 2 * rows * int(splits or 1), "data_hash": "d" * 16, "status": "ok", "reason": None,
            "rms_error": 0.00167, "rounding_floor": 0.00166,
        }  # fmt: skip
        self.lines.append(Check(**(fields | changes)))
        return self

    def rounds(
        self, times_us: dict[str, Sequence[float | None]], control: str, rows: int = 1, cell: str | None = None
    ) -> "RunMaker":
        """times_us[variant][round]; "control" holds the second visits of `control`; None is below resolution."""
        count = len(next(iter(times_us.values())))
        for index in range(count):
            for place, (name, series) in enumerate(times_us.items()):
                variant = control if name == "control" else name
                time_us = series[index]
                read = (
                    (time_us, time_us, "ok", None) if time_us else (None, None, "below_resolution", f"0 us in {index}")
                )
                place_in_run = (index, 0, place, name == "control", "wall", "none", 10)
                requested = (0,) if "/" in variant else ()
                self.lines.append(Visit(cell or cell_key(rows), variant, "", requested, 1, *place_in_run, *read))
        return self

    def run(self) -> Run:
        header, *rest = self.lines
        assert isinstance(header, Header)
        run = Run(header)
        for line in rest:
            assert not isinstance(line, Header)
            run.add(line)
        return run

    def write(self, path: Path) -> Path:
        with RunWriter(path) as writer:
            for line in self.lines:
                writer.append(line)
        return path


@pytest.fixture
def maker() -> RunMaker:
    return RunMaker()


@pytest.fixture
def sweep() -> Callable[..., RunMaker]:
    """`sweep({(8, 2048): {16: 10.0, 8: 9.0}}, auto=16)`: times in us of each number of splits, and what ran for 0.

    noise    standard deviation of each log time about it, the same for one seed; rules  {splits: names} of every cell
    device   facts beside those of an H200 with 3 resident CTAs
    """

    def make(
        cells: dict[tuple[int, int], dict[int, float]],
        auto: int | None = None,
        rounds: int = 16,
        noise: float = 0.0,
        rules: dict[int, tuple[str, ...]] | None = None,
        **device: Any,
    ) -> RunMaker:
        rng = random.Random(1)
        facts = {"backend": "cuda", "name": "H200", "sm_count": 132, "resident_ctas": 3} | device
        maker = RunMaker().header(device={name: fact for name, fact in facts.items() if fact is not None})
        for (rows, candidates), times_us in cells.items():
            cell = cell_key(rows).replace("candidates=2048", f"candidates={candidates}")
            tiles = -(-candidates // 64)
            for splits in times_us:
                maker.check(
                    f"int8-tc/splits={splits}", rows, cell=cell, splits=splits, tiles_per_split=-(-tiles // splits),
                    requested=(0,) if splits == auto else (-(-tiles // splits),), rules=(rules or {}).get(splits, ()),
                )  # fmt: skip
            noisy = {
                f"int8-tc/splits={splits}": [time_us * math.exp(rng.gauss(0, noise)) for _ in range(rounds)]
                for splits, time_us in times_us.items()
            }
            control = next(iter(noisy))
            maker.rounds({**noisy, "control": noisy[control]}, control, rows, cell=cell)
        return maker

    return make


@pytest.fixture
def two_cells() -> RunMaker:
    """8 rounds of rows 8 and then rows 1: int8-tc about twice as fast, its control 0.4 % about it."""
    maker = RunMaker().header()
    for rows in (8, 1):
        previous = [100.0 * rows + index for index in range(8)]
        half = [time_us / 2 * (1 + 0.02 * (index % 3)) for index, time_us in enumerate(previous)]
        control = [time_us * (1.004 if index % 2 else 0.996) for index, time_us in enumerate(half)]
        maker.check("previous", rows).check("int8-tc/splits=16", rows)
        maker.rounds({"previous": previous, "int8-tc/splits=16": half, "control": control}, "int8-tc/splits=16", rows)
    return maker
