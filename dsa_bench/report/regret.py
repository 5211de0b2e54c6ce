# SPDX-License-Identifier: MIT
"""What rules' choices cost on a recorded sweep, for each shape and overall. A pure function of a run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dsa_bench.model.costs import SplitCosts
from dsa_bench.model.device import DeviceSlots
from dsa_bench.report.columns import interval, percent
from dsa_bench.report.swept import SweptCell, choices
from dsa_bench.splits.registry import AUTO
from dsa_bench.stats.regret import MIN_PAIRS, Overall, Regret, overall, regrets


@dataclass(frozen=True, slots=True)
class ScoredChoice:
    """One rule in one cell: its variant, and what that costs against the best variant of the split kernel."""

    cell: SweptCell
    rule: str
    variant: str
    regret: Regret

    @property
    def splits(self) -> int:
        return self.cell.checks[self.variant].splits

    @property
    def best_splits(self) -> int:
        return self.cell.checks[self.regret.best].splits

    @property
    def is_below_tick(self) -> bool:
        """Whether there is a difference, of less than the timer's tick: the record cannot tell it from none."""
        regret, tick_us = self.regret.cross_fitted, self.cell.tick_us
        return bool(regret) and tick_us is not None and abs(regret) * self.median_us(self.regret.best) < tick_us

    def median_us(self, variant: str) -> float:
        return float(np.median(self.cell.times[variant]))


@dataclass(frozen=True, slots=True)
class Unscored:
    """A rule that a cell can say nothing of, and why."""

    cell: SweptCell
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A variant that does not compete in a cell, and why; `right` if its check passed and only times are missing."""

    cell: SweptCell
    variant: str
    reason: str
    right: bool


@dataclass(frozen=True, slots=True)
class Scores:
    """Every rule in every cell: what it costs, or why that is not known."""

    rules: tuple[str, ...]
    cells: Sequence[SweptCell]
    scored: Sequence[ScoredChoice]
    unscored: Sequence[Unscored]

    @property
    def left_out(self) -> list[LeftOut]:
        """Every variant that does not compete: a best one may be among them."""
        return [
            LeftOut(cell, variant, reason, cell.checks[variant].status == "ok")
            for cell in self.cells
            for variant, reason in cell.left_out.items()
        ]

    def of(self, rule: str) -> list[ScoredChoice]:
        return [one for one in self.scored if one.rule == rule]


@dataclass(frozen=True, slots=True)
class Standing:
    """A rule over several cells; `total` is None where a cell has too few rounds to cross.

    rule  its name, with that of the kernel whose own automatic rule it is, unless that is int8-tc
    """

    rule: str
    total: Overall | None
    worst: SweptCell | None


def score(
    cells: Sequence[SweptCell], rules: Iterable[str], slots: DeviceSlots | None, costs: SplitCosts | None
) -> Scores:
    """The cross-fitted regret of each rule in each cell that measured its choice.

    Of a kernel that has its own rule alone, the automatic one is scored and no other.
    """
    names = tuple(dict.fromkeys(rules))
    chosen = {name: choices(cells, name, slots, costs) for name in names}
    scored: list[ScoredChoice] = []
    unscored: list[Unscored] = []
    for at, cell in enumerate(cells):
        known = {name: of_rule[at].variant for name, of_rule in chosen.items() if name == AUTO or cell.is_ruled}
        found = (
            regrets(cell.times, [variant for variant in known.values() if variant], cell.rounds) if cell.times else {}
        )
        for name, variant in known.items():
            if variant is None:
                unscored.append(Unscored(cell, name, chosen[name][at].reason or ""))
            else:
                scored.append(ScoredChoice(cell, name, variant, found[variant]))
    return Scores(names, cells, scored, unscored)


def standing(name: str, scored: Sequence[ScoredChoice]) -> Standing:
    """One rule's choices together."""
    if not scored or any(one.regret.cross_fitted is None for one in scored):
        return Standing(name, None, None)
    total = overall({str(at): one.regret for at, one in enumerate(scored)})
    return Standing(name, total, scored[int(total.at)].cell)


def choices_of(scores: Scores) -> dict[str, list[ScoredChoice]]:
    """What `standing` puts together: each rule's choices, those of `int8-digits`, whose rule is another, apart."""
    found: dict[str, list[ScoredChoice]] = {}
    for rule in scores.rules:
        scored = scores.of(rule)
        if not scored:
            found[rule] = []
        for one in scored:
            found.setdefault(rule if one.cell.is_ruled else f"{rule}, {one.cell.kernel}", []).append(one)
    return found


def league(scores: Scores) -> tuple[list[Standing], int]:
    """(each rule over the cells that all rules share, the least mean first; how many cells those are).

    A rule that no cell can score is left out, and does not count for what is shared.
    """
    somewhere = [rule for rule in scores.rules if scores.of(rule)]
    scored_in = [{id(one.cell) for one in scores.of(rule)} for rule in somewhere]
    shared = set[int].intersection(*scored_in) if scored_in else set[int]()
    table = [standing(rule, [one for one in scores.of(rule) if id(one.cell) in shared]) for rule in somewhere]
    return sorted(table, key=lambda one: (one.total is None, one.total.mean if one.total else 0.0)), len(shared)


def beyond(scores: Scores, limit: float) -> list[str]:
    """Why the gate says no: a mean that is surely above `limit`; a cell, an interval or a right variant, which may be
    the best, that is missing. Empty: it passes. The limit itself is not above it."""
    failures = [f"{one.rule} has no regret in {one.cell.label}: {one.reason}" for one in scores.unscored]
    failures += [
        f"{one.variant} does not compete in {one.cell.label}: {one.reason}" for one in scores.left_out if one.right
    ]
    for name, scored in choices_of(scores).items():
        total = standing(name, scored).total
        if total is None or total.low is None:
            if scored:
                failures.append(f"{name}: {too_few(scored)}")
        elif total.low > limit:
            failures.append(
                f"{name}: mean regret {percent(total.mean)} [{interval(total.low, total.high)}] over "
                f"{shapes(total.cells)} lies above {percent(limit)}"
            )
    return failures


def too_few(scored: Sequence[ScoredChoice]) -> str:
    """Why there is no cross-fitted regret, or no interval."""
    fewest = min(one.regret.rounds for one in scored)
    return f"{fewest} rounds are too few; 4 give an estimate, and {4 * MIN_PAIRS} an interval"


def shapes(count: int) -> str:
    """A count in words."""
    return f"{count} shape{'' if count == 1 else 's'}"
