# SPDX-License-Identifier: MIT
"""The dense line: which implementation is chosen, what is recorded, what is told. torch is replaced by a double."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cpu.backend import CpuBackend
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.errors import NothingRecorded, VariantRefused
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.request import SPARSE_KERNELS, DataSpec, Policy, SparseRequest
from dsa_bench.model.run import complete_rounds, read_run
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.sdpa import dense_reference
from dsa_bench.report.cells import cell_tables
from dsa_bench.sweep.cells import Bench, run_cells
from dsa_bench.sweep.dense_line import choose_dense, dense_line

SHAPE = SparseShape(rows=9, context=64, candidates=20, query_heads=4, op="prefill")


@dataclass
class DenseDouble:
    """Answers as `answers[implementation]` says: microseconds and right, "wrong", or why it is refused."""

    answers: dict[str, float | str]
    version: str = "double-1"
    launched: list[str] = field(default_factory=list[str])
    closed: int = 0

    def load(self, inputs: SparseInputs) -> "DoubleBuffers":
        return DoubleBuffers(self, inputs)


class DoubleBuffers:
    last_resort = "math"

    def __init__(self, double: DenseDouble, inputs: SparseInputs) -> None:
        self.implementations = tuple(double.answers)
        self._double = double
        self._right = dense_reference(inputs, inputs.shape.rows).out.astype(BF16)
        self._ran = ""

    def launcher(self, implementation: str) -> Callable[[int], None]:
        answer = self._double.answers[implementation]
        if isinstance(answer, str) and answer != "wrong":
            raise VariantRefused(f"{implementation}: {answer}")

        def launch(_: int) -> None:
            self._double.launched.append(implementation)
            self._ran = implementation

        return launch

    def time_us(self, launch: Callable[[int], None]) -> float:
        launch(0)
        return float(self._double.answers[self._ran])

    def output(self) -> np.ndarray:
        return self._right * 0 if self._double.answers[self._ran] == "wrong" else self._right

    def close(self) -> None:
        self._double.closed += 1


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def said(self, text: str) -> None:
        self.heard.append(text)

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_: None


def chosen(answers: dict[str, float | str], only: str | None = None, timer: Any = None) -> Any:
    inputs = sparse_inputs(SHAPE, DataSpec())
    return choose_dense(inputs, DenseDouble(answers).load(inputs), timer, only)


def test_the_fastest_right_one_is_the_line() -> None:
    line = chosen({"cudnn": 30.0, "flash": 20.0, "efficient": "no groups", "math": 1.0})
    assert (line.name, line.outcome.status, line.notes) == ("dense/flash", "ok", ())
    assert 0 < line.outcome.rms_error < 2e-3


def test_a_wrong_one_is_told_and_not_measured() -> None:
    line = chosen({"cudnn": "wrong", "flash": 20.0})
    assert line.name == "dense/flash"
    assert line.notes[0].startswith("dense attention by cudnn is wrong and not measured: out[")


def test_what_the_timer_does_not_see_is_told_and_not_measured(fake_timer: Any) -> None:
    """Of cuDNN's attention on Hopper CUPTI 13.0 records no kernel: seen on an H200."""

    def time_us(name: str, *_: object) -> float:
        if name == "cudnn":
            raise NothingRecorded("cupti-python: no device events were recorded")
        return 20.0

    line = chosen({"cudnn": 10.0, "flash": 20.0}, timer=fake_timer(time_us))
    assert line.name == "dense/flash"
    (note,) = line.notes
    assert note.startswith("dense attention by cudnn is not measured: cudnn: ")
    assert note.endswith("records none of its kernels; --timer events does")


def test_the_last_resort_runs_only_where_no_other_is_right() -> None:
    inputs = sparse_inputs(SHAPE, DataSpec())
    double = DenseDouble({"cudnn": 30.0, "math": 1.0})
    assert choose_dense(inputs, double.load(inputs)).name == "dense/cudnn"
    assert "math" not in double.launched
    assert chosen({"cudnn": "needs another GPU", "math": 1.0}).name == "dense/math"


