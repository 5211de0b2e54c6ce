# SPDX-License-Identifier: MIT
"""`decode --inputs` and `--scales-from`: the file decides the shape, and what says otherwise is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.run import read_run
from dsa_bench.model.shape import SparseShape

Command = Callable[..., Any]

SHAPE = SparseShape(rows=3, context=200, candidates=70)
SMALL = ["--context", "200", "--candidates", "70", "--rounds", "2", "--backend", "cpu"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "t.npz", seed=5)


def write(path: Path, seed: int) -> Path:
    inputs = sparse_inputs(SHAPE, DataSpec(seed=seed))
    np.savez(path, scale=np.float32(inputs.scale), **inputs.tensors)
    return path


def test_a_file_is_the_one_cell(command: Command, file: Path, tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    argv = ["decode", "--inputs", str(file), "--rounds", "2", "--backend", "cpu", "--record", str(record)]
    assert command(*argv).code == 0
    run = read_run(record)
    digest = sparse_inputs(SHAPE, DataSpec(seed=5)).digest()
    assert {(check.cell, check.data_hash, check.status) for check in run.checks} == {(SHAPE.key, digest, "ok")}
    assert run.header.plan["data"]["source"] == {"part": "inputs", "file": str(file), "digest": digest}
    assert command(*argv, "--resume").code == 0
    write(file, seed=6)
    assert f"plan.data.source.digest was '{digest}', now " in command(*argv, "--resume").error


def test_the_plan_knows_the_shape(command: Command, file: Path) -> None:
    agreeing = ["--rows", "3", "--context", "200", "--query-heads", "24"]
    outcome = command("decode", "--inputs", str(file), *agreeing, "--plan")
    plan = json.loads(outcome.out)
    assert [cell["rows"] for cell in plan["requested"]] == [3]
    assert plan["data"]["source"]["file"] == str(file)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--rows", "8"], "--rows 8: --inputs {file} holds 3; leave --rows out"),
        (["--rows", "3", "8"], "--rows 3 8: --inputs {file} holds 3; leave --rows out"),
        (["--context", "8192"], "--context 8192: --inputs {file} holds 200; leave --context out"),
        (["--candidates", "64"], "--candidates 64: --inputs {file} holds 70; leave --candidates out"),
        (["--query-heads", "16"], "--query-heads 16: --inputs {file} holds 24; leave --query-heads out"),
        (["--kv-heads", "1"], "--kv-heads 1: --inputs {file} holds 2; leave --kv-heads out"),
        (["--seed", "0"], "--seed: is no option beside --inputs"),
        (["--query-std", "1.4"], "--query-std: is no option beside --inputs"),
        (["--key-scale-multiplier", "1"], "--key-scale-multiplier: is no option beside --inputs"),
        (["--value-scale-multiplier", "1"], "--value-scale-multiplier: is no option beside --inputs"),
        (["--invalid-fraction", "0"], "--invalid-fraction: is no option beside --inputs"),
        (["--selection", "sorted"], "--selection: is no option beside --inputs"),
        (["--scales-from", "s.npz"], "--scales-from: is no option beside --inputs"),
    ],
)
def test_what_contradicts_the_file_is_refused(command: Command, file: Path, argv: list[str], said: str) -> None:
    outcome = command("decode", "--inputs", str(file), *argv)
    assert outcome.error.startswith(f"dsa-bench: error: {said.format(file=file)}")
    assert outcome.code == 2


def test_an_option_from_the_environment_counts(command: Command, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSA_BENCH_INPUTS", str(file))
    monkeypatch.setenv("DSA_BENCH_SELECTION", "")
    assert json.loads(command("decode", "--plan").out)["requested"][0]["context"] == 200
    monkeypatch.setenv("DSA_BENCH_ROWS", "1 8")
    assert "--rows 1 8: --inputs " in command("decode", "--plan").error


def test_scales_of_a_file(command: Command, file: Path, tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    argv = ["decode", "--scales-from", str(file), "--rows", "1", "2", "--key-scale-multiplier", "0.5", *SMALL]
    assert command(*argv, "--record", str(record)).code == 0
    run = read_run(record)
    assert len({check.data_hash for check in run.checks}) == 2
    assert {check.status for check in run.checks} == {"ok"}
    assert run.header.plan["data"]["source"]["part"] == "scales"
    write(file, seed=6)
    assert "plan.data.source.digest was " in command(*argv, "--record", str(record), "--resume").error


def test_scales_that_do_not_fit_are_refused_before_anything_runs(command: Command, file: Path) -> None:
    outcome = command("decode", "--scales-from", str(file), "--kv-heads", "4", "--plan")
    assert outcome.error == (
        f"dsa-bench: error: --scales-from {file}: key_scale: found float32 [2, 256], "
        "needs float32 [kv_heads=4, head_size=256]"
    )
    assert outcome.code == 2


@pytest.mark.parametrize("option", ["--inputs", "--scales-from"])
def test_files_that_cannot_be_used(command: Command, tmp_path: Path, option: str) -> None:
    (tmp_path / "t.npz").write_text("no archive")
    for name, said in (("none.npz", "no such file"), ("t.npz", "cannot be read as .npz"), ("t.pt", "must end in")):
        outcome = command("decode", option, str(tmp_path / name))
        assert outcome.error.startswith(f"dsa-bench: error: {option} {tmp_path / name}: ")
        assert said in outcome.error
        assert outcome.code == 2
