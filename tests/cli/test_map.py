# SPDX-License-Identifier: MIT
"""`dsa-bench map ...` in this process, on maps whose content is made up."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from map_doubles import A100, DAMAGED, cell, splits_map, table

from dsa_bench.backends.cpu.backend import CpuBackend
from dsa_bench.dispatch.map_file import map_text, read_map, write_map
from dsa_bench.model.splits_map import Against, MapDevice, MapRule, SplitsMap, SplitTable


@pytest.fixture
def here() -> SplitsMap:
    """A map for this machine's CPU backend: 2 tiles per split at rows 2 and 4."""
    backend = CpuBackend()
    device = backend.device
    made = table(kernel_hash=backend.kernel_hash("int8-tc"), cta_slots=device.sm_count, l2="none")
    backend.close()
    return splits_map(made, device=MapDevice(device.name, None, device.sm_count, None, None, device.runtime))


def written(path: Path, made: SplitsMap) -> str:
    write_map(path, made)
    return str(path)


def test_show(command: Any, tmp_path: Path) -> None:
    file = written(tmp_path / "splits[h200].json", splits_map())
    outcome = command("map", "show", file)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0] == "NVIDIA H200, 132 SMs, compute capability 9.0, driver 580.1, run time CUDA 13.2"
    assert lines[3].startswith("decode int8-tc, heads 24/2, head size 256, L2 cold, 396 CTA slots, kernel abab")
    assert [line.split() for line in lines[5:8]] == [
        ["rows", "tiles", "tiles/split", "cell", "us", "auto", "auto", "us", "best", "best/auto", "interval", "ties"],
        ["2-4", "32", "2", "2x32", "10.40", "1", "11.90", "2", "0.874", "0.865-0.883", "3"],
        ["4x32", "10.40", "1", "11.90", "2", "0.874", "0.865-0.883", "3"],
    ]
    assert max(map(len, lines)) <= 120
    assert command("map", "show", file, "--format", "json").out == map_text(splits_map())
    empty = written(tmp_path / "empty.json", SplitsMap("", "", A100, ()))
    assert command("map", "show", empty).code == 0
    assert "no rule" in command("map", "show", written(tmp_path / "no.json", splits_map(table(rules=())))).out


def test_validate(command: Any, tmp_path: Path) -> None:
    file = written(tmp_path / "splits.json", splits_map())
    assert command("map", "validate", file).out == f"{file}: valid, tables 1, cells 4, rules 1\n"


@pytest.mark.parametrize(("data", "said"), DAMAGED)
@pytest.mark.parametrize(
    "argv",
    [("show",), ("validate",), ("explain", "--rows", "8", "--candidates", "2048"), ("merge",), ("export", "ort")],
)
def test_a_named_bad_map_is_exit_2(command: Any, tmp_path: Path, argv: tuple[str, ...], data: bytes, said: str) -> None:
    """C6, pytorch/pytorch#184096: the user named the file, so it is an error with file and place."""
    path = tmp_path / "[bad].json"
    path.write_bytes(data)
    outcome = command("map", *argv, str(path))
    assert outcome.code == 2
    assert outcome.error.startswith(f"dsa-bench: error: {path}: {said}")


