# SPDX-License-Identifier: MIT
"""The CUPTI timer around a profiler that is a double: what it learns of a call whose kernels nobody knows."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dsa_bench.bench.device_time import Activity
from dsa_bench.bench.gpu_timers import CuptiTimer
from dsa_bench.bench.variant import Checked, Variant, VisitFailed


class Stream:
    """Captures nothing and replays nothing."""

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin_capture(self) -> None:
        pass

    def end_capture(self) -> Any:
        return SimpleNamespace(upload=lambda _: None, launch=lambda _: None)


class Profiler:
    """Two kernels a call, 3 and 2 us; of the last visit's, `lost` are missing."""

    name = "double"

    def __init__(self) -> None:
        self.calls = 0
        self.lost = 0

    def record(self, work: Callable[[], None]) -> list[Activity]:
        work()
        starts = [10_000 * call for call in range(self.calls)]
        both = [(Activity("fwd", at, at + 3000), Activity("merge", at + 3000, at + 5000)) for at in starts]
        activities = [activity for call in both for activity in call]
        return activities[: len(activities) - self.lost]


def test_the_first_visit_of_one_call_says_how_many_activities_a_call_has() -> None:
    profiler = Profiler()
    timer = CuptiTimer(profiler, Stream(), lambda: None)
    variant = Variant("dense/flash", lambda _: None, lambda: Checked("ok"), kernels=None)
    profiler.calls = 1
    assert timer.time(variant, 1) == pytest.approx((5.0, 5.0))
    profiler.calls = 4
    assert timer.time(variant, 4) == pytest.approx((5.0, 5.0))
    profiler.lost = 4  # two whole calls: what is left divides by the launches, and still is too little
    with pytest.raises(VisitFailed, match="recorded 4 of 8"):
        timer.time(variant, 4)
    timer.forget()
    assert timer.time(variant, 4).attention_us > 0, "another cell's call may have another count"
