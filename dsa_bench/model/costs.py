# SPDX-License-Identifier: MIT
"""Constants of the split rule `model`, as fitted to a recorded sweep."""

from dataclasses import dataclass

from dsa_bench.model.errors import BadInput
from dsa_bench.model.text import quoted

LARGEST = 1e15
"""What no constant exceeds: as long as the longest time of a record, so that sums and products stay finite."""


@dataclass(frozen=True, slots=True)
class SplitCosts:
    """What a launch's time is made of:
    T(S) = fixed + tile * ceil(tiles / S) * g(k) + merge * S + cta * CTAs + wave * (waves - 1).

    fixed_us  [us] a launch of no work
    tile_us   [us/tile] one tile of the longest split, its CTA alone on a multiprocessor
    slowdown  [ratio] g(1), g(2), ..., g(K): how much longer that takes where a multiprocessor gets k CTAs, resident at
              once or one after another; g(1) = 1, never falling; g(k) = g(K) * k / K for larger k
    merge_us  [us/split] each split more for the merge
    cta_us    [us/CTA] each CTA more: its partial result is written and read again
    wave_us   [us/wave] each wave after the first
    Kept as floats. Raises BadInput if a constant is negative, not finite or above LARGEST, or g does not start at 1 or
    falls.
    """

    fixed_us: float
    tile_us: float
    slowdown: tuple[float, ...]
    merge_us: float
    cta_us: float
    wave_us: float

    def __post_init__(self) -> None:
        for name in ("fixed_us", "tile_us", "merge_us", "cta_us", "wave_us"):
            object.__setattr__(self, name, _constant(name, getattr(self, name)))
        object.__setattr__(self, "slowdown", tuple(_constant("slowdown", value) for value in self.slowdown))
        if self.slowdown[:1] != (1.0,) or list(self.slowdown) != sorted(self.slowdown):
            raise BadInput(f"slowdown {quoted(self.slowdown)}: must start at 1 and never fall")


def _constant(name: str, value: float) -> float:
    try:
        constant = float(value)
    except OverflowError:  # an integer beyond every float
        constant = float("inf")
    if not 0 <= constant <= LARGEST:  # NaN neither
        raise BadInput(f"{name} {quoted(value)}: must be finite, not negative and at most {LARGEST:g}")
    return constant
