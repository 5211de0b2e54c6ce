# SPDX-License-Identifier: MIT
"""What the rounds say of a cell's launches, and which cells of a table are worth a rule."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsa_bench.model.splits_map import MapRule
from dsa_bench.splits.map_values import size_of, splits_of, value_of
from dsa_bench.stats.location import Estimate, paired_ratio
from dsa_bench.stats.regret import RESAMPLES, Regret, regrets
from dsa_bench.stats.several import holm, tie_set
from dsa_bench.stats.verdict import NoiseFloor, null_control
from dsa_bench.sweep.cell_times import CellTimes
from dsa_bench.sweep.fewest_rules import Accepted, Shape, fewest_rules

CONFIDENCE = 0.95
RESAMPLES_PER_CELL = 40
"""Bootstrap draws for each cell of a table, so that the least p-value times the cells stays below 1 - CONFIDENCE."""


@dataclass(frozen=True, slots=True)
class ScoredCell:
    """A cell with its estimates; they do not depend on other cells.

    regrets   value -> its regret against the best of the cell
    needs     the gain that a rule has to exceed: the margin, and what an untrusted null control was off by
    gain_p    p-value of "the automatic rule loses no more than that", best chosen and scored on other halves
    ratios    value -> time / the automatic rule's, with an interval for all cells together
    noise     the automatic rule against its own second visit
    """

    cell: CellTimes
    best: int
    ties: list[int]
    regrets: dict[int, Regret]
    needs: float
    gain_p: float
    ratios: dict[int, Estimate]
    noise: NoiseFloor | None

    @property
    def shape(self) -> Shape:
        return self.cell.shape.rows, size_of(self.cell.shape)

    @property
    def trusted(self) -> bool:
        return self.noise is None or self.noise.trusted

    def value_of(self, target: int | None) -> int | None:
        """The measured value that a target launches as; the automatic rule's for none. None if it was not measured."""
        if target is None:
            return self.cell.auto
        shape = self.cell.shape
        value = value_of(shape, splits_of(shape, target))
        return value if value in self.cell.times else None


def score_cell(cell: CellTimes, cells: int, margin: float) -> ScoredCell:
    """Estimate a cell that is one of `cells` in its table."""
    names = cell.names
    found = regrets(names, names, cell.rounds, resamples=max(RESAMPLES, RESAMPLES_PER_CELL * cells))
    auto = found[str(cell.auto)]
    reference = cell.times[cell.auto]
    together = 1 - (1 - CONFIDENCE) / cells
    noise = None if cell.control is None else null_control(cell.control, reference, margin)
    off = 0.0 if noise is None or noise.trusted else abs(math.log(noise.ratio.centre))
    needs = math.expm1(math.log1p(margin) + off)
    gain_p = auto.p_above(needs)
    return ScoredCell(
        cell=cell,
        best=int(auto.best),
        ties=sorted(int(name) for name in tie_set(names, auto.best) if name != auto.best),
        regrets={int(name): one for name, one in found.items()},
        needs=needs,
        gain_p=1.0 if gain_p is None else gain_p,
        ratios={value: paired_ratio(times, reference, together) for value, times in cell.times.items()},
        noise=noise,
    )


def rules_of(scored: Sequence[ScoredCell], margin: float, lost: Iterable[Shape] = ()) -> tuple[MapRule, ...]:
    """Rules where the gain is sure over all these cells together; everything else stays with the automatic rule.

    lost  shapes that were measured and have no times: no rule spans them, because no value is known to be right there
    """
    adjusted = holm([one.gain_p for one in scored])
    targets = sorted({value for one in scored for value in one.cell.times})
    accepted: dict[Shape, Accepted] = {}
    for one, p_value in zip(scored, adjusted, strict=True):
        sure = p_value <= 1 - CONFIDENCE and one.cell.auto not in (one.best, *one.ties)
        accepted[one.shape] = _accepted(one, targets, margin) if sure else {}
    for shape in lost:
        accepted[shape] = {}
    return fewest_rules(accepted)


def _accepted(one: ScoredCell, targets: Sequence[int], margin: float) -> Accepted:
    """The targets that may stand for a cell: each surely faster than the automatic rule, and surely close to the best.

    The cell's own choice is the best's tie that is nearest to the automatic value, so that outputs change no more than
    they must; it needs no bound on its regret, because the rounds do not tell it from the best.
    """
    sure = [value for value, ratio in one.ratios.items() if ratio.high is not None and ratio.high < 1 / (1 + one.needs)]
    ties = [value for value in (one.best, *one.ties) if value in sure]
    if not ties:
        return {}
    own = min(ties, key=lambda value: (_distance(value, one.cell.auto), value))
    close = {value for value in sure if (high := one.regrets[value].high) is not None and high <= margin}
    launches = {target: one.value_of(target) for target in targets}
    return {target: _distance(target, own) for target, value in launches.items() if value == own or value in close}


def _distance(value: int, other: int) -> float:
    return abs(math.log2(value / other))
