# SPDX-License-Identifier: MIT
"""`regret`, `rule` and the rules of a sweep, as commands."""

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from dsa_bench.cli.values import share

Command = Callable[..., Any]
Sweep = Callable[..., Any]
SEED = {(4, 2048): {32: 11.94, 16: 10.40}, (8, 2048): {16: 13.2, 8: 12.7, 32: 18.8}}
SHOW = ("rule", "show", "seed-wave", "--rows", "8", "--candidates", "2048", "--sms", "132", "--resident", "3")
SMALL = ("decode", "--backend", "cpu", "--rows", "1", "--context", "512", "--candidates", "512", "--rounds", "2")


@pytest.fixture
def record(sweep: Sweep, tmp_path: Path) -> str:
    return str(sweep(SEED, auto=16, noise=0.001).write(tmp_path / "run.jsonl"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("2%", 0.02), ("0.02", 0.02), ("15%", 0.15), ("0.15", 0.15), ("0", 0.0), ("0%", 0.0), ("150%", 1.5)],
)
def test_a_share_says_its_unit(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["15", "2", "1", "1.0", "-1%", "-0.1", "%", "", "2 %", "2%%", "nan", "inf%", "1e400%", "x"]
)
def test_a_share_that_could_mean_either_is_refused(text: str) -> None:
    """E1, MinaProtocol/mina#19424: 15 and 0.15 cannot both be taken silently."""
    with pytest.raises(typer.BadParameter):
        share(text)


def test_regret_prints_shapes_and_sums(command: Command, record: str) -> None:
    outcome = command("regret", record, "--rule", "seed-wave", "one-per-sm")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert len(lines) == 1 + 4 + 2
    assert lines[0].split()[:4] == ["rows", "context", "candidates", "rule"]
    assert lines[-2].startswith("seed-wave: mean regret 9.")
    assert lines[-1].startswith("one-per-sm: mean regret ")


def test_the_regret_of_what_ran_for_0_is_the_default(command: Command, record: str) -> None:
    rows = json.loads(command("regret", record, "--format", "json").out)["rows"]
    assert [(row["rule"], row["splits"]) for row in rows] == [("auto", 16), ("auto", 16)]


@pytest.mark.parametrize(("limit", "code"), [("2%", 1), ("0.02", 1), ("50%", 0), ("0.5", 0)])
def test_the_gate_is_the_exit_code_and_the_result_is_still_whole(
    command: Command, record: str, limit: str, code: int
) -> None:
    outcome = command("regret", record, "--rule", "seed-wave", "--max-regret", limit)
    assert outcome.code == code
    assert outcome.out == command("regret", record, "--rule", "seed-wave").out
    assert len(outcome.err.splitlines()) == code
    if code:
        assert outcome.err.startswith("dsa-bench: error: --max-regret: seed-wave: mean regret 9.")


def test_the_gate_fails_where_a_shape_is_missing(command: Command, record: str) -> None:
    outcome = command("regret", record, "--rule", "fa3", "--max-regret", "90%")
    assert outcome.code == 1
    assert "fa3 has no regret in rows 4" in outcome.err


@pytest.mark.parametrize(
    "argv",
    [
        ("regret", "RUN", "--max-regret", "15"), ("regret", "RUN", "--max-regret", "-1%"),
        ("regret", "RUN", "--rule", "best"),
        ("regret", "RUN", "--rule"), ("regret",), ("regret", "nowhere.jsonl"), ("rule", "score", "nowhere.jsonl"),
        ("rule", "score", "RUN", "--resident", "2"), ("rule", "score", "RUN", "--resident", "0"),
        ("rule", "score", "RUN", "--model", "nowhere.json"), ("rule", "score", "RUN", "--model", "RUN"),
        ("rule", "fit", "RUN"), ("rule", "fit", "nowhere.jsonl"), ("rule",), ("rule", "guess"),
        ("rule", "show", "best", *SHOW[3:]), ("rule", "show", "model", *SHOW[3:]), ("rule", "show"),
        ("rule", "show", "fa2", "--rows", "8", "--candidates", "2048"), (*SHOW, "--kv-heads", "0"),
        (*SHOW, "--rows", "0"), (*SHOW, "--candidates", "0"), (*SHOW, "--sms", "0"), (*SHOW, "--resident", "0"),
        (*SHOW, "--rows", "-1"), (*SHOW, "--model", "RUN"),
        (*SMALL, "--rules", "best"), (*SMALL, "--rules", "model"), (*SMALL, "--rules", "fa2", "--model", "RUN"),
        (*SMALL, "--rules", "fa2", "--kernels", "previous"), (*SMALL, "--pad-smem", "1", "--plan"),
        (*SMALL, "--pad-smem", "-1"), (*SMALL, "--pad-smem", "1k"),
    ],
)  # fmt: skip
def test_bad_usage_is_one_line_and_exit_2(command: Command, record: str, argv: tuple[str, ...]) -> None:
    """D3: --rows 0 and --candidates 0 among them."""
    outcome = command(*(record if part == "RUN" else part for part in argv))
    assert outcome.code == 2, outcome.out
    assert "Traceback" not in outcome.error