def test_none_that_is_right_is_a_refusal_with_every_reason() -> None:
    line = chosen({"cudnn": "needs another GPU", "flash": "wrong"})
    assert (line.name, line.launch, line.outcome.status) == ("dense", None, "launch_refused")
    assert "cudnn: needs another GPU; flash is wrong: out[" in line.outcome.reason


def test_what_an_earlier_part_of_the_run_chose_is_kept() -> None:
    assert chosen({"cudnn": 30.0, "flash": 20.0}, "dense/cudnn").name == "dense/cudnn"


def test_memory_that_is_not_there_is_a_line_too(fake_timer: Any) -> None:
    class Full(DenseDouble):
        def load(self, inputs: SparseInputs) -> DoubleBuffers:
            raise VariantRefused("dense attention: CUDA out of memory")

    with dense_line(sparse_inputs(SHAPE, DataSpec()), Full({}), fake_timer(lambda *_: 1.0), []) as line:
        assert (line.name, line.outcome.reason) == ("dense", "dense attention: CUDA out of memory")


@pytest.fixture
def measured(fake_timer: Any, tmp_path: Path) -> Callable[..., Any]:
    def measure(answers: dict[str, float | str], rounds: int = 6, resume: bool = False) -> tuple[Any, DenseDouble, Any]:
        backend, double, listener = CpuBackend(), DenseDouble(answers), Listener()
        timer = fake_timer(lambda name, *_: 20.0 if name.startswith("dense") else 50.0)
        request = SparseRequest((SHAPE,), SPARSE_KERNELS, policy=Policy(rounds), dense=True)
        bench = Bench(backend, timer, "none", dense=double)
        run = run_cells(request, bench, listener, record=tmp_path / "r.jsonl", resume=resume).run
        backend.close()
        return run, double, listener

    return measure


def test_the_record_holds_the_line_and_the_table_a_comparison(measured: Any, tmp_path: Path) -> None:
    run, double, _ = measured({"cudnn": 20.0})
    assert read_run(tmp_path / "r.jsonl").checks == run.checks
    check = run.checks[-1]
    assert (check.variant, check.kernel, check.kernel_hash, check.ctas) == ("dense/cudnn", "dense", "double-1", 0)
    assert (check.gathered_bytes, run.checks[0].gathered_bytes) == (None, 9 * 20 * 2 * 256 * 2)
    assert run.header.kernel_hashes["dense"] == "double-1"
    assert sum(visit.variant == "dense/cudnn" for visit in run.visits) == 6
    (table,) = cell_tables(run)
    assert table.rounds == 6
    assert table.rows[0].dense_ratio.centre == pytest.approx(0.4)
    assert table.fastest.row.check.kernel != "dense"
    assert double.closed == 1


def test_a_resumed_run_goes_on_with_the_same_implementation(measured: Any, tmp_path: Path) -> None:
    measured({"cudnn": 20.0, "flash": 30.0})
    lines = (tmp_path / "r.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "r.jsonl").write_text("".join(lines[:-9]))
    run, _, _ = measured({"cudnn": 30.0, "flash": 20.0}, resume=True)
    assert {visit.variant for visit in run.visits if "dense" in visit.variant} == {"dense/cudnn"}
    assert len(list(complete_rounds(run))) == 6


def test_without_a_right_one_the_sparse_kernels_are_measured_and_the_wrong_one_is_told(measured: Any) -> None:
    run, _, listener = measured({"cudnn": "wrong"})
    (table,) = cell_tables(run)
    assert [row.status for row in table.rows] == ["ok", "ok", "launch_refused"]
    assert table.dense is None
    assert table.wrong == []
    assert listener.heard[0].startswith("dense attention by cudnn is wrong")
