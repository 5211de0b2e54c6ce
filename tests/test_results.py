# SPDX-License-Identifier: MIT
"""The README's tables are what the program makes of the records that they name."""

import re
import statistics
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.model.run import read_run
from dsa_bench.report.cells import cell_tables
from dsa_bench.report.render import to_markdown, to_text
from dsa_bench.stats.verdict import Verdict, judge

QUERIES = ("like a model's", "8 times larger")
TABLE = re.compile(r"<!-- table: (\S+) -->\n```text\n(.*?)\n```", re.DOTALL)


def test_tables_in_the_readme_are_made_from_records(root: Path) -> None:
    shown = TABLE.findall((root / "README.md").read_text())
    assert shown
    for record, blocks in shown:
        made = to_text(cell_tables(read_run(root / record)), color=False, width=80).split("\n\n")
        assert set(blocks.split("\n\n")) <= set(made)


def test_what_a_folder_says_of_int8_digits_is_in_its_newest_records(root: Path) -> None:
    """Medians, and the paired ratio of `int8-tc` to it: two records each, of two kinds of queries, or warm and cold."""
    folder = root / "results/nvidia-h200"
    made = {"decode-digits": set[str](), "kernel-choice": set[str]()}
    for kind, record in zip(QUERIES, sorted((folder / "decode-digits").glob("*.jsonl"))[-2:], strict=True):
        for (rows, _), (times, ratio) in split_kernels(record).items():
            us = " | ".join(f"{times[kernel]:.2f}" for kernel in ("previous", "int8-tc", "int8-digits"))
            made["decode-digits"].add(f"| {rows} | {kind} | {us} | {ratio:.2f}x |")
    for l2, record in zip(("warm", "cold"), sorted((folder / "kernel-choice").glob("*.jsonl"))[-2:], strict=True):
        rows_of: dict[int, list[str]] = {}
        for (rows, _), (times, ratio) in sorted(split_kernels(record).items()):
            cell = f"{times['int8-tc']:.2f} / {times['int8-digits']:.2f}, {ratio:.2f}x"
            rows_of.setdefault(rows, []).append(cell)
        made["kernel-choice"] |= {f"| {rows} | {l2} | {' | '.join(cells)} |" for rows, cells in rows_of.items()}
    for name, lines in made.items():
        shown = re.findall(r"^\| \d.*$", (folder / name / "about.md").read_text(), re.MULTILINE)
        assert sorted(shown) == sorted(lines)


