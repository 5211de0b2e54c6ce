# SPDX-License-Identifier: MIT
"""A comparison for programs: JSON and JUnit XML. ASCII only."""

import json
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from dsa_bench.model.shape import OPS, SORTED
from dsa_bench.model.text import printable
from dsa_bench.report.compare_words import faster_or_slower, interval_text, mark, name, noise_text, percent, sentences
from dsa_bench.report.comparison import CellComparison, Comparison, Row
from dsa_bench.report.render import time_text
from dsa_bench.report.sides import SideCell
from dsa_bench.stats.location import Estimate

COMPARE_SCHEMA = "dsa-bench/compare"


def compare_json(comparison: Comparison, *, strict: bool) -> str:
    """Raw numbers; null where there is none."""
    base, head = (
        {"name": name, "commit": commit} for name, commit in zip(comparison.names, comparison.commits, strict=True)
    )
    reasons = comparison.gate_reasons(strict)
    document = {
        "schema": COMPARE_SCHEMA,
        "schema_version": 1,
        "base": base,
        "head": head,
        "metric": comparison.metric,
        "margin": comparison.margin,
        "samples": "paired" if comparison.paired else "independent",
        "rows": [_flat(cell, row) for cell in comparison.cells for row in cell.rows],
        "cells": [_flat_cell(cell) for cell in comparison.cells],
        "counts": comparison.counts,
        "geometric_mean": _estimate(comparison.mean),
        "common_shift": None if comparison.shift is None else asdict(comparison.shift),
        "noted": [asdict(mismatch) for mismatch in comparison.noted],
        "gate": {"passed": not reasons, "reasons": reasons},
        "sentences": list(sentences(comparison)),
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _flat(cell: CellComparison, row: Row) -> dict[str, Any]:
    lists = {"selection": cell.shape.get("selection", SORTED)} if cell.shape["op"] in OPS else {}
    return {
        **{name: int(value) if value.isdecimal() else value for name, value in (cell.shape | lists).items()},
        "timer": cell.mode and cell.mode[0],
        "l2": cell.mode and cell.mode[1],
        "kernel": row.kernel,
        "tiles_per_split_requested": list(row.requested),
        "base_variant": row.base and row.base.variant,
        "head_variant": row.head and row.head.variant,
        "status": row.status,
        "reason": row.reason,
        "base_us": row.base_us,
        "head_us": row.head_us,
        "change": row.change,
        "ratio": row.ratio and row.ratio.centre,
        "ratio_low": row.ratio and row.ratio.low,
        "ratio_high": row.ratio and row.ratio.high,
        "rounds_to_decide": row.rounds_to_decide,
        "same_code": row.same_code,
        "gates": row.gates,
        "mark": mark(row),
        "not_alike": [mismatch.field for mismatch in cell.mismatches],
    }


def _flat_cell(cell: CellComparison) -> dict[str, Any]:
    return {
        "cell": cell.label,
        "base": _flat_side(cell.base),
        "head": _flat_side(cell.head),
        "not_alike": [asdict(mismatch) for mismatch in cell.mismatches],
    }


def _flat_side(side: SideCell | None) -> dict[str, Any] | None:
    if side is None:
        return None
    noise = side.noise
    return {
        "rounds": len(side.rounds),
        "null_control": noise and _estimate(noise.ratio),
        "trusted": noise and noise.trusted,
    }


def _estimate(ratio: Estimate | None) -> dict[str, Any] | None:
    return None if ratio is None else asdict(ratio)


def compare_junit(comparison: Comparison, *, strict: bool) -> str:
    """A suite for each cell and a test case for each line; what a gate holds against the head is a failure."""
    root = ElementTree.Element("testsuites", name="dsa-bench compare")
    for cell in comparison.cells:
        suite = ElementTree.SubElement(root, "testsuite", name=printable(cell.label))
        failures = 0
        for row in cell.rows:
            case = ElementTree.SubElement(suite, "testcase", classname=printable(cell.label), name=printable(name(row)))
            fails = row.gates or (strict and row.status == "inconclusive" and not row.is_yardstick)
            text = _case_text(cell, row)
            if fails:
                failures += 1
                ElementTree.SubElement(case, "failure", type=row.status, message=text)
            else:
                ElementTree.SubElement(case, "system-out").text = text
        suite.set("tests", str(len(cell.rows)))
        suite.set("failures", str(failures))
    ElementTree.indent(root)
    declaration = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return declaration + ElementTree.tostring(root, encoding="us-ascii", xml_declaration=False).decode("ascii")


def _case_text(cell: CellComparison, row: Row) -> str:
    parts = [row.status]
    if row.base_us is not None and row.head_us is not None and row.change is not None:
        parts.append(f"{time_text(row.base_us)} -> {time_text(row.head_us)}, {faster_or_slower(1 + row.change)}")
    if row.ratio is not None:
        parts.append(f"Hodges-Lehmann {percent(row.ratio.centre)} {interval_text(row.ratio)}")
    parts += [row.reason] if row.reason else []
    parts += [f"NOT ALIKE: {mismatch}" for mismatch in cell.mismatches]
    return printable("; ".join([*parts, noise_text(cell, paired=False)]))
