# SPDX-License-Identifier: MIT
"""`dsa-bench tune` on the CPU backend, most of it with times that are made up."""

import errno
import itertools
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sweep_doubles import swept

from dsa_bench.dispatch.map_file import read_map
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.run import RunWriter, complete_rounds, read_run
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.splits_map import MapRule

SMALL = ("tune", "--context", "512", "--candidates", "512", "--backend", "cpu")
"""8 tiles a row; with 8 workers the automatic rule takes 2 tiles per split at one row."""
ONE = (*SMALL, "--rows", "1")
TIMES = {8: 13.0, 4: 12.7, 2: 11.0, 1: 14.0}
"""Microseconds by splits: 4 tiles per split (2 splits) win over the automatic rule's 2 (4 splits)."""

Install = Callable[..., Any]


def splits_of(name: str) -> int:
    return int(name.partition("=")[2])


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, fake_timer: Any) -> Install:
    """`timed(function of (variant, call, elapsed))` replaces the wall clock; `timed()` gives TIMES with noise."""
    monkeypatch.setattr("dsa_bench.backends.cpu.backend._workers", lambda: 8)

    def install(time_us: Callable[[str, int, float], float] | None = None, seed: int = 0, noise: float = 0.002) -> Any:
        draw = random.Random(seed)

        def default(name: str, *_: Any) -> float:
            return TIMES[splits_of(name)] * (1 + draw.gauss(0, noise))

        timer = fake_timer(time_us or default)
        monkeypatch.setattr("dsa_bench.bench.select.WallTimer", lambda: timer)
        return timer

    return install


def strict(text: str) -> Any:
    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def rules(text: str) -> list[Any]:
    return [rule for table in strict(text)["tables"] for rule in table["rules"]]


FOUR = [{"rows": [1, 1], "tiles": [8, 8], "tiles_per_split": 4}]


def test_stdout_is_one_document(command: Any, timed: Install) -> None:
    """A6, ggml-org/llama.cpp#15554."""
    timed()
    outcome = command(*ONE)
    assert outcome.code == 0
    assert outcome.out[0] == "{"
    assert outcome.out.endswith("}\n")
    assert rules(outcome.out) == FOUR
    said = outcome.err.splitlines()
    assert said[0] == "dsa-bench: cell 1 of 1: rows 1, context 512, candidates 512"
    assert said[1].startswith("dsa-bench: decode int8-tc, heads 24/2, head size 256, L2 none: 1 cell, 1 rule; mean")


NOISY_SITE = """
import logging, warnings
import dsa_bench.data.synthetic as synthetic
original = synthetic.sparse_inputs
def noisy(*arguments):
    print("banner of a library")
    logging.getLogger("library").warning("a warning of a library")
    warnings.warn("a deprecation of a library", DeprecationWarning)
    return original(*arguments)
synthetic.sparse_inputs = noisy
import dsa_bench.bench.timers as timers
timers.WallTimer.min_visit_us = 100.0
from dsa_bench.cli.main import main
main()
"""


CLOSED = ("-c", "import os,sys; os.close(2); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])")


