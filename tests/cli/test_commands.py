# SPDX-License-Identifier: MIT
"""The commands in this process, on the CPU backend."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dsa_bench
from dsa_bench.cli.progress import RunProgress

Command = Callable[..., Any]
SMALL = ("decode", "--rows", "1", "--context", "128", "--candidates", "128", "--rounds", "2")
CPU = (*SMALL, "--backend", "cpu")


def test_auto_says_in_one_line_that_it_measures_the_cpu(command: Command) -> None:
    """F1, NVIDIA/cudf#6602."""
    outcome = command(*SMALL)
    assert outcome.code == 0
    said = outcome.err.splitlines()
    assert said[0].startswith("dsa-bench: measuring the CPU backend: ")
    assert said[1] == "dsa-bench: cell 1 of 1: rows 1, context 128, candidates 128"
    assert not any("measuring" in line for line in said[1:])


def test_a_run_prints_one_table_and_one_sentence(command: Command) -> None:
    outcome = command(*CPU, "--tiles-per-split", "0", "1", "2")
    lines = outcome.out.splitlines()
    assert lines[0] == "rows 1, context 128, candidates 128, heads 24/2"
    assert lines[1].split() == [
        "kernel",
        "tiles/split",
        "eff.",
        "splits",
        "CTAs",
        "time",
        "speedup",
        "interval",
        "RMS",
        "err",
    ]
    assert [line.split()[0] for line in lines[2:5]] == ["previous", "int8-tc", "int8-tc"]
    assert lines[5].startswith("rounding floor ")
    assert lines[6].startswith("Fastest: ")
    assert len(lines) == 7


def test_a_report_is_the_table_of_the_run(command: Command, tmp_path: Path) -> None:
    record = tmp_path / "run[slug].jsonl"
    measured = command(*CPU, "--record", str(record))
    assert command("report", str(record)).out == measured.out
    rows = json.loads(command("report", str(record), "--format", "json").out)["rows"]
    assert {(row["timer"], row["l2"], row["status"]) for row in rows} == {("wall", "none", "ok")}


def test_the_l2_mode_is_recorded_as_done(command: Command) -> None:
    """B8, flashinfer-ai/flashinfer#5073: asked for cold, the CPU backend says that it has no such mode."""
    outcome = command(*CPU, "--l2", "cold", "--format", "json")
    assert {row["l2"] for row in json.loads(outcome.out)["rows"]} == {"none"}


@pytest.mark.parametrize(
    "options",
    [
        ("--invalid-fraction", "1"), ("--query-std", "0"), ("--value-scale-multiplier", "1e-300"),
        ("--value-scale-multiplier", "1e37"), ("--context", "1", "--candidates", "1"), ("--selection", "blocks:999"),
        ("--query-heads", "3", "--kv-heads", "3"), ("--selection", "overlap:0.5", "--rows", "3"),
    ],
)  # fmt: skip
def test_unusual_data_is_still_right(command: Command, options: tuple[str, ...]) -> None:
    outcome = command(*CPU, "--format", "json", *options)
    assert outcome.code == 0, outcome.err
    assert {row["status"] for row in json.loads(outcome.out)["rows"]} == {"ok"}


def test_huge_logits_are_measured_where_one_candidate_dominates(command: Command) -> None:
    """Rounding moves each logit by many nats, but the next candidate is much farther away."""
    for options in (("--query-std", "3.76e8"), ("--key-scale-multiplier", "1e4"), ("--query-std", "1e30")):
        outcome = command(*CPU, *options, "--format", "json")
        assert outcome.code == 0, outcome.err
        assert all(row["rms_error"] < 2e-3 for row in json.loads(outcome.out)["rows"])


