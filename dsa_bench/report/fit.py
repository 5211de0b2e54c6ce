# SPDX-License-Identifier: MIT
"""Fit the constants of the split rule `model` to a recorded sweep, and score the fit on shapes that it did not see."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.costs import SplitCosts
from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.errors import BadInput
from dsa_bench.model.run import Run
from dsa_bench.model.text import short
from dsa_bench.report.regret import ScoredChoice, Standing, standing
from dsa_bench.report.swept import SweptCell
from dsa_bench.splits.model_file import SplitModel
from dsa_bench.splits.predicted import Load, ModelRule, launch_load, predicted_us
from dsa_bench.splits.registry import MODEL
from dsa_bench.splits.rules import MAX_SPLITS
from dsa_bench.stats.least_squares import nonnegative_least_squares
from dsa_bench.stats.regret import Overall, regret

FEWEST_POINTS_PER_CONSTANT = 2
CLOSENESS = 4
"""A launch's error counts by (best time of its shape / its time) to this power: only the order near the best decides
what is chosen (decision 0014)."""
NEAR = 1.5
"""Launches of up to this many times the best one's time are those whose largest error is told."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants and how well they fit: relative errors of the predicted times.

    rms_error      over all points, weighted as they were fitted; largest_error  over those near their shape's best
    """

    costs: SplitCosts
    points: int
    rms_error: float
    largest_error: float


def fit_costs(cells: Sequence[SweptCell], slots: DeviceSlots) -> Fit:
    """Least squares of the median times' relative errors, weighted by CLOSENESS, no constant negative, g rising.

    Raises BadInput if the launches are fewer than twice the constants, or if one is none.
    """
    loads = [
        launch_load(cell.sparse.tiles, cell.sparse.row_heads, slots, _recorded_splits(cell, variant))
        for cell in cells
        for variant in cell.times
    ]
    medians = [np.array([np.median(of_variant) for of_variant in cell.times.values()]) for cell in cells if cell.times]
    times_us = np.concatenate([*medians, np.empty(0)])
    share_of_best = np.concatenate([*(of_cell.min() / of_cell for of_cell in medians), np.empty(0)])
    crowds = sorted({load.crowd for load in loads})
    needed = FEWEST_POINTS_PER_CONSTANT * (4 + len(crowds))
    if len(loads) < needed:
        raise BadInput(
            f"the fit has {len(loads)} launches in {len(cells)} shapes and needs {needed}; "
            "sweep more shapes, or more tiles per split"
        )
    features = np.array([_features(load, crowds) for load in loads])
    weights = share_of_best**CLOSENESS
    costs = _costs(nonnegative_least_squares(features * (weights / times_us)[:, None], weights), crowds)
    errors = np.array([predicted_us(costs, load) for load in loads]) / times_us - 1
    rms_error = float(np.sqrt(np.average(errors**2, weights=weights**2)))
    return Fit(costs, len(loads), rms_error, float(np.abs(errors[share_of_best >= 1 / NEAR]).max()))


def _recorded_splits(cell: SweptCell, variant: str) -> int:
    splits = cell.checks[variant].splits
    if not 1 <= splits <= min(MAX_SPLITS, cell.sparse.tiles):
        raise BadInput(f"{cell.label}: {variant} says {short(splits)} splits, which no launch has; record it again")
    return splits


def fitted_model(run: Run, cells: Sequence[SweptCell], slots: DeviceSlots, *, held_out: bool) -> SplitModel:
    """The fit to all cells, with what it rests on and, if asked, its regret on shapes held out of it.

    Raises BadInput if the run holds more than one timer, L2 mode or kernel, or too little to fit.
    """
    kinds = {(cell.kernel, cell.timer, cell.l2) for cell in cells}
    if len(kinds) > 1:
        raise BadInput(
            f"the run mixes {', '.join(sorted(map(str, kinds)))}; fit one kernel, timer and L2 mode at a time"
        )
    fit, first = fit_costs(cells, slots), cells[0]
    model = SplitModel(
        created=run.header.created,
        kernel=first.kernel,
        kernel_hash=next(iter(first.checks.values())).kernel_hash,
        device=str(run.header.device.get("name")),
        sm_count=slots.sms,
        resident_ctas=slots.resident,
        l2=first.l2,
        timer=first.timer,
        **asdict(fit.costs),
        cells=len(cells),
        points=fit.points,
        rms_error=fit.rms_error,
        largest_error=fit.largest_error,
        held_out={},
    )
    return replace(model, held_out=_held_out_facts(hold_out(cells, slots))) if held_out else model


def hold_out(cells: Sequence[SweptCell], slots: DeviceSlots) -> list[Standing]:
    """Fit on every other shape and score on the rest, then the reverse, then both together.

    A held-out choice is among the splits that its cell measured: another one has no time.
    """
    ways: list[list[ScoredChoice]] = []
    for side in (0, 1):
        rule = ModelRule(fit_costs(cells[side::2], slots).costs)
        ways.append([_held_out_choice(rule, cell, slots) for cell in cells[1 - side :: 2] if cell.times])
    names = ("odd shapes, fitted on even", "even shapes, fitted on odd", "both")
    return [standing(name, way) for name, way in zip(names, (*ways, [*ways[0], *ways[1]]), strict=True)]


def held_out_lines(facts: Mapping[str, Any]) -> list[str]:
    """Held-out regret, as a fitted model keeps it, in words."""
    return [
        f"held out, {way}: "
        + (
            f"mean regret {one['mean']:.2%} over {one['cells']} shapes, maximum {one['maximum']:.2%} ({one['at']})"
            if one
            else "too few rounds for a cross-fitted regret"
        )
        for way, one in facts.items()
    ]


def _features(load: Load, crowds: Sequence[int]) -> list[float]:
    """Of F, of c * g in steps that cannot fall from one crowd to the next, of m, of a, of W."""
    steps = [float(load.longest) if load.crowd >= crowd else 0.0 for crowd in crowds]
    return [1.0, *steps, float(load.splits), float(load.ctas), float(load.waves - 1)]


def _costs(constants: NDArray[np.float64], crowds: Sequence[int]) -> SplitCosts:
    """The constants by name. g between measured crowds, and below the first, is that of the next lower one."""
    fixed_us, *steps, merge_us, cta_us, wave_us = constants.tolist()
    of_crowd = dict(zip(crowds, np.cumsum(steps).tolist(), strict=True))
    tile_us = of_crowd[crowds[0]]
    slowdown = [1.0]
    for crowd in range(2, crowds[-1] + 1):
        slowdown.append(of_crowd[crowd] / tile_us if tile_us and crowd in of_crowd else slowdown[-1])
    return SplitCosts(fixed_us, tile_us, tuple(slowdown), merge_us, cta_us, wave_us)


def _held_out_choice(rule: ModelRule, cell: SweptCell, slots: DeviceSlots) -> ScoredChoice:
    by_splits = {cell.checks[variant].splits: variant for variant in cell.times}
    splits = rule.best(cell.sparse.tiles, cell.sparse.row_heads, slots, sorted(by_splits))
    return ScoredChoice(cell, MODEL, by_splits[splits], regret(cell.times, by_splits[splits], cell.rounds))


def _held_out_facts(standings: Sequence[Standing]) -> dict[str, Any]:
    return {one.rule: None if one.total is None else _facts(one.total, one.worst) for one in standings}


def _facts(total: Overall, worst: SweptCell | None) -> dict[str, Any]:
    return {
        "cells": total.cells,
        "mean": total.mean,
        "low": total.low,
        "high": total.high,
        "maximum": total.maximum,
        "at": worst and worst.label,
    }
