# SPDX-License-Identifier: MIT
"""How two variants' times compare over paired rounds: Hodges-Lehmann estimates with exact signed-rank intervals.

The interval needs no normal noise, only that rounds are independent and log ratios symmetric about their centre. A
bootstrap of means covers too little at these sizes, and one wild round moves it (tests/stats/test_location.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Samples = Sequence[float] | NDArray[np.float64]
"""One number a round. Two that are compared are in the same order of rounds; the caller pairs them by round id."""

MIN_ROUNDS = 6
"""Fewest rounds with an interval: the widest that 5 rounds can give covers only 93.75 %."""


class UnpairedRounds(ValueError):
    """The times are not one positive finite number a round on both sides."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A centre and its interval: of a log ratio, or after `exp` of a ratio.

    low, high, coverage  None when `rounds` cannot support the interval asked for
    coverage             exact probability that such an interval holds the true centre
    """

    centre: float
    low: float | None
    high: float | None
    rounds: int
    coverage: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, or None when the rounds support no interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def exp(self) -> "Estimate":
        """The estimate of the ratio whose logarithm this one is about; the coverage stays."""
        low, high = (None if end is None else math.exp(end) for end in (self.low, self.high))
        return Estimate(math.exp(self.centre), low, high, self.rounds, self.coverage)


def paired_log_ratio(variant_us: Samples, reference_us: Samples) -> NDArray[np.float64]:
    """ln(variant) - ln(reference) of each round; below 0 the variant is faster.

    Raises UnpairedRounds if there is no round, the counts differ, or a time is not positive and finite.
    """
    variant, reference = np.asarray(variant_us, np.float64), np.asarray(reference_us, np.float64)
    if variant.ndim != 1 or variant.shape != reference.shape or not variant.size:
        raise UnpairedRounds(
            f"times of shape {variant.shape} and {reference.shape}; need the same rounds of both sides"
        )
    for side, times in (("variant", variant), ("reference", reference)):
        usable = np.isfinite(times) & (times > 0)
        if not usable.all():
            first = int(np.argmin(usable))
            raise UnpairedRounds(f"{side} time {times[first]} us at index {first}; need positive finite times")
    return np.log(variant) - np.log(reference)


def hodges_lehmann(log_ratios: Samples, confidence: float = 0.95) -> Estimate:
    """Median of the Walsh averages (d[i] + d[j]) / 2, i <= j, with the interval W(k)..W(N + 1 - k) of the sorted ones.

    No interval with fewer than MIN_ROUNDS rounds, or with too few for `confidence`. Raises ValueError if there is no
    round or a log ratio is not finite. Source: Hodges and Lehmann, Ann. Math. Statist. 34 (1963) 598; Hollander, Wolfe
    and Chicken, Nonparametric Statistical Methods, 3rd ed., 3.2 and 3.3.
    """
    differences = np.asarray(log_ratios, np.float64)
    rounds = differences.size
    if not rounds or not np.isfinite(differences).all():
        raise ValueError(f"log ratios {differences}; need at least one, all finite")
    first, second = np.triu_indices(rounds)
    walsh = np.sort((differences[first] + differences[second]) / 2)
    centre = float(np.median(walsh))
    k = walsh_index(rounds, confidence)
    if rounds < MIN_ROUNDS or k is None:
        return Estimate(centre, None, None, rounds, None)
    return Estimate(centre, float(walsh[k - 1]), float(walsh[-k]), rounds, walsh_coverage(rounds, k))


def hodges_lehmann_centres(log_ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """The centre that `hodges_lehmann` gives, of every series along the last axis: [..., rounds] -> [...]."""
    first, second = np.triu_indices(log_ratios.shape[-1])
    walsh = np.take(log_ratios, first, axis=-1)
    walsh += np.take(log_ratios, second, axis=-1)
    walsh.sort(axis=-1)  # quicker than a median's partition for so few
    count = walsh.shape[-1]
    return (walsh[..., (count - 1) // 2] + walsh[..., count // 2]) / 4


def paired_ratio(variant_us: Samples, reference_us: Samples, confidence: float = 0.95) -> Estimate:
    """Hodges-Lehmann ratio variant / reference over paired rounds; below 1 the variant is faster.

    Swapped sides give the inverse ratio and interval. Raises UnpairedRounds as `paired_log_ratio` does.
    """
    return hodges_lehmann(paired_log_ratio(variant_us, reference_us), confidence).exp()


def median_ratio(variant_us: Samples, reference_us: Samples) -> float:
    """Median of the rounds' ratios variant / reference; below 1 the variant is faster.

    Two middle ratios are averaged as logarithms, so that swapped sides give the inverse.
    Raises UnpairedRounds as `paired_log_ratio` does.
    """
    return math.exp(float(np.median(paired_log_ratio(variant_us, reference_us))))


def walsh_index(rounds: int, confidence: float) -> int | None:
    """Largest k, counted from 1, whose interval W(k)..W(N + 1 - k) has at least `confidence`; None if no k has."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} must lie between 0 and 1")
    k = int(np.count_nonzero(1 - 2 * _signed_rank_cdf(rounds) >= confidence))
    return k or None


def walsh_coverage(rounds: int, k: int) -> float:
    """Probability that W(k)..W(N + 1 - k) holds the centre: 1 - 2 P(T <= k - 1), T the signed-rank statistic."""
    return float(1 - 2 * _signed_rank_cdf(rounds)[k - 1])


@cache
def _signed_rank_cdf(rounds: int) -> NDArray[np.float64]:
    """P(T <= t) for t up to half its maximum, where T sums the ranks 1..rounds that a fair coin each selects."""
    probability = np.zeros(rounds * (rounds + 1) // 4 + 1)
    probability[0] = 1
    for rank in range(1, rounds + 1):
        probability[rank:] += probability[:-rank]
        probability /= 2
    return np.cumsum(probability)