def test_padding_without_a_gpu_cannot_be_measured(command: Command) -> None:
    assert command(*(part for part in SMALL if part not in ("--backend", "cpu")), "--pad-smem", "1024").code == 3
    assert command(*SMALL, "--pad-smem", "1024").code == 3


def test_damaged_records_are_named(command: Command, record: str, sweep: Sweep, tmp_path: Path) -> None:
    no_counts = str(sweep(SEED, resident_ctas="3").write(tmp_path / "no_counts.jsonl"))
    assert "no_counts.jsonl: the header's device has resident_ctas '3'" in command("rule", "score", no_counts).error
    old = str(sweep(SEED, resident_ctas=None).write(tmp_path / "old.jsonl"))
    assert "say it with --resident N" in command("rule", "fit", old).error
    nothing = tmp_path / "nothing.jsonl"
    nothing.write_text(Path(old).read_text().splitlines(keepends=True)[0])
    assert "nothing.jsonl: the run has no complete round" in command("rule", "fit", str(nothing)).error, (
        "resident or not"
    )
    header = tmp_path / "header.jsonl"
    header.write_text(Path(record).read_text().splitlines(keepends=True)[0])
    assert "header.jsonl: the run has no complete round" in command("regret", str(header)).error


def test_the_league_of_a_recorded_sweep(command: Command, record: str) -> None:
    outcome = command("rule", "score", record)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[1].split()[0] in ("one-per-sm", "fa2", "flashinfer")
    assert any(line.startswith("model is not scored in 2 shapes") for line in lines)
    some = json.loads(command("rule", "score", record, "--rule", "seed-wave,one-per-sm", "--format", "json").out)
    assert [(row["rule"], row["cells"]) for row in some["rows"]] == [("one-per-sm", 2), ("seed-wave", 2)]
    assert some["unscored"] == []


@pytest.mark.parametrize("format", ["table", "json", "jsonl", "csv", "markdown"])
def test_show_worked_values_in_every_format(command: Command, format: str) -> None:
    """D4, Dao-AILab/flash-attention#2901: through the command that people call."""
    outcome = command("rule", "show", "all", *SHOW[3:], "--rows", "1", "--format", format)
    assert (outcome.code, outcome.err) == (0, "")
    if format == "json":
        rows = json.loads(outcome.out)["rows"]
        splits = {(row["rows"], row["rule"]): row["splits"] for row in rows}
        assert (splits[8, "seed-wave"], splits[8, "seed-384"]) == (16, 24)
        assert (splits[1, "seed-wave"], splits[1, "seed-384"]) == (32, 32)
    assert "seed-384" in outcome.out
    a100 = json.loads(command(*SHOW[:-4], "--sms", "108", "--resident", "2", "--format", "json").out)["rows"]
    assert [(row["tiles_per_split"], row["splits"]) for row in a100] == [(4, 8)]
    wrong = json.loads(command(*SHOW, "--kv-heads", "24", "--format", "json").out)["rows"]
    assert [(row["tiles_per_split"], row["splits"]) for row in wrong] == [(16, 2)]


def test_a_model_is_fitted_shown_scored_and_planned(command: Command, sweep: Sweep, tmp_path: Path) -> None:
    times = {
        (rows, candidates): {splits: 3 + candidates / 64 / splits + splits / 8 for splits in (32, 16, 8, 4, 2)}
        for rows, candidates in itertools.product((1, 2, 4, 8), (2048, 4096, 8192))
    }
    run, model = str(sweep(times, noise=0.001).write(tmp_path / "run.jsonl")), tmp_path / "model.json"
    fitted = command("rule", "fit", run, "-o", str(model), "--held-out")
    assert (fitted.code, fitted.out) == (0, "")
    assert [line.partition(":")[0] for line in fitted.err.splitlines()] == ["dsa-bench"] * 4
    assert command("rule", "fit", run, "--held-out").out == model.read_text()
    shown = json.loads(command("rule", "show", "model", "--model", str(model), *SHOW[3:], "--format", "json").out)
    (choice,) = shown["rows"]
    assert choice["rule"] == "model"
    scored = command("rule", "score", run, "--model", str(model))
    assert (scored.code, scored.err) == (0, "")
    assert "its constants are not given" not in scored.out
    other = str(sweep(times, resident_ctas=1).write(tmp_path / "other.jsonl"))
    assert (
        "fitted to something else: resident_ctas 3, here 1"
        in command("rule", "score", other, "--model", str(model)).err
    )
    plan = ("decode", "--plan", "--rows", "8", "--sms", "132", "--resident", "3", "--rules", "model,fa3")
    (cell,) = json.loads(command(*plan, "--model", str(model)).out)["effective"]
    rules = {name: variant["splits"] for variant in cell["variants"] for name in variant["rules"]}
    assert rules == {"model": choice["splits"], "fa3": 7}


