# SPDX-License-Identifier: MIT
"""From a run to a map: which cells are worth a rule, the rules, and what they cost on cells that they never saw.

A pure function of the run: the same samples give the same map, in whatever order they were recorded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from dsa_bench.dispatch.look_up import MapTable
from dsa_bench.dispatch.map_file import map_text, parse_map
from dsa_bench.model.documents import Misfit
from dsa_bench.model.errors import BadInput
from dsa_bench.model.run import Run
from dsa_bench.model.shape import TILE
from dsa_bench.model.splits_map import (
    MapCell,
    MapDevice,
    MapPolicy,
    MapRule,
    NullSummary,
    RegretSummary,
    SplitsMap,
    SplitTable,
    Validation,
)
from dsa_bench.splits.rules import MAX_SPLITS, capped_splits
from dsa_bench.splits.targets import smallest_target
from dsa_bench.stats.location import Estimate, paired_ratio
from dsa_bench.stats.regret import RESAMPLES, Regret, holm, overall, regrets, tie_set
from dsa_bench.stats.verdict import MARGIN, NoiseFloor, null_control
from dsa_bench.sweep.cell_times import CellTimes, FloatArray, LostCell, cells_of_run
from dsa_bench.sweep.fewest_rules import Accepted, fewest_rules

KERNEL = "int8-tc"
"""The kernel that takes tiles per split."""
MIN_ROUNDS = 16
"""Fewest rounds of a cell: halves of 8 have pairs enough to choose on one and score on the other."""
CONFIDENCE = 0.95

Shape = tuple[int, int]
"""rows, tiles"""


@dataclass(frozen=True, slots=True)
class Tuned:
    """A map and what a user should hear about it.

    lost       cells that the map does not hold
    untrusted  cells whose null control was off: their gain has to exceed what it was off by as well
    """

    splits_map: SplitsMap
    cells: list[CellTimes]
    lost: list[LostCell]
    untrusted: list[CellTimes]


@dataclass(frozen=True, slots=True)
class _Scored:
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
        return self.cell.shape.rows, self.cell.shape.tiles

    @property
    def trusted(self) -> bool:
        return self.noise is None or self.noise.trusted

    def value_of(self, target: int | None) -> int | None:
        """The measured value that a target launches as; the automatic rule's for none. None if it was not measured."""
        if target is None:
            return self.cell.auto
        tiles = self.cell.shape.tiles
        value = smallest_target(tiles, capped_splits(tiles, target))
        return value if value in self.cell.times else None


def tuned_map(run: Run, *, context: int | None = None, margin: float = MARGIN, where: str = "the run") -> Tuned:
    """The map of a run's decode cells: a table for each head geometry and L2 mode.

    where  how errors name the run
    Raises BadInput if no cell of the run can be in a map, if one has too few rounds, if two would be one entry, or if
    the record lacks what a map says of its device.
    """
    found = cells_of_run(run, KERNEL, context)
    cells = [cell for cell in found if isinstance(cell, CellTimes)]
    lost = [cell for cell in found if isinstance(cell, LostCell)]
    if not found:
        of_context = "" if context is None else f" with context {context}"
        raise BadInput(f"{where}: holds no decode cell of {KERNEL}{of_context}; measure some with tune --record FILE")
    for cell in cells:
        if cell.complete < MIN_ROUNDS:
            raise BadInput(
                f"{where}: {cell.shape.key} has {cell.complete} complete rounds and a map needs {MIN_ROUNDS}; "
                "finish it with --resume, or give it more --rounds or --budget"
            )
    _refuse_two_in_one(cells, where)
    groups: dict[tuple[Any, ...], list[CellTimes]] = {}
    for cell in cells:
        shape = cell.shape
        groups.setdefault((shape.kv_heads, shape.group, shape.head_size, cell.l2), []).append(cell)
    scored = {key: [_score(cell, len(group), margin) for cell in group] for key, group in sorted(groups.items())}
    slots = _cta_slots(run, where)
    made = SplitsMap(
        created=run.header.created,
        generator=f"dsa-bench {run.header.version}",
        device=_device(run.header.device),
        tables=tuple(
            _table(group, run.header.kernel_hashes.get(KERNEL, ""), slots, margin) for group in scored.values()
        ),
    )
    try:
        checked = parse_map(map_text(made).encode())
    except Misfit as misfit:
        raise BadInput(f"{where}: {misfit.place} of the map {misfit}; measure again") from misfit
    untrusted = [one.cell for group in scored.values() for one in group if not one.trusted]
    return Tuned(checked, cells, lost, untrusted)