@pytest.mark.parametrize(
    "options", [("64", "--query-std", "2e4"), ("1", "--query-std", "1e30", "--key-scale-multiplier", "1e9")]
)
def test_logits_beyond_any_check_are_refused(command: Command, options: tuple[str, ...]) -> None:
    """Zeros would pass for the answer: FP32 cannot tell which of two close candidates leads, or it overflows."""
    shape = ("--context", "128", "--candidates", "128", "--rounds", "2", "--backend", "cpu")
    outcome = command("decode", *shape, "--rows", *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert [line.partition(": ")[2].partition(":")[0] for line in outcome.err.splitlines()] == ["cell 1 of 1", "error"]
    assert "lower --key-scale-multiplier or --query-std" in outcome.err


def test_a_wrong_variant_is_a_row_and_exit_1(
    command: Command, monkeypatch: pytest.MonkeyPatch, tampered_backend: Any, tmp_path: Path
) -> None:
    """C7, KernelTuner/kernel_tuner#314: the other variant is measured; the wrong one has its reason and no time."""

    def tamper(plan: Any, out: Any) -> None:
        if plan.kernel == "int8-tc":
            out[0, 3, 5] = 99

    monkeypatch.setattr("dsa_bench.backends.cpu.backend.CpuBackend", lambda: tampered_backend(tamper))
    record = tmp_path / "r.jsonl"
    outcome = command(*CPU, "--format", "json", "--record", str(record))
    assert outcome.code == 1
    previous, wrong = json.loads(outcome.out)["rows"]
    assert previous["time_us"] > 0
    assert (wrong["status"], wrong["time_us"], wrong["speedup"]) == ("wrong_result", None, None)
    assert "out[0, 3, 5] is 99" in wrong["reason"]
    assert outcome.err.splitlines()[-1].startswith("dsa-bench: error: wrong result: int8-tc/splits=1")
    assert command("report", str(record)).code == 0


def test_the_wrong_variant_alone_is_a_row_too(
    command: Command, monkeypatch: pytest.MonkeyPatch, tampered_backend: Any
) -> None:
    def tamper(_: Any, out: Any) -> None:
        out[:] = 0

    monkeypatch.setattr("dsa_bench.backends.cpu.backend.CpuBackend", lambda: tampered_backend(tamper))
    outcome = command(*CPU)
    assert outcome.code == 1
    assert outcome.out.count("wrong result") == 4
    assert "Nothing was timed." in outcome.out


def test_explain_goes_to_stderr(command: Command) -> None:
    outcome = command(*CPU, "--explain", "--format", "json")
    json.loads(outcome.out)
    assert "rows 1, context 128, candidates 128: 2 tiles a row" in outcome.err
    assert "int8-tc, automatic: " in outcome.err


def test_env(command: Command) -> None:
    facts = json.loads(command("env", "--format", "json").out)
    assert facts["dsa-bench"].startswith(dsa_bench.__version__)
    assert "workers" in facts["cpu"]
    assert facts["gpu"]
    text = command("env").out
    assert all(line.startswith(name) for name, line in zip(facts, text.splitlines(), strict=True))


def test_version_and_help(command: Command) -> None:
    """F1, NVIDIA/cudf#6602."""
    assert command("--version").out == f"dsa-bench {dsa_bench.__version__}\n"
    assert command("--help").out == command().out
    for argv in ((), ("--help",), ("decode", "--help"), ("report", "--help"), ("check", "--help"), ("env", "--help")):
        outcome = command(*argv)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.lstrip().startswith("Usage: dsa-bench")


@pytest.mark.parametrize(
    ("argv", "finished", "begun"),
    [
        (("decode", "--rows", "1", "2", "--context", "128", "--candidates", "64"), 1, "rows 2, context 128"),
        (("dense", "--capacity", "64", "--length", "8", "16", "--rule", "off"), 8, "capacity 64, length 16"),
        (("mix", "--rows", "1", "2"), 1, "rows 2"),
    ],
)
def test_ctrl_c_prints_the_finished_cells(
    command: Any, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], finished: int, begun: str
) -> None:
    """Without --record too: an interrupt in the second of two cells leaves the first one's table, whole."""

    def interrupting(self: RunProgress, cell: str, number: int, cells: int) -> None:
        begin_cell(self, cell, number, cells)
        self.visited = stop if number else self.visited  # type: ignore[method-assign]

    def stop() -> None:
        raise KeyboardInterrupt

    begin_cell = RunProgress.begin_cell
    monkeypatch.setattr(RunProgress, "begin_cell", interrupting)
    outcome = command(*argv, "--rounds", "2", "--backend", "cpu", "--format", "json")
    assert outcome.code == 130
    assert outcome.err.splitlines()[-1] == "dsa-bench: interrupted"
    assert f"cell 2 of 2: {begun}" in outcome.err
    rows = json.loads(outcome.out)["rows"]
    assert rows
    assert {row["rounds"] for row in rows} == {2}
    assert {row.get("length") or row["rows"] for row in rows} == {finished}
