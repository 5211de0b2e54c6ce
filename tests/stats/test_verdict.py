# SPDX-License-Identifier: MIT
"""Oracles: rounds whose true ratio is known, noise-free for the rule itself and noisy for how often it errs."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dsa_bench.stats.location import UnpairedRounds
from dsa_bench.stats.verdict import Verdict, judge, null_control

SWAPPED = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}

round_lists = st.lists(st.tuples(st.floats(9, 11), st.floats(9, 11)), max_size=20)


@pytest.mark.parametrize(
    ("ratio", "margin", "verdict"),
    [
        (1.02, 0.01, Verdict.SLOWER),
        (0.98, 0.01, Verdict.FASTER),
        (1.0099, 0.01, Verdict.SAME),
        (1 / 1.0099, 0.01, Verdict.SAME),
        (1 / 1.0101, 0.01, Verdict.FASTER),  # not 0.99: the range is symmetric in the ratio's inverse
        (1.02, 0.03, Verdict.SAME),
        (1.0001, 0.0, Verdict.SLOWER),
        (1.0, 0.0, Verdict.SAME),
    ],
)
def test_exact_times(ratio: float, margin: float, verdict: Verdict) -> None:
    judgement = judge([10 * ratio] * 8, [10.0] * 8, margin)
    assert judgement.verdict is verdict
    assert judgement.ratio is not None
    assert judgement.ratio.interval == pytest.approx((ratio, ratio))
    assert judgement.rounds_to_decide is judgement.reason is None


def test_a_difference_is_judged_at_95_and_sameness_at_90_percent() -> None:
    """With 6 rounds the 95 % interval is W(1)..W(21), which one stray round opens; the 90 % one is W(3)..W(19)."""
    same = judge([10.0] * 5 + [10.15], [10.0] * 6)
    assert same.verdict is Verdict.SAME
    assert same.ratio is not None
    assert same.ratio.interval == pytest.approx((1.0, 1.015))
    assert judge([10.5] * 5 + [10.05], [10.0] * 6).verdict is Verdict.INCONCLUSIVE
    assert judge([10.5] * 5 + [10.15], [10.0] * 6).verdict is Verdict.SLOWER


@pytest.mark.parametrize("rounds", range(1, 6))
def test_too_few_rounds_are_inconclusive_whatever_they_show(rounds: int) -> None:
    judgement = judge([20.0] * rounds, [10.0] * rounds)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.ratio is not None
    assert judgement.ratio.centre == pytest.approx(2)
    assert judgement.ratio.interval is None
    assert judgement.rounds_to_decide == 6


@pytest.mark.parametrize("bad_us", [0.0, -1.0, math.nan, math.inf])
def test_unusable_times_are_invalid_on_either_side(bad_us: float) -> None:
    good, bad = [10.0] * 8, [bad_us] + [11.0] * 7
    for judgement, side in ((judge(bad, good), "variant"), (judge(good, bad), "reference")):
        assert (judgement.verdict, judgement.ratio, judgement.rounds_to_decide) == (Verdict.INVALID, None, None)
        assert judgement.reason is not None
        assert judgement.reason.startswith(f"{side} time")


@pytest.mark.parametrize(("variant", "reference"), [(8, 7), (0, 0), (0, 8)])
def test_rounds_that_do_not_pair_are_invalid(variant: int, reference: int) -> None:
    assert judge([10.0] * variant, [10.0] * reference).verdict is Verdict.INVALID


@pytest.mark.parametrize("margin", [-0.01, math.nan, math.inf])
def test_a_margin_is_finite_and_not_negative(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        judge([10.0] * 8, [10.0] * 8, margin)
    with pytest.raises(ValueError, match="margin"):
        null_control([10.0] * 8, [10.0] * 8, margin)


@given(round_lists, st.sampled_from([0.0, 0.01, 0.05]))
def test_swapped_sides_swap_slower_and_faster(rounds: list[tuple[float, float]], margin: float) -> None:
    variant_us, reference_us = [v for v, _ in rounds], [r for _, r in rounds]
    judgement, swapped = judge(variant_us, reference_us, margin), judge(reference_us, variant_us, margin)
    assert swapped.verdict is SWAPPED.get(judgement.verdict, judgement.verdict)
    assert swapped.rounds_to_decide == judgement.rounds_to_decide


@given(round_lists, st.sampled_from([0.0, 0.01, 0.05]))
def test_rounds_to_decide_are_more_than_there_were_and_even(rounds: list[tuple[float, float]], margin: float) -> None:
    needed = judge([v for v, _ in rounds], [r for _, r in rounds], margin).rounds_to_decide
    assert needed is None or (needed > len(rounds) and needed % 2 == 0)


def test_no_number_of_rounds_decides_on_the_margin() -> None:
    rounds = [10.0 * 1.01**d for d in (-3, -1, 1, 1, 3, 5)]
    judgement = judge(rounds, [10.0] * 6)
    assert judgement.ratio is not None
    assert judgement.ratio.centre == pytest.approx(1.01)
    assert (judgement.verdict, judgement.rounds_to_decide) == (Verdict.INCONCLUSIVE, None)


def noisy_us(rng: np.random.Generator, runs: int, rounds: int, noise: float) -> NDArray[np.float64]:
    """Fake visits [runs, rounds] around 10 us with Student-t noise of 4 degrees of freedom."""
    return 10 * np.exp(noise * rng.standard_t(4, (runs, rounds)))


def verdict_rates(
    ratio: float, noise: float, margin: float, rounds: int = 16, runs: int = 2000
) -> dict[Verdict, float]:
    """How often each verdict falls when the variant truly takes `ratio` times as long; standard error at 5 %: 0.005."""
    rng = np.random.default_rng(1987)
    times = zip(ratio * noisy_us(rng, runs, rounds, noise), noisy_us(rng, runs, rounds, noise), strict=True)
    counts = Counter(judge(*pair, margin).verdict for pair in times)
    return {verdict: counts[verdict] / runs for verdict in Verdict}


def test_identical_sides_are_called_different_no_more_than_nominally() -> None:
    """The exact 95 % interval of 16 rounds errs in 4.4 % of runs. Seen: .042 without a margin, none with 1 %."""
    bare, with_margin = verdict_rates(1.0, 0.01, margin=0.0), verdict_rates(1.0, 0.01, margin=0.01)
    assert bare[Verdict.SLOWER] + bare[Verdict.FASTER] < 0.06
    assert with_margin[Verdict.SLOWER] + with_margin[Verdict.FASTER] < 0.005


@pytest.mark.parametrize(("ratio", "wrong"), [(1.01, Verdict.SLOWER), (1 / 1.01, Verdict.FASTER)])
def test_a_ratio_on_the_margin_is_rarely_called_beyond_or_inside_it(ratio: float, wrong: Verdict) -> None:
    """The exact intervals of 16 rounds err to one side in 2.2 and 4.7 % of runs. Seen: .020 to .023, .047 to .057."""
    rates = verdict_rates(ratio, 0.004, margin=0.01)
    assert rates[wrong] < 0.035
    assert rates[SWAPPED[wrong]] == 0
    assert rates[Verdict.SAME] < 0.06


def test_clear_cases_are_decided() -> None:
    assert verdict_rates(1.03, 0.005, margin=0.01)[Verdict.SLOWER] > 0.95
    assert verdict_rates(0.97, 0.005, margin=0.01)[Verdict.FASTER] > 0.95
    assert verdict_rates(1.0, 0.004, margin=0.01)[Verdict.SAME] > 0.95


@pytest.mark.parametrize("ratio", [1.0, 1.025])
def test_the_estimated_rounds_mostly_decide(ratio: float) -> None:
    """Runs of 8 rounds leave most undecided and ask for some number; with as many (the median), few are left."""
    rng = np.random.default_rng(1963)
    times = zip(ratio * noisy_us(rng, 500, 8, 0.012), noisy_us(rng, 500, 8, 0.012), strict=True)
    asked = [judgement.rounds_to_decide for judgement in (judge(*pair) for pair in times)]
    needed = int(np.median([rounds for rounds in asked if rounds is not None]))
    undecided = [verdict_rates(ratio, 0.012, 0.01, rounds, runs=500)[Verdict.INCONCLUSIVE] for rounds in (8, needed)]
    assert undecided[0] > 0.6
    assert undecided[1] < 0.2


@pytest.mark.parametrize(("noise", "nominal"), [(0.001, 0.0), (0.005, 0.044), (0.02, 0.044)])
def test_an_honest_control_is_distrusted_no_more_than_nominally(noise: float, nominal: float) -> None:
    """Seen: none, .021, .044. Half the margin shields quiet cells; in loud ones the interval alone decides."""
    rng = np.random.default_rng(1963)
    times = zip(noisy_us(rng, 2000, 16, noise), noisy_us(rng, 2000, 16, noise), strict=True)
    assert np.mean([not null_control(*pair).trusted for pair in times]) <= nominal + 0.01


@pytest.mark.parametrize(
    ("control_us", "trusted"),
    [
        ([10.0] * 8, True),
        ([10.03] * 8, True),  # excludes 1, but by less than half the margin
        ([10.08] * 8, False),
        ([9.92] * 8, False),
        ([9.0, 9.5, 10.2, 10.3, 10.3, 10.5, 11.0, 11.5], True),  # off by more, but the interval is wide
        ([11.0] * 5, True),  # no interval, so nothing is shown
    ],
)
def test_only_a_clear_offset_beyond_half_the_margin_is_untrusted(control_us: list[float], trusted: bool) -> None:
    floor = null_control(control_us, [10.0] * len(control_us))
    assert floor.trusted is trusted
    assert null_control([10.0] * len(control_us), control_us).trusted is trusted


def test_a_wider_margin_trusts_more() -> None:
    assert not null_control([10.08] * 8, [10.0] * 8).trusted
    assert null_control([10.08] * 8, [10.0] * 8, margin=0.02).trusted


def test_a_control_that_does_not_pair_is_refused() -> None:
    with pytest.raises(UnpairedRounds):
        null_control([10.0] * 7, [10.0] * 8)
