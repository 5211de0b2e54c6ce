# SPDX-License-Identifier: MIT
"""Times from recorded device activity: what counts, what overlaps, and what is an error and never a time."""

import pytest

from dsa_bench.bench.device_time import Activity, union_ns, visit_timing
from dsa_bench.bench.variant import VisitFailed
from dsa_bench.model.errors import CannotMeasure

KERNELS = ("attention", "merge")


def call_at(start_us: float) -> list[Activity]:
    """Memset 2.0, attention 12.0 and merge 1.5 us, end to end, recorded out of order."""
    ends_us = [("memset", 0.0, 2.0), ("attention", 2.0, 14.0), ("merge", 14.0, 15.5)]
    activities = [Activity(name, 1e3 * (start_us + a), 1e3 * (start_us + b)) for name, a, b in ends_us]
    return [activities[2], activities[0], activities[1]]


def test_attention_is_the_kernels_and_call_the_span_of_all_device_work() -> None:
    """B4, cloudrift-ai/emmy#324: 13.5 and 15.5; names come from the events themselves."""
    timing = visit_timing([*call_at(100), *call_at(0), *call_at(50)], KERNELS, 3, "fake")
    assert timing == pytest.approx((13.5, 15.5))


def test_overlapped_kernels_count_once_and_gaps_not_at_all() -> None:
    overlapping = [Activity("attention", 0, 10_000), Activity("merge", 8_000, 12_000)]
    assert visit_timing(overlapping, KERNELS, 1, "fake") == pytest.approx((12.0, 12.0))
    apart = [Activity("attention", 0, 10_000), Activity("merge", 15_000, 16_000)]
    assert visit_timing(apart, KERNELS, 1, "fake") == pytest.approx((11.0, 16.0))
    inside = [Activity("attention", 0, 10_000), Activity("merge", 2_000, 3_000)]
    assert union_ns(inside) == 10_000


def test_an_empty_profile_names_the_profiler() -> None:
    """B3, NVIDIA/cudnn-frontend#824."""
    with pytest.raises(CannotMeasure, match=r"fake: no device events"):
        visit_timing([], KERNELS, 200, "fake")


def test_a_profile_without_the_kernels_lists_the_names_seen() -> None:
    """B3: a renamed kernel is an error, not a 0 and not a silent change of method."""
    with pytest.raises(CannotMeasure, match=r"none of attention, merge among the recorded events: Bar, Foo"):
        visit_timing([Activity("Foo", 0, 1), Activity("Bar", 1, 2)], KERNELS, 1, "fake")


def test_a_short_count_is_a_failed_visit_and_not_an_average_over_fewer() -> None:
    """B3: 197 of 200 launches recorded."""
    activities = [Activity("attention", at, at + 1) for at in range(197)]
    with pytest.raises(VisitFailed, match="197 of 200") as failure:
        visit_timing(activities, ("attention",), 200, "fake")
    assert failure.value.status == "no_events"
    with pytest.raises(VisitFailed):
        visit_timing([*call_at(0), *call_at(50)[:2]], KERNELS, 2, "fake")


def test_a_call_of_unknown_kernels_is_all_of_its_device_work() -> None:
    """A library's call: names are not known, and its union counts overlaps once."""
    assert visit_timing([*call_at(0), *call_at(50)], None, 2, "fake") == pytest.approx((15.5, 15.5))
    overlapping = [Activity("a", 0, 10_000), Activity("b", 8_000, 12_000)]
    assert visit_timing(overlapping, None, 1, "fake", 2) == pytest.approx((12.0, 12.0))


def test_a_short_count_of_unknown_kernels_is_a_failed_visit_once_one_call_is_known() -> None:
    two_of_three = [*call_at(0), *call_at(50)]
    with pytest.raises(VisitFailed, match="recorded 6 of 9"):
        visit_timing(two_of_three, None, 3, "fake", 3)
    with pytest.raises(VisitFailed):
        visit_timing([*call_at(0), *call_at(50)[:2]], None, 2, "fake")
