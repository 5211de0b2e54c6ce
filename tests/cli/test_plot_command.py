# SPDX-License-Identifier: MIT
"""`dsa-bench plot`: files, bytes, exit codes."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.fixture
def record(sweep: Any, tmp_path: Path) -> Path:
    return sweep({(8, 2048): {16: 13.2, 8: 12.7}}, auto=16, noise=0.01).write(tmp_path / "run[h200].jsonl")


def test_both_formats_of_all_that_a_run_has(command: Command, record: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    outcome = command("plot", str(record), "-o", str(out))
    assert (outcome.code, outcome.err) == (0, "")
    kinds = ("decode-time", "regret-map", "split-choices", "league", "drift")
    names = [f"run[h200]-{kind}.{format}" for kind in kinds for format in ("svg", "png")]
    assert outcome.out.splitlines() == [str(out / name) for name in names]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert all((out / name).read_bytes().startswith(b"<?xml" if "svg" in name else b"\x89PNG") for name in names)


def test_the_same_bytes_without_a_display_or_a_home(
    command: Command, record: Path, tmp_path: Path, environment_of_children: Any
) -> None:
    """E8, matplotlib/matplotlib#23693, and F5, Aider-AI/aider#2865: whatever the user's matplotlib is set to."""
    assert command("plot", str(record), "-o", str(tmp_path / "one")).code == 0
    rc = tmp_path / "matplotlibrc"
    rc.write_text("font.size: 20\nsvg.fonttype: none\nsavefig.bbox: tight\n")
    home = tmp_path / "home"
    home.mkdir()
    env = environment_of_children(
        {"DISPLAY": None, "MPLBACKEND": "TkAgg", "MATPLOTLIBRC": str(rc), "HOME": str(home), "MPLCONFIGDIR": None,
         "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None}
    )  # fmt: skip
    time.sleep(1.1)
    argv = [sys.executable, "-m", "dsa_bench", "plot", str(record), "-o", "two"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(home.iterdir()) == []
    for one in (tmp_path / "one").iterdir():
        data = one.read_bytes()
        assert data == (tmp_path / "two" / one.name).read_bytes(), one.name
        assert b"<dc:date>" not in data
        assert b"matplotlib.org" not in data
        assert b"Software" not in data


def test_what_is_asked_for_and_lacking(command: Command, record: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    some = command("plot", str(record), "-o", out, "--kind", "prefill", "drift", "--picture", "svg")
    assert some.code == 0
    assert some.out.splitlines() == [f"{out}/run[h200]-drift.svg"]
    assert some.err == f"dsa-bench: warning: {record}: --kind prefill: no prefill cell has a time\n"
    none = command("plot", str(record), "-o", str(tmp_path / "none"), "--kind", "prefill")
    assert none.code == 2
    assert "--kind prefill: no prefill cell has a time" in none.error
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("content", ["", "{}\n", '{"kind":"header"', "[/tmp/x] expected one of [0, 1, 2, 4]\n"])
def test_a_file_that_is_no_run_is_exit_2_and_no_picture(command: Command, tmp_path: Path, content: str) -> None:
    """E8: an empty file; A8: the message is whole."""
    bad, out = tmp_path / "bad[h200].jsonl", tmp_path / "out"
    bad.write_text(content)
    outcome = command("plot", str(bad), "-o", str(out))
    assert outcome.code == 2
    assert "bad[h200].jsonl" in outcome.error
    assert not out.exists()


def test_a_run_without_a_round_is_exit_2(command: Command, record: Path, tmp_path: Path) -> None:
    header = tmp_path / "header.jsonl"
    header.write_text(record.read_text().splitlines(keepends=True)[0])
    outcome = command("plot", str(record), str(header), "-o", str(tmp_path / "out"))
    assert outcome.code == 2
    assert "header.jsonl: no cell has a complete round" in outcome.error
    assert not (tmp_path / "out").exists()


def test_a_torn_last_line_is_left_out(command: Command, record: Path, tmp_path: Path) -> None:
    record.write_text(record.read_text() + '{"cell":"op=dec')
    assert command("plot", str(record), "-o", str(tmp_path / "out"), "--picture", "svg").code == 0


def test_bad_usage(command: Command, record: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    twin = folder / record.name
    twin.write_bytes(record.read_bytes())
    file = tmp_path / "file"
    file.write_text("")
    out = str(tmp_path / "out")
    for argv, said in (
        ((), "-o"),
        (("-o", out, "--kind", "pie"), "'pie' is not one of"),
        (("-o", out, "--picture", "gif"), "'gif' is not one of"),
        (("-o", out, str(twin)), "2 runs have this name"),
        (("-o", str(file)), "is no folder that can be made"),
        (("-o", out, "--splits", str(file)), "file"),
        (("-o", out, "nowhere.jsonl"), "nowhere.jsonl"),
    ):
        outcome = command("plot", str(record), *argv)
        assert outcome.code == 2, argv
        assert said in outcome.error
        assert not Path(out).exists()


def test_a_map_of_another_gpu_is_said(command: Command, record: Path, tmp_path: Path) -> None:
    from map_doubles import splits_map

    from dsa_bench.dispatch.map_file import write_map

    write_map(tmp_path / "splits.json", splits_map())
    outcome = command(
        "plot", str(record), "-o", str(tmp_path), "--splits", str(tmp_path / "splits.json"), "--kind", "split-choices"
    )
    assert outcome.code == 0
    assert "the map is not used: " in outcome.err


def test_an_ascii_stdout_takes_names(record: Path, process: Any, tmp_path: Path) -> None:
    """A9, pydantic/pydantic-ai#7281."""
    outcome = process(
        "plot", str(record), "-o", str(tmp_path / "µ"), "--kind", "drift", env={"PYTHONIOENCODING": "ascii"}
    )
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 2


def test_the_largest_record_is_drawn_within_seconds(command: Command, root: Path, tmp_path: Path) -> None:
    largest = max((root / "results").rglob("*.jsonl"), key=lambda path: path.stat().st_size)
    assert command("plot", str(largest), "-o", str(tmp_path), "--kind", "drift").code == 0  # matplotlib is loaded
    start = time.process_time()
    assert command("plot", str(largest), "-o", str(tmp_path)).code == 0
    assert time.process_time() - start < 5
