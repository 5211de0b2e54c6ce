# SPDX-License-Identifier: MIT
"""`dsa-bench mix`, `dsa-bench gate` and their checks on the CPU backend."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
MIX = ("mix", "--rows", "3", "--hidden", "64", "--rank", "16", "--rounds", "2", "--backend", "cpu")
GATE = ("gate", "--rows", "3", "--gated", "64", "--width", "96", "--rank", "16", "--rounds", "2", "--backend", "cpu")


def test_mix_prints_a_table_for_each_kernel(command: Command) -> None:
    outcome = command(*MIX)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "pre-mix, rows 3, hidden 64, rank 16"
    assert lines[1].split() == ["kernel", "CTAs", "time", "speedup", "interval", "RMS", "err"]
    assert [line.split()[0] for line in lines[2:4]] == ["pre-mix/branchy", "pre-mix/branch-free"]
    assert "scaled-silu, rows 3, hidden 64, rank 16" in lines
    assert outcome.err == "dsa-bench: cell 1 of 1: rows 3, hidden 64, rank 16\n"


def test_one_kernel_of_mix(command: Command) -> None:
    rows = json.loads(command(*MIX, "--kernels", "scaled-silu", "--format", "json").out)["rows"]
    assert [row["kernel"] for row in rows] == ["scaled-silu/branchy", "scaled-silu/branch-free"]


def test_gate_prints_every_mode_and_says_that_here_they_are_one(command: Command) -> None:
    outcome = command(*GATE)
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines()[2:5]] == [
        "gate-mul+down/plain", "gate-mul+down/pdl", "gate-mul+down/pdl-early",
    ]  # fmt: skip
    assert outcome.err.splitlines()[0] == "dsa-bench: on the CPU every launch mode is the same two calls"


@pytest.mark.parametrize("argv", [MIX, GATE])
def test_a_report_is_the_table_of_the_run_and_a_run_compares_with_itself(
    command: Command, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    record = str(tmp_path / "run.jsonl")
    measured = command(*argv, "--record", record)
    assert command("report", record).out == measured.out
    document = json.loads(command("report", record, "--format", "json").out)
    assert document["schema"] == f"dsa-bench/{argv[0]}-table"
    assert {(row["timer"], row["l2"], row["status"]) for row in document["rows"]} == {("wall", "none", "ok")}
    assert command("compare", record, record).code == 0
    again = command(*argv, "--record", record, "--resume")
    assert (again.code, again.out) == (0, measured.out)
    for format in ("csv", "jsonl", "markdown"):
        assert command("report", record, "--format", format).code == 0


def test_other_commands_say_that_the_record_is_not_theirs(command: Command, tmp_path: Path) -> None:
    record = str(tmp_path / "run.jsonl")
    command(*MIX, "--record", record)
    for argv in (("regret", record), ("rule", "score", record), ("rule", "fit", record), ("tune", "--from", record)):
        outcome = command(*argv)
        assert outcome.code in (2, 3)
        assert record in outcome.error


def test_auto_says_in_one_line_that_it_measures_the_cpu(command: Command) -> None:
    """F1, NVIDIA/cudf#6602."""
    outcome = command(*MIX[:-2])
    assert outcome.code == 0
    assert outcome.err.startswith("dsa-bench: measuring the CPU backend: ")


