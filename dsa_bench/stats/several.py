# SPDX-License-Identifier: MIT
"""Many variants or cells at once: which are not told apart, and what asking about all of them costs."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dsa_bench.stats.location import UnpairedRounds, hodges_lehmann

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def tie_set(times: Mapping[str, FloatArray], best: str, confidence: float = 0.95) -> list[str]:
    """The variants, in their order and `best` among them, that the rounds do not tell apart from the best.

    Paired intervals of all variants against `best` hold together at `confidence` (Bonferroni); a variant is a tie if
    its interval reaches down to zero, or if there are too few rounds for one.
    Raises UnpairedRounds if the times are not paired, KeyError if `best` was not measured.
    """
    names = list(times)
    logs = log_times(times, np.arange(len(next(iter(times.values()), ()))))
    reference = logs[names.index(best)] if best in times else unmeasured(best, names)
    each = 1 - (1 - confidence) / max(len(names) - 1, 1)
    intervals = {
        name: hodges_lehmann(of_name - reference, each).interval for name, of_name in zip(names, logs, strict=True)
    }
    return [name for name, interval in intervals.items() if interval is None or interval[0] <= 0]


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for asking all these questions at once: reject where the adjusted one is at most the level.

    Holds whatever the dependence. Source: Holm, Scand. J. Statist. 6 (1979) 65.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"p-values {p_values} must lie between 0 and 1")
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = running
    return adjusted


def supported_percentile(values: Sequence[float], share: float) -> float | None:
    """The least value that `share` of the values do not exceed; None where fewer than one value lies beyond it."""
    count = len(values)
    if not 0 < share < 1:
        raise ValueError(f"share {share} must lie between 0 and 1")
    if count * (1 - share) < 1 - 1e-9:
        return None
    return sorted(values)[math.ceil(count * share - 1e-9) - 1]


def log_times(times: Mapping[str, FloatArray], rounds: IntArray) -> FloatArray:
    """[variants, rounds] of ln(time). Raises UnpairedRounds unless each variant has a positive time in each round."""
    if not times or any(np.shape(of_name) != np.shape(rounds) for of_name in times.values()) or not len(rounds):
        shapes = {name: np.shape(of_name) for name, of_name in times.items()}
        raise UnpairedRounds(f"times of shapes {shapes} for {len(rounds)} rounds; need one a round of each variant")
    stacked = np.array(list(times.values()), np.float64)
    if not (np.isfinite(stacked) & (stacked > 0)).all():
        raise UnpairedRounds("a time is not positive and finite; leave its round out")
    return np.log(stacked)


def unmeasured(name: str, names: Sequence[str]) -> FloatArray:
    """Raises KeyError."""
    raise KeyError(f"{name} is not among the measured {', '.join(names)}")
