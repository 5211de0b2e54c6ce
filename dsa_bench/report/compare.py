# SPDX-License-Identifier: MIT
"""Two recorded runs, or the two sides of one, against each other. A pure function of them.

Rounds of two runs are independent samples; rounds of the two sides of one run are paired.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsa_bench.model.errors import BadInput
from dsa_bench.model.run import Run
from dsa_bench.report.cells import cell_shape
from dsa_bench.report.comparison import CellComparison, Comparison, Row
from dsa_bench.report.matching import (
    Match,
    Mismatch,
    cell_mismatches,
    device_mismatches,
    matched_cells,
    matched_variants,
    noted_differences,
)
from dsa_bench.report.shift import common_shift
from dsa_bench.report.sides import Metric, SideCell, side_cells
from dsa_bench.stats.composite import Rounds, geometric_mean_ratio
from dsa_bench.stats.paired_times import is_usable
from dsa_bench.stats.verdict import MARGIN, Judgement, Verdict, judge, judge_independent


@dataclass(frozen=True, slots=True)
class Terms:
    """How two sides are compared: on which time, with which margin, and whether their rounds are the same rounds."""

    metric: Metric = "attention"
    margin: float = MARGIN
    paired: bool = False


def compare_runs(
    base: Run, head: Run, names: tuple[str, str], terms: Terms, *, allow_mismatch: bool = False
) -> Comparison:
    """Compare a base with a head, called `names`.

    Raises BadInput if a side has no cell or none of the other's, or, without `allow_mismatch`, if their devices, or
    timer, L2 mode, inputs or clocks of a cell, are not the same: it names the field and both values.
    """
    sides = side_cells(base, terms.metric), side_cells(head, terms.metric)
    _refuse_unmatched(*sides, names)
    devices = device_mismatches(base.header, head.header)
    compared = compare_sides(sides, names, (_commit(base), _commit(head)), terms, devices)
    if not allow_mismatch:
        _refuse_mismatch(compared.cells, devices, names)
    return replace(compared, noted=noted_differences(base.header, head.header))


def compare_sides(
    sides: tuple[Mapping[str, list[SideCell]], Mapping[str, list[SideCell]]],
    names: tuple[str, str],
    commits: tuple[str, str],
    terms: Terms,
    devices: Sequence[Mismatch] = (),
) -> Comparison:
    """Compare (base, head), by shape; `devices` are the mismatches of all cells."""
    cells = [_cell(one, other, devices, terms) for one, other in matched_cells(*sides)]
    ratios = [row.ratio for cell in cells for row in cell.rows if row.compared and row.ratio is not None]
    return Comparison(
        names=names,
        commits=commits,
        paired=terms.paired,
        metric=terms.metric,
        margin=terms.margin,
        cells=cells,
        noted=[],
        mean=geometric_mean_ratio([_rounds(cell, terms) for cell in cells], paired=terms.paired) if ratios else None,
        shift=None if terms.paired else common_shift(ratios, terms.margin),
    )


def _refuse_unmatched(base: Mapping[str, object], head: Mapping[str, object], names: tuple[str, str]) -> None:
    for side, name in ((base, names[0]), (head, names[1])):
        if not side:
            raise BadInput(f"{name}: holds no cell; name a run that measured something")
    if not base.keys() & head.keys():
        raise BadInput(
            f"{names[0]} and {names[1]} have no cell in common: the first of base is {next(iter(base))}, "
            f"of head {next(iter(head))}; name two runs of one sweep"
        )


def _refuse_mismatch(cells: Sequence[CellComparison], devices: Sequence[Mismatch], names: tuple[str, str]) -> None:
    for cell in cells:
        for mismatch in cell.mismatches:
            place = "" if mismatch in devices else f" ({cell.label})"
            raise BadInput(
                f"{names[0]} and {names[1]} are not alike{place}: {mismatch}; "
                "--allow-device-mismatch compares them all the same and says so on every line"
            )


def _commit(run: Run) -> str:
    header = run.header
    if header.commit is None:
        return f"dsa-bench {header.version}"
    return header.commit[:12] + (", modified" if header.dirty else "")


def _cell(base: SideCell | None, head: SideCell | None, devices: Sequence[Mismatch], terms: Terms) -> CellComparison:
    side = head or base
    assert side is not None
    matches = matched_variants(base.checks if base else {}, head.checks if head else {})
    mismatches = [*devices, *cell_mismatches(base, head)] if base and head else []
    return CellComparison(
        cell_shape(side.cell), base, head, [_row(match, base, head, terms) for match in matches], mismatches
    )


def _row(match: Match, base: SideCell | None, head: SideCell | None, terms: Terms) -> Row:
    row = Row(match.check.kernel, match.requested, match.base, match.head, "invalid")
    base_us = _times(base, match.base and match.base.variant)
    head_us = _times(head, match.head and match.head.variant)
    row = replace(row, base_us=_median(base_us), head_us=_median(head_us))
    if head is None or match.head is None:
        return replace(row, status="missing", reason="not measured in the head")
    failure = head.failure(match.head.variant)
    if failure is not None:
        return replace(
            row, status="failed" if match.head.status != "ok" else "invalid", reason=f"in the head: {failure}"
        )
    if base is None or match.base is None:
        return replace(row, status="new")
    failure = base.failure(match.base.variant)
    if failure is not None:
        return replace(row, reason=f"in the base: {failure}")
    judged = _judge(base_us, head_us, len({*base.rounds} & {*head.rounds}), terms)
    return replace(
        row,
        status=judged.verdict.value,
        reason=judged.reason,
        ratio=judged.ratio,
        rounds_to_decide=judged.rounds_to_decide,
    )


def _times(side: SideCell | None, variant: str | None) -> dict[int, float]:
    return {} if side is None or variant is None else side.times.get(variant, {})


def _median(times: Mapping[int, float]) -> float | None:
    return statistics.median(times.values()) if times else None


def _judge(base_us: Mapping[int, float], head_us: Mapping[int, float], rounds: int, terms: Terms) -> Judgement:
    """The verdict; of a paired comparison, whose sides share so many rounds, over those in which both have a time."""
    if not terms.paired:
        return judge_independent(list(head_us.values()), list(base_us.values()), terms.margin)
    common = sorted(base_us.keys() & head_us.keys())
    if not is_usable(len(common), rounds):
        reason = f"both sides have a time in {len(common)} of {rounds} rounds"
        return Judgement(Verdict.INVALID, ratio=None, reason=reason)
    return judge([head_us[index] for index in common], [base_us[index] for index in common], terms.margin)


def _rounds(cell: CellComparison, terms: Terms) -> Rounds:
    """ln(time) of the head's and the base's rounds, one line for each row that is compared."""
    rows = [row for row in cell.rows if row.compared]
    if cell.base is None or cell.head is None:
        rows = []
    heads = [_times(cell.head, row.head and row.head.variant) for row in rows]
    bases = [_times(cell.base, row.base and row.base.variant) for row in rows]
    head_rounds, base_rounds = ([] if side is None else side.rounds for side in (cell.head, cell.base))
    if terms.paired:
        head_rounds = base_rounds = sorted({*head_rounds} & {*base_rounds})
    return _logs(heads, head_rounds), _logs(bases, base_rounds)


def _logs(times: Sequence[Mapping[int, float]], rounds: Sequence[int]) -> np.ndarray:
    found = [[of_row.get(index, np.nan) for index in rounds] for of_row in times]
    return np.log(np.array(found, np.float64).reshape(len(times), len(rounds)))
