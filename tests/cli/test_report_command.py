# SPDX-License-Identifier: MIT
"""`dsa-bench report`: one run, several, a folder."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.fixture
def record(two_cells: Any, tmp_path: Path) -> Path:
    return two_cells.write(tmp_path / "run[h200].jsonl")


@pytest.fixture
def folder(maker: Any, sweep: Any, tmp_path: Path) -> Path:
    root = tmp_path / "results"
    for name in ("b", "a"):
        (root / "gpu" / name).mkdir(parents=True)
        sweep({(8, 2048): {16: 13.2, 8: 12.7}}, auto=16).write(root / "gpu" / name / f"{name}.jsonl")
    (root / "gpu" / "a" / "a-drift.svg").write_text("<svg/>")
    (root / "gpu" / "a" / "a-drift.png").write_text("")
    (root / "gpu" / "a" / "a.md").write_text("table\n")
    (root / "gpu" / "a" / "notes.txt").write_text("notes\n")
    (root / "gpu" / "a" / ".hidden").write_text("")
    (root / "gpu" / "b" / "about.md").write_text("What *b* is.\n")
    return root


@pytest.mark.parametrize("format", ["table", "json", "jsonl", "csv", "markdown"])
def test_one_run_goes_to_a_file_as_to_stdout(command: Command, record: Path, tmp_path: Path, format: str) -> None:
    out = tmp_path / "out"
    printed = command("report", str(record), "--format", format)
    written = command("report", str(record), "--format", format, "-o", str(out))
    assert (written.code, written.out) == (printed.code, "") == (0, "")
    assert out.read_text() == printed.out


def test_several_runs_are_one_report(command: Command, record: Path, folder: Path) -> None:
    other = folder / "gpu" / "a" / "a.jsonl"
    outcome = command("report", str(record), str(other), str(record))
    assert (outcome.code, outcome.err) == (0, "")
    headings = [line for line in outcome.out.splitlines() if line.startswith("#")]
    assert headings[:3] == ["# Results", "## Hosts", "## Records"]
    assert headings[-3:] == ["## Whole tables", "### run\\[h200\\]", "### a"]
    assert "## How each number was taken" in headings
    assert "## What this cannot show" in headings
    assert command("report", str(record), str(other), "--format", "markdown").out == outcome.out


def test_one_run_in_full(command: Command, record: Path) -> None:
    assert command("report", str(record), "--full").out.startswith("# Results\n")


def test_a_folder_is_an_index(command: Command, folder: Path) -> None:
    """E7, rapidsai/asvdb#10: sorted by name, whatever order the folder gives; the report is not of itself."""
    page = folder / "README.md"
    for _ in range(2):
        outcome = command("report", str(folder), "-o", str(page))
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    text = page.read_text()
    assert text.index("### gpu/a") < text.index("### gpu/b")
    assert "[table](gpu/a/a.md), [drift](gpu/a/a-drift.svg)" in text
    assert "Other files: [notes.txt](gpu/a/notes.txt)" in text
    assert "What *b* is." in text
    assert "hidden" not in text
    assert "README" not in text
    assert "## Whole tables" not in text


def test_a_run_without_a_cell_is_said(command: Command, record: Path, tmp_path: Path) -> None:
    header = tmp_path / "header.jsonl"
    header.write_text(record.read_text().splitlines(keepends=True)[0])
    alone = command("report", str(header))
    assert (alone.code, alone.out) == (0, "")
    assert alone.err == f"dsa-bench: {header}: no cell was measured yet\n"
    beside = command("report", str(record), str(header))
    assert beside.code == 0
    assert "header.jsonl: no cell was measured yet" in beside.err
    assert "no cell was measured." in beside.out


def test_bad_usage(command: Command, record: Path, folder: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    torn = tmp_path / "torn.jsonl"
    torn.write_text(record.read_text()[:40])
    out = str(tmp_path / "out.md")
    for argv, said in (
        ((), "RUN"),
        (("nowhere.jsonl",), "nowhere.jsonl: cannot be read"),
        ((str(record), "--full", "--format", "json"), "--format json: several runs, a folder and --full give Markdown"),
        ((str(folder), "--format", "csv"), "--format csv"),
        ((str(record), str(folder)), "is a folder, and stands alone"),
        ((str(nothing),), "holds no record"),
        ((str(record), str(torn), "-o", out), "torn.jsonl: holds no whole header line"),
        ((str(record), "-o", str(nothing / "no" / "x.md")), "does not exist"),
        ((str(record), "--format", "html"), "'html' is not one of"),
    ):
        outcome = command("report", *argv)
        assert outcome.code == 2, argv
        assert said in outcome.error
    assert not Path(out).exists()


def test_an_ascii_stdout_and_an_early_reader(process: Any, record: Path) -> None:
    """A9, Textualize/rich#68: every line is there, degraded."""
    argv = ("report", str(record), str(record), "--full")
    outcome = process(*argv, env={"PYTHONIOENCODING": "ascii"})
    assert outcome.code == 0
    assert "### run\\[h200\\]" in outcome.out.replace("\\\\", "\\")


def test_every_result_is_reported_within_seconds(command: Command, root: Path) -> None:
    start = time.process_time()
    assert command("report", str(root / "results")).code == 0
    assert time.process_time() - start < 5
