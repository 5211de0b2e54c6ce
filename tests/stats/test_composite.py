# SPDX-License-Identifier: MIT
"""Oracles: constant times, whose mean is known, and fake runs for the coverage of the interval."""

import numpy as np
import pytest
from binomial import fewest_held

from dsa_bench.stats.composite import Rounds, geometric_mean_ratio


def cell(*ratios: float, rounds: int = 8, noise: float = 0.0, shared: float = 0.0, seed: int = 0) -> Rounds:
    rng = np.random.default_rng(seed)
    sides = []
    for factors in (ratios, (1.0,) * len(ratios)):
        common = shared * rng.standard_normal(rounds)
        own = noise * rng.standard_normal((len(ratios), rounds))
        sides.append(np.log(np.array(factors))[:, None] + common + own)
    return sides[0], sides[1]


@pytest.mark.parametrize("paired", [True, False])
def test_opposite_ratios_cancel(paired: bool) -> None:
    """B6, vllm-project/vllm#13917: 2.0 and 0.5 give 1.0, in one cell or in two."""
    for cells in ([cell(2.0, 0.5)], [cell(2.0), cell(0.5)]):
        mean = geometric_mean_ratio(cells, paired=paired)
        assert mean.centre == pytest.approx(1.0)
        assert mean.interval == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("paired", [True, False])
def test_swapped_sides_give_the_inverse(paired: bool) -> None:
    one, other = cell(1.1, 0.7, noise=0.02)
    ratio = geometric_mean_ratio([(one, other)], paired=paired).centre
    assert geometric_mean_ratio([(other, one)], paired=paired).centre * ratio == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_interval() -> None:
    cells = [cell(1.1, 0.9, noise=0.02)]
    assert geometric_mean_ratio(cells, paired=False) == geometric_mean_ratio(cells, paired=False)


def test_a_round_without_a_time_is_left_out_of_the_centre() -> None:
    one, other = cell(2.0)
    one[0, 3] = np.nan
    for paired in (True, False):
        assert geometric_mean_ratio([(one, other)], paired=paired).centre == pytest.approx(2.0)


def test_too_few_rounds_have_no_interval_and_no_variant_is_refused() -> None:
    assert geometric_mean_ratio([cell(2.0), cell(2.0, rounds=5)], paired=False).interval is None
    with pytest.raises(ValueError, match="no variant"):
        geometric_mean_ratio([], paired=True)


def test_long_runs_take_medians() -> None:
    cells = [cell(1.5, rounds=200, noise=0.01)]
    for paired in (True, False):
        mean = geometric_mean_ratio(cells, paired=paired)
        assert mean.interval is not None
        assert mean.interval[0] < 1.5 < mean.interval[1]


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_covers_what_the_variants_share(monkeypatch: pytest.MonkeyPatch, paired: bool) -> None:
    """Four variants whose rounds go up and down together. Seen: .97, .95; resampled apart it would be some .7."""
    monkeypatch.setattr("dsa_bench.stats.composite.RESAMPLES", 200)
    held: list[bool] = []
    for seed in range(100):
        mean = geometric_mean_ratio([cell(*[1.1] * 4, rounds=16, noise=0.005, shared=0.01, seed=seed)], paired=paired)
        held.append(mean.low is not None and mean.high is not None and mean.low <= 1.1 <= mean.high)
    assert np.mean(held) > 0.85


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("missing", "seen"), [(4, 0.93), (8, 0.9)])
def test_rounds_without_a_time_make_the_interval_no_narrower(
    monkeypatch: pytest.MonkeyPatch, paired: bool, missing: int, seen: float
) -> None:
    """Filled with the median of the rest, .80 and .46 of the intervals held the truth."""
    monkeypatch.setattr("dsa_bench.stats.composite.RESAMPLES", 300)
    runs = 300
    held = 0
    for seed in range(runs):
        one, other = cell(1.1, rounds=16, noise=0.01, seed=seed)
        one[0, np.random.default_rng(seed).permutation(16)[:missing]] = np.nan
        mean = geometric_mean_ratio([(one, other)], paired=paired)
        assert mean.low is not None
        assert mean.high is not None
        assert mean.rounds == 16 - missing
        held += mean.low <= 1.1 <= mean.high
    assert held >= fewest_held(runs, seen)


def test_an_interval_needs_times_and_not_only_rounds() -> None:
    one, other = cell(2.0, rounds=16, noise=0.01)
    one[0, 5:] = np.nan
    for paired in (True, False):
        mean = geometric_mean_ratio([(one, other)], paired=paired)
        assert (mean.interval, mean.rounds) == (None, 5)
