# SPDX-License-Identifier: MIT
"""`dsa-bench run`: records of a whole sweep file, and going on with them."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.backends.cpu.backend import CpuBackend, cpu_device
from dsa_bench.cli.sweep_file import load_sweep
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.run import complete_rounds, read_run
from dsa_bench.sweep.records import is_complete, new_record

Command = Callable[..., Any]
CELLS = "context = [128]\ncandidates = [64]\nrounds = 2\n"
TWO = f'[[measure]]\nop = "decode"\nrows = [2, 1]\n{CELLS}[[measure]]\nop = "prefill"\nrows = [16]\n{CELLS}'


@pytest.fixture(autouse=True)
def quick_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsa_bench.bench.timers.WallTimer.min_visit_us", 100.0)
    monkeypatch.setattr("dsa_bench.bench.rounds.WARMUP_US", 0.0)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "small[1].toml"
    path.write_text(TWO)
    return path


@pytest.fixture
def run(command: Command, sweep: Path, tmp_path: Path) -> Callable[..., Any]:
    def call(*options: str) -> Any:
        return command("run", str(sweep), "--results", str(tmp_path / "results"), "--backend", "cpu", *options)

    return call


def records(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "results").rglob("*.jsonl"))


def test_each_entry_is_one_record_in_the_sweeps_folder(run: Any, tmp_path: Path) -> None:
    outcome = run()
    assert outcome.code == 0
    paths = [Path(line) for line in outcome.out.splitlines()]
    assert sorted(paths) == records(tmp_path)
    assert {path.parent for path in paths} == {tmp_path / "results" / cpu_device().slug / "small-1"}
    runs = [read_run(path) for path in paths]
    assert [recorded.header.plan["op"] for recorded in runs] == ["decode", "prefill"]
    assert [dict(cell_parts(cell))["rows"] for cell, _, _ in complete_rounds(runs[0])] == ["2", "2", "1", "1"]
    said = outcome.err.splitlines()
    assert said[0] == "dsa-bench: small-1: 2 entries, 3 cells, about 1 s in all"
    assert [line.partition(":")[2].partition(", about")[0].strip() for line in said[1:]] == [
        "cell 1 of 3: rows 2, context 128, candidates 64",
        "cell 2 of 3: rows 1, context 128, candidates 64",
        "cell 3 of 3: rows 16, context 128, candidates 64",
    ]


def test_each_selection_counts_as_a_cell(run: Any, sweep: Path) -> None:
    kinds = 'selection = ["sorted", "blocks:4"]'
    sweep.write_text(f'[[measure]]\nop = "prefill"\nrows = [16]\n{kinds}\n{CELLS}{TWO}')
    assert load_sweep(sweep).cells == 5
    said = run().err.splitlines()
    assert said[0].startswith("dsa-bench: small-1: 3 entries, 5 cells, ")
    assert [line.partition(":")[2].partition(", about")[0].strip() for line in said[1:4]] == [
        "cell 1 of 5: rows 16, context 128, candidates 64",
        "cell 2 of 5: rows 16, context 128, candidates 64, selection blocks:4",
        "cell 3 of 5: rows 2, context 128, candidates 64",
    ]


def cell_parts(cell: str) -> list[list[str]]:
    return [part.split("=") for part in cell.split(",")]


def test_mix_and_gate_are_measured_and_gone_on_with(run: Any, sweep: Path, tmp_path: Path) -> None:
    small = "rows = [2, 1]\nrank = 8\nrounds = 2\n"
    sweep.write_text(
        f'[[measure]]\nop = "mix"\nhidden = 16\n{small}[[measure]]\nop = "gate"\ngated = 16\nwidth = 32\n{small}'
    )
    outcome = run()
    assert outcome.code == 0
    paths = [Path(line) for line in outcome.out.splitlines()]
    assert [read_run(path).header.plan["op"] for path in paths] == ["mix", "gate"]
    assert "cell 3 of 4: rows 2, gated 16, width 32, rank 8" in outcome.err
    whole = paths[1].read_text()
    paths[1].write_text(whole[: len(whole) * 3 // 4])
    again = run("--resume")
    assert (again.code, again.out) == (0, outcome.out)
    assert again.err.count(": complete in ") == 1
    assert sum(1 for _ in complete_rounds(read_run(paths[1]))) == 4
    assert len(records(tmp_path)) == 2
    (plan, _) = json.loads(run("--plan").out)["entries"]
    assert [variant.partition("/")[0] for variant in plan["kernels"]] == ["pre-mix"] * 2 + ["scaled-silu"] * 2


def test_a_second_run_is_a_second_record(run: Any, tmp_path: Path) -> None:
    run()
    run()
    assert len(records(tmp_path)) == 4


def test_complete_records_are_left_alone(run: Any, tmp_path: Path) -> None:
    first = run()
    before = [path.read_bytes() for path in records(tmp_path)]
    again = run("--resume")
    assert (again.code, again.out) == (0, first.out)
    assert [path.read_bytes() for path in records(tmp_path)] == before
    assert again.err.count(": complete in ") == 2


def test_an_unfinished_record_is_gone_on_with(run: Any, tmp_path: Path) -> None:
    """C10, ROCm/aiter#5263: torn in the middle of a line."""
    run()
    decode, prefill = (Path(line) for line in run().out.splitlines())
    whole = decode.read_text()
    decode.write_text(whole[: len(whole) * 3 // 4])
    prefill.unlink()
    outcome = run("--resume")
    assert outcome.code == 0
    assert Path(outcome.out.splitlines()[0]) == decode
    assert sum(1 for _ in complete_rounds(read_run(decode))) == 4
    assert len(records(tmp_path)) == 3, "the prefill record of the first run is complete and serves"


def test_resume_without_a_record_begins_one_and_passes_over_what_is_none(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "results" / cpu_device().slug / "small-1"
    folder.mkdir(parents=True)
    (folder / "notes.jsonl").write_text("plain text\n")
    outcome = run("--resume")
    assert outcome.code == 0
    assert len(records(tmp_path)) == 3
    assert f"warning: passed over: {folder / 'notes.jsonl'}:1: is not a line of JSON" in outcome.err


def test_another_plan_is_another_record(run: Any, sweep: Path, tmp_path: Path) -> None:
    run()
    sweep.write_text(TWO.replace("rounds = 2", "rounds = 4"))
    outcome = run("--resume")
    assert len(records(tmp_path)) == 4
    assert "complete" not in outcome.err


def test_the_same_entry_twice_is_two_records(run: Any, sweep: Path, tmp_path: Path) -> None:
    sweep.write_text(TWO.partition('[[measure]]\nop = "prefill"')[0] * 2)
    first = run()
    assert len(set(first.out.splitlines())) == 2
    assert set(run("--resume").out.splitlines()) == set(first.out.splitlines())


def test_a_wrong_kernel_is_exit_1_and_the_rest_is_measured(
    run: Any, tampered_backend: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def tamper(variant: Any, out: Any) -> None:
        if variant.kernel == "int8-tc":
            out[:] = 0

    monkeypatch.setattr(
        "dsa_bench.backends.select.open_backend",
        lambda name, op, pad: ((tampered_backend(tamper) if op == "decode" else CpuBackend()), None),
    )
    outcome = run()
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("dsa-bench: error: wrong result: int8-tc/splits=")
    assert len(outcome.out.splitlines()) == len(records(tmp_path)) == 2


def test_a_failure_half_way_still_names_what_was_measured(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def open_backend(name: str, op: str, pad_smem: int) -> Any:
        if op == "prefill":
            raise CannotMeasure("--backend cuda: the device is gone")
        return CpuBackend(), None

    monkeypatch.setattr("dsa_bench.backends.select.open_backend", open_backend)
    outcome = run()
    assert outcome.code == 3
    assert outcome.out.splitlines() == [str(path) for path in records(tmp_path)]
    assert outcome.err.splitlines()[-1] == "dsa-bench: error: --backend cuda: the device is gone"


def test_a_plan_measures_and_creates_nothing(run: Any, tmp_path: Path) -> None:
    outcome = run("--plan")
    document = json.loads(outcome.out)
    assert (outcome.code, outcome.err, document["sweep"]) == (0, "", "small-1")
    assert [len(entry["requested"]) for entry in document["entries"]] == [2, 1]
    assert document["estimate_s"] == pytest.approx(sum(entry["estimate_s"] for entry in document["entries"]), abs=0.1)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("text", "options", "code", "said"),
    [
        (TWO, ("--plan", "--resume"), 2, "--plan: measures nothing"),
        (TWO, ("--backend", "tpu"), 2, "--backend: 'tpu' is not one of auto, cpu, cuda"),
        (TWO, ("--backend", "cuda"), 3, "--backend cuda: "),
        (TWO + 'timer = "cupti"\n', (), 2, "measure[2]: --timer cupti: times GPU kernels"),
        ('[[measure]]\nop = "dense"\nceiling = true\n', (), 2, "measure[1]: --ceiling: measures GPU kernels, and"),
        ('[[measure]]\nop = "mix"\nceiling = true\n', (), 2, "measure[1]: --ceiling: measures GPU kernels, and"),
        (TWO + "row = 1\n", (), 2, "small[1].toml: measure[2].row: is no option of prefill"),
    ],
)
def test_bad_usage(run: Any, sweep: Path, tmp_path: Path, text: str, options: Any, code: int, said: str) -> None:
    """F1, NVIDIA/cudf#6602: no driver is exit 3 and leaves no record."""
    sweep.write_text(text)
    outcome = run(*options)
    assert outcome.out == ""
    assert said in outcome.err.splitlines()[-1]
    assert outcome.code == code
    assert records(tmp_path) == []


def test_results_that_cannot_be_written(command: Command, sweep: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = command("run", str(sweep), "--results", str(tmp_path / "file"), "--backend", "cpu")
    assert outcome.code == 2
    assert "cannot be written" in outcome.err
    assert "Traceback" not in outcome.err


def test_names_of_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSA_BENCH_COMMIT", "0123456789abcdef-dirty")
    path = new_record(tmp_path)
    assert path.name.endswith("Z_0123456-dirty.jsonl")
    path.touch()
    assert new_record(tmp_path) != path
    monkeypatch.setattr("dsa_bench.sweep.records.source_revision", lambda: (None, None))
    assert "_v" in new_record(tmp_path).name


def test_a_cell_without_a_right_variant_has_nothing_left_to_measure(run: Any, sweep: Path, tmp_path: Path) -> None:
    run()
    recorded = read_run(records(tmp_path)[0])
    request = load_sweep(sweep).entries[0].request
    assert is_complete(recorded, request)
    recorded.visits[:] = [visit for visit in recorded.visits if "rows=2," not in visit.cell]
    assert not is_complete(recorded, request)
    recorded.checks[:] = [
        replace(check, status="launch_refused", reason="x") if "rows=2," in check.cell else check
        for check in recorded.checks
    ]
    assert is_complete(recorded, request)


def test_ctrl_c_names_the_record_and_resume_goes_on(
    environment_of_children: Any, process: Any, sweep: Path, tmp_path: Path
) -> None:
    """C10, ROCm/aiter#5263."""
    sweep.write_text(TWO.replace("rounds = 2", "rounds = 6"))
    argv = ["run", str(sweep), "--results", str(tmp_path / "results"), "--backend", "cpu"]
    child = subprocess.Popen(
        [sys.executable, "-m", "dsa_bench", *argv], env=environment_of_children(), cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while child.poll() is None and not any(path.read_text().count('"visit"') >= 4 for path in records(tmp_path)):
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 130
    (record,) = records(tmp_path)
    assert out.splitlines() == [str(record)]
    assert f"what was measured is in {record}; the same command with --resume goes on" in err
    assert "Traceback" not in err
    finished = process(*argv, "--resume")
    assert finished.code == 0
    assert finished.out.splitlines()[0] == str(record)
    assert len(records(tmp_path)) == 2
