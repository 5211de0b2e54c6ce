# SPDX-License-Identifier: MIT
"""From a profiler's device activities to the times of calls. Pure, so that any profile can be replayed in a test."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dsa_bench.bench.variant import Timing, VisitFailed
from dsa_bench.model.errors import CannotMeasure, NothingRecorded


@dataclass(frozen=True, slots=True)
class Activity:
    """One kernel or memory operation on the device, as the profiler recorded it."""

    name: str
    start_ns: float
    end_ns: float


def visit_timing(
    activities: Sequence[Activity],
    kernels: Sequence[str] | None,
    launches: int,
    profiler: str,
    activities_per_call: int | None = None,
) -> Timing:
    """Medians over the calls of one visit, which ran one after another on one stream.

    kernels              names of the attention kernels that one call launches; None: every activity counts as attention
    activities_per_call  how many one call has, where kernels is None and an earlier visit showed it
    attention_us is the length of the union of their intervals, call_us the span of all of the call's device work.
    Raises NothingRecorded, CannotMeasure if no name matches, VisitFailed if launches are missing.
    """
    if not activities:
        raise NothingRecorded(f"{profiler}: no device events were recorded; try --timer events")
    per_call = activities_per_call or len(activities) // launches
    wanted = frozenset(kernels) if kernels is not None else frozenset(activity.name for activity in activities)
    attention = [activity for activity in activities if activity.name in wanted]
    if not attention:
        seen = ", ".join(sorted({activity.name for activity in activities}))
        raise CannotMeasure(f"{profiler}: none of {', '.join(sorted(wanted))} among the recorded events: {seen}")
    expected = launches * (per_call if kernels is None else len(kernels))
    if len(attention) != expected or len(activities) != launches * per_call:
        raise VisitFailed("no_events", f"{profiler}: recorded {len(attention)} of {expected} attention kernels")
    ordered = sorted(activities, key=lambda activity: activity.start_ns)  # one stream: calls follow one another
    calls = [ordered[at : at + per_call] for at in range(0, len(ordered), per_call)]
    return Timing(
        statistics.median(union_ns([one for one in call if one.name in wanted]) for call in calls) / 1e3,
        statistics.median(max(one.end_ns for one in call) - min(one.start_ns for one in call) for call in calls) / 1e3,
    )


def union_ns(activities: Sequence[Activity]) -> float:
    """Length of the union of the intervals: overlapped work counts once, gaps do not count."""
    total, covered_until = 0.0, float("-inf")
    for activity in sorted(activities, key=lambda one: one.start_ns):
        total += max(0.0, activity.end_ns - max(activity.start_ns, covered_until))
        covered_until = max(covered_until, activity.end_ns)
    return total
