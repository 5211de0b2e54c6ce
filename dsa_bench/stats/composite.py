# SPDX-License-Identifier: MIT
"""One ratio for many variants: the geometric mean of theirs, with a seeded bootstrap that resamples whole rounds."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dsa_bench.stats.location import MIN_ROUNDS, Estimate, hodges_lehmann
from dsa_bench.stats.two_sample import hodges_lehmann_shift

RESAMPLES = 1000
MOST_PAIRS = 4096
"""Differences of one variant up to which each resample gets its Hodges-Lehmann estimate; medians beyond."""

Logs = NDArray[np.float64]
Rounds = tuple[Logs, Logs]
"""ln(time) [variants, rounds] of one cell: the variants', and the references' in the same order. NaN where a round has
no time."""


def geometric_mean_ratio(cells: Sequence[Rounds], *, paired: bool, seed: int = 0) -> Estimate:
    """exp of the mean Hodges-Lehmann log ratio variant / reference over every variant of every cell.

    paired  round i of both sides is one round; else the sides are independent samples
    The interval holds 95 % of the resampled means: rounds are drawn with replacement, the same for all variants of a
    side of a cell, so that what they share stays shared; of a round without a time, a resample has none. None where a
    variant has times in fewer than MIN_ROUNDS rounds. Raises ValueError without a variant, or for one without a time.
    """
    cells = [cell for cell in cells if len(cell[0])]
    if not cells:
        raise ValueError("no variant to take the mean of")
    centre = float(np.mean([_centre(*one, paired) for cell in cells for one in zip(*cell, strict=True)]))
    rounds = min(_timed(*one, paired) for cell in cells for one in zip(*cell, strict=True))
    if rounds < MIN_ROUNDS:
        return Estimate(math.exp(centre), None, None, rounds, None)
    rng = np.random.default_rng(seed)
    resampled = np.concatenate([_resampled(cell, paired, rng) for cell in cells]).mean(axis=0)
    low, high = np.nanquantile(resampled, [0.025, 0.975])
    return Estimate(math.exp(centre), math.exp(min(low, centre)), math.exp(max(high, centre)), rounds, 0.95)


def _centre(variant: Logs, reference: Logs, paired: bool) -> float:
    if paired:
        differences = variant - reference
        return hodges_lehmann(differences[np.isfinite(differences)]).centre
    one, other = (np.exp(side[np.isfinite(side)]) for side in (variant, reference))
    return hodges_lehmann_shift(one, other).centre


def _timed(variant: Logs, reference: Logs, paired: bool) -> int:
    """Rounds that can be compared: of both sides, or of the smaller side."""
    one, other = np.isfinite(variant), np.isfinite(reference)
    return int(np.count_nonzero(one & other) if paired else min(np.count_nonzero(one), np.count_nonzero(other)))


def _resampled(cell: Rounds, paired: bool, rng: np.random.Generator) -> Logs:
    """[variants, RESAMPLES] log ratios; NaN where no round that was drawn has a time, which few times make rare."""
    drawn = [rng.integers(side.shape[1], size=(RESAMPLES, side.shape[1])) for side in cell]
    if paired:
        return np.stack([_walsh_medians((one - other)[drawn[0]]) for one, other in zip(*cell, strict=True)])
    pairs = [(one[drawn[0]], other[drawn[1]]) for one, other in zip(*cell, strict=True)]
    return np.stack([_shift_medians(*pair) for pair in pairs])


def _walsh_medians(differences: Logs) -> Logs:
    """Hodges-Lehmann estimates of [resamples, rounds]."""
    first, second = np.triu_indices(differences.shape[1])
    if len(first) > MOST_PAIRS:
        return _medians(differences)
    return _medians((differences[:, first] + differences[:, second]) / 2)


def _shift_medians(one: Logs, other: Logs) -> Logs:
    """Two-sample Hodges-Lehmann estimates of [resamples, rounds] and [resamples, rounds]."""
    if one.shape[1] * other.shape[1] > MOST_PAIRS:
        return _medians(one) - _medians(other)
    return _medians((one[:, :, None] - other[:, None, :]).reshape(len(one), -1))


def _medians(values: Logs) -> Logs:
    """Of the finite values of each line; NaN for a line without one. np.nanmedian takes ten times as long."""
    if np.isfinite(values).all():
        return np.median(values, axis=1)
    ordered = np.sort(values, axis=1)  # NaN last
    count = np.count_nonzero(np.isfinite(values), axis=1)
    lines = np.arange(len(values))
    lower, upper = (
        ordered[lines, np.maximum(count - 1, 0) // 2],
        ordered[lines, np.minimum(count // 2, values.shape[1] - 1)],
    )
    return np.where(count > 0, (lower + upper) / 2, np.nan)
