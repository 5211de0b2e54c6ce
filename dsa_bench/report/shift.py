# SPDX-License-Identifier: MIT
"""A change that all rows of a comparison share, which says more about the machine than about any one of them."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dsa_bench.stats.location import Estimate

FEWEST_ROWS = 4
"""With fewer, rows that happen to agree are no sign of anything common."""
COMMON_SHARE = 0.8
"""Of the rows that have to agree with the shift: what remains may stand out from it."""
MOVED_SHARE = 0.5
"""Of the rows whose own interval has to lie beyond the margin, on the shift's side: wide ones agree with anything."""


@dataclass(frozen=True, slots=True)
class CommonShift:
    """The median ratio head / base of the rows that have an interval, and how many of them agree with it within twice
    the margin."""

    ratio: float
    margin: float
    rows: int
    within: int

    def holds(self, ratio: Estimate) -> bool:
        """Whether a row's interval reaches into the band around the shift; one without it says nothing."""
        return ratio.interval is None or _reaches(ratio.interval, math.log(self.ratio), self.margin)


def common_shift(ratios: Sequence[Estimate], margin: float) -> CommonShift | None:
    """The shift of all rows that have an interval if it lies beyond the margin, COMMON_SHARE of them agree with it and
    MOVED_SHARE show one of their own; else None."""
    sure = [(math.log(ratio.centre), ratio.interval) for ratio in ratios if ratio.interval is not None]
    if len(sure) < FEWEST_ROWS:
        return None
    centre = statistics.median(of_row for of_row, _ in sure)
    within = sum(_reaches(interval, centre, margin) for _, interval in sure)
    moved = sum(_moved(interval, centre, margin) for _, interval in sure)
    if abs(centre) <= math.log1p(margin) or within < COMMON_SHARE * len(sure) or moved < MOVED_SHARE * len(sure):
        return None
    return CommonShift(math.exp(centre), margin, len(sure), within)


def _reaches(interval: tuple[float, float], centre: float, margin: float) -> bool:
    low, high = interval
    band = 2 * math.log1p(margin)
    return math.log(low) <= centre + band and math.log(high) >= centre - band


def _moved(interval: tuple[float, float], centre: float, margin: float) -> bool:
    low, high = interval
    return math.log(low) > math.log1p(margin) if centre > 0 else math.log(high) < -math.log1p(margin)