def _refuse_two_in_one(cells: Sequence[CellTimes], where: str) -> None:
    """A map tells launches apart by rows, tiles, heads and L2 mode, and by nothing else."""
    seen: dict[tuple[Any, ...], CellTimes] = {}
    for cell in cells:
        shape = cell.shape
        one = seen.setdefault((shape.rows, shape.tiles, shape.kv_heads, shape.group, shape.head_size, cell.l2), cell)
        if one is not cell:
            if one.shape.context != shape.context:
                raise BadInput(
                    f"{where}: holds rows {shape.rows}, {shape.tiles} tiles at contexts {one.shape.context} and "
                    f"{shape.context}, which are one entry of a map; choose one with --context"
                )
            raise BadInput(
                f"{where}: {one.shape.key} and {shape.key} are both {shape.tiles} tiles; measure one of them"
            )
    for name, values in (("timers", {cell.timer for cell in cells}), ("contexts", {c.shape.context for c in cells})):
        if len(values) > 1:
            said = " and ".join(map(str, sorted(values, key=str)))
            raise BadInput(
                f"{where}: its cells have {name} {said}; a map has one: choose with --context, or measure again"
            )


def _score(cell: CellTimes, cells: int, margin: float) -> _Scored:
    names = cell.names
    found = regrets(names, names, cell.rounds, resamples=max(RESAMPLES, 40 * cells))
    auto = found[str(cell.auto)]
    reference = cell.times[cell.auto]
    together = 1 - (1 - CONFIDENCE) / cells
    noise = None if cell.control is None else null_control(cell.control, reference, margin)
    off = 0.0 if noise is None or noise.trusted else abs(math.log(noise.ratio.centre))
    needs = math.expm1(math.log1p(margin) + off)
    gain_p = auto.p_above(needs)
    return _Scored(
        cell=cell,
        best=int(auto.best),
        ties=sorted(int(name) for name in tie_set(names, auto.best) if name != auto.best),
        regrets={int(name): one for name, one in found.items()},
        needs=needs,
        gain_p=1.0 if gain_p is None else gain_p,
        ratios={value: paired_ratio(times, reference, together) for value, times in cell.times.items()},
        noise=noise,
    )


def rules_of(scored: Sequence[_Scored], margin: float) -> tuple[MapRule, ...]:
    """Rules where the gain is sure over all these cells together; everything else stays with the automatic rule."""
    adjusted = holm([one.gain_p for one in scored])
    targets = sorted({value for one in scored for value in one.cell.times})
    accepted: dict[Shape, Accepted] = {}
    for one, p_value in zip(scored, adjusted, strict=True):
        sure = p_value <= 1 - CONFIDENCE and one.cell.auto not in (one.best, *one.ties)
        accepted[one.shape] = _accepted(one, targets, margin) if sure else {}
    return fewest_rules(accepted)


def _accepted(one: _Scored, targets: Sequence[int], margin: float) -> Accepted:
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


def _table(scored: Sequence[_Scored], kernel_hash: str, cta_slots: int, margin: float) -> SplitTable:
    first = scored[0].cell
    rules = rules_of(scored, margin)
    table = SplitTable(
        op="decode",
        kernel=KERNEL,
        kernel_hash=kernel_hash,
        cta_slots=cta_slots,
        tile=TILE,
        max_splits=MAX_SPLITS,
        head_size=first.shape.head_size,
        group=first.shape.group,
        kv_heads=first.shape.kv_heads,
        l2=first.l2,  # pyright: ignore[reportArgumentType] - checked with the whole map
        policy=MapPolicy(
            timer=first.timer,  # pyright: ignore[reportArgumentType]
            rounds=min(len(one.cell.rounds) for one in scored),
            context=first.shape.context,
            margin=margin,
            confidence=CONFIDENCE,
        ),
        cells=tuple(_cell(one) for one in sorted(scored, key=lambda one: one.shape)),
        rules=rules,
        validation=Validation(None, None, None, None),
    )
    return _validated(table, scored, margin)


