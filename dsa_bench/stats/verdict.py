# SPDX-License-Identifier: MIT
"""What may be said of a variant against a reference, given a margin below which a difference does not matter.

A margin is a ratio less 1: 0.01 calls ratios from 1 / 1.01 to 1.01 the same. Decisions are taken on log ratios, where
that range is -delta to +delta with delta = ln(1 + margin); swapped sides therefore swap SLOWER and FASTER.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from dsa_bench.stats.location import MIN_ROUNDS, Estimate, Samples, UnpairedRounds, hodges_lehmann, paired_log_ratio
from dsa_bench.stats.two_sample import hodges_lehmann_shift

MARGIN = 0.01
"""The default: 1 % is the smallest difference that matters."""

_REACH = 100_000
"""Rounds that nobody will run: an estimate beyond is none."""

_ROUNDING = 1e-12
"""What logarithms of times lose: a difference of just the margin lies inside it, whatever the times."""


class Verdict(StrEnum):
    """The variant, against the reference."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and what it rests on.

    ratio             variant / reference with its 95 % interval; None if INVALID
    rounds_to_decide  if INCONCLUSIVE, an estimate of the rounds, in all, that would decide; None if out of reach
    reason            if INVALID, what is wrong with the times
    """

    verdict: Verdict
    ratio: Estimate | None
    rounds_to_decide: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The reference measured against itself: control / reference with its 95 % interval."""

    ratio: Estimate
    trusted: bool


def judge(variant_us: Samples, reference_us: Samples, margin: float = MARGIN) -> Judgement:
    """The verdict over paired rounds. Times that cannot be paired are INVALID, not an exception.

    SLOWER, FASTER: the 95 % interval lies beyond the margin. SAME: the 90 % interval lies inside it, which is two
    one-sided tests at 5 % (Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657). Otherwise, and always with fewer
    than MIN_ROUNDS rounds, INCONCLUSIVE. Raises ValueError if the margin is negative.
    """
    delta = _log_margin(margin)
    try:
        log_ratios = paired_log_ratio(variant_us, reference_us)
    except UnpairedRounds as unusable:
        return Judgement(Verdict.INVALID, ratio=None, reason=str(unusable))
    return _judgement(hodges_lehmann(log_ratios, 0.95), hodges_lehmann(log_ratios, 0.90), delta)


def judge_independent(variant_us: Samples, reference_us: Samples, margin: float = MARGIN) -> Judgement:
    """The same verdict over two runs, whose rounds are independent samples (stats/two_sample.py)."""
    delta = _log_margin(margin)
    try:
        difference, equivalence = (hodges_lehmann_shift(variant_us, reference_us, level) for level in (0.95, 0.90))
    except UnpairedRounds as unusable:
        return Judgement(Verdict.INVALID, ratio=None, reason=str(unusable))
    return _judgement(difference, equivalence, delta)


def _judgement(difference: Estimate, equivalence: Estimate, delta: float) -> Judgement:
    """The rule on log ratios: `difference` holds the 95 % interval, `equivalence` the 90 % one."""
    verdict = _verdict(difference, equivalence, delta)
    needed = _rounds_to_decide(difference, equivalence, delta) if verdict is Verdict.INCONCLUSIVE else None
    return Judgement(verdict, difference.exp(), needed)


def null_control(control_us: Samples, reference_us: Samples, margin: float = MARGIN) -> NoiseFloor:
    """Whether a second visit of the reference agrees with the first; their ratio is the empirical noise floor.

    Untrusted only if the 95 % interval excludes a ratio of 1 and the centre is off by more than half the margin: a wide
    interval alone makes verdicts INCONCLUSIVE, not wrong, and too few rounds for one prove nothing.
    Raises UnpairedRounds if the times cannot be paired, ValueError if the margin is negative.
    """
    delta = _log_margin(margin)
    offset = hodges_lehmann(paired_log_ratio(control_us, reference_us))
    excludes_zero = offset.interval is not None and not offset.interval[0] <= 0 <= offset.interval[1]
    return NoiseFloor(offset.exp(), trusted=not (excludes_zero and abs(offset.centre) > delta / 2))


def _log_margin(margin: float) -> float:
    if not 0 <= margin < math.inf:
        raise ValueError(f"margin {margin} must be finite and not negative; 0.01 is 1 %")
    return math.log1p(margin)


def _verdict(difference: Estimate, equivalence: Estimate, delta: float) -> Verdict:
    """The rule on log ratios: `difference` holds the 95 % interval, `equivalence` the 90 % one."""
    if difference.interval is None or equivalence.interval is None:
        return Verdict.INCONCLUSIVE
    delta += _ROUNDING
    low, high = difference.interval
    if low > delta:
        return Verdict.SLOWER
    if high < -delta:
        return Verdict.FASTER
    low, high = equivalence.interval
    return Verdict.SAME if -delta <= low and high <= delta else Verdict.INCONCLUSIVE


def _rounds_to_decide(difference: Estimate, equivalence: Estimate, delta: float) -> int | None:
    """Rounds after which the nearest verdict's interval fits, if its width falls with their square root around a centre
    that stays. Even, because rounds come in mirrored pairs."""
    if difference.interval is None or equivalence.interval is None:
        return MIN_ROUNDS
    centre, rounds = difference.centre, difference.rounds
    if abs(centre) > delta:
        low, high = difference.interval
        arms = [(centre - low, centre - delta) if centre > 0 else (high - centre, -delta - centre)]
    else:
        low, high = equivalence.interval
        arms = [(centre - low, centre + delta), (high - centre, delta - centre)]
    excess = max(width / room if room > 0 else math.inf for width, room in arms)
    needed = max(rounds * excess * excess, rounds + 1)
    return 2 * math.ceil(needed / 2) if needed <= _REACH else None