@pytest.mark.parametrize("close", [(), CLOSED])
def test_stdout_is_one_document_whatever_else_is_said(
    environment_of_children: Any, tmp_path: Path, close: tuple[str, ...]
) -> None:
    """A6: every warning on, a library that prints and logs, colour forced, and stderr closed."""
    done = subprocess.run(
        [sys.executable, *close, "-W", "always", "-c", NOISY_SITE, *ONE],
        env=environment_of_children({"FORCE_COLOR": "1"}), cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout[0] == "{"
    assert done.stdout.endswith("}\n")
    assert strict(done.stdout)["schema"] == "dsa-bench/splits"
    if not close:
        for said in ("banner of a library", "a warning of a library", "cell 1 of 1"):
            assert said in done.stderr


def test_time_left_is_told(command: Any, timed: Install) -> None:
    timed()
    said = command(*SMALL, "--rows", "1", "2").err.splitlines()
    assert re.fullmatch(r"dsa-bench: cell 2 of 2: rows 2, .*, about \d+ s left", said[1])


def test_a_map_from_a_record_is_the_map_that_was_printed(command: Any, timed: Install, tmp_path: Path) -> None:
    """C8, flashinfer-ai/flashinfer#4433: the same samples, the same bytes."""
    timed()
    record, output = tmp_path / "r.jsonl", tmp_path / "splits.json"
    printed = command(*ONE, "--record", str(record)).out
    again = command("tune", "--from", str(record))
    assert (again.code, again.out) == (0, printed)
    assert command("tune", "--from", str(record), "-o", str(output)).out == ""
    assert output.read_text() == printed
    assert strict(printed)["created"] == read_run(record).header.created
    lines = record.read_text().splitlines()
    shuffled = lines[1:]
    random.Random(1).shuffle(shuffled)
    (tmp_path / "s.jsonl").write_text("\n".join([lines[0], *shuffled]) + "\n")
    assert command("tune", "--from", str(tmp_path / "s.jsonl")).out == printed  # E7, rapidsai/asvdb#10


def test_two_runs_of_the_same_times_and_clock_are_the_same_bytes(
    command: Any, timed: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8: same fake timer, seed and clock."""
    from datetime import UTC, datetime

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Clock":
            return cls(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    monkeypatch.setattr("dsa_bench.sweep.header.datetime", Clock)
    texts = set()
    for _ in range(2):
        timed(seed=3, noise=0.01)
        texts.add(command(*ONE).out)
    assert len(texts) == 1


def test_a_cold_start_does_not_choose(command: Any, timed: Install) -> None:
    """B8, pytorch/helion#2994: +30 % for the first 25 ms of the process; no order of candidates matters."""
    for order in itertools.permutations(("1", "2", "4", "8")):
        timed(lambda name, _, elapsed_us: TIMES[splits_of(name)] * (1.3 if elapsed_us < 25_000 else 1.0))
        assert rules(command(*ONE, "--tiles-per-split", *order).out) == FOUR


@pytest.mark.parametrize("order", [("1", "2", "4", "8"), ("8", "1", "4", "2")])
def test_a_launch_that_fails_never_wins(
    command: Any, timed: Install, monkeypatch: pytest.MonkeyPatch, tampered_backend: Any, tmp_path: Path,
    order: tuple[str, ...],
) -> None:  # fmt: skip
    """C7, KernelTuner/kernel_tuner#314: a wrong output with the best time is named, and exit 1; the map is written."""

    def tamper(plan: Any, out: Any) -> None:
        if plan.split.splits == 2:
            out[0, 3, 5] = 99

    timed()
    monkeypatch.setattr("dsa_bench.backends.cpu.backend.CpuBackend", lambda: tampered_backend(tamper))
    output = tmp_path / "splits.json"
    outcome = command(*ONE, "--tiles-per-split", *order, "-o", str(output))
    assert outcome.code == 1
    assert (
        "warning: int8-tc/splits=2 does not compete at rows 1, context 512, candidates 512: wrong_result: out[0, 3, 5]"
        in (outcome.err)
    )
    assert outcome.err.splitlines()[-1].startswith("dsa-bench: error: wrong result: int8-tc/splits=2 (rows 1")
    (table,) = read_map(output).tables
    assert (table.rules, list(table.cells[0].us)) == ((), ["1", "2", "8"])


def test_all_failed_is_exit_3_and_the_old_map_stays(
    command: Any, timed: Install, monkeypatch: pytest.MonkeyPatch, tampered_backend: Any, tmp_path: Path
) -> None:
    """C7, diku-dk/futhark#1336."""

    def tamper(_: Any, out: Any) -> None:
        out[:] = 0

    timed()
    monkeypatch.setattr("dsa_bench.backends.cpu.backend.CpuBackend", lambda: tampered_backend(tamper))
    output = tmp_path / "splits.json"
    output.write_text("old")
    outcome = command(*ONE, "-o", str(output))
    assert (outcome.code, outcome.out, output.read_text()) == (3, "", "old")
    assert "no launch could be timed (int8-tc/splits=" in outcome.err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == [output]


def test_a_timer_without_resolution_gives_no_map(command: Any, timed: Install) -> None:
    """B1, triton-lang/triton#8948."""
    timed(lambda *_: 0.0)
    outcome = command(*ONE)
    assert (outcome.code, outcome.out) == (3, "")
    assert "below_resolution: wall read 0 us" in outcome.err
    timed(lambda name, seen, _: 0.0 if seen < 2 else TIMES[splits_of(name)])
    assert rules(command(*ONE).out) == FOUR


def test_one_candidate_without_resolution_does_not_win(command: Any, timed: Install) -> None:
    """B1, C7: 0.0 would be the least time."""
    timed(lambda name, *_: 0.0 if splits_of(name) == 1 else TIMES[splits_of(name)])
    outcome = command(*ONE)
    assert outcome.code == 0
    assert rules(outcome.out) == FOUR
    assert "int8-tc/splits=1 does not compete" in outcome.err


def test_an_interrupt_keeps_the_record_and_the_old_map(command: Any, timed: Install, tmp_path: Path) -> None:
    """C10, ROCm/aiter#5263: in the third of four shapes; --resume measures only what is missing."""
    record, output = tmp_path / "r.jsonl", tmp_path / "splits.json"
    output.write_text("old")
    argv = (*SMALL, "--rows", "1", "2", "3", "4", "--record", str(record), "-o", str(output))

    def stop_in_the_third(name: str, *_: Any) -> float:
        if len(cells()) == 3 and len(read_run(record).visits) % 7 == 3:
            raise KeyboardInterrupt
        return TIMES[splits_of(name)]

    def cells() -> set[str]:
        return {visit.cell for visit in read_run(record).visits} if record.exists() else set()

    timed(stop_in_the_third)
    outcome = command(*argv)
    assert (outcome.code, outcome.out, output.read_text()) == (130, "", "old")
    assert f"what was measured is in {record}; the same command with --resume goes on" in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl", "splits.json"]
    kept = read_run(record).visits
    finished = {cell for cell, _, _ in complete_rounds(read_run(record))}
    assert len(finished) >= 2

    first_two = [line for line in record.read_text().splitlines() if "rows=3," not in line]
    (tmp_path / "part.jsonl").write_text("\n".join(first_two) + "\n")
    part = command("tune", "--from", str(tmp_path / "part.jsonl"))
    assert part.code == 0
    assert "warning: the run holds 2 of the 4 cells that were planned; finish it with --resume" in part.err
    (tmp_path / "part.jsonl").unlink()
    half = command("tune", "--from", str(record))
    assert half.code == 2
    assert "complete rounds and a map needs 16; finish it with --resume" in half.error
    timer = timed()
    outcome = command(*argv, "--resume")
    assert outcome.code == 0, outcome.err
    assert read_run(record).visits[: len(kept)] == kept
    assert len(list(complete_rounds(read_run(record)))) == 4 * 16
    assert {name for name, _ in timer.calls} <= {f"int8-tc/splits={n}" for n in (1, 2, 4, 8)}
    assert len(read_map(output).tables[0].cells) == 4


def test_a_full_disk_leaves_the_old_map(
    command: Any, timed: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C10, TrenTorch/TrenTorch#157."""
    timed()
    output = tmp_path / "splits.json"
    output.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    outcome = command(*ONE, "-o", str(output))
    assert (outcome.code, output.read_text()) == (3, "old")
    assert list(tmp_path.iterdir()) == [output]


def test_two_at_once_leave_one_whole_map(environment_of_children: Any, tmp_path: Path) -> None:
    """F4, openml/automlbenchmark#691."""
    site = NOISY_SITE.replace("synthetic.sparse_inputs = noisy", "")
    running = [
        subprocess.Popen([sys.executable, "-c", site, *ONE, "-o", "splits.json"],
                         env=environment_of_children(), cwd=tmp_path, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]  # fmt: skip
    assert [process.wait() for process in running] == [0, 0]
    assert len(read_map(tmp_path / "splits.json").tables) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["splits.json"]


def test_a_narrow_interval_ends_a_cell_and_a_wide_one_does_not(command: Any, timed: Install, tmp_path: Path) -> None:
    """Never before 16 rounds, and never because of what the times say."""
    for noise, precision, rounds in ((0.0005, "1%", 16), (0.02, "0.1%", 24)):
        timed(noise=noise)
        record = tmp_path / f"{rounds}.jsonl"
        assert command(*ONE, "--precision", precision, "--rounds", "24", "--record", str(record)).code == 0
        assert len(list(complete_rounds(read_run(record)))) == rounds
        again = timed(noise=noise)
        assert command(*ONE, "--precision", precision, "--rounds", "24", "--record", str(record), "--resume").code == 0
        assert again.calls == []


def test_a_budget_too_small_is_named(command: Any, timed: Install) -> None:
    timed()
    outcome = command(*ONE, "--budget", "0.001")
    assert (outcome.code, outcome.out) == (2, "")
    assert "has 2 complete rounds and a map needs 16" in outcome.err


@pytest.mark.parametrize(("argv", "said"), [
    (("--rounds", "8"), "--rounds 8: a map needs at least 16"),
    (("--rounds", "17"), "--rounds 17: must be even"),
    (("--precision", "0.5"), "--precision: '0.5' is not a percentage such as 0.5%"),
    (("--precision", "0%"), "--precision: '0' is not a number above 0"),
    (("--rows", "0"), "--rows: '0' is not a positive decimal integer"),
    (("--rows", "600"), "--rows 600: must be at most --context 512"),
    (("--tiles-per-split", "-1"), "--tiles-per-split: '-1' is not a non-negative"),
    (("--op", "prefill"), "--op: 'prefill' is not one of decode"),
    (("--resume",), "--resume: needs --record FILE"),
    (("-o", "none/splits.json"), "-o none/splits.json: its folder "),
    (("-o", "."), "-o .: is a folder"),
    (("-o", ""), "--output: needs the name of a file"),
    (("--plan", "-o", "x.json"), "--plan: measures nothing"),
    (("--plan", "--resume"), "--plan: measures nothing"),
    (("--record", "same", "-o", "./same"), "-o same: is what --record names too"),
    (("--sms", "132"), "--sms, --resident: go together"),
    (("--from", "r.jsonl"), "has no use beside --from, which measures nothing; leave it out"),
])  # fmt: skip
def test_bad_usage_measures_nothing(command: Any, timed: Install, argv: tuple[str, ...], said: str) -> None:
    timer = timed()
    outcome = command(*SMALL, *argv)
    assert outcome.code == 2
    assert said in outcome.error
    assert timer.calls == []


def test_runs_that_are_no_sweep(command: Any, two_cells: Any, tmp_path: Path) -> None:
    run = str(two_cells.write(tmp_path / "r.jsonl"))
    outcome = command("tune", "--from", run)
    assert outcome.code == 2
    assert f"{run}: op=decode,rows=1," in outcome.error
    assert "has 8 complete rounds and a map needs 16" in outcome.error
    outcome = command("tune", "--from", str(tmp_path / "none.jsonl"))
    assert outcome.code == 2
    outcome = command("tune", "--from", run, "--context", "5")
    assert "holds no decode cell of int8-tc with context 5" in outcome.error
    assert "--length: has no use with a run of decode" in command("tune", "--from", run, "--length", "5").error
    outcome = command("tune", "--op", "dense", "--from", run)
    assert f"--op dense: {run} is a run of 'decode'; leave it out" in outcome.error


def test_a_record_is_not_written_over(command: Any, two_cells: Any, tmp_path: Path) -> None:
    run = two_cells.write(tmp_path / "r.jsonl")
    before = run.read_bytes()
    for argv in (("tune", "--from"), ("report",), ("rule", "fit")):
        outcome = command(*argv, str(run), "-o", str(run))
        assert outcome.code == 2
    outcome = command("tune", "--from", str(run), "-o", str(run))
    assert f"-o {run}: holds a record, which is not written over; name another file" in outcome.error
    assert run.read_bytes() == before


def test_a_gpu_record_without_resident_ctas_is_refused(command: Any, root: Path) -> None:
    """Records of before say only the SMs."""
    run = min((root / "results/nvidia-h200/seed-decode").glob("*_fa1b1d1.jsonl"))
    outcome = command("tune", "--from", str(run), "--context", "8192")
    assert outcome.code == 2
    assert "its header does not say how many CTAs of int8-tc one SM holds" in outcome.error


def plan(command: Any, *argv: str) -> dict[str, Any]:
    outcome = command("tune", "--plan", *argv)
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_the_default_grids(command: Any) -> None:
    """The seed's 20 shapes on a GPU, always with the automatic rule; four on the CPU, which take under a minute."""
    gpu = plan(command, "--sms", "132", "--resident", "3")
    assert {(one["rows"], one["candidates"]) for one in gpu["requested"]} == set(
        itertools.product((1, 2, 4, 8), (512, 1024, 2048, 4096, 8192))
    )
    assert {one["tiles_per_split"] for one in gpu["requested"]} == {0, 1, 2, 3, 4, 6, 8, 16}
    assert (gpu["policy"]["l2"], gpu["policy"]["rounds"], gpu["kernels"]) == (
        "cold", 16, ["int8-tc", "int8-digits"],
    )  # fmt: skip
    cpu = plan(command, "--backend", "cpu")
    assert len({(one["rows"], one["candidates"]) for one in cpu["requested"]}) == 4
    assert cpu["estimate_s"] < 60
    assert cpu["kernels"] == plan(command, "--kernels", "int8-tc")["kernels"] == ["int8-tc"]
    outcome = command("tune", "--plan", "--kernels", "int8-digits")
    assert (outcome.code, "must name int8-tc, which runs where no rule holds" in outcome.err) == (2, True)
    assert plan(command, "--precision", "0.5%")["policy"]["rounds"] == 64


def test_options_come_from_the_environment_too(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A5, vllm-project/vllm#28159: an empty variable is unset; an option wins over one that would be invalid."""
    monkeypatch.setenv("DSA_BENCH_ROWS", "")
    monkeypatch.setenv("DSA_BENCH_ROUNDS", "")
    monkeypatch.setenv("DSA_BENCH_CANDIDATES", "2048")
    assert len(plan(command)["requested"]) == 4 * 8
    monkeypatch.setenv("DSA_BENCH_ROWS", "many")
    assert {one["rows"] for one in plan(command, "--rows", "3")["requested"]} == {3}
    outcome = command("tune", "--plan")
    assert outcome.code == 2
    assert outcome.error.startswith("dsa-bench: error: --rows (from DSA_BENCH_ROWS): 'many'")


@pytest.mark.parametrize(
    "env", [{"HOME": "/nonexistent"}, {"HOME": None, "XDG_CACHE_HOME": "/proc"}, {"CUDA_VISIBLE_DEVICES": ""}]
)
def test_planning_needs_no_device_and_no_home(process: Any, tmp_path: Path, env: dict[str, str | None]) -> None:
    """F1, NVIDIA/cudf#6602, and F5, Aider-AI/aider#2865."""
    outcome = process("tune", "--plan", env=env)
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["op"] == "decode"
    assert list(tmp_path.iterdir()) == []


def test_without_a_device_cuda_is_exit_3(command: Any, tmp_path: Path) -> None:
    """F1."""
    outcome = command("tune", "--backend", "cuda", "-o", str(tmp_path / "splits.json"))
    assert outcome.code == 3
    assert outcome.error.startswith("dsa-bench: error: --backend cuda: ")
    assert list(tmp_path.iterdir()) == []


def test_a_driver_error_stops_at_once(
    command: Any, timed: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """F7, NVIDIA/numba-cuda#163: error 222 names no winner among the others, writes no entry, and is one line."""
    said = "driver 550.1 (CUDA 12.4) refuses what compiler 12.8 made (CUDA_ERROR_UNSUPPORTED_PTX_VERSION)"
    launches: list[str] = []

    def unsupported(name: str, *_: Any) -> float:
        launches.append(name)
        raise CannotMeasure(said)

    timed(unsupported)
    output = tmp_path / "splits.json"
    output.write_text("old")
    outcome = command(*ONE, "-o", str(output))
    assert (outcome.code, outcome.out, output.read_text()) == (3, "", "old")
    assert outcome.err.splitlines()[-1] == f"dsa-bench: error: {said}"
    assert len(launches) == 1


def test_a_map_from_a_record_of_20_shapes_takes_three_seconds(command: Any, tmp_path: Path) -> None:
    """The seed's 20 shapes with 7 values and 16 rounds, on two cores."""
    shapes = [SparseShape(rows, 8192, n) for rows in (1, 2, 4, 8) for n in (512, 1024, 2048, 4096, 8192)]
    run = swept(shapes, lambda s, tiles: 11.0 + tiles / s.rows, values=(0, 1, 2, 3, 4, 6, 8, 16))
    with RunWriter(tmp_path / "r.jsonl") as writer:
        for line in (run.header, *run.checks, *run.visits):
            writer.append(line)
    start = time.process_time()
    assert command("tune", "--from", str(tmp_path / "r.jsonl")).code == 0
    assert time.process_time() - start < 3


def test_rules_reach_other_shapes_only_between_measured_ones(command: Any, timed: Install, tmp_path: Path) -> None:
    """C4, vllm-project/vllm#52192, from the command line to the look-up's words."""
    timed()
    output = str(tmp_path / "splits.json")
    assert command(*SMALL, "--rows", "1", "--candidates", "512", "-o", output).code == 0
    assert read_map(Path(output)).tables[0].rules == (MapRule((1, 1), (8, 8), 4),)
    for rows, outcome in (("1", "hit"), ("2", "miss"), ("4096", "miss")):
        found = command("map", "explain", output, "--rows", rows, "--candidates", "512", "--backend", "cpu")
        assert found.out.startswith(f"{outcome}: rows {rows}, candidates 512 (8 tiles)"), found
