# SPDX-License-Identifier: MIT
"""A tuned map in words: what it holds, what it says of one launch, and where two differ. ASCII only."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby, zip_longest
from typing import Any

from dsa_bench.dispatch.explain_map import Explained
from dsa_bench.dispatch.look_up import MapTable
from dsa_bench.model.documents import to_json
from dsa_bench.model.map_parts import WORDS
from dsa_bench.model.request import DIGITS
from dsa_bench.model.splits_map import AnyCell, AnyRegret, AnyRule, AnyTable, MapCell, SplitsMap
from dsa_bench.model.text import printable, short
from dsa_bench.splits.map_values import launched_splits


def show_text(splits_map: SplitsMap) -> str:
    """Each table with its rules, and what they are worth; once for tables that were validated together."""
    device = splits_map.device
    known = (
        ("compute capability", device.compute_capability), ("driver", device.driver), ("run time", device.cuda_runtime)
    )  # fmt: skip
    lines = [f"{device.name}, {device.sm_count} SMs" + "".join(f", {name} {fact}" for name, fact in known if fact)]
    lines.append(f"created {splits_map.created} by {splits_map.generator}, {_count(len(splits_map.tables), 'table')}")
    for _, group in groupby(splits_map.tables, lambda table: (table.validation, table.words)):
        tables = [*group]
        for table in tables:
            lines += ["", *_table_lines(table)]
        if len(tables) > 1:
            lines += ["", f"of these {len(tables)} tables together:"]
        lines += _validation_lines(tables[0])
    return "\n".join(printable(line) for line in lines)


def _table_lines(table: AnyTable) -> list[str]:
    policy, words = table.policy, table.words
    lines = [
        f"{table.name}, {table.cta_slots} CTA slots, kernel {table.kernel_hash}",
        f"{_count(len(table.cells), 'cell')}, {policy.rounds} rounds, {policy.timer}, {table.measured_at}; "
        f"a rule gains more than {policy.margin:.2%}, at {policy.confidence:.0%} over all cells",
    ]
    grid: list[tuple[str, ...]] = [
        ("rows", words.size, words.heading, "cell", "us", "auto", "auto us", "best", "best/auto", "interval", "ties")
    ]
    for rule in table.rules:
        for at, cell in enumerate(cells_of(rule, table)):
            asked = (_range(rule.rows), _range(rule.size), str(rule.value)) if not at else ("", "", "")
            us = _launch_us(table, cell, rule.value)
            auto, auto_us, (ratio, low, high) = _without_map(cell)
            ties = " ".join(map(str, cell.ties)) or "-"
            measured = (f"{cell.rows}x{cell.size}", f"{us:.2f}", auto, f"{auto_us:.2f}", str(cell.best))
            grid.append((*asked, *measured, f"{ratio:.3f}", f"{low:.3f}-{high:.3f}", ties))
    if table.rules:
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        lines += ["  ".join(map(str.rjust, line, widths)).rstrip() for line in grid]
    else:
        lines.append("no rule: the automatic rule everywhere")
    return lines


def _validation_lines(table: AnyTable) -> list[str]:
    validation, words = table.validation, table.words
    lines: list[str] = []
    for name, summary in (
        ("automatic rule", validation.regret_auto), ("this map", validation.regret_map),
        ("cells held out", validation.held_out),
    ):  # fmt: skip
        lines.append(f"regret, {name}: {'-' if summary is None else _regret(summary, words.size)}")
    null = validation.null_control
    if null is not None:
        off = f"{100 * (null.ratio - 1):+.2f}% at rows {null.rows}, {words.size} {null.size}"
        lines.append(f"null control: at most {off}; {null.untrusted} of {_count(null.cells, 'cell')} untrusted")
    return lines


def _regret(summary: AnyRegret, size: str) -> str:
    interval = "" if summary.low is None or summary.high is None else f" [{summary.low:.2%}, {summary.high:.2%}]"
    where = f"rows {summary.rows}, {size} {summary.size}"
    return f"mean {summary.mean:.2%}{interval}, max {summary.max:.2%} ({where}), {_count(summary.cells, 'cell')}"


def cells_of(rule: AnyRule, table: AnyTable) -> list[AnyCell]:
    """The measured cells that a rule covers."""
    return [
        cell
        for cell in table.cells
        if rule.rows[0] <= cell.rows <= rule.rows[1] and rule.size[0] <= cell.size <= rule.size[1]
    ]


def _without_map(cell: AnyCell) -> tuple[str, float, tuple[float, float, float]]:
    """(what a launch gets without the map, its time in us, time of the table's best / that time with its interval)."""
    other = cell.against if isinstance(cell, MapCell) else None
    if other is None:
        return str(cell.auto), cell.auto_us, cell.ratio
    return f"{short(other.kernel)} {other.tiles_per_split}", other.us, other.ratio


def _launch_us(table: AnyTable, cell: AnyCell, target: int) -> float:
    """The cell's time of whatever the target launches; the map was checked to hold it."""
    asked = launched_splits(table, cell.size, target)
    return next(us for value, us in cell.us.items() if launched_splits(table, cell.size, int(value)) == asked)


def explained_text(explained: Explained) -> str:
    """The outcome first, then what it rests on: of a map for another device, what differs and nothing that it holds."""
    one = explained
    of_value = WORDS[one.op].of_value
    shape = f"rows {one.rows}, {one.said}"
    without = f"the automatic rule, {_of_kernel(one.automatic_kernel)}{one.automatic} {of_value}"
    chosen = f"{_of_kernel(one.kernel)}{one.value} {of_value}" if one.value else without
    lines = [f"{one.outcome}: {shape}: {chosen}, {_count(one.splits, 'split')}", f"file: {one.file}"]
    for name, fields_that_differ in one.differing.items():
        lines += [f"not used: {name}", *(f"  {line}" for line in fields_that_differ)]
    lines += one.here
    if one.table is not None and one.table.name not in one.differing:
        lines.append(f"table: {one.table.name}, {one.table.cta_slots} CTA slots")
        lines += _evidence(one)
    if one.value:
        lines.append(f"without the map: {without}, {_count(one.automatic_splits, 'split')}")
    return "\n".join(printable(line) for line in lines)


def _of_kernel(kernel: str) -> str:
    """A kernel before its value: int8-tc, whose option that is, and the one of dense decode are not named."""
    return f"{kernel}, " if kernel == DIGITS else ""


def _evidence(one: Explained) -> list[str]:
    rule, cell, words = one.rule, one.cell, WORDS[one.op]
    lines = [
        "rule: none for this shape"
        if rule is None
        else f"rule: rows {_range(rule.rows)}, {words.size} {_range(rule.size)}: {rule.value} {words.of_value}"
    ]
    if cell is None:
        between = "" if rule is None else "; it lies between measured cells that share the rule"
        return [*lines, f"measured: not this shape{between}"]
    auto, auto_us, (ratio, low, high) = _without_map(cell)
    ties = f"; not told apart: {', '.join(map(str, cell.ties))}" if cell.ties else ""
    return [
        *lines,
        f"measured: best {cell.best} at {cell.us[str(cell.best)]:.2f} us, automatic {auto} at "
        f"{auto_us:.2f} us, ratio {ratio:.3f} [{low:.3f}, {high:.3f}]{ties}",
    ]


def explained_content(explained: Explained) -> dict[str, Any]:
    """The same as JSON."""
    one = explained
    here = [f"{name} is not used: {', '.join(differing)}" for name, differing in one.differing.items()]
    return {
        "schema": "dsa-bench/map-explain", "schema_version": 1, "outcome": one.outcome, "file": one.file,
        "here": "; ".join((*here, *one.here)) or None,
        "table": one.table and one.table.name, "kernel": one.kernel, "rows": one.rows, **one.sizes,
        WORDS[one.op].value: one.value, "splits": one.splits, "automatic": one.automatic,
        "automatic_kernel": one.automatic_kernel, "automatic_splits": one.automatic_splits,
        "rule": one.rule and to_json(one.rule), "cell": one.cell and to_json(one.cell),
    }  # fmt: skip


def differences(before: tuple[str, SplitsMap], after: tuple[str, SplitsMap]) -> list[str]:
    """Where two maps differ: the device, each table's facts, and what each shape gets that either measured."""
    (old_name, old), (new_name, new) = before, after
    lines = [f"device: {line}" for line in _field_differences(old.device, new.device, old_name, new_name, ())]
    of_subject: dict[str, tuple[list[AnyTable], list[AnyTable]]] = {}
    for at, one in enumerate((old, new)):
        for table in one.tables:
            of_subject.setdefault(repr(table.subject), ([], []))[at].append(table)
    for _, (was, now) in sorted(of_subject.items()):
        several = max(len(was), len(now)) > 1
        for one, other in _paired(was, now):
            table = one or other
            assert table is not None
            name = f"{table.name}, kernel {short(table.kernel_hash)}" if several else table.name
            if one is None or other is None:
                lines.append(f"{name}: only in {old_name if other is None else new_name}")
            else:
                lines += [f"{name}: {line}" for line in _table_differences(one, other, old_name, new_name)]
    return [printable(line) for line in lines]


def _paired(was: Sequence[AnyTable], now: Sequence[AnyTable]) -> list[tuple[AnyTable | None, AnyTable | None]]:
    """Tables about the same launches: those of one device and kernel version together, the others in their order."""
    same = {table.identity for table in was} & {table.identity for table in now}
    older, newer = ([table for table in tables if table.identity not in same] for tables in (was, now))
    pairs = [(one, other) for one in was for other in now if one.identity == other.identity]
    return [*pairs, *zip_longest(older, newer)]


def _table_differences(one: AnyTable, other: AnyTable, name: str, other_name: str) -> list[str]:
    skip = ("cells", "rules", "policy", "validation")
    found = _field_differences(one, other, name, other_name, skip)
    found += [f"policy: {line}" for line in _field_differences(one.policy, other.policy, name, other_name, ())]
    return found + _choices(one, other)


def _field_differences(one: Any, other: Any, name: str, other_name: str, skip: Sequence[str]) -> list[str]:
    pairs = [(field.name, getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return [
        f"{field} is {was} in {name} and {now} in {other_name}"
        for field, was, now in pairs
        if field not in skip and was != now
    ]


def _choices(one: AnyTable, other: AnyTable) -> list[str]:
    old, new = MapTable(one), MapTable(other)
    shapes = sorted({cell.shape for cell in (*one.cells, *other.cells)})
    measured = [{cell.shape for cell in table.cells} for table in (one, other)]
    lines: list[str] = []
    for shape in shapes:
        was, now = (
            "not measured" if shape not in cells else "auto" if value is None else str(value)
            for cells, value in zip(measured, (old.value(*shape), new.value(*shape)), strict=True)
        )
        if was != now:
            lines.append(f"rows {shape[0]}, {one.words.size} {shape[1]}: {was} -> {now}")
    return lines


def _range(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
