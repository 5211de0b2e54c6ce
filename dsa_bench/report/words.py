# SPDX-License-Identifier: MIT
"""A cell's result in one sentence: which setting is fastest, by how much, how sure."""

from dsa_bench.model.record import Check
from dsa_bench.report.cells import CellTable, VariantRow
from dsa_bench.stats.location import Estimate


def asked_for(check: Check) -> list[str]:
    """Every tiles-per-split value and rule that a variant stands for."""
    return [*("auto" if value == 0 else str(value) for value in check.requested), *check.rules]


def setting(row: VariantRow) -> str:
    """A variant as a person would name it."""
    check = row.check
    if check.facts:
        return f"{check.kernel} under {' = '.join(check.rules)}"
    if check.requested:
        return f"{check.kernel} at {' = '.join(asked_for(check))} tiles per split"
    return f"{check.kernel} at {check.splits} splits ({' = '.join(check.rules)})" if check.rules else check.kernel


def conclusion(table: CellTable) -> str:
    """One sentence about a cell."""
    fastest = table.fastest
    if fastest is None:
        return "Nothing was timed."
    row = fastest.row
    if not fastest.ties and fastest.next is None:
        return f"Only {setting(row)} was timed: {row.time_us:.2f} us."
    parts: list[str] = []
    if row.speedup is not None and row.check.variant != table.reference:
        reference = next(one for one in table.rows if one.check.variant == table.reference)
        if reference not in fastest.ties:
            parts.append(f"{factor(row.speedup.centre)}x as fast as {setting(reference)} {_sure(row.speedup)}")
    if fastest.ties:
        parts.append("not told apart from " + ", ".join(map(setting, fastest.ties)))
    elif fastest.next is not None and fastest.next[0].check.variant != (table.reference if parts else None):
        following, ratio = fastest.next
        parts.append(f"{factor(ratio.centre)}x as fast as the next, {setting(following)} {_sure(ratio)}")
    trust = "" if table.noise is None or table.noise.trusted else ", but the null control was off, so do not trust it"
    return f"Fastest: {setting(row)}, {', and '.join(parts)}{trust}."


def what_dense_is(table: CellTable) -> str | None:
    """What stands behind the line of dense attention, and how the fastest sparse kernel compares; None without one."""
    if table.dense is None:
        return None
    dense = f"{table.dense.check.variant} is another computation: dense attention over every earlier position"
    fastest = table.fastest
    if fastest is None or fastest.row.dense_ratio is None:
        return f"{dense}."
    ratio = fastest.row.dense_ratio
    return f"{dense}. {setting(fastest.row)} is {factor(ratio.centre)}x as fast as it {_sure(ratio)}."


def _sure(ratio: Estimate) -> str:
    """How sure a ratio is."""
    if ratio.interval is None or ratio.coverage is None:
        return f"({ratio.rounds} rounds are too few to say how sure; 6 give an interval)"
    low, high = ratio.interval
    return f"({ratio.coverage:.1%} interval {factor(low)} to {factor(high)}, {ratio.rounds} paired rounds)"


def factor(ratio: float) -> str:
    """A ratio with two decimals; three near 1, where they decide."""
    return f"{ratio:.2f}" if abs(ratio - 1) > 0.05 else f"{ratio:.3f}"