def test_what_a_folder_says_of_int8_union_is_in_its_records(root: Path) -> None:
    """Medians, and the paired ratio of `int8-ws` to it; of lists that share nothing, the sorted ones."""
    folder = root / "results/nvidia-h200/prefill-ws"
    lists = {"overlap:0.9": "0.9", "overlap:0.95": "0.95"}
    made: list[str] = []
    for start in ("20261201T032215Z", "20261201T032403Z", "20261201T032731Z"):
        (record,) = folder.glob(f"{start}_*.jsonl")
        for cell, times in times_of(record).items():
            whole_past = size_of(cell, "context") == 8192
            sorted_lists = "their own past (sorted)" if whole_past else "nothing (sorted)"
            _, named, selection = cell.partition("selection=")
            if named and selection not in lists:
                continue
            rows = f"{size_of(cell, 'rows')}{', context 8192' if whole_past else ''}"
            ws, union = times["int8-ws"], times["int8-union"]
            us = " | ".join(microseconds(statistics.median(one)) for one in (ws, union))
            made.append(
                f"| {rows} | {lists.get(selection, sorted_lists)} | {us} | {judge(ws, union).ratio.centre:.2f} |"
            )
    shown = re.findall(r"^\| \d.*$", (folder / "about.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(made)


def microseconds(time_us: float) -> str:
    return f"{time_us:.1f} us" if time_us < 100 else f"{time_us:.0f} us"


def times_of(record: Path) -> dict[str, dict[str, list[float]]]:
    """Cell -> times of each kernel, by round; without the control."""
    found: dict[str, dict[str, list[float]]] = {}
    for visit in read_run(record).visits:
        if not visit.control and visit.attention_us is not None:
            found.setdefault(visit.cell, {}).setdefault(visit.variant.split("/")[0], []).append(visit.attention_us)
    return found


def split_kernels(record: Path) -> dict[tuple[int, int], tuple[dict[str, float], float]]:
    """(rows, candidates) -> median time of each kernel, and int8-tc / int8-digits over rounds."""
    return {
        (size_of(cell, "rows"), size_of(cell, "candidates")): (
            {kernel: statistics.median(times) for kernel, times in kernels.items()},
            judge(kernels["int8-tc"], kernels["int8-digits"]).ratio.centre,
        )
        for cell, kernels in times_of(record).items()
    }


def size_of(cell: str, name: str) -> int:
    return int(re.findall(rf"{name}=(\d+)", cell)[0])


def test_every_record_has_its_table_beside_it(root: Path) -> None:
    records = sorted((root / "results").rglob("*.jsonl"))
    assert records
    for record in records:
        assert record.with_suffix(".md").read_text() == to_markdown(cell_tables(read_run(record))) + "\n"


def test_the_page_of_results_is_made_from_records(command: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are relative to the page: made where it stands, and written elsewhere."""
    page = (root / "results" / "README.md").read_text()
    monkeypatch.chdir(root / "results")
    assert command("report", ".").out == page


def test_links_of_the_page_of_results_lead_somewhere(root: Path) -> None:
    page = (root / "results" / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert links
    assert [link for link in links if not (root / "results" / link).is_file()] == []


def test_every_record_has_its_pictures_beside_it(root: Path) -> None:
    """Their bytes are compared by .ci/run, with the matplotlib that made them."""
    for record in sorted((root / "results").rglob("*.jsonl")):
        assert record.with_name(f"{record.stem}-drift.svg").is_file()
    pictures = [path for suffix in ("svg", "png") for path in (root / "results").rglob(f"*.{suffix}")]
    assert max(path.stat().st_size for path in pictures) < 250_000


def test_no_recorded_variant_differs_from_itself(root: Path) -> None:
    """The null control of every cell on record is a run of one launch against itself."""
    for record in sorted((root / "results").rglob("*.jsonl")):
        run = read_run(record)
        for _, visits in groupby(sorted(run.visits, key=lambda visit: visit.cell), key=lambda visit: visit.cell):
            times: dict[tuple[str, bool], dict[int, float]] = {}
            for visit in visits:
                times.setdefault((visit.variant, visit.control), {})[visit.round] = visit.attention_us or 0.0
            (control,) = (variant for variant, is_control in times if is_control)
            second, first = times[control, True], times[control, False]
            judgement = judge([second[index] for index in first], [first[index] for index in first])
            assert judgement.verdict in (Verdict.SAME, Verdict.INCONCLUSIVE), record


def test_ci_finds_the_record_to_compare_with(root: Path, tmp_path: Path) -> None:
    """Warm with warm: same cells, data, timer and L2 mode. A record of other cells has no like."""
    sweep = Path("nvidia-h200/seed-decode")
    warm, cold = sorted((root / "results" / sweep).glob("*.jsonl"))
    (tmp_path / sweep).mkdir(parents=True)
    for record, found in ((warm, warm), (cold, cold)):
        copied = tmp_path / sweep / "20270101T000000Z_0000000.jsonl"
        copied.write_bytes(record.read_bytes())
        assert like_of(root, tmp_path, copied) == str(found)
    other = tmp_path / sweep / "other.jsonl"
    other.write_bytes(next((root / "results/nvidia-h200/ab").glob("*.jsonl")).read_bytes())
    assert like_of(root, tmp_path, other) == ""


def like_of(root: Path, measured: Path, record: Path) -> str:
    command = [sys.executable, root / ".ci/committed_record.py", root / "results", measured, record]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
