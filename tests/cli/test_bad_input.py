# SPDX-License-Identifier: MIT
"""Bad input: the exit code, nothing on stdout, and one line on stderr with option, value and rule."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]

BAD_USAGE = [
    (["--rows", "0"], "--rows: '0' is not a positive decimal integer"),
    (["--rows"], "--rows: needs at least one value"),
    (["--rows", "--context", "2048"], "--rows: needs at least one value"),
    (["--rows", "x"], "--rows: 'x' is not a positive decimal integer"),
    (["--rows", "+8"], "--rows: '+8' is not a positive decimal integer"),
    (["--rows", "1_0"], "--rows: '1_0' is not a positive decimal integer"),
    (["--rows", "٨"], "--rows: '٨' is not a positive decimal integer"),
    (["--rows", " 8"], "--rows: ' 8' is not a positive decimal integer"),
    (["--rows", "1,"], "--rows: '' is not a positive decimal integer"),
    (["--rows", "1.5"], "--rows: '1.5' is not a positive decimal integer"),
    (["--rows", "1" * 5000], "is not a positive decimal integer of at most 18 digits"),
    (["--rows", "9000"], "--rows 9000: must be at most --context 8192"),
    (["--tiles-per-split", "-1"], "--tiles-per-split: '-1' is not a non-negative decimal integer"),
    (["--tiles-per-split", "0", "-1"], "--tiles-per-split: '-1' is not a non-negative decimal integer"),
    (["--tiles-per-split=-1"], "--tiles-per-split: '-1' is not a non-negative decimal integer"),
    (["--context", "0"], "--context: '0' is not a positive decimal integer"),
    (["--context", "2147483648"], "--context 2147483648: must be at most 2147483647"),
    (["--candidates", "0"], "--candidates: '0' is not a positive decimal integer"),
    (["--query-heads", "25", "--kv-heads", "2"], "--query-heads 25: must be a multiple of --kv-heads 2"),
    (["--kernels", "sparse"], "--kernels: 'sparse' is not one of previous, int8-tc"),
    (["--kernels", "previous", "[/tmp/x]"], "--kernels: '[/tmp/x]' is not one of previous, int8-tc"),
    (["--timer", "sundial"], "--timer: 'sundial' is not one of auto, cupti, events, wall"),
    (["--format", "xml"], "--format: 'xml' is not one of table, json, jsonl, csv, markdown"),
    (["--backend", "tpu"], "--backend: 'tpu' is not one of auto, cpu, cuda"),
    (["--backend", ""], "--backend: '' is not one of auto, cpu, cuda"),
    (["--l2", "hot"], "--l2: 'hot' is not one of warm, cold"),
    (["--timer", "cupti", "--backend", "cpu"], "--timer cupti: "),
    (["--timer", "events", "--backend", "cpu"], "--timer events: "),
    (["--rounds", "0"], "--rounds: '0' is not a positive decimal integer"),
    (["--rounds", "-4"], "--rounds: '-4' is not a positive decimal integer"),
    (["--rounds", "3"], "--rounds 3: must be even"),
    (["--rounds"], "--rounds"),
    (["--budget", "0"], "--budget: '0' is not a number above 0"),
    (["--budget", "inf"], "--budget: 'inf' is not a number above 0"),
    (["--budget", "1e999"], "--budget: '1e999' is not a number above 0"),
    (["--budget", "nan"], "--budget: 'nan' is not a number above 0"),
    (["--seed", "-1"], "--seed: '-1' is not a non-negative decimal integer"),
    (["--query-std", "-1"], "--query-std: '-1' is not a number at least 0"),
    (["--key-scale-multiplier", "0"], "--key-scale-multiplier: '0' is not a number above 0"),
    (["--invalid-fraction", "1.1"], "--invalid-fraction: '1.1' is not a number at least 0 and at most 1"),
    (["--selection", "blocks:0"], "--selection blocks:0: blocks:N takes a positive run length"),
    (["--selection", "[slug]"], "--selection [slug]: must be sorted, random, blocks:N or overlap:F"),
    (["--resume"], "--resume: needs --record FILE"),
    (["--sms", "132"], "--sms, --resident: go together"),
    (["--row", "1"], "--row"),
    (["8"], "unexpected extra argument"),
    (["--selection", "sorted", "random"], "--selection: takes one value, and two were given: sorted random; name one"),
]


@pytest.mark.parametrize(("argv", "said"), BAD_USAGE)
def test_bad_usage(command: Command, argv: list[str], said: str) -> None:
    """A3, pallets/click#2871, for -1; A8, Textualize/rich#2636, for brackets; D3, flash-attention#2503, for zeros."""
    outcome = command("decode", *argv)
    assert said in outcome.error
    assert outcome.code == 2


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("DSA_BENCH_TILES_PER_SPLIT", "-1", "'-1' is not a non-negative decimal integer"),
        ("DSA_BENCH_ROWS", "1 x", "'x' is not a positive decimal integer"),
        ("DSA_BENCH_ROWS", "  ", "needs at least one value"),
        ("DSA_BENCH_BACKEND", "tpu", "'tpu' is not one of"),
        ("DSA_BENCH_ROUNDS", "+2", "'+2' is not a positive decimal integer"),
    ],
)
def test_bad_variables(command: Command, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str) -> None:
    """A3, pallets/click#2871, and A5, vllm-project/vllm#28159: the message names where the value came from."""
    monkeypatch.setenv(variable, value)
    outcome = command("decode", "--plan")
    option = "--" + variable.removeprefix("DSA_BENCH_").lower().replace("_", "-")
    assert f"{option} (from {variable}): {said}" in outcome.error
    assert outcome.code == 2


