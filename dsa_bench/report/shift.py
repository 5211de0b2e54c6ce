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
    """The median ratio head / base of the rows, and how many of them agree with it within twice the margin."""

    ratio: float
    margin: float
    rows: int
    within: int

    def holds(self, ratio: Estimate) -> bool:
        """Whether a row's interval (its centre where it has none) reaches into the band around the shift."""
        return _reaches(ratio, math.log(self.ratio), self.margin)


def common_shift(ratios: Sequence[Estimate], margin: float) -> CommonShift | None:
    """The shift of all rows if it lies beyond the margin, COMMON_SHARE of them agree with it and MOVED_SHARE show one
    of their own; else None."""
    if len(ratios) < FEWEST_ROWS:
        return None
    centre = statistics.median(math.log(ratio.centre) for ratio in ratios)
    within = sum(_reaches(ratio, centre, margin) for ratio in ratios)
    moved = sum(_moved(ratio, centre, margin) for ratio in ratios)
    if abs(centre) <= math.log1p(margin) or within < COMMON_SHARE * len(ratios) or moved < MOVED_SHARE * len(ratios):
        return None
    return CommonShift(math.exp(centre), margin, len(ratios), within)


def _reaches(ratio: Estimate, centre: float, margin: float) -> bool:
    low, high = ratio.interval or (ratio.centre, ratio.centre)
    band = 2 * math.log1p(margin)
    return math.log(low) <= centre + band and math.log(high) >= centre - band


def _moved(ratio: Estimate, centre: float, margin: float) -> bool:
    low, high = ratio.interval or (ratio.centre, ratio.centre)
    return math.log(low) > math.log1p(margin) if centre > 0 else math.log(high) < -math.log1p(margin)
