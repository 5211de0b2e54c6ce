# SPDX-License-Identifier: MIT
"""Oracle: sweeps whose times are made from known constants."""

import itertools
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dsa_bench.model.costs import SplitCosts
from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.errors import BadInput
from dsa_bench.report.fit import fit_costs, fitted_model, held_out_lines, hold_out
from dsa_bench.report.regret import score
from dsa_bench.report.swept import swept_cells
from dsa_bench.splits.predicted import launch_load, predicted_us
from dsa_bench.splits.rules import capped_splits
from dsa_bench.stats.regret import Overall

Sweep = Callable[..., Any]
H200 = DeviceSlots(132, 3)
TRUE = SplitCosts(fixed_us=3.5, tile_us=0.9, slowdown=(1.0, 1.6, 2.6), merge_us=0.02, cta_us=0.006, wave_us=3.0)
SHAPES = list(itertools.product((1, 2, 4, 8), (512, 1024, 2048, 4096, 8192)))


def made(shapes: list[tuple[int, int]], costs: SplitCosts = TRUE) -> dict[tuple[int, int], dict[int, float]]:
    """The seed's sweep of tiles per split, in times that the costs give."""
    return {
        (rows, candidates): {
            splits: predicted_us(costs, launch_load(candidates // 64, 2 * rows, H200, splits))
            for splits in dict.fromkeys(capped_splits(candidates // 64, target) for target in (1, 2, 3, 4, 6, 8, 16))
        }
        for rows, candidates in shapes
    }


def test_exact_constants_are_found(sweep: Sweep) -> None:
    fit = fit_costs(swept_cells(sweep(made(SHAPES)).run()), H200)
    assert (fit.costs.fixed_us, fit.costs.tile_us, fit.costs.merge_us, fit.costs.cta_us) == pytest.approx(
        (3.5, 0.9, 0.02, 0.006), rel=1e-6
    )
    assert fit.costs.slowdown == pytest.approx((1.0, 1.6, 2.6, 2.6 * 4 / 3), rel=1e-6)
    assert fit.costs.wave_us == pytest.approx(3.0, rel=1e-6)
    assert fit.largest_error < 1e-9


def test_the_fit_predicts_shapes_that_it_did_not_see(sweep: Sweep) -> None:
    cells = swept_cells(sweep(made(SHAPES), noise=0.003).run())
    one, other, both = hold_out(cells, H200)
    assert both.total is not None
    assert (both.total.cells, one.total and one.total.cells, other.total and other.total.cells) == (20, 10, 10)
    assert abs(both.total.mean) < 0.005
    assert both.total.maximum < 0.04


def test_launches_far_from_the_best_do_not_decide(sweep: Sweep) -> None:
    """They follow another law here, as real ones do; what is fastest, and by how much, is still found."""
    times = made(SHAPES)
    for of_shape in times.values():
        best = min(of_shape.values())
        of_shape.update({splits: 3 * time_us for splits, time_us in of_shape.items() if time_us > 1.5 * best})
    (*_, both) = hold_out(swept_cells(sweep(times).run()), H200)
    assert both.total is not None
    assert both.total.maximum < 0.01


def another_law_us(rng: random.Random, resident: int) -> Callable[[int, int, int], float]:
    """Times that the model can only come near: work repeats with each wave, tiles cost less than their number and the
    merge more, and bytes have a price of their own (decision 0014)."""
    fixed, tile, power, slower = rng.uniform(2.5, 4), rng.uniform(0.5, 1.1), rng.uniform(0.85, 1), rng.uniform(0.2, 0.7)
    bytes_us, merge, wave = rng.uniform(0.001, 0.006), rng.uniform(0, 0.04), rng.uniform(0, 2)

    def time_us(row_heads: int, tiles: int, splits: int) -> float:
        load = launch_load(tiles, row_heads, DeviceSlots(132, resident), splits)
        crowding = 1 + slower * max(min(row_heads * splits / 132, resident) - 1, 0)
        work = load.waves * tile * load.longest**power * crowding
        return fixed + work + bytes_us * row_heads * tiles / 4 + merge * splits**1.1 + wave * (load.waves - 1)

    return time_us


@pytest.mark.parametrize("resident", [1, 2, 3])
def test_held_out_regret_stays_small_where_the_model_is_only_near(sweep: Sweep, resident: int) -> None:
    rng = random.Random(resident)
    standings: list[Overall] = []
    for _ in range(5):
        law = another_law_us(rng, resident)
        times = {
            (rows, candidates): {splits: law(2 * rows, candidates // 64, splits) for splits in of_shape}
            for (rows, candidates), of_shape in made(SHAPES).items()
        }
        run = sweep(times, noise=0.003, rounds=4, resident_ctas=resident).run()
        (*_, both) = hold_out(swept_cells(run), DeviceSlots(132, resident))
        assert both.total is not None
        standings.append(both.total)
    assert statistics.mean(total.mean for total in standings) < 0.005
    assert statistics.mean(total.maximum for total in standings) < 0.04


def test_held_out_shapes_are_not_in_the_fit(sweep: Sweep) -> None:
    """Even cells follow one law and odd ones another: a fit that saw both would be right on both."""
    slow = SplitCosts(1.0, 0.1, (1.0, 1.0, 1.0), 1.0, 0.0, 0.0)  # one split is best
    mixed = {
        shape: times for at, shape in enumerate(SHAPES) for times in [made([shape], TRUE if at % 2 else slow)[shape]]
    }
    cells = swept_cells(sweep(mixed).run())
    for way in hold_out(cells, H200)[:2]:
        assert way.total is not None
        assert way.total.mean > 0.1


def test_a_model_keeps_what_it_was_fitted_to(sweep: Sweep) -> None:
    run = sweep(made(SHAPES), noise=0.003).run()
    cells = swept_cells(run)
    model = fitted_model(run, cells, H200, held_out=True)
    assert (model.kernel, model.kernel_hash, model.device, model.resident_ctas) == ("int8-tc", "1" * 16, "H200", 3)
    assert (model.cells, model.points, model.created) == (
        20,
        sum(len(cell.times) for cell in cells),
        run.header.created,
    )
    assert held_out_lines(model.held_out)[2].startswith("held out, both: mean regret ")
    assert fitted_model(run, cells, H200, held_out=False).held_out == {}
    scored = score(cells, ["model"], H200, model.costs)
    assert len(scored.scored) + len(scored.unscored) == 20


def test_constants_are_never_negative_and_crowds_never_speed_up(sweep: Sweep) -> None:
    """Times that fall with more splits and more CTAs on a multiprocessor."""
    odd = {(rows, 2048): {32: 1.0 / rows, 16: 2.0 / rows, 8: 3.0 / rows, 4: 5.0 / rows} for rows in (1, 2, 4, 8)}
    costs = fit_costs(swept_cells(sweep(odd).run()), H200).costs
    assert min(costs.fixed_us, costs.tile_us, costs.merge_us, costs.cta_us, costs.wave_us) >= 0
    assert list(costs.slowdown) == sorted(costs.slowdown)


def test_too_little_to_fit_is_refused(sweep: Sweep) -> None:
    with pytest.raises(BadInput, match="has 7 launches in 1 shapes and needs"):
        fit_costs(swept_cells(sweep(made([(8, 2048)])).run()), H200)
    with pytest.raises(BadInput, match="launches in"):
        hold_out(swept_cells(sweep(made([(8, 2048), (4, 8192)])).run()), H200)


@pytest.mark.parametrize("splits", [0, 33, 2**60])
def test_splits_that_no_launch_has_are_refused(sweep: Sweep, splits: int) -> None:
    """A record that was changed by hand: zero divides, and a slowdown for each of 2**60 crowds has no room."""
    run = sweep(made(SHAPES)).run()
    run.checks[3] = replace(run.checks[3], splits=splits)
    with pytest.raises(BadInput, match=f": {run.checks[3].variant} says {splits} splits, which no launch has"):
        fit_costs(swept_cells(run), H200)


def test_too_few_rounds_are_said(sweep: Sweep) -> None:
    run = sweep(made(SHAPES), rounds=2).run()
    model = fitted_model(run, swept_cells(run), H200, held_out=True)
    assert model.held_out["both"] is None
    assert "too few rounds" in held_out_lines(model.held_out)[0]