@pytest.mark.parametrize("argv", [["--timer", "cupti"], ["--timer", "events"]])
def test_a_gpu_timer_without_a_gpu_cannot_measure(command: Command, argv: list[str]) -> None:
    outcome = command("decode", *argv)
    assert f"{argv[0]} {argv[1]}: " in outcome.error
    assert outcome.code == 3


def test_cuda_without_a_gpu_names_what_is_missing(command: Command, tmp_path: Path) -> None:
    """F1, NVIDIA/cudf#6602: one line, exit 3, nothing on stdout, no result file."""
    outcome = command("decode", "--rows", "1", "--backend", "cuda", "--record", str(tmp_path / "r.jsonl"))
    assert outcome.error.startswith("dsa-bench: error: --backend cuda: ")
    assert "driver" in outcome.error
    assert outcome.code == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file/r.jsonl", "folder"])
def test_a_record_that_cannot_be_written(command: Command, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    outcome = command("decode", "--backend", "cpu", "--record", str(tmp_path / place))
    assert f"--record {tmp_path / place}: " in outcome.error
    assert outcome.code == 2


TORN_HEADER, FOREIGN = '{"schema":"dsa-bench/record"', '[{"op":"decode","rows":8,"samples_us":[1,2]}]\n'


@pytest.mark.parametrize("content", ["", TORN_HEADER, FOREIGN, "\n", "plain text\n", "\ufeff{}\n"])
def test_a_record_that_is_none_is_neither_resumed_nor_reported(command: Command, tmp_path: Path, content: str) -> None:
    record = tmp_path / "run[h200].jsonl"
    record.write_text(content)
    for argv in (["decode", "--backend", "cpu", "--resume", "--record", str(record)], ["report", str(record)]):
        outcome = command(*argv)
        assert outcome.error.startswith(f"dsa-bench: error: {record}:")
        assert outcome.code == 2
    assert record.read_text() == content


def test_reports_of_what_is_not_there(command: Command, tmp_path: Path) -> None:
    """A8, agsaru/Repo2Readme#187: a path in brackets is printed in full."""
    for name in ("base[h200].json", "[/tmp]"):
        outcome = command("report", str(tmp_path / name))
        assert f"{tmp_path / name}: cannot be read (No such file or directory)" in outcome.error
        assert outcome.code == 2
    assert command("report").code == 2
    assert command("explode").code == 2


def test_more_than_the_memory_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object) -> None:
        raise MemoryError("Unable to allocate 954. GiB")

    monkeypatch.setattr("dsa_bench.sweep.cells.cell_inputs", too_large)
    outcome = command("decode", "--rows", "1", "--backend", "cpu")
    assert (outcome.code, outcome.out) == (3, "")
    assert outcome.err.splitlines()[-1].startswith("dsa-bench: error: not enough memory (Unable to allocate 954. GiB)")


def test_an_error_that_nobody_expected_keeps_its_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("dsa_bench.sweep.cells.cell_inputs", bug)
    with pytest.raises(ZeroDivisionError):
        command("decode", "--rows", "1", "--backend", "cpu")
