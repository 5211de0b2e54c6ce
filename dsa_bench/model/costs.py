# SPDX-License-Identifier: MIT
"""Constants of the split rule `model`, as fitted to a recorded sweep."""

import math
from dataclasses import dataclass

from dsa_bench.model.errors import BadInput


@dataclass(frozen=True, slots=True)
class SplitCosts:
    """What a launch's time is made of: T(S) = fixed + tile * ceil(tiles / S) * g(k) + merge * S + wave * (waves - 1).

    fixed_us  [us] a launch of no work
    tile_us   [us/tile] one tile of the longest split, its CTA alone on a multiprocessor
    slowdown  [ratio] g(1), g(2), ..., g(K): how much longer that takes where a multiprocessor gets k CTAs, resident at
              once or one after another; g(1) = 1, never falling; g(k) = g(K) * k / K for larger k
    merge_us  [us/split] each split more for the merge
    wave_us   [us/wave] each wave after the first
    Raises BadInput if a constant is negative or not finite, or g does not start at 1 or falls.
    """

    fixed_us: float
    tile_us: float
    slowdown: tuple[float, ...]
    merge_us: float
    wave_us: float

    def __post_init__(self) -> None:
        constants = (self.fixed_us, self.tile_us, self.merge_us, self.wave_us, *self.slowdown)
        if not all(0 <= value < math.inf for value in constants):
            raise BadInput(f"costs {constants}: must be finite and not negative")
        if self.slowdown[:1] != (1.0,) or list(self.slowdown) != sorted(self.slowdown):
            raise BadInput(f"slowdown {self.slowdown}: must start at 1 and never fall")
