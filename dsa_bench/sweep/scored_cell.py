# SPDX-License-Identifier: MIT
"""What the rounds say of a cell's launches, and which cells of a table are worth a rule."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsa_bench.model.map_parts import Target
from dsa_bench.splits.map_values import size_of
from dsa_bench.stats.location import Estimate, paired_ratio
from dsa_bench.stats.regret import RESAMPLES, Regret, regrets
from dsa_bench.stats.several import holm, tie_set
from dsa_bench.stats.verdict import NoiseFloor, null_control
from dsa_bench.sweep.cell_times import CellTimes
from dsa_bench.sweep.fewest_rules import Accepted, FoundRule, Shape, fewest_rules

CONFIDENCE = 0.95
RESAMPLES_PER_CELL = 40
"""Bootstrap draws for each cell of a table, so that the least p-value times the cells stays below 1 - CONFIDENCE."""


OTHER_KERNEL = 64.0
"""How far another kernel is, in powers of two of the value: more than any two values of one are apart."""


@dataclass(frozen=True, slots=True)
class ScoredCell:
    """A cell with its estimates; they do not depend on other cells.

    regrets   launch -> its regret against the best of the cell
    needs     the gain that a rule has to exceed: the margin, and what an untrusted null control was off by
    gain_p    p-value of "the automatic rule loses no more than that", best chosen and scored on other halves
    ratios    launch -> time / the automatic one's, with an interval for all cells together
    noise     an automatic launch against its own second visit
    """

    cell: CellTimes
    best: Target
    ties: list[Target]
    regrets: dict[Target, Regret]
    needs: float
    gain_p: float
    ratios: dict[Target, Estimate]
    noise: NoiseFloor | None

    @property
    def shape(self) -> Shape:
        return self.cell.shape.rows, size_of(self.cell.shape)

    @property
    def trusted(self) -> bool:
        return self.noise is None or self.noise.trusted

    def launch(self, target: Target | None) -> Target | None:
        """The measured launch that a target becomes; the automatic one for none. None if it was not measured."""
        return self.cell.auto if target is None else self.cell.launch(target)


def score_cell(cell: CellTimes, cells: int, margin: float) -> ScoredCell:
    """Estimate a cell that is one of `cells` in its table."""
    names, targets = cell.names, {str(target): target for target in cell.times}
    found = regrets(names, names, cell.rounds, resamples=max(RESAMPLES, RESAMPLES_PER_CELL * cells))
    auto = found[str(cell.auto)]
    reference = cell.times[cell.auto]
    together = 1 - (1 - CONFIDENCE) / cells
    noise = None
    if cell.control is not None and cell.controlled is not None:
        noise = null_control(cell.control, cell.times[cell.controlled], margin)
    off = 0.0 if noise is None or noise.trusted else abs(math.log(noise.ratio.centre))
    needs = math.expm1(math.log1p(margin) + off)
    gain_p = auto.p_above(needs)
    return ScoredCell(
        cell=cell,
        best=targets[auto.best],
        ties=sorted(targets[name] for name in tie_set(names, auto.best) if name != auto.best),
        regrets={targets[name]: one for name, one in found.items()},
        needs=needs,
        gain_p=1.0 if gain_p is None else gain_p,
        ratios={target: paired_ratio(times, reference, together) for target, times in cell.times.items()},
        noise=noise,
    )


def rules_of(scored: Sequence[ScoredCell], margin: float, lost: Iterable[Shape] = ()) -> tuple[FoundRule, ...]:
    """Rules where the gain is sure over all these cells together; everything else stays with the automatic rule.

    lost  shapes that were measured and have no times: no rule spans them, because no value is known to be right there
    """
    adjusted = holm([one.gain_p for one in scored])
    targets = sorted({target for one in scored for target in one.cell.times})
    accepted: dict[Shape, Accepted] = {}
    for one, p_value in zip(scored, adjusted, strict=True):
        sure = p_value <= 1 - CONFIDENCE and one.cell.auto not in (one.best, *one.ties)
        accepted[one.shape] = _accepted(one, targets, margin) if sure else {}
    for shape in lost:
        accepted[shape] = {}
    return fewest_rules(accepted)


def _accepted(one: ScoredCell, targets: Sequence[Target], margin: float) -> Accepted:
    """The targets that may stand for a cell: each surely faster than the automatic rule, and surely close to the best.

    The cell's own choice is the best's tie that is nearest to the automatic launch, its kernel first, so that outputs
    change no more than they must; it needs no bound on its regret, because the rounds do not tell it from the best.
    """
    sure = [value for value, ratio in one.ratios.items() if ratio.high is not None and ratio.high < 1 / (1 + one.needs)]
    ties = [value for value in (one.best, *one.ties) if value in sure]
    if not ties:
        return {}
    own = min(ties, key=lambda value: (_distance(value, one.cell.auto), value))
    close = {value for value in sure if (high := one.regrets[value].high) is not None and high <= margin}
    launches = {target: one.launch(target) for target in targets}
    return {target: _distance(target, own) for target, value in launches.items() if value == own or value in close}


def _distance(target: Target, other: Target) -> float:
    """Another kernel is farther than any value of the same."""
    return abs(math.log2(target.value / other.value)) + OTHER_KERNEL * (target.kernel != other.kernel)
