# SPDX-License-Identifier: MIT
"""Paths and files that no user writes by hand, and every tool meets: one line, the documented code, no traceback."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
CELL = ("--rows", "1", "--context", "256", "--candidates", "128", "--rounds", "2", "--backend", "cpu")


def one_line(outcome: Any) -> str:
    lines = [line for line in outcome.err.splitlines() if "error:" in line]
    assert len(lines) == 1, outcome.err
    assert "Traceback" not in outcome.err
    return lines[0]


@pytest.mark.parametrize("option", ["--record", "--inputs", "--scales-from"])
@pytest.mark.parametrize("kind", ["long", "loop"])
def test_a_name_too_long_and_a_loop_of_links(command: Command, tmp_path: Path, option: str, kind: str) -> None:
    loop = tmp_path / "loop.npz"
    loop.symlink_to("loop.npz")
    path = loop if kind == "loop" else tmp_path / ("n" * 300 + ".npz")
    outcome = command("decode", *CELL, option, str(path))
    assert outcome.code == 2
    assert option in one_line(outcome)


def test_an_input_that_is_a_folder_or_holds_a_tensor_twice(command: Command, tmp_path: Path) -> None:
    import zipfile

    folder = tmp_path / "x.npz"
    folder.mkdir()
    assert "is a folder" in one_line(command("decode", "--inputs", str(folder), "--backend", "cpu"))
    twice = tmp_path / "twice.npz"
    with zipfile.ZipFile(twice, "w") as archive:
        archive.writestr("query.npy", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("query.npy", b"2")
    assert "query is in it twice" in one_line(command("decode", "--inputs", str(twice), "--backend", "cpu"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("measure=" + "[" * 5000, "is not TOML"),
        ('[[measure]]\nop = "decode"\nseed = 0x' + "F" * 5000, "must be an integer, not a number of 20000 bits"),
        ('[[measure]]\nop = "decode"\nseed = "' + "x" * 100_000 + '"', "must be an integer, not 'xxx"),
        ("#" * (1 << 21), "a sweep file has at most"),
    ],
)
def test_sweep_files_made_to_hurt(command: Command, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    outcome = command("run", str(path), "--backend", "cpu")
    assert outcome.code == 2
    line = one_line(outcome)
    assert said in line
    assert len(line) < 600


def test_a_later_cell_that_cannot_be_measured_keeps_the_earlier_ones(command: Command, tmp_path: Path) -> None:
    """With the second cell's values its outputs could reach the poison."""
    record = tmp_path / "r.jsonl"
    shapes = ("--rows", "1", "--context", "256", "--candidates", "128", "20000000", "--rounds", "2")
    outcome = command("decode", *shapes, "--backend", "cpu", "--record", str(record), "--format", "csv")
    assert outcome.code == 3
    assert "a later cell cannot be measured" in one_line(outcome)
    assert ",128," in outcome.out


def test_two_sweeps_at_once_have_a_record_each(tmp_path: Path, root: Path) -> None:
    sweep = tmp_path / "s.toml"
    sweep.write_text('[[measure]]\nop = "decode"\nrows = [1]\ncontext = [256]\ncandidates = [128]\nrounds = 2\n')
    line = [sys.executable, "-m", "dsa_bench", "run", str(sweep), "--backend", "cpu", "--results", str(tmp_path / "r")]
    running = [subprocess.Popen(line, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    printed = [process.communicate(timeout=120)[0].decode().strip() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(set(printed)) == 3
    assert all(Path(record).stat().st_size for record in printed)


def test_an_interrupt_while_modules_load_is_one_line(root: Path) -> None:
    slow = """
import sys, time
import dsa_bench.__main__ as entry
class Slow:
    def __getattr__(self, name):
        if name != "main":
            raise AttributeError(name)
        print("loading", flush=True)
        time.sleep(30)
sys.modules["dsa_bench.cli.main"] = Slow()
entry.main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", slow], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "dsa-bench: interrupted\n")


def test_the_environment_says_nothing_to_tune_from(command: Command, tmp_path: Path, monkeypatch: Any) -> None:
    record = tmp_path / "r.jsonl"
    assert command("decode", *CELL, "--record", str(record)).code == 0
    monkeypatch.setenv("DSA_BENCH_ROWS", "1")
    assert "has no use beside --from" not in command("tune", "--from", str(record)).err
