# SPDX-License-Identifier: MIT
"""What split rules choose for shapes on a device, and what they are."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.shape import TILE, ceil_div
from dsa_bench.report.columns import aligned, csv_text, markdown
from dsa_bench.splits.registry import Rule

RULES_SCHEMA = "dsa-bench/rule-choices"
COLUMNS = ("rows", "candidates", "tiles", "rule", "splits", "tiles/split", "CTAs", "waves")


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """One rule for one shape: tiles a row, splits, tiles of the longest split, CTAs of the launch, waves they take."""

    rows: int
    candidates: int
    tiles: int
    rule: str
    splits: int
    tiles_per_split: int
    ctas: int
    waves: int


@dataclass(frozen=True, slots=True)
class RuleTable:
    """Choices on one device, and the rules that made them."""

    rules: Mapping[str, Rule]
    slots: DeviceSlots
    kv_heads: int
    choices: list[RuleChoice]


def rule_choices(
    rules: Mapping[str, Rule], rows: Iterable[int], candidates: Iterable[int], kv_heads: int, slots: DeviceSlots
) -> RuleTable:
    """Every rule for every shape, none of whose sizes is zero."""
    shapes = [(of_rows, count) for of_rows in rows for count in candidates]
    chosen = [_choice(rule, *shape, kv_heads, slots) for shape in shapes for rule in rules.values()]
    return RuleTable(rules, slots, kv_heads, chosen)


def _choice(rule: Rule, rows: int, candidates: int, kv_heads: int, slots: DeviceSlots) -> RuleChoice:
    tiles = ceil_div(candidates, TILE)
    splits = rule.splits(tiles, rows, kv_heads, slots)
    ctas = rows * kv_heads * splits
    return RuleChoice(
        rows, candidates, tiles, rule.name, splits, ceil_div(tiles, splits), ctas, ceil_div(ctas, slots.ctas)
    )


def _about(table: RuleTable) -> list[str]:
    slots = table.slots
    device = f"{slots.sms} SMs x {slots.resident} resident = {slots.ctas} CTA slots, {table.kv_heads} KV heads"
    rules = (
        f"{one.name}: {one.formula}. Source: {one.source}. Blind to {one.blind_to}." for one in table.rules.values()
    )
    return [device, *rules]


def _cells(table: RuleTable) -> list[list[str]]:
    return [[str(getattr(one, field.name)) for field in fields(one)] for one in table.choices]


def _json(table: RuleTable) -> str:
    about = [
        {name: getattr(one, name) for name in ("name", "formula", "source", "blind_to")} for one in table.rules.values()
    ]
    document: dict[str, Any] = {
        "schema": RULES_SCHEMA,
        "schema_version": 1,
        "sms": table.slots.sms,
        "resident": table.slots.resident,
        "kv_heads": table.kv_heads,
        "rules": about,
        "rows": _flat(table),
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _flat(table: RuleTable) -> list[dict[str, Any]]:
    return [asdict(one) for one in table.choices]


RULE_WRITERS: dict[str, Callable[[RuleTable], str]] = {
    "table": lambda table: "\n".join([aligned(COLUMNS, _cells(table), ("rule",)), *_about(table)]),
    "json": _json,
    "jsonl": lambda table: "\n".join(json.dumps(row) for row in _flat(table)),
    "csv": lambda table: csv_text(_flat(table)),
    "markdown": lambda table: "\n".join(
        [markdown(COLUMNS, _cells(table), ("rule",)), "", *(f"- {line}" for line in _about(table))]
    ),
}