def test_a_model_that_cannot_be_written_leaves_what_was_there(command: Command, sweep: Sweep, tmp_path: Path) -> None:
    times = {(rows, 2048): {32: 2.0, 16: 3.0, 8: 4.0, 4: 6.0} for rows in (1, 2, 4, 8)}
    run = str(sweep(times).write(tmp_path / "run.jsonl"))
    assert command("rule", "fit", run, "-o", str(tmp_path / "no" / "model.json")).code == 2
    assert command("rule", "fit", run, "-o", str(tmp_path)).code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.jsonl"]


def test_a_sweep_measures_the_rules_own_launches(command: Command, tmp_path: Path) -> None:
    """On two or more workers; equal launches once, under all names, in the table and in the record."""
    record = tmp_path / "run.jsonl"
    rules = ("--rules", "seed-wave", "seed-384", "flashinfer")
    measured = command(*SMALL, "--record", str(record), *rules)
    assert measured.code == 0, measured.err
    assert "seed-384" in measured.out
    checks = [json.loads(line) for line in record.read_text().splitlines() if '"kind":"check"' in line]
    of_rules = {name: check["splits"] for check in checks for name in check["rules"]}
    assert of_rules.keys() == {"seed-wave", "seed-384", "flashinfer"}
    assert of_rules["seed-384"] == 8
    names = [check["variant"] for check in checks]
    assert len(names) == len(set(names))
    header = json.loads(record.read_text().splitlines()[0])
    assert header["plan"]["rules"] == ["seed-wave", "seed-384", "flashinfer"]
    assert header["device"]["resident_ctas"] == 1
    league = json.loads(command("rule", "score", str(record), "--rule", "seed-384", "--format", "json").out)
    assert league["unscored"] == []
    resumed = command(*SMALL, "--record", str(record), *rules, "--resume")
    assert resumed.code == 0
    assert "plan" in command(*SMALL, "--record", str(record), "--resume").error


def test_rules_and_padding_come_from_the_environment_too(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A5, vllm-project/vllm#28159: empty is unset, an option wins, a wrong value names its variable."""
    plan = ("decode", "--plan", "--sms", "132", "--resident", "3")
    monkeypatch.setenv("DSA_BENCH_RULES", "fa2 seed-384")
    monkeypatch.setenv("DSA_BENCH_PAD_SMEM", "1024")
    document = json.loads(command(*plan).out)
    assert (document["rules"], document["pad_smem"]) == (["fa2", "seed-384"], 1024)
    document = json.loads(command(*plan, "--rules", "fa3", "--pad-smem", "0").out)
    assert (document["rules"], document["pad_smem"]) == (["fa3"], 0)
    monkeypatch.setenv("DSA_BENCH_RULES", "")
    monkeypatch.setenv("DSA_BENCH_PAD_SMEM", "")
    document = json.loads(command(*plan).out)
    assert (document["rules"], document["pad_smem"]) == ([], 0)
    for name, wrong in (("DSA_BENCH_RULES", "best"), ("DSA_BENCH_PAD_SMEM", "-1"), ("DSA_BENCH_PAD_SMEM", " 1")):
        monkeypatch.setenv(name, wrong)
        outcome = command(*plan)
        assert outcome.code == 2
        assert name in outcome.error
        monkeypatch.setenv(name, "")


def test_a_sweep_of_the_seeds_size_is_scored_within_seconds(sweep: Sweep, command: Command, tmp_path: Path) -> None:
    """20 shapes, 10 variants, 16 rounds: rules, regret and fit."""
    times = {
        (rows, candidates): {splits: 3 + candidates / 64 / splits + splits / 8 for splits in range(1, 11)}
        for rows, candidates in itertools.product((1, 2, 4, 8), (1024, 2048, 4096, 8192, 6144))
    }
    record = str(sweep(times, auto=8, noise=0.01).write(tmp_path / "run.jsonl"))
    start = time.process_time()
    for argv in (("regret", record), ("rule", "score", record), ("rule", "fit", record, "--held-out")):
        assert command(*argv).code == 0
    assert time.process_time() - start < 3
