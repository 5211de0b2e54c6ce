# SPDX-License-Identifier: MIT
"""How the times of two runs compare, whose rounds are independent samples: Hodges-Lehmann with an exact interval.

The interval needs no normal noise, only that the rounds of each run are independent and that the two distributions of
log times differ by a shift. What changed between the runs as a whole (a clock, a neighbour) is in the shift as well:
no number of rounds can tell it from the code.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dsa_bench.stats.location import MIN_ROUNDS, Estimate, Samples, UnpairedRounds

EXACT_PAIRS = 10_000
"""Pairs of times up to which the null distribution is enumerated; a normal one is within 0.001 of it beyond."""


def two_sample_ratio(variant_us: Samples, reference_us: Samples, confidence: float = 0.95) -> Estimate:
    """Hodges-Lehmann ratio variant / reference of independent samples; below 1 the variant is faster.

    Swapped sides give the inverse. Raises UnpairedRounds as `hodges_lehmann_shift` does.
    """
    return hodges_lehmann_shift(variant_us, reference_us, confidence).exp()


def hodges_lehmann_shift(variant_us: Samples, reference_us: Samples, confidence: float = 0.95) -> Estimate:
    """Median of all differences ln(variant[i]) - ln(reference[j]), with the interval D(k)..D(N + 1 - k) of the N sorted
    ones, k from the null distribution of the Mann-Whitney statistic. Ties only make it wider than it needs to be.

    No interval with fewer than MIN_ROUNDS times on a side; `rounds` is the smaller side's. Raises UnpairedRounds if a
    side is empty or a time is not positive and finite. Source: Hollander, Wolfe and Chicken, Nonparametric Statistical
    Methods, 3rd ed., 4.2 and 4.3.
    """
    variant, reference = (_logs(side, times) for side, times in (("variant", variant_us), ("reference", reference_us)))
    differences = np.sort(np.subtract.outer(variant, reference), axis=None)
    centre = float(np.median(differences))
    rounds = min(variant.size, reference.size)
    k = shift_index(variant.size, reference.size, confidence)
    if rounds < MIN_ROUNDS or k is None:
        return Estimate(centre, None, None, rounds, None)
    coverage = shift_coverage(variant.size, reference.size, k)
    return Estimate(centre, float(differences[k - 1]), float(differences[-k]), rounds, coverage)


def _logs(side: str, times_us: Samples) -> NDArray[np.float64]:
    times = np.asarray(times_us, np.float64)
    if times.ndim != 1 or not times.size:
        raise UnpairedRounds(f"{side} times of shape {times.shape}; need at least one")
    usable = np.isfinite(times) & (times > 0)
    if not usable.all():
        first = int(np.argmin(usable))
        raise UnpairedRounds(f"{side} time {times[first]} us at index {first}; need positive finite times")
    return np.log(times)


def shift_index(first: int, second: int, confidence: float) -> int | None:
    """Largest k, counted from 1, whose interval D(k)..D(N + 1 - k) has at least `confidence`; None if no k has."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} must lie between 0 and 1")
    k = int(np.count_nonzero(1 - 2 * _mann_whitney_cdf(first, second) >= confidence))
    return k or None


def shift_coverage(first: int, second: int, k: int) -> float:
    """Probability that D(k)..D(N + 1 - k) holds the shift: 1 - 2 P(U <= k - 1), U the Mann-Whitney statistic."""
    return float(1 - 2 * _mann_whitney_cdf(first, second)[k - 1])


@cache
def _mann_whitney_cdf(first: int, second: int) -> NDArray[np.float64]:
    """P(U <= u) for u up to half its maximum, where U counts the pairs in which the first sample is the smaller."""
    pairs = first * second
    if pairs > EXACT_PAIRS:
        spread = math.sqrt(pairs * (first + second + 1) / 12)
        return np.array([_normal_cdf((u + 0.5 - pairs / 2) / spread) for u in range(pairs // 2 + 1)])
    return np.cumsum(_mann_whitney_density(first, second))[: pairs // 2 + 1]


def _mann_whitney_density(first: int, second: int) -> NDArray[np.float64]:
    """P(U = u). The largest of all values is of either side; taking it away leaves a smaller problem (Mann and Whitney,
    Ann. Math. Statist. 18 (1947) 50)."""
    row = [np.ones(1)] * (second + 1)
    for i in range(1, first + 1):
        shorter, row = row, [np.ones(1)]
        for j in range(1, second + 1):
            density = np.zeros(i * j + 1)
            density[j:] = shorter[j] * (i / (i + j))
            density[: i * (j - 1) + 1] += row[j - 1] * (j / (i + j))
            row.append(density)
    return row[second]


def _normal_cdf(deviations: float) -> float:
    return math.erfc(-deviations / math.sqrt(2)) / 2
