# SPDX-License-Identifier: MIT
"""Timers: a variant and a number of launches in, one visit's medians out."""

import statistics
import time
from typing import Protocol

from dsa_bench.bench.variant import Timing, Variant

TICKS_US = {("cupti", "NVIDIA H200"): 0.032}
"""(timer, device) -> what a launch's time is counted in, where that was seen (docs/measuring.md, "Words")."""


def known_tick_us(timer: str, device: str) -> float | None:
    """The least difference of two times that is one; None where it is not known."""
    return TICKS_US.get((timer, device))


class Timer(Protocol):
    """name: as recorded. min_visit_us: how long a visit should last for its median to mean something."""

    name: str
    min_visit_us: float

    def time(self, variant: Variant, launches: int) -> Timing: ...

    def forget(self) -> None:
        """Let go of what was kept for the variants so far: their cell is done and its memory is wanted back."""
        ...


class WallTimer:
    """The host's monotonic clock around each call. For backends whose launch returns when its work is done.

    The scheduler's tick is 1 to 4 ms, so a visit lasts many of them.
    """

    name = "wall"
    min_visit_us = 60_000.0

    def time(self, variant: Variant, launches: int) -> Timing:
        times_us: list[float] = []
        for call in range(launches):
            start = time.perf_counter_ns()
            variant.launch(call)
            times_us.append((time.perf_counter_ns() - start) / 1e3)
        median = statistics.median(times_us)
        return Timing(median, median)

    def forget(self) -> None:
        """Nothing was kept."""
