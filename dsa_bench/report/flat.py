# SPDX-License-Identifier: MIT
"""Tables as flat rows for programs: JSON, JSON lines and CSV."""

import csv
import io
import json
from typing import Any

from dsa_bench.model.hyper import HYPER_OPS
from dsa_bench.report.cells import CellTable, VariantRow
from dsa_bench.report.words import conclusion


def flat_rows(tables: list[CellTable]) -> list[dict[str, Any]]:
    """One flat record for each variant of each cell, raw numbers; the columns of every machine format."""
    flat = {"dense": _flat_dense, **dict.fromkeys(HYPER_OPS, _flat_hyper)}
    return [flat.get(table.op, _flat)(table, row) for table in tables for row in table.rows]


def _flat(table: CellTable, row: VariantRow) -> dict[str, Any]:
    check, speedup = row.check, row.speedup
    return {
        **{name: int(value) for name, value in table.shape.items() if value.isdecimal()},
        "kernel": check.kernel,
        "tiles_per_split_requested": list(check.requested),
        "tiles_per_split": check.tiles_per_split,
        "splits": check.splits,
        "ctas": check.ctas,
        "status": row.status,
        "reason": row.reason,
        "time_us": row.time_us,
        "call_us": row.call_us,
        "reference": table.reference,
        "speedup": speedup and speedup.centre,
        "speedup_low": speedup and speedup.low,
        "speedup_high": speedup and speedup.high,
        "speedup_median": row.median_ratio,
        "gather_share": row.gather_share,
        "rms_error": check.rms_error,
        "rounding_floor": table.rounding_floor,
        "rounds": table.rounds,
        "timer": table.timer,
        "l2": table.l2,
        "noise_ratio": table.noise and table.noise.ratio.centre,
        "noise_low": table.noise and table.noise.ratio.low,
        "noise_high": table.noise and table.noise.ratio.high,
        "trusted": table.noise and table.noise.trusted,
        "variant": check.variant,
        "gathered_bytes": check.gathered_bytes,
        "gathered_gbps": row.gathered_gbps,
        "dense_ratio": row.dense_ratio and row.dense_ratio.centre,
        "dense_ratio_low": row.dense_ratio and row.dense_ratio.low,
        "dense_ratio_high": row.dense_ratio and row.dense_ratio.high,
        "rules": list(check.rules),
        "selection": table.selection,
    }


def _flat_hyper(table: CellTable, row: VariantRow) -> dict[str, Any]:
    """Without what splits, candidates and dense attention have; the share is one of a copy."""
    names = {"gather_share": "copy_share"}
    flat = {names.get(name, name): value for name, value in _flat(table, row).items() if name not in OF_ATTENTION}
    return {**flat, "part": table.part}


def _flat_dense(table: CellTable, row: VariantRow) -> dict[str, Any]:
    """With the geometry of dense decode, and its ratios to other variants, in place of tiles and a dense line."""
    names = {"gather_share": "copy_share", "gathered_bytes": "live_bytes", "gathered_gbps": "live_gbps"}
    left_out = {
        "tiles_per_split_requested",
        "tiles_per_split",
        "dense_ratio",
        "dense_ratio_low",
        "dense_ratio_high",
        "selection",
    }
    flat = {names.get(name, name): value for name, value in _flat(table, row).items() if name not in left_out}
    flat |= {"dtype": table.shape["dtype"], "part": table.part}
    flat |= {name: row.check.facts.get(name) for name in FACTS}
    for what, name in BESIDE.items():
        ratio = row.beside.get(what)
        flat |= {name: ratio and ratio.centre, f"{name}_low": ratio and ratio.low, f"{name}_high": ratio and ratio.high}
    return flat


FACTS = ("chunk", "alive", "resident", "waves", "occupancy")
BESIDE = {"fixed:256": "fixed_ratio", "previous": "previous_ratio"}
"""Heading of a ratio -> its column in machine formats."""

OF_ATTENTION = frozenset(
    {"tiles_per_split_requested", "tiles_per_split", "splits", "rules", "gathered_bytes", "gathered_gbps"}
    | {"dense_ratio", "dense_ratio_low", "dense_ratio_high", "selection"}
)
"""Columns of attention that a hyper-connection kernel has nothing for."""


def to_json(tables: list[CellTable]) -> str:
    document = {
        "schema": f"dsa-bench/{tables[0].op if tables else 'decode'}-table",
        "schema_version": 1,
        "rows": flat_rows(tables),
        "conclusions": [{"cell": table.label, "text": conclusion(table)} for table in tables],
    }
    return json.dumps(document, indent=1, allow_nan=False)


def to_jsonl(tables: list[CellTable]) -> str:
    return "\n".join(json.dumps(row, allow_nan=False) for row in flat_rows(tables))


LISTS = ("tiles_per_split_requested", "rules")


def to_csv(tables: list[CellTable]) -> str:
    """Lists are joined by spaces; a missing number is an empty field."""
    rows = flat_rows(tables)
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            joined = {name: " ".join(map(str, row[name])) for name in LISTS if name in row}
            writer.writerow({**row, **joined})
    return out.getvalue().rstrip("\n")
