# SPDX-License-Identifier: MIT
"""`dsa-bench prefill` on the CPU backend: decode's options without splits, limits, plans."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Command = Callable[..., Any]
SMALL = ("prefill", "--rows", "9", "--context", "128", "--candidates", "100", "--rounds", "2", "--backend", "cpu")


def test_a_run_is_a_prefill_table_and_its_record_the_same(command: Command, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    outcome = command(*SMALL, "--record", str(record))
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "rows 9, context 128, candidates 100, heads 24/2"
    assert lines[1].split() == ["kernel", "CTAs", "time", "speedup", "interval", "gathered/s", "RMS", "err"]
    assert [line.split()[:2] for line in lines[2:5]] == [[name, "18"] for name in ("previous", "int8-tc", "int8-ws")]
    assert outcome.out.count(" GB/s ") == 3
    assert command("report", str(record)).out == outcome.out
    header, check, *_ = map(json.loads, record.read_text().splitlines())
    assert header["plan"]["op"] == "prefill"
    assert (header["plan"]["ceiling"], header["plan"]["dense"]) == (False, False)
    assert check["gathered_bytes"] == 9 * 100 * 2 * 256 * 2
    assert check["cell"].startswith("op=prefill,rows=9,context=128,")
    again = command(*SMALL, "--record", str(record), "--resume")
    assert (again.code, again.out) == (0, outcome.out)


def test_every_selection_is_a_cell_of_its_own(command: Command, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    asked = (*SMALL, "--selection", "random", "sorted", "overlap:0.9")
    outcome = command(*asked, "--record", str(record))
    assert outcome.code == 0
    headings = [line for line in outcome.out.splitlines() if line.startswith("rows")]
    words = "rows 9, context 128, candidates 100"
    assert headings == [
        f"{words}, heads 24/2", f"{words}, selection overlap:0.9, heads 24/2", f"{words}, selection random, heads 24/2",
    ]  # fmt: skip
    assert command("report", str(record)).out == outcome.out
    assert command(*asked, "--record", str(record), "--resume").out == outcome.out
    markdown = command("report", str(record), "--format", "markdown").out.splitlines()
    assert markdown[0].startswith("| rows | context | selection | kernel |")
    assert [line.split(" | ")[2] for line in markdown[2:11:3]] == ["sorted", "overlap:0.9", "random"]
    rows = json.loads(command("report", str(record), "--format", "json").out)["rows"]
    assert {row["selection"] for row in rows} == {"sorted", "overlap:0.9", "random"}
    checks = [line for line in map(json.loads, record.read_text().splitlines()) if line["kind"] == "check"]
    assert len({check["data_hash"] for check in checks}) == 3
    alone = tmp_path / "alone.jsonl"
    assert command(*SMALL, "--selection", "overlap:0.9", "--record", str(alone)).code == 0
    compared = json.loads(command("compare", str(record), str(alone), "--format", "json").out)
    both = [cell["cell"] for cell in compared["cells"] if cell["base"] and cell["head"]]
    assert both == [f"prefill, {words}, selection overlap:0.9, heads 24/2, wall, L2 none"]
    assert [cell["not_alike"] for cell in compared["cells"] if cell["base"] and cell["head"]] == [[]]


def test_the_plan_names_each_selection(command: Command) -> None:
    plan = json.loads(command(*SMALL, "--selection", "sorted,blocks:4", "--plan").out)
    assert [cell["selection"] for cell in plan["requested"]] == ["sorted", "blocks:4"]
    assert [cell["selection"] for cell in plan["effective"]] == ["sorted", "blocks:4"]
    assert plan["estimate_s"] > json.loads(command(*SMALL, "--plan").out)["estimate_s"]
    assert "selection" not in json.loads(command(*SMALL, "--plan").out)["requested"][0]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--tiles-per-split", "2"), 2, "--tiles-per-split"),
        (("--rows", "129"), 2, "--rows 129: must be at most --context 128"),
        (("--context", "2147483648"), 2, "--context 2147483648: must be at most 2147483647"),
        (("--context", "2000000000"), 3, "GiB of memory to draw and "),
        (("--dense",), 3, "--dense: measures GPU kernels, and no GPU is used here; leave it out"),
        (("--ceiling",), 3, "--ceiling: measures GPU kernels, and no GPU is used here; leave it out"),
        (("--plan", "--dense"), 2, "--dense: measures GPU kernels, and --backend cpu has none"),
        (("--resume",), 2, "--resume: needs --record FILE"),
        (("--selection", "sorted", "blocks:0"), 2, "--selection blocks:0: blocks:N takes a positive run length"),
    ],
)
def test_what_is_refused(command: Command, options: tuple[str, ...], code: int, message: str) -> None:
    outcome = command(*SMALL, *options)
    assert message in outcome.error
    assert outcome.code == code


def test_more_than_a_laptop_bears_is_refused_with_its_memory(command: Command) -> None:
    outcome = command("prefill", "--rows", "800000", "--context", "800000", "--candidates", "64", "--backend", "cpu")
    assert "GiB of memory" in outcome.error
    assert "ask for" in outcome.error
    assert outcome.code == 3


def test_the_plan_of_a_gpu_has_ceilings_and_the_dense_line(command: Command) -> None:
    grid = ("prefill", "--rows", "128", "2048", "8192", "--context", "8192", "32768", "--plan")
    plan = json.loads(command(*grid, "--sms", "132", "--resident", "3").out)
    assert (plan["op"], plan["kernels"]) == ("prefill", ["previous", "int8-tc", "int8-ws", "gather", "copy", "dense"])
    assert plan["requested"][0] == {
        "rows": 128, "context": 8192, "candidates": 2048, "query_heads": 24, "kv_heads": 2, "head_size": 256,
    }  # fmt: skip
    assert len(plan["requested"]) == 6
    (previous, int8_tc, int8_ws, gather, copy) = plan["effective"][0]["variants"]
    assert {variant["splits"] for variant in (previous, int8_tc, int8_ws, gather, copy)} == {1}
    assert previous["ctas"] == int8_tc["ctas"] == int8_ws["ctas"] == 256
    without = json.loads(command(*grid, "--sms", "132", "--resident", "3", "--no-ceiling", "--no-dense").out)
    assert without["kernels"] == ["previous", "int8-tc", "int8-ws"]
    assert without["estimate_s"] < plan["estimate_s"]
    assert json.loads(command(*grid, "--backend", "cpu").out)["kernels"] == ["previous", "int8-tc", "int8-ws"]


def test_a_file_of_inputs_may_be_a_prefill(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = tmp_path / "layer.npz"
    np.savez(
        file,
        query=(rng.standard_normal((9, 4, 256)).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32),
        key=rng.integers(-127, 128, (2, 64, 256)).astype(np.int8),
        value=rng.integers(-127, 128, (2, 64, 256)).astype(np.int8),
        key_scale=np.full((2, 256), 0.03, np.float32),
        value_scale=np.full((2, 256), 0.01, np.float32),
        selected=rng.integers(0, 64, (9, 40)).astype(np.int32),
    )
    outcome = command("prefill", "--inputs", str(file), "--rounds", "2", "--backend", "cpu", "--format", "json")
    assert outcome.code == 0, outcome.err
    rows = json.loads(outcome.out)["rows"]
    assert {(row["rows"], row["splits"], row["status"]) for row in rows} == {(9, 1, "ok")}


def test_explain_says_that_rows_are_unsplit(command: Command) -> None:
    outcome = command(*SMALL, "--explain")
    assert "int8-tc: one task per row and KV head, unsplit -> 1 split of at most 2 tiles, 18 CTAs" in outcome.err
