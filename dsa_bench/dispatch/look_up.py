# SPDX-License-Identifier: MIT
"""Which table of a map holds for a launch, and what it says. The tuner and the dispatcher use this and nothing else."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from dsa_bench.model.splits_map import AnyRule, AnyTable, SplitsMap, SplitTable
from dsa_bench.model.text import short

_ON_DEVICE = ("op", "kernel", "device name", "compute_capability", "sm_count", "kernel_hash", "cta_slots")
MUST_MATCH = {
    "decode": (*_ON_DEVICE, "clusters", "tile", "head_size", "group", "kv_heads", "l2"),
    "dense": (*_ON_DEVICE, "dtype", "head_size", "value_head_size", "query_heads", "kv_heads", "l2"),
}
"""Operator -> facts that decide what is fastest, or what a value means: where one differs the table says nothing."""
SHOULD_MATCH = ("driver", "runtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnDevice:
    """What launches of either operator are made with. The device's name is compared as it is.

    cta_slots  SMs x resident CTAs per SM of the kernel      l2  the mode asked for; a table without modes satisfies any
    """

    op: str
    kernel: str
    kernel_hash: str
    device: str
    compute_capability: str | None
    sm_count: int
    cta_slots: int
    head_size: int
    kv_heads: int
    l2: str
    driver: str | None = None
    runtime: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts(_OnDevice):
    """What a launch is made with, apart from its rows and candidates.

    clusters  of `int8-digits`, those that the device holds at once, in words
    """

    tile: int
    group: int
    clusters: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLaunchFacts(_OnDevice):
    """As LaunchFacts, of dense decode. Capacity and rows are what a rule is looked up by."""

    dtype: str
    value_head_size: int
    query_heads: int


AnyFacts = LaunchFacts | DenseLaunchFacts


class RuleLookUp:
    """Rules, made ready for look-ups of about a microsecond."""

    __slots__ = ("_starts", "_strips")

    def __init__(self, rules: Sequence[AnyRule]) -> None:
        self._starts, self._strips = _strips(rules)

    def value(self, rows: int, size: int) -> int | None:
        """The tiles per split of a launch of so many tiles, or of dense decode the chunk of a capacity.

        None outside every rule, where the automatic rule applies. Never the nearest rule.
        """
        starts, ends, values = self._strips[bisect_right(self._starts, rows)]
        at = bisect_right(starts, size) - 1
        return values[at] if at >= 0 and size <= ends[at] else None


class MapTable(RuleLookUp):
    """A table with its rules."""

    __slots__ = ("table",)

    def __init__(self, table: AnyTable) -> None:
        super().__init__(table.rules)
        self.table = table


_Strip = tuple[list[int], list[int], list[int]]
"""First sizes, last sizes and values of the rules that hold for some rows, by ascending sizes."""


def _strips(rules: Sequence[AnyRule]) -> tuple[list[int], list[_Strip]]:
    """(rows at which other rules start to hold, the rules that hold before the first and from each on)."""
    starts = sorted({rule.rows[0] for rule in rules} | {rule.rows[1] + 1 for rule in rules})
    strips: list[_Strip] = [([], [], [])]
    for rows in starts:
        here = sorted((rule.size, rule.value) for rule in rules if rule.rows[0] <= rows <= rule.rows[1])
        strips.append(([low for (low, _), _ in here], [high for (_, high), _ in here], [value for _, value in here]))
    return starts, strips


def applicable(splits_map: SplitsMap, facts: AnyFacts) -> tuple[MapTable | None, list[str]]:
    """The table that holds for a launch, and what to warn of: at most one line.

    Without a table the line names every field that differs in the nearest one, with both values, and of a map of
    several kernels that table, as another may hold; with one, the driver and the run time if they differ.
    """
    table = nearest(splits_map, facts)
    if table is None:
        return None, ["the map holds no table; the automatic rule decides"]
    found = _differences(splits_map, table, facts, _must_match(facts))
    if found and table.kernel == facts.kernel and len({one.kernel for one in splits_map.tables}) > 1:
        return None, [f"its table of {short(table.kernel)} is not used: {', '.join(_sentences(found))}"]
    if found:
        return None, [f"the map is not used: {', '.join(_sentences(found))}; the automatic rule decides"]
    newer = _differences(splits_map, table, facts, SHOULD_MATCH)
    return MapTable(table), [
        f"the map was tuned otherwise and is used: {', '.join(_sentences(newer))}; tune again"
    ] if newer else []


def mismatches(splits_map: SplitsMap, table: AnyTable, facts: AnyFacts) -> list[str]:
    """What keeps a table from holding for a launch, a line for each field with both values."""
    return _sentences(_differences(splits_map, table, facts, _must_match(facts)))


def speaks_of(splits_map: SplitsMap, facts: AnyFacts) -> bool:
    """Whether a map was made for the launch's kernel: one of `int8-tc` alone has nothing to say of `int8-digits`."""
    kernels = {table.kernel for table in splits_map.tables if table.op == facts.op}
    return facts.kernel in kernels or not kernels


def nearest(splits_map: SplitsMap, facts: AnyFacts) -> AnyTable | None:
    """The table that differs from the launch in the fewest facts that must match; None in a map without tables."""
    differing = [(table, _differences(splits_map, table, facts, _must_match(facts))) for table in splits_map.tables]
    return min(differing, key=lambda pair: _distance(pair[1]), default=(None, ()))[0]


def _must_match(facts: AnyFacts) -> Sequence[str]:
    return MUST_MATCH["dense" if isinstance(facts, DenseLaunchFacts) else "decode"]


_Differences = list[tuple[str, object, object]]


def _distance(found: _Differences) -> tuple[bool, int]:
    """Tables of another operator or kernel are farthest; among equals the first of the file is nearest."""
    return any(name in ("op", "kernel") for name, _, _ in found), len(found)


def _differences(splits_map: SplitsMap, table: AnyTable, facts: AnyFacts, names: Sequence[str]) -> _Differences:
    """(field, the map's value, the launch's value) of those that differ; of another operator's table, only that."""
    if table.op != facts.op:
        return [("op", table.op, facts.op)]
    device = splits_map.device
    of_map = {
        "clusters": table.held if isinstance(table, SplitTable) else None,
        "device name": device.name, "compute_capability": device.compute_capability, "sm_count": device.sm_count,
        "driver": device.driver, "runtime": device.cuda_runtime,
    }  # fmt: skip
    found: _Differences = []
    for name in names:
        mine = of_map[name] if name in of_map else getattr(table, name)
        here = facts.device if name == "device name" else getattr(facts, name)
        if mine != here and not (name == "l2" and mine == "none"):
            found.append((name, mine, here))
    return found


def _sentences(found: _Differences) -> list[str]:
    return [f"{name} is {_value(mine)} in the map and {_value(here)} here" for name, mine, here in found]


def _value(value: object) -> str:
    return "unknown" if value is None else short(value)