def explained(command: Any, file: str, *argv: str) -> dict[str, Any]:
    outcome = command("map", "explain", file, "--backend", "cpu", *argv, "--format", "json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_explain_says_hit_miss_or_mismatch(command: Any, tmp_path: Path, here: SplitsMap) -> None:
    """C2, vllm-project/vllm#28349; C4, vllm-project/vllm#52192: rows 3 is a hit between cells, rows 9 and 4096 none."""
    file = written(tmp_path / "here.json", here)
    for rows, outcome, value in ((2, "hit", 2), (3, "hit", 2), (1, "miss", 0), (9, "miss", 0), (4096, "miss", 0)):
        found = explained(command, file, "--rows", str(rows), "--candidates", "2048")
        assert (found["outcome"], found["tiles_per_split"], found["file"]) == (outcome, value, file)
        assert (found["cell"] is not None) == (rows in (1, 2))
    other = written(tmp_path / "h200.json", splits_map())
    found = explained(command, other, "--rows", "2", "--candidates", "2048")
    assert (found["outcome"], found["tiles_per_split"], found["splits"]) == ("mismatch", 0, found["automatic_splits"])
    assert "device name is NVIDIA H200 in the map and " in found["here"]
    assert found["rule"] == {"rows": [2, 4], "tiles": [32, 32], "tiles_per_split": 2}


def test_a_map_for_another_device_is_a_line_for_each_field(command: Any, tmp_path: Path) -> None:
    """Of each kernel's table; its rules and times are another device's, and are not told."""
    file = written(tmp_path / "h200.json", splits_map(table(), of_digits()))
    lines = command("map", "explain", file, "--rows", "2", "--candidates", "2048", "--backend", "cpu").out.splitlines()
    assert lines[0].startswith("mismatch: rows 2, candidates 2048 (32 tiles): the automatic rule, ")
    assert lines[1] == f"file: {file}"
    heads = [number for number, line in enumerate(lines) if not line.startswith("  ")]
    assert [lines[number] for number in heads[2:]] == [
        f"not used: decode {kernel}, heads 24/2, head size 256, L2 cold" for kernel in ("int8-tc", "int8-digits")
    ]
    for first, end in ((heads[2], heads[3]), (heads[3], len(lines))):
        fields = [line.split()[0] for line in lines[first + 1 : end]]
        assert fields[:3] == ["device", "compute_capability", "sm_count"]
        assert len(fields) == len(set(fields))
    assert max(map(len, lines)) <= 120 + len(file)


def test_show_says_once_what_tables_are_worth_together(command: Any, tmp_path: Path) -> None:
    lines = command("map", "show", written(tmp_path / "two.json", splits_map(table(), of_digits()))).out.splitlines()
    assert [line for line in lines if line.startswith("regret, cells held out:")] == [lines[-1]]
    assert lines[-4] == "of these 2 tables together:"


def test_explain_in_words(command: Any, tmp_path: Path, here: SplitsMap) -> None:
    file = written(tmp_path / "here.json", here)
    lines = command("map", "explain", file, "--rows", "2", "--candidates", "2048", "--backend", "cpu").out.splitlines()
    assert lines[0] == "hit: rows 2, candidates 2048 (32 tiles): 2 tiles per split, 16 splits"
    assert lines[1] == f"file: {file}"
    assert "rule: rows 2-4, tiles 32: 2 tiles per split" in lines
    assert (
        "measured: best 2 at 10.40 us, automatic 1 at 11.90 us, ratio 0.874 [0.865, 0.883]; not told apart: 3" in lines
    )
    old = written(tmp_path / "old.json", replace(here, device=replace(here.device, cuda_runtime="numpy 1.0")))
    assert "the map was tuned otherwise and is used: runtime is numpy 1.0 in the map" in (
        command("map", "explain", old, "--rows", "2", "--candidates", "2048", "--backend", "cpu").out
    )


def test_diff(command: Any, tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", splits_map())
    changed = table(kernel_hash="cd" * 8, rules=(MapRule((1, 2), (32, 32), 2), MapRule((8, 8), (32, 32), 3)))
    other = written(tmp_path / "b.json", splits_map(changed, device=replace(splits_map().device, driver="600")))
    outcome = command("map", "diff", one, other)
    name = "decode int8-tc, heads 24/2, head size 256, L2 cold"
    assert outcome.out.splitlines() == [
        f"device: driver is 580.1 in {one} and 600 in {other}",
        f"{name}: kernel_hash is {'ab' * 8} in {one} and {'cd' * 8} in {other}",
        f"{name}: rows 1, tiles 32: auto -> 2",
        f"{name}: rows 4, tiles 32: 2 -> auto",
        f"{name}: rows 8, tiles 32: auto -> 3",
    ]
    assert command("map", "diff", one, one).out == "no difference\n"
    assert json.loads(command("map", "diff", one, one, "--format", "json").out)["differences"] == []
    extra = written(tmp_path / "c.json", splits_map(table(), table(l2="warm")))
    assert command("map", "diff", one, extra).out == f"{name[:-4]}warm: only in {extra}\n"


def test_diff_of_tables_of_several_versions_of_a_kernel(command: Any, tmp_path: Path) -> None:
    """A merged map holds a table of each: none hides another."""
    older, newer = table(rules=()), table(kernel_hash="cd" * 8)
    both = written(tmp_path / "both.json", splits_map(older, newer))
    name = "decode int8-tc, heads 24/2, head size 256, L2 cold, kernel"
    for one, missing in ((newer, "ab"), (older, "cd")):
        file = written(tmp_path / f"without-{missing}.json", splits_map(one))
        for pair in ((both, file), (file, both)):
            assert command("map", "diff", *pair).out == f"{name} {missing * 8}: only in {both}\n"
    changed = written(tmp_path / "changed.json", splits_map(newer, replace(older, kernel_hash="ef" * 8)))
    assert command("map", "diff", both, changed).out == (
        f"{name} {'ab' * 8}: kernel_hash is {'ab' * 8} in {both} and {'ef' * 8} in {changed}\n"
    )


def test_merge(command: Any, tmp_path: Path) -> None:
    """C5, flashinfer-ai/flashinfer#3363: the union, in whatever order; identical tables once."""
    files = [
        written(
            tmp_path / f"{kv_heads}.json", splits_map(table(kv_heads=kv_heads), table(kv_heads=kv_heads, l2="warm"))
        )
        for kv_heads in (2, 4)
    ]
    merged = command("map", "merge", *files).out
    assert merged == command("map", "merge", *files[::-1], files[0]).out
    assert command("map", "merge", *files, "-o", str(tmp_path / "all.json")).out == ""
    tables = read_map(tmp_path / "all.json").tables
    assert sorted((t.kv_heads, t.l2) for t in tables) == [(2, "cold"), (2, "warm"), (4, "cold"), (4, "warm")]
    assert (tmp_path / "all.json").read_text() == merged


def test_merge_never_relabels_and_never_chooses(command: Any, tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", splits_map())
    a100 = written(tmp_path / "b.json", splits_map(table(cta_slots=216), device=A100))
    contradicting = written(tmp_path / "c.json", splits_map(table(rules=())))
    output = tmp_path / "out.json"
    output.write_text("old")
    outcome = command("map", "merge", one, a100, "-o", str(output))
    assert outcome.code == 2
    assert f"{a100}: its device's name is NVIDIA A100 and that of {one} is NVIDIA H200" in outcome.error
    outcome = command("map", "merge", one, contradicting, "-o", str(output))
    assert outcome.code == 2
    assert f"{contradicting}: contradicts {one} about decode int8-tc, heads 24/2" in outcome.error
    assert output.read_text() == "old"


def test_export_says_that_it_is_one_value(command: Any, tmp_path: Path) -> None:
    """Of two cells, 2 costs 0 % and 4 %, 3 costs 1 % and 0 %, automatic 20 % and 20 %: 3 has the least mean."""
    cells = (
        cell(1, 32, {"1": 12.0, "2": 10.0, "3": 10.1}, 2), cell(2, 32, {"1": 12.0, "2": 10.4, "3": 10.0}, 3),
    )  # fmt: skip
    file = written(tmp_path / "splits.json", splits_map(table(cells=cells, rules=())))
    outcome = command("map", "export", "ort", file)
    assert json.loads(outcome.out) == {
        "ep.cuda.dsa_decode_int8_tc": "1", "ep.cuda.dsa_decode_int8_tc_tiles_per_split": "3",
    }  # fmt: skip
    assert "3 tiles per split: the single value of least mean regret over the map's 2 cells: 0.50% mean, 1.00% max" in (
        outcome.err
    )
    assert "(the automatic rule: 20.00% mean); it is not the map" in outcome.err
    lines = command("map", "export", "env", file).out.splitlines()
    assert lines[0].startswith("# 3 tiles per split: the single value")
    assert lines[2:] == ["export ORT_DSA_DECODE_INT8_TC=1", "export ORT_DSA_DECODE_INT8_TC_TILES_PER_SPLIT=3"]


def test_export_of_what_no_value_improves(command: Any, tmp_path: Path) -> None:
    cells = (cell(1, 32, {"1": 10.0, "2": 12.0}, 1), cell(2, 16, {"2": 10.0, "4": 12.0}, 2, auto=2))
    file = written(tmp_path / "splits.json", splits_map(table(cells=cells, rules=())))
    assert json.loads(command("map", "export", "ort", file).out)["ep.cuda.dsa_decode_int8_tc_tiles_per_split"] == "0"
    empty = written(tmp_path / "empty.json", SplitsMap("", "", A100, ()))
    assert command("map", "export", "ort", empty).code == 2


@pytest.mark.parametrize(
    "argv",
    [("map",), ("map", "explain", "x.json"), ("map", "explain", "x.json", "--rows", "-1", "--candidates", "8"),
     ("map", "export", "onnx", "x.json"), ("map", "merge"), ("map", "show", "missing.json")],
)  # fmt: skip
def test_bad_usage_is_exit_2(command: Any, argv: tuple[str, ...]) -> None:
    outcome = command(*argv)
    assert outcome.code == 2
    assert outcome.error


HOSTILE = "H\x1b[31m\x00\n200"


def test_no_control_character_of_a_map_reaches_a_terminal_or_a_shell(command: Any, tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", splits_map())
    other = written(tmp_path / "b.json", splits_map(device=replace(A100, name=HOSTILE)))
    outcome = command("map", "merge", one, other)
    assert outcome.code == 2
    assert r"its device's name is H\x1b[31m\x00\n200 and that of" in outcome.error
    outcome = command("map", "export", "env", other)
    assert outcome.out.splitlines()[1] == r"# tuned on H\x1b[31m\x00 200"
    assert "\x1b" not in outcome.out + outcome.err
    strange = written(tmp_path / "a\x1bb.json", splits_map())
    outcome = command("map", "validate", strange)
    assert outcome.out.startswith(str(tmp_path / r"a\x1bb.json"))


def test_what_a_map_says_is_cut_to_one_readable_line(command: Any, tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", splits_map())
    other = written(tmp_path / "b.json", splits_map(device=replace(A100, name="x" * 100_000)))
    assert len(command("map", "merge", one, other).error) < 600
    strange = tmp_path / "strange.json"
    strange.write_text(map_text(splits_map()).replace('"int8-tc"', f'"{"k" * 100_000}"'))
    assert "/tables/0/kernel is 'kkk" in command("map", "merge", one, str(strange)).error
    assert len(command("map", "merge", one, str(strange)).error) < 600


@pytest.mark.parametrize(
    ("rows", "candidates", "said"),
    [("999999999999", "2048", "--rows 999999999999: must be at most 2147483647"),
     ("2147483648", "2048", "--rows 2147483648: must be at most 2147483647"),
     ("1", "999999999999", "--candidates 999999999999: must be at most 1073741824")],
)  # fmt: skip
def test_explain_names_the_option_that_is_too_large(
    command: Any, tmp_path: Path, rows: str, candidates: str, said: str
) -> None:
    """It has no --context to complain of."""
    file = written(tmp_path / "a.json", splits_map())
    outcome = command("map", "explain", file, "--rows", rows, "--candidates", candidates, "--backend", "cpu")
    assert outcome.code == 2
    assert said in outcome.error
    assert "context" not in outcome.error


def of_digits(*rules: MapRule, **changes: Any) -> SplitTable:
    """A table of `int8-digits` beside `table()`: at 8 rows a cluster of 8 beats what int8-tc takes."""
    us = {"1": 11.0, "3": 9.0}
    against = Against("int8-tc", 1, 11.9, (0.756, 0.75, 0.76))
    cells = (cell(8, 32, us, 3, auto=1, against=against),)
    fields: dict[str, Any] = {"kernel": "int8-digits", "cta_slots": 132, "clusters": {"16": 7, "8": 15, "1": 132}}
    return table(**{**fields, "cells": cells, "rules": rules or (MapRule((8, 8), (32, 32), 3),), **changes})


def test_a_map_of_two_kernels_is_shown_with_what_each_rule_replaces(command: Any, tmp_path: Path) -> None:
    file = written(tmp_path / "both.json", splits_map(table(), of_digits()))
    assert command("map", "validate", file).out == f"{file}: valid, tables 2, cells 5, rules 2\n"
    lines = command("map", "show", file).out.splitlines()
    assert lines[9].startswith("decode int8-digits, heads 24/2, head size 256, L2 cold, 132 CTA slots, kernel abab")
    assert lines[12].split() == [
        "8",
        "32",
        "3",
        "8x32",
        "9.00",
        "int8-tc",
        "1",
        "11.90",
        "3",
        "0.756",
        "0.750-0.760",
        "-",
    ]
    assert read_map(Path(file)) == splits_map(table(), of_digits())


def test_only_the_values_of_int8_tc_are_exported_and_that_is_said(command: Any, tmp_path: Path) -> None:
    """ONNX Runtime's option is int8-tc's: a value of a cluster must not be read as one of it."""
    file = written(tmp_path / "both.json", splits_map(table(), of_digits()))
    alone = written(tmp_path / "alone.json", splits_map())
    outcome = command("map", "export", "ort", file)
    assert outcome.out == command("map", "export", "ort", alone).out
    assert "no option there takes another: 1 rule for int8-digits left out" in outcome.err
    assert "int8-digits" not in command("map", "export", "ort", alone).err
    outcome = command("map", "export", "ort", written(tmp_path / "digits.json", splits_map(of_digits())))
    assert (outcome.code, "holds no cell" in outcome.error) == (2, True)


def test_a_map_of_two_kernels_explains_which_a_launch_gets(command: Any, tmp_path: Path, here: SplitsMap) -> None:
    """On the CPU backend there are no clusters, so 3 tiles per split are 11 splits."""
    (first,) = here.tables
    backend = CpuBackend()
    facts = {"cta_slots": backend.device.sm_count, "kernel_hash": backend.kernel_hash("int8-digits"), "l2": "none"}
    backend.close()
    file = written(tmp_path / "both.json", replace(here, tables=(first, of_digits(clusters=None, **facts))))
    found = explained(command, file, "--rows", "8", "--candidates", "2048")
    assert [found[name] for name in ("outcome", "kernel", "tiles_per_split", "splits", "automatic_kernel")] == [
        "hit", "int8-digits", 3, 11, "int8-tc",
    ]  # fmt: skip
    found = explained(command, file, "--rows", "2", "--candidates", "2048")
    assert [found[name] for name in ("outcome", "kernel", "tiles_per_split")] == ["hit", "int8-tc", 2]
    text = command("map", "explain", file, "--rows", "8", "--candidates", "2048", "--backend", "cpu").out
    assert text.startswith("hit: rows 8, candidates 2048 (32 tiles): int8-digits, 3 tiles per split, 11 splits\n")
    assert "automatic int8-tc 1 at 11.90 us, ratio 0.756 [0.750, 0.760]" in text


def test_contradicting_kernels_are_refused_where_maps_are_joined(command: Any, tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", splits_map())
    other = written(tmp_path / "b.json", splits_map(of_digits()))
    assert command("map", "merge", one, other).code == 0
    cells = tuple(cell(rows, 32, {"1": 11.0, "3": 9.0}, 3) for rows in (4, 8))
    meets = written(tmp_path / "c.json", splits_map(of_digits(MapRule((4, 8), (32, 32), 3), cells=cells)))
    outcome = command("map", "merge", one, meets)
    assert (outcome.code, "one launch cannot take" in outcome.error) == (2, True)
