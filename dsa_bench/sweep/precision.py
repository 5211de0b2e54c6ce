# SPDX-License-Identifier: MIT
"""When a cell is known well enough: a width that was asked for beforehand, never a result that looks significant."""

import math

import numpy as np

from dsa_bench.model.request import MIN_TUNED_ROUNDS
from dsa_bench.stats.location import hodges_lehmann, paired_log_ratio
from dsa_bench.stats.several import FloatArray
from dsa_bench.stats.student import student_quantile


class Precision:
    """Follows one cell's times. A round that is taken again replaces what it gave before.

    precision   half-width, as a share, to which each variant's ratio to the reference is to be known
    reference   the variant that is visited twice, here by its first visits
    variants    every variant of the cell
    tick_us     what the timer cannot tell apart; None where that is not known
    """

    def __init__(self, precision: float, reference: str, variants: list[str], tick_us: float | None = None) -> None:
        self._half_width = math.log1p(precision)
        self._reference = reference
        self._times: dict[str, dict[int, float]] = {variant: {} for variant in variants}
        self._tick_us = tick_us or 0.0

    def add(self, variant: str, round_index: int, control: bool, attention_us: float | None) -> None:
        """Note a visit; one without a time is none."""
        if control or variant not in self._times:
            return
        self._times[variant].pop(round_index, None)
        if attention_us is not None:
            self._times[variant][round_index] = attention_us

    def reached(self) -> bool:
        """Whether all variants have MIN_TUNED_ROUNDS rounds and a ratio that is known well enough."""
        reference = self._times[self._reference]
        for variant, times in self._times.items():
            rounds = sorted(times.keys() & reference.keys())
            if len(rounds) < MIN_TUNED_ROUNDS:
                return False
            if variant != self._reference:
                one, other = (np.array([of[index] for index in rounds]) for of in (times, reference))
                if self._known_to(one, other) > self._half_width:
                    return False
        return True

    def _known_to(self, variant_us: FloatArray, reference_us: FloatArray) -> float:
        """Half-width of what is known of the log ratio: the widest of three.

        The Hodges-Lehmann interval alone has no width where times take two values, by turns or with one step, because
        half of its averages are then equal; the t interval of the mean sees both values. Neither sees what lies within
        a tick.
        """
        log_ratios = paired_log_ratio(variant_us, reference_us)
        signed_rank = hodges_lehmann(log_ratios)
        if signed_rank.interval is None:
            return math.inf
        low, high = signed_rank.interval
        rounds = log_ratios.size
        t_interval = student_quantile(0.975, rounds - 1) * float(np.std(log_ratios, ddof=1)) / math.sqrt(rounds)
        tick = self._tick_us / min(float(np.median(variant_us)), float(np.median(reference_us)))
        return max((high - low) / 2, t_interval, tick)