def test_a_plan_measures_nothing(command: Command) -> None:
    plan = json.loads(command("mix", "--plan", "--backend", "cuda").out)
    assert [cell["rows"] for cell in plan["requested"]] == [1, 8, 2048, 8192]
    assert plan["kernels"][-3:] == ["copy/pre-mix", "copy/pre-mix/8-to-1", "copy/scaled-silu"]
    plan = json.loads(command("gate", "--plan", "--backend", "cuda").out)
    assert [cell["rows"] for cell in plan["requested"]] == [1, 2, 3, 4, 5, 6, 7, 8, 8192]
    assert plan["policy"]["timer"] == "events"
    assert plan["estimate_s"] > 0


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("mix", "--hidden", "2561"), 2, "--hidden 2561: must be a multiple of 8"),
        (("mix", "--rank", "12"), 2, "--rank 12: must be a multiple of 8"),
        (("mix", "--branches", "3"), 2, "--branches 3: must be 4"),
        (("gate", "--gated", "6145"), 2, "--gated 6145: must be a multiple of 8"),
        (("gate", "--width", "10248"), 2, "--width 10248: must be a multiple of 32"),
        (("gate", "--gated", "96", "--width", "64"), 2, "--gated 96: must be at most --width 64"),
        (("gate", "--timer", "cupti"), 2, "--timer cupti: sums durations of kernels"),
        (("gate", "--timer", "cupti", "--plan"), 2, "--timer cupti: sums durations of kernels"),
        (("gate", "--timer", "events", "--backend", "cpu"), 2, "--timer events: times GPU kernels"),
        (("mix", "--rows", "0"), 2, "'0' is not a positive decimal integer"),
        (("mix", "--rounds", "3"), 2, "--rounds 3: must be even"),
        (("mix", "--kernels", "down"), 2, "'down' is not one of pre-mix, scaled-silu"),
        (("mix", "--ceiling", "--backend", "cpu"), 2, "--ceiling: measures GPU kernels"),
        (("mix", "--ceiling", "--rows", "1"), 3, "--ceiling: measures GPU kernels, and no GPU is used here"),
        (("mix", "--backend", "cuda"), 3, "--backend cuda: "),
        (("gate", "--resume"), 2, "--resume: needs --record FILE"),
        (("gate", "--plan", "--record", "x.jsonl"), 2, "--plan: measures nothing"),
        (("gate", "--plan", "--format", "csv"), 2, "--format csv: --plan prints JSON"),
        (
            ("check", "--op", "mix", "--case", "toy-row"),
            2,
            "--kernels, --case: choose among checks of sparse attention",
        ),
    ],
)
def test_bad_input_is_one_line(command: Command, argv: tuple[str, ...], code: int, message: str) -> None:
    outcome = command(*argv)
    assert outcome.code == code
    assert message in outcome.error


def test_a_wrong_result_is_exit_1(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dsa_bench.backends.cpu import hyper

    right = hyper.scaled_silu

    def wrong(inputs: Any, form: str, rows: slice, out: Any) -> None:
        right(inputs, form, rows, out)  # type: ignore[arg-type]
        if form == "branch-free":
            out[0, 0] = 50

    monkeypatch.setattr(hyper, "scaled_silu", wrong)
    record = tmp_path / "run.jsonl"
    outcome = command(*MIX, "--record", str(record))
    assert outcome.code == 1
    assert "scaled-silu/branch-free: wrong result: activated: out[0, 0] is 50, the FP64 reference" in outcome.out
    assert "error: wrong result: scaled-silu/branch-free (scaled-silu, rows 3, hidden 64, rank 16)" in outcome.err
    assert command("report", str(record)).code == 0
    checked = command("check", "--op", "mix", "--backend", "cpu")
    assert checked.code == 1
    assert "WRONG" in checked.out
    assert "(scaled-silu/branch-free)" in checked.err


@pytest.mark.parametrize(
    ("op", "first", "last"), [("mix", "sigmoids", "17 checks: 17 ok"), ("gate", "rows 1, gated", "33 checks: 33 ok")]
)
def test_checks(command: Command, op: str, first: str, last: str) -> None:
    outcome = command("check", "--op", op, "--backend", "cpu")
    lines = outcome.out.splitlines()
    assert outcome.code == 0
    assert lines[0].split() == ["case", "variant", "status", "compared", "wrong"]
    assert lines[1].startswith(first)
    assert lines[-1] == last


def test_a_check_as_json(command: Command) -> None:
    document = json.loads(command("check", "--op", "mix", "--backend", "cpu", "--format", "json").out)
    assert (document["schema"], document["schema_version"], document["backend"]) == ("dsa-bench/mix-check", 1, "cpu")
    assert document["rows"][0]["tried"] > 2**32 // 257
    assert {row["status"] for row in document["rows"]} == {"ok"}
