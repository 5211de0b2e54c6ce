# SPDX-License-Identifier: MIT
"""What a comparison comes to, in sentences. ASCII only."""

from collections.abc import Iterator

from dsa_bench.report.comparison import CellComparison, Comparison, Row
from dsa_bench.report.words import factor
from dsa_bench.stats.location import Estimate

SLOW_MARK, SLOWEST_MARK = 0.15, 0.30
"""Changes from which a line is marked (seed 004). Marks only colour: the verdicts are judged by the margin."""


ROUNDING = 1e-9
"""What a quotient of times may lose."""


def percent(ratio: float, digits: int = 1) -> str:
    """A ratio's distance from 1 in percent; never a negative zero."""
    return f"{round(100 * (ratio - 1), digits) + 0.0:+.{digits}f}%"


def interval_text(ratio: Estimate | None) -> str:
    if ratio is None or ratio.interval is None:
        return "-"
    return "[{}, {}]".format(*map(percent, ratio.interval))


def requested_text(row: Row) -> str:
    return " = ".join("auto" if value == 0 else str(value) for value in row.requested) or "-"


def rules_text(row: Row) -> str:
    """The rules of dense decode that chose this launch."""
    check = row.head or row.base
    return " = ".join(check.rules) if check is not None and check.facts else "-"


def splits_text(row: Row) -> str:
    """The launch on both sides, where it is not the same."""
    splits = [str(check.splits) for check in (row.base, row.head) if check is not None]
    return " -> ".join(dict.fromkeys(splits))


def name(row: Row) -> str:
    """A row as a person would name it."""
    check = row.head or row.base
    if check is not None and check.facts:
        return f"{row.kernel} under {rules_text(row)}"
    if row.requested:
        return f"{row.kernel} at {requested_text(row)} tiles per split"
    return row.kernel if check is None else check.variant


def faster_or_slower(ratio: float) -> str:
    """head / base in words: 0.179 is 5.58x faster, 5.58 is 5.58x slower."""
    if ratio == 1:
        return "as fast"
    return f"{factor(max(ratio, 1 / ratio))}x {'slower' if ratio > 1 else 'faster'}"


def mark(row: Row) -> str:
    """ "slowest" from 30 % slower, "slow" from 15 %, "fast" from 15 % faster, "bad" without a number, else ""."""
    if row.status in ("failed", "missing", "invalid"):
        return "bad"
    if row.change is None:
        return ""
    change = row.change + ROUNDING
    if change >= SLOWEST_MARK:
        return "slowest"
    return "slow" if change >= SLOW_MARK else "fast" if change <= -SLOW_MARK + 2 * ROUNDING else ""


def noise_text(cell: CellComparison, paired: bool) -> str:
    """The null control of each side; one for both in a paired comparison."""
    sides = [("", cell.base)] if paired else [("base ", cell.base), ("head ", cell.head)]
    said = [f"{which}{_noise(side.noise.ratio, side.noise.trusted)}" for which, side in sides if side and side.noise]
    return "null control " + ", ".join(said) if said else "no null control"


def _noise(ratio: Estimate, trusted: bool) -> str:
    interval = "" if ratio.interval is None else " [{}, {}]".format(*(percent(end, 2) for end in ratio.interval))
    return f"{percent(ratio.centre, 2)}{interval}{'' if trusted else ' UNTRUSTED'}"


def sentences(comparison: Comparison) -> Iterator[str]:
    """Counts, what is missing or failed, the mean, the common shift, and how far all this may be trusted."""
    cells = sum(cell.base is not None and cell.head is not None for cell in comparison.cells)
    counts = ", ".join(f"{count} {status}" for status, count in comparison.counts.items())
    lines = len([row for row in comparison.rows if not row.is_yardstick])
    yield f"{cells} cell{'s' * (cells != 1)} in both, {lines} line{'s' * (lines != 1)}: {counts}."
    for cell in comparison.cells:
        yield from _cell_sentences(cell)
    if comparison.mean is not None:
        compared = sum(row.compared for row in comparison.rows)
        mean = comparison.mean
        sure = "" if mean.interval is None else f", 95% interval {interval_text(mean)}"
        yield (
            f"Geometric mean over the {compared} lines with a number on both sides: head is {_against(mean)} "
            f"({percent(mean.centre)}{sure})."
        )
    yield from _shift_sentences(comparison)
    yield from _caveats(comparison)


def _against(mean: Estimate) -> str:
    """What may be said of the head: a direction only where the interval has one."""
    if mean.interval is not None and mean.interval[0] <= 1 <= mean.interval[1]:
        return "not told apart from base"
    return f"{faster_or_slower(mean.centre)}{'' if mean.interval else ', with too few rounds to say how surely'}"


def _cell_sentences(cell: CellComparison) -> Iterator[str]:
    if cell.head is None:
        yield f"Missing from the head: {cell.label}."
    elif cell.base is None:
        yield f"New in the head: {cell.label}."
    for row in cell.rows:
        if row.status in ("failed", "invalid") or (row.status == "missing" and cell.head is not None):
            yield f"{row.status.capitalize()}: {name(row)}, {cell.label}: {row.reason}."
    if cell.untrusted:
        yield (
            f"The null control of {' and '.join(cell.untrusted)} was off in {cell.label}: measure again before you "
            "trust its lines."
        )


def _shift_sentences(comparison: Comparison) -> Iterator[str]:
    shift = comparison.shift
    if shift is not None:
        yield (
            f"One common shift of {percent(shift.ratio)}: {shift.within} of {shift.rows} lines agree with it within "
            f"{2 * shift.margin:.1%}. Another clock, a busier machine or a change to all of them gives that; it is no "
            "finding about single lines."
        )
        beyond = [
            f"{name(row)} ({cell.label}): {percent(row.ratio.centre / shift.ratio)} against the shift"
            for cell in comparison.cells
            for row in cell.rows
            if row.compared and row.ratio is not None and not shift.holds(row.ratio)
        ]
        if beyond:
            yield f"Beyond the shift: {'; '.join(beyond)}."
    moved = [row for row in comparison.rows if row.status in ("slower", "faster") and not row.is_yardstick]
    unchanged = [row for row in moved if row.same_code]
    if unchanged:
        yield f"{len(unchanged)} of the {len(moved)} lines that moved ran equal kernel code on both sides (one hash)."


def _caveats(comparison: Comparison) -> Iterator[str]:
    if comparison.noted:
        yield f"Not the same on both sides: {'; '.join(map(str, comparison.noted))}."
    if comparison.paired:
        yield "Both sides were measured in the same rounds: ratios are paired, intervals exact signed-rank."
        return
    yield (
        "The sides are two runs: their rounds are independent samples (two-sample Hodges-Lehmann, exact Mann-Whitney "
        "interval), and whatever else differed between the runs is in the ratios; dsa-bench ab measures both in the "
        "same rounds."
    )
