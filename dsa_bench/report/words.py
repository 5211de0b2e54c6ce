# SPDX-License-Identifier: MIT
"""A cell's result in one sentence: which setting is fastest, by how much, how sure."""

from dsa_bench.report.decode import CellTable, VariantRow
from dsa_bench.stats.location import Estimate


def setting(row: VariantRow) -> str:
    """A variant as a person would name it."""
    check = row.check
    if not check.requested:
        return check.kernel
    asked = " = ".join("auto" if value == 0 else str(value) for value in check.requested)
    return f"{check.kernel} at {asked} tiles per split"


def conclusion(table: CellTable) -> str:
    """One sentence about a cell."""
    fastest = table.fastest
    if fastest is None:
        return "Nothing was timed."
    reference = next(row for row in table.rows if row.check.variant == table.reference)
    if fastest is not reference:
        if fastest.speedup is None:
            return f"Fastest: {setting(fastest)}, {fastest.time_us:.2f} us, in no round with {setting(reference)}."
        return _sentence(fastest, fastest.speedup, setting(reference), table)
    compared = [row for row in table.rows if row.speedup is not None]
    if not compared:
        return f"Only {setting(fastest)} was timed: {fastest.time_us:.2f} us."
    second = min(compared, key=lambda row: row.time_us or 0.0)
    assert second.speedup is not None
    return _sentence(fastest, _inverse(second.speedup), setting(second), table)


def _sentence(fastest: VariantRow, ratio: Estimate, against: str, table: CellTable) -> str:
    start = f"Fastest: {setting(fastest)}, {ratio.centre:.2f}x as fast as {against}"
    if ratio.interval is None:
        return f"{start}; {ratio.rounds} rounds are too few to say how sure that is (6 give an interval)."
    low, high = ratio.interval
    assert ratio.coverage is not None
    sure = f"({ratio.coverage:.1%} interval {low:.2f} to {high:.2f}, {ratio.rounds} paired rounds)"
    if low <= 1.0 <= high:
        return f"No difference between {setting(fastest)} and {against} is proven: {ratio.centre:.2f}x {sure}."
    if table.noise is not None and not table.noise.trusted:
        return f"{start} {sure}, but the null control was off, so do not trust it."
    return f"{start} {sure}."


def _inverse(ratio: Estimate) -> Estimate:
    ends = (None, None) if ratio.interval is None else (1 / ratio.interval[1], 1 / ratio.interval[0])
    return Estimate(1 / ratio.centre, *ends, ratio.rounds, ratio.coverage)
