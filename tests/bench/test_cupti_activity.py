# SPDX-License-Identifier: MIT
"""Reading CUPTI's buffers, against a stand-in for libcupti that writes records as CUPTI lays them out."""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pytest

from dsa_bench.bench import cupti_activity
from dsa_bench.bench.cupti_activity import BUFFER_BYTES, CONCURRENT_KERNEL, MEMCPY, MEMSET, CuptiActivity
from dsa_bench.bench.device_time import Activity
from dsa_bench.model.errors import CannotMeasure

KERNEL_BYTES, OTHER_BYTES = 200, 64
ENDED = 12
"""CUPTI_ERROR_MAX_LIMIT_REACHED: no further record."""


class Library:
    """Hands a buffer back when it is flushed. Work "runs" by calling `run`; what runs while disabled is not seen."""

    def __init__(self) -> None:
        self.enabled: set[int] = set()
        self.waiting: list[bytes] = []
        self.status: dict[str, int] = {}
        self.flushed_with: list[int] = []
        self.requests = 0
        self._names: list[Any] = []

    def run(self, kind: int, start_ns: int, end_ns: int, name: bytes = b"") -> None:
        if kind not in self.enabled:
            return
        held = ctypes.create_string_buffer(name)
        self._names.append(held)
        record = bytearray(KERNEL_BYTES if kind == CONCURRENT_KERNEL else OTHER_BYTES)
        struct.pack_into("<I", record, 0, kind)
        struct.pack_into("<QQ", record, 16, start_ns, end_ns)
        if kind == CONCURRENT_KERNEL:
            struct.pack_into("<Q", record, 104, ctypes.addressof(held))
        self.waiting.append(bytes(record))

    def cuptiActivityRegisterCallbacks(self, requested: Any, completed: Any) -> int:
        self._requested, self._completed = requested, completed
        return self.status.get("register", 0)

    def cuptiActivityEnable(self, kind: Any) -> int:
        self.enabled.add(kind.value)
        return self.status.get("enable", 0)

    def cuptiActivityDisable(self, kind: Any) -> int:
        self.enabled.discard(kind.value)
        return 0

    def cuptiActivityFlushAll(self, flag: Any) -> int:
        self.flushed_with.append(flag.value)
        while self.waiting:
            buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(99)
            self._requested(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(most))
            self.requests += 1
            assert (size.value, most.value) == (BUFFER_BYTES, 0)
            written = b"".join(self.waiting[:3])  # several buffers, as CUPTI fills them
            self._sizes = [len(record) for record in self.waiting[:3]]
            del self.waiting[:3]
            ctypes.memmove(buffer.value or 0, written, len(written))
            self._completed(None, 0, buffer, size.value, len(written))
        return 0

    def cuptiActivityGetNextRecord(self, buffer: Any, valid: Any, record: Any) -> int:
        at = record._obj
        if not self._sizes:
            return ENDED
        at.value = buffer.value if not at.value else at.value + self._stride
        self._stride = self._sizes.pop(0)
        return 0


@pytest.fixture
def library() -> Library:
    return Library()


def opened(library: Library) -> CuptiActivity:
    return CuptiActivity(library, lambda: library.run(MEMSET, 5, 9))


def test_every_record_of_the_work_and_no_other(library: Library) -> None:
    reader = opened(library)
    library.run(CONCURRENT_KERNEL, 1, 2, b"before")

    def work() -> None:
        for call in range(4):
            library.run(CONCURRENT_KERNEL, 10 * call + 1, 10 * call + 7, b"decode_int8_tc")
        library.run(MEMCPY, 50, 60)
        library.run(MEMSET, 70, 2**63)

    assert reader.record(work) == [
        *(Activity("decode_int8_tc", 10 * call + 1, 10 * call + 7) for call in range(4)),
        Activity("memcpy", 50, 60),
        Activity("memset", 70, 2**63),
    ]
    assert reader.record(lambda: None) == []
    assert not library.enabled
    assert set(library.flushed_with) == {1}


def test_buffers_are_used_again(library: Library) -> None:
    reader = opened(library)
    for _ in range(5):
        reader.record(lambda: library.run(CONCURRENT_KERNEL, 1, 2, b"k"))
    assert library.requests == 6
    assert len(reader._free) == 1


def test_work_that_fails_leaves_recording_off(library: Library) -> None:
    reader = opened(library)

    def fail() -> None:
        raise KeyError("work")

    with pytest.raises(KeyError):
        reader.record(fail)
    assert not library.enabled


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"register": 35}, "cuptiActivityRegisterCallbacks: CUPTI's error 35"),
        ({"enable": 7}, "cuptiActivityEnable: .* 7"),
    ],
)
def test_a_refusal_is_one_line(library: Library, status: dict[str, int], said: str) -> None:
    library.status = status
    with pytest.raises(CannotMeasure, match=said):
        opened(library)


@pytest.mark.parametrize("work", [lambda _: None, lambda library: library.run(MEMSET, 0, 0)])
def test_a_library_that_records_nothing_is_not_used(library: Library, work: Callable[[Library], None]) -> None:
    with pytest.raises(CannotMeasure, match="libcupti records nothing here"):
        CuptiActivity(library, lambda: work(library))


def test_no_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti_activity.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(CannotMeasure, match=r"libcupti\.so\.77 was not found; pip install 'dsa-bench\[cuda77\]'"):
        cupti_activity._library(77)
