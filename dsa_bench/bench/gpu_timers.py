# SPDX-License-Identifier: MIT
"""The GPU's timers. Both replay one CUDA graph of all of a visit's launches, so that the host is never in the way."""

from collections.abc import Callable
from typing import Any

from dsa_bench.bench.device_time import visit_timing
from dsa_bench.bench.profilers import Profiler
from dsa_bench.bench.variant import Timing, Variant
from dsa_bench.jit.optional import load

MIN_VISIT_US = 2_000.0
"""A few milliseconds: two hundred launches of a kernel of 10 us."""


class VisitGraphs:
    """A graph of a visit's launches for each variant of the cell, captured on the launch stream and uploaded.

    A visit is whole turns of the variant's copies, so that every graph ends where it began, at copy 0, and a cold one
    reads each copy as late as the others do.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._graphs: dict[tuple[str, int], Any] = {}

    def graph(self, variant: Variant, launches: int) -> Any:
        key = (variant.name, launches)
        if key not in self._graphs:
            with self._stream:
                self._stream.begin_capture()
                for call in range(launches):
                    variant.launch(call)
                self._graphs[key] = self._stream.end_capture()
            self._graphs[key].upload(self._stream)
        return self._graphs[key]

    def clear(self) -> None:
        self._graphs.clear()


class CuptiTimer:
    """Durations of the attention kernels themselves, from CUPTI's records; gaps between calls do not enter."""

    name = "cupti"
    min_visit_us = MIN_VISIT_US

    def __init__(self, profiler: Profiler, stream: Any, synchronize: Callable[[], None]) -> None:
        self._profiler = profiler
        self._stream = stream
        self._synchronize = synchronize
        self._graphs = VisitGraphs(stream)
        self._activities: dict[str, int] = {}

    def time(self, variant: Variant, launches: int) -> Timing:
        graph = self._graphs.graph(variant, launches)

        def work() -> None:
            graph.launch(self._stream)
            self._synchronize()

        self._synchronize()
        activities = self._profiler.record(work)
        known = self._activities.get(variant.name)
        timing = visit_timing(activities, variant.kernels, launches, self._profiler.name, known)
        if variant.kernels is None and launches == 1:  # the pilot's first visit of every variant is one launch
            self._activities[variant.name] = len(activities)
        return timing

    def forget(self) -> None:
        self._graphs.clear()
        self._activities.clear()


class EventsTimer:
    """The graph between two events on the launch stream, per call, gaps included.

    One replay is queued ahead of the first event, so that the host's launch of the second is not in the interval.
    """

    name = "events"
    min_visit_us = MIN_VISIT_US

    def __init__(self, stream: Any, synchronize: Callable[[], None]) -> None:
        self._cuda = load("cupy").cuda
        self._stream = stream
        self._synchronize = synchronize
        self._graphs = VisitGraphs(stream)

    def time(self, variant: Variant, launches: int) -> Timing:
        graph = self._graphs.graph(variant, launches)
        start, end = self._cuda.Event(), self._cuda.Event()
        graph.launch(self._stream)
        start.record(self._stream)
        graph.launch(self._stream)
        end.record(self._stream)
        self._synchronize()
        per_call_us = self._cuda.get_elapsed_time(start, end) * 1e3 / launches
        return Timing(per_call_us, per_call_us)

    def forget(self) -> None:
        self._graphs.clear()
