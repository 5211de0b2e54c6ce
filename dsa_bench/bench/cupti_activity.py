# SPDX-License-Identifier: MIT
"""CUPTI's activity records, read where CUPTI wrote them.

cupti-python makes an object of every record: 46 us each on one H200, 37 ms for a visit of 400 calls of two kernels
whose own work takes 2.4 ms. Read in place, a record costs a few microseconds, and libcupti alone is needed.

CUPTI Activity API: the profiler hands over buffers when asked for them, and gets them back full. Every record starts
with its kind; kernel, copy and memset records have start and end at the same offsets, in CUPTI 12.8 to 13.5 alike.
"""

import ctypes
import glob
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsa_bench.bench.device_time import Activity
from dsa_bench.jit.optional import load
from dsa_bench.model.errors import CannotMeasure

BUFFER_BYTES = 8 << 20
MEMCPY, MEMSET, CONCURRENT_KERNEL = 1, 2, 10
"""CUpti_ActivityKind of what is recorded."""
NAMES = {MEMCPY: "memcpy", MEMSET: "memset"}
START_AT, END_AT, KERNEL_NAME_AT = 16, 24, 104
"""Offsets in bytes, in CUpti_ActivityKernel9 and later, CUpti_ActivityMemcpy5 and CUpti_ActivityMemset4."""
FORCED = 1
SUCCESS = 0

_Requested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Completed = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class CuptiActivity:
    """libcupti itself. A process can have one client of it. Raises CannotMeasure where it cannot be used.

    work  some device work that waits for itself, to see whether anything is recorded
    """

    name = "libcupti"

    def __init__(self, library: Any, work: Callable[[], None]) -> None:
        self._library = library
        self._activities: list[Activity] = []
        self._buffers: dict[int, Any] = {}
        self._free: list[Any] = []
        self._callbacks = _Requested(self._give_buffer), _Completed(self._read_buffer)  # kept, as CUPTI calls them
        self._check("cuptiActivityRegisterCallbacks", *self._callbacks)
        if not any(0 < activity.start_ns <= activity.end_ns for activity in self.record(work)):
            raise CannotMeasure("libcupti records nothing here; see dsa-bench env")

    def record(self, work: Callable[[], None]) -> list[Activity]:
        """Records only while `work` runs: recording lengthens the gaps between launches, which other timers see."""
        kinds = (CONCURRENT_KERNEL, MEMCPY, MEMSET)
        self._activities.clear()
        for kind in kinds:
            self._check("cuptiActivityEnable", ctypes.c_int(kind))
        try:
            work()
        finally:
            for kind in kinds:
                self._check("cuptiActivityDisable", ctypes.c_int(kind))
        self._check("cuptiActivityFlushAll", ctypes.c_uint32(FORCED))
        return list(self._activities)

    def _check(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != SUCCESS:
            raise CannotMeasure(f"{function}: CUPTI's error {status}; see dsa-bench env")

    def _give_buffer(self, buffer: Any, size: Any, records: Any) -> None:
        given = self._free.pop() if self._free else (ctypes.c_uint8 * BUFFER_BYTES)()
        address = ctypes.addressof(given)
        self._buffers[address] = given
        buffer[0], size[0], records[0] = address, BUFFER_BYTES, 0  # 0: as many records as fit

    def _read_buffer(self, context: int, stream: int, buffer: int, size: int, valid: int) -> None:
        names: dict[int, str] = {}
        record = ctypes.c_void_p()
        following = self._library.cuptiActivityGetNextRecord
        where, bytes_read = ctypes.c_void_p(buffer), ctypes.c_size_t(valid)
        while valid and following(where, bytes_read, ctypes.byref(record)) == SUCCESS and record.value:
            at = record.value
            kind = ctypes.c_uint32.from_address(at).value
            start_ns, end_ns = (ctypes.c_uint64.from_address(at + offset).value for offset in (START_AT, END_AT))
            if kind == CONCURRENT_KERNEL:
                name_at = ctypes.c_uint64.from_address(at + KERNEL_NAME_AT).value
                name = names.get(name_at) or names.setdefault(name_at, ctypes.string_at(name_at).decode())
            else:
                name = NAMES.get(kind, f"activity {kind}")
            self._activities.append(Activity(name, start_ns, end_ns))
        self._free.append(self._buffers.pop(buffer))


def open_cupti_activity() -> CuptiActivity:
    """The library of the CUDA run time that CuPy uses. Raises CannotMeasure naming what is missing."""
    cuda = load("cupy").cuda
    major = cuda.runtime.runtimeGetVersion() // 1000

    def clear_memory() -> None:
        memory = cuda.alloc(1 << 20)
        memory.memset(0, 1 << 20)
        cuda.runtime.deviceSynchronize()

    return CuptiActivity(_library(major), clear_memory)


def _library(major: int) -> Any:
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    wheels = [path for folder in folders for path in glob.glob(f"{folder}/*/lib/libcupti.so.{major}*")]
    for path in (*sorted(wheels, key=lambda path: Path(path).name), f"libcupti.so.{major}"):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise CannotMeasure(f"libcupti.so.{major} was not found; pip install 'dsa-bench[cuda{major}]'")