def _cell(one: _Scored) -> MapCell:
    us = {str(value): _rounded(_median(times)) for value, times in sorted(one.cell.times.items())}
    ratio = paired_ratio(one.cell.times[one.best], one.cell.times[one.cell.auto])
    low, high = ratio.interval or (ratio.centre, ratio.centre)
    return MapCell(
        rows=one.shape[0],
        tiles=one.shape[1],
        auto=one.cell.auto,
        auto_us=us[str(one.cell.auto)],
        us=us,
        best=one.best,
        ratio=(_rounded(ratio.centre), _rounded(low), _rounded(high)),
        ties=tuple(one.ties),
    )


def _validated(table: SplitTable, scored: Sequence[_Scored], margin: float) -> SplitTable:
    """The table with what its rules are worth: everywhere, and in each cell by rules that were made without it."""

    def regret_of(one: _Scored, rules: tuple[MapRule, ...]) -> Regret | None:
        value = one.value_of(MapTable(replace(table, rules=rules)).tiles_per_split(*one.shape))
        return None if value is None else one.regrets[value]

    without = [rules_of([other for other in scored if other is not one], margin) for one in scored]
    return replace(
        table,
        validation=Validation(
            regret_auto=_summary({one.shape: regret_of(one, ()) for one in scored}),
            regret_map=_summary({one.shape: regret_of(one, table.rules) for one in scored}),
            held_out=_summary({one.shape: regret_of(one, rules) for one, rules in zip(scored, without, strict=True)})
            if len(scored) > 1
            else None,
            null_control=_null_summary(scored),
        ),
    )


def _summary(regrets_of: Mapping[Shape, Regret | None]) -> RegretSummary | None:
    """Over the cells that can be scored; None if there is none."""
    scored = {
        shape: one for shape, one in sorted(regrets_of.items()) if one is not None and one.cross_fitted is not None
    }
    if not scored:
        return None
    over = overall({f"{rows} {tiles}": one for (rows, tiles), one in scored.items()})
    rows, tiles = map(int, over.at.split())
    low, high = (None if end is None else _rounded(end) for end in (over.low, over.high))
    return RegretSummary(over.cells, _rounded(over.mean), low, high, _rounded(over.maximum), rows, tiles)


def _null_summary(scored: Sequence[_Scored]) -> NullSummary | None:
    controlled = [(abs(math.log(one.noise.ratio.centre)), one) for one in scored if one.noise is not None]
    if not controlled:
        return None
    _, worst = max(controlled, key=lambda pair: (pair[0], pair[1].shape))
    assert worst.noise is not None
    untrusted = sum(not one.trusted for one in scored)
    return NullSummary(len(controlled), _rounded(worst.noise.ratio.centre), *worst.shape, untrusted)


def _device(device: Mapping[str, Any]) -> MapDevice:
    """The record's device. What is missing or of another type is found when the whole map is checked."""
    names = ("name", "compute_capability", "sm_count", "l2_bytes", "driver", "runtime")
    return MapDevice(*(cast(Any, device.get(name)) for name in names))


def _median(times: FloatArray) -> float:
    return float(np.median(times))


def _rounded(number: float) -> float:
    """Seven digits: a nanosecond of a second, and no last bit of an arithmetic that another machine does otherwise."""
    return float(f"{number:.7g}") + 0.0


def _cta_slots(run: Run, where: str) -> int:
    """Resident CTAs of the kernel on the whole device, as recorded; on the CPU backend its workers."""
    device = run.header.device
    if device.get("backend") == "cpu":
        return device["sm_count"]
    slots = {getattr(check, "cta_slots", None) for check in run.checks if check.kernel == KERNEL}
    if len(slots) != 1 or None in slots:
        raise BadInput(f"{where}: does not say how many CTAs of {KERNEL} are resident (cta_slots); record it again")
    (found,) = slots
    assert found is not None
    return found
