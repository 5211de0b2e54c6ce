# SPDX-License-Identifier: MIT
"""`dsa-bench ab` on doubles of the GPU and the timer."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.backends.cpu.backend import CpuBackend
from dsa_bench.backends.sides import SidesBackend
from dsa_bench.model.request import KERNELS
from dsa_bench.model.run import read_run
from dsa_bench.report.ab import compare_ab
from dsa_bench.report.compare import Terms

Command = Callable[..., Any]
SMALL = ("--rows", "1", "--context", "128", "--candidates", "128", "--rounds", "8")
TIMES_US = {"previous@A": 20.0, "previous@B": 20.0, "int8-tc@A": 10.0, "int8-tc@B": 8.0}


@pytest.fixture
def ab(command: Command, fake_timer: Any, monkeypatch: pytest.MonkeyPatch, root: Path) -> Callable[..., Any]:
    """ab(*options, b=backend): the kernels of this tree against themselves, with the times above."""

    def call(*options: str, b: Any = None, times_us: dict[str, float] = TIMES_US) -> Any:
        timer = fake_timer(lambda name, *_: times_us[name.partition("/")[0]])
        opened: list[tuple[str, tuple[Path, Path]]] = []

        def open_sides(op: str, folders: tuple[Path, Path]) -> SidesBackend:
            opened.append((op, folders))
            return SidesBackend(CpuBackend(), b or CpuBackend())

        monkeypatch.setattr("dsa_bench.backends.cuda.sides.open_sides", open_sides)
        monkeypatch.setattr("dsa_bench.bench.select.open_timer", lambda *_: (timer, None))
        outcome = command("ab", str(root), str(root), *SMALL, *options)
        return outcome, timer, opened

    return call


def test_b_is_compared_with_a_in_the_same_rounds(ab: Any, root: Path) -> None:
    outcome, timer, opened = ab("--tiles-per-split", "0", "1")
    assert (outcome.code, opened) == (0, [("decode", (root / "kernels", root / "kernels"))])
    lines = outcome.out.splitlines()
    assert lines[0] == f"base A = {root} (folder), head B = {root} (folder); attention time, margin 1%"
    rows = {line.split()[0]: line for line in lines if " us " in line}
    assert rows["previous"].endswith("20.00 us 20.00 us  +0.0%   [+0.0%, +0.0%] same")
    assert rows["int8-tc"].endswith("10.00 us  8.00 us -20.0% [-20.0%, -20.0%] 1.25x faster")
    assert "null control +0.00% [+0.00%, +0.00%]" in outcome.out
    assert "Both sides were measured in the same rounds" in outcome.out
    first_round = [name.partition("/")[0] for name, _ in timer.calls[-7:]]
    assert {"int8-tc@A", "int8-tc@B", "previous@A", "previous@B"} <= set(first_round)


def test_a_slower_side_is_a_finding_and_no_failure(ab: Any) -> None:
    outcome, _, _ = ab("--kernels", "int8-tc", times_us=TIMES_US | {"int8-tc@B": 12.0})
    assert "1.20x slower" in outcome.out
    assert outcome.code == 0


def test_a_wrong_side_is_not_timed_and_named(ab: Any, tampered_backend: Any) -> None:
    def tamper(_: Any, out: Any) -> None:
        out[:] = 0

    outcome, timer, _ = ab("--kernels", "int8-tc", b=tampered_backend(tamper))
    assert outcome.code == 1
    assert "error: wrong result: int8-tc@B/splits=" in outcome.err
    assert "(out[" in outcome.err
    assert {name.partition("/")[0] for name, _ in timer.calls} == {"int8-tc@A"}
    assert "failed" in outcome.out


def test_the_record_names_the_variants_by_side_and_resumes(ab: Any, command: Command, tmp_path: Path) -> None:
    record = tmp_path / "ab.jsonl"
    outcome, _, _ = ab("--record", str(record))
    run = read_run(record)
    assert {check.kernel for check in run.checks} == set(TIMES_US)
    assert set(run.header.kernel_hashes) == set(TIMES_US)
    again = compare_ab(run, ("A", "B"), ("", ""), Terms(paired=True))
    assert [row.status for row in again.rows] == ["same", "faster"]
    assert "int8-tc@B" in command("report", str(record)).out

    visits = len(run.visits)
    record.write_text("".join(f"{line}\n" for line in record.read_text().splitlines()[:-20]))
    resumed, _, _ = ab("--record", str(record), "--resume")
    assert (resumed.code, resumed.out) == (0, outcome.out)
    assert len(read_run(record).visits) >= visits


def test_formats(ab: Any) -> None:
    document = json.loads(ab("--format", "json")[0].out)
    assert (document["samples"], document["base"]["commit"]) == ("paired", "folder")
    assert "| previous | - |" in ab("--format", "markdown")[0].out
    assert "<testsuites" in ab("--format", "junit")[0].out


def test_many_rows_are_compared_with_previous_as_well(ab: Any) -> None:
    outcome, _, _ = ab("--op", "prefill", "--rows", "65", "--rounds", "2")
    assert outcome.code == 0
    assert outcome.out.count(" us ") >= 2


@pytest.mark.parametrize(("op", "kernel"), [(op, kernel) for op, kernels in KERNELS.items() for kernel in kernels])
def test_every_kernel_of_the_operator_is_compared(ab: Any, op: str, kernel: str) -> None:
    times_us = {f"{kernel}@A": 10.0, f"{kernel}@B": 8.0}
    outcome, _, _ = ab("--op", op, "--kernels", kernel, times_us=times_us)
    assert outcome.code == 0
    assert re.search(rf"^{kernel} .*1.25x faster$", outcome.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ([".", ".", "--kernels", "int8-ws"], 2, "--kernels int8-ws: is no kernel of decode; there are previous,"),
        (
            [".", ".", "--op", "prefill", "--kernels", "int8-tc", "int8-digits"],
            2,
            "--kernels int8-digits: is no kernel",
        ),
        (["HEAD", "nope/nope"], 2, "'nope/nope': is neither a folder nor a revision"),
        (["tests", "."], 2, "'tests': holds no kernel"),
        ([".", ".", "--op", "prefill", "--tiles-per-split", "1"], 2, "--tiles-per-split: prefill is unsplit"),
        ([".", ".", "--op", "mix"], 2, "--op: 'mix' is not one of decode, prefill"),
        ([".", ".", "--rounds", "3"], 2, "--rounds 3: must be even"),
        ([".", ".", "--resume"], 2, "--resume: needs --record FILE"),
        ([".", ".", "--threshold", "15"], 2, "--threshold: '15' could be a ratio or percent"),
        ([".", "."], 3, "ab: compiles CUDA kernels and measures them on a GPU: "),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, root: Path, argv: list[str], code: int, said: str
) -> None:
    """F1, NVIDIA/cudf#6602: without a GPU, exit 3."""
    monkeypatch.chdir(root)
    outcome = command("ab", *argv)
    assert said in outcome.error
    assert outcome.code == code
