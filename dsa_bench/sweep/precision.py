# SPDX-License-Identifier: MIT
"""When a cell is known well enough: a width that was asked for beforehand, never a result that looks significant."""

import numpy as np

from dsa_bench.model.request import MIN_TUNED_ROUNDS
from dsa_bench.stats.location import paired_ratio


class Precision:
    """Follows one cell's times. A round that is taken again replaces what it gave before.

    half_width  of the 95 % interval of each variant's ratio to the reference, as a share of the ratio 1
    reference   the variant that is visited twice, here by its first visits
    variants    every variant of the cell
    """

    def __init__(self, half_width: float, reference: str, variants: list[str]) -> None:
        self._half_width = half_width
        self._reference = reference
        self._times: dict[str, dict[int, float]] = {variant: {} for variant in variants}

    def add(self, variant: str, round_index: int, control: bool, attention_us: float | None) -> None:
        """Note a visit; one without a time is none."""
        if control or variant not in self._times:
            return
        self._times[variant].pop(round_index, None)
        if attention_us is not None:
            self._times[variant][round_index] = attention_us

    def reached(self) -> bool:
        """Whether all variants have MIN_TUNED_ROUNDS rounds and an interval that is narrow enough."""
        reference = self._times[self._reference]
        for variant, times in self._times.items():
            rounds = sorted(times.keys() & reference.keys())
            if len(rounds) < MIN_TUNED_ROUNDS:
                return False
            if variant != self._reference:
                ratio = paired_ratio(
                    np.array([times[index] for index in rounds]), np.array([reference[index] for index in rounds])
                )
                if ratio.interval is None or ratio.interval[1] - ratio.interval[0] > 2 * self._half_width:
                    return False
        return True
