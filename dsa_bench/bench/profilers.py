# SPDX-License-Identifier: MIT
"""Readers of CUPTI's activity: libcupti itself, else cupti-python, else torch.profiler. A process can hold only one."""

from collections.abc import Callable
from typing import Any, Protocol

from dsa_bench.bench.cupti_activity import open_cupti_activity
from dsa_bench.bench.device_time import Activity
from dsa_bench.jit.optional import load
from dsa_bench.model.errors import CannotMeasure

_BUFFER_BYTES = 8 << 20


class Profiler(Protocol):
    name: str

    def record(self, work: Callable[[], None]) -> list[Activity]:
        """Run `work`, which waits for its own device work, and return all device activity of it."""
        ...


class CuptiPython:
    """NVIDIA's cupti-python: the same records, each an object whose making and reading costs some 80 us."""

    name = "cupti-python"

    def __init__(self) -> None:
        self._cupti = load("cupti.cupti")
        self._activities: list[Activity] = []
        kinds = self._cupti.ActivityKind
        self._kernel = kinds.CONCURRENT_KERNEL
        self._kinds = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
        try:
            self._cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), self._collect)
            self.record(lambda: None)
        except Exception as error:  # cuptiError, or NotSupportedError without a driver
            raise CannotMeasure(f"CUPTI cannot be used ({error}); see dsa-bench env") from error

    def record(self, work: Callable[[], None]) -> list[Activity]:
        """Records only while `work` runs: recording lengthens the gaps between launches, which other timers see."""
        self._activities.clear()
        for kind in self._kinds:
            self._cupti.activity_enable(kind)
        try:
            work()
        finally:
            for kind in self._kinds:
                self._cupti.activity_disable(kind)
        self._cupti.activity_flush_all(1)
        return list(self._activities)

    def _collect(self, records: list[Any]) -> None:
        for record in records:
            name = str(record.name) if record.kind == self._kernel else record.kind.name.lower()
            self._activities.append(Activity(name, record.start, record.end))


class TorchProfiler:
    """torch.profiler, which reads the same records."""

    name = "torch.profiler"

    def __init__(self) -> None:
        self._profiler = load("torch.profiler")
        self._device_type = load("torch.autograd").DeviceType
        if not load("torch").cuda.is_available():
            raise CannotMeasure("torch.profiler cannot be used: this torch sees no CUDA device; see dsa-bench env")

    def record(self, work: Callable[[], None]) -> list[Activity]:
        with self._profiler.profile(activities=[self._profiler.ProfilerActivity.CUDA]) as profile:
            work()
        return [
            Activity(event.name(), event.start_ns(), event.end_ns())
            for event in profile.profiler.kineto_results.events()
            if event.device_type() == self._device_type.CUDA
        ]


def open_profiler() -> Profiler:
    """The first reader that works here. CannotMeasure naming why each did not."""
    reasons: list[str] = []
    for reader in (open_cupti_activity, CuptiPython, TorchProfiler):
        try:
            return reader()
        except CannotMeasure as error:
            reasons.append(str(error))
    raise CannotMeasure("; ".join(reasons))
