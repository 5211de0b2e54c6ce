# SPDX-License-Identifier: MIT
"""The CPU backend: tasks on a thread pool, one BLAS thread each."""

import functools
import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from dsa_bench.backends.base import Launch
from dsa_bench.backends.cpu import kernels
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import (
    BF16_EMULATION,
    DIGITS,
    DIGITS_EMULATION,
    EMULATION,
    UNION,
    UNION_EMULATION,
    WS,
    WS_EMULATION,
)
from dsa_bench.model.shape import ceil_div
from dsa_bench.oracle import emulation, emulation_union, emulation_ws
from dsa_bench.oracle.attention import F64
from dsa_bench.oracle.emulation_bf16 import attend_row_bf16
from dsa_bench.oracle.emulation_digits import attend_row_digits
from dsa_bench.oracle.survey import Look, survey
from dsa_bench.oracle.tolerance import bf16_bound, digits_bound, fp16_bound, fp32_bound, union_bound, ws_bound
from dsa_bench.splits.geometry import CpuSparse, SparseGeometry


def cpu_device() -> DeviceFacts:
    """The CPU as a device: sm_count = workers, one resident task each."""
    return DeviceFacts(
        backend="cpu", name=_cpu_model(), sm_count=_workers(), runtime=f"numpy {np.__version__}", resident_ctas=1
    )


def _workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "CPU"


@functools.cache
def cpu_kernel_hash(kernel: str) -> str:
    """The kernels' arithmetic, this file, which shares out their tasks, and NumPy."""
    source = Path(kernels.__file__).read_bytes() + Path(__file__).read_bytes()
    return hashlib.sha256(f"{kernel}\0{np.__version__}\0".encode() + source).hexdigest()[:16]


class _Emulation(NamedTuple):
    """One of a kernel whose CTAs choose among paths.

    rows    of a task, which has a KV head of them      attend  (inputs, first row, KV head, splits) -> each of the rows
    """

    kernel: str
    paths: tuple[str, ...]
    attend: Callable[[SparseInputs, int, int, SplitPlan], Sequence[emulation.Emulated]]
    rows: int = 1


def _int8_tc(inputs: SparseInputs, row: int, kv_head: int, split: SplitPlan) -> list[emulation.Emulated]:
    return [emulation.attend_row(inputs, row, kv_head, split, emulation.kernel_arithmetic(inputs.op))]


def _int8_ws(inputs: SparseInputs, row: int, kv_head: int, _: SplitPlan) -> list[emulation.Emulated]:
    return [emulation_ws.attend_row_ws(inputs, row, kv_head)]


def _int8_union(inputs: SparseInputs, first_row: int, kv_head: int, _: SplitPlan) -> list[emulation.Emulated]:
    return emulation_union.attend_neighbours(inputs, first_row, kv_head)


EMULATED_BY_PATHS = {
    EMULATION: _Emulation("int8-tc", emulation.PATHS, _int8_tc),
    WS_EMULATION: _Emulation(WS, emulation_ws.PATHS, _int8_ws),
    UNION_EMULATION: _Emulation(UNION, emulation_union.PATHS, _int8_union, emulation_union.ROWS),
}


class CpuBackend:
    """Both kernels of either operator in NumPy, and the emulations of the GPU's arithmetic.

    BLAS is held to one thread, so that the pool's tasks are the parallelism.
    """

    def __init__(self) -> None:
        self.device = cpu_device()
        self.stream = None
        self.geometry: SparseGeometry = CpuSparse(self.device.sm_count)
        self._blas = threadpool_limits(limits=1)
        self._pool = ThreadPoolExecutor(self.device.sm_count, thread_name_prefix="dsa-bench")

    def site(self) -> None:
        """No GPU, so no gates of one."""
        return None

    def kernel_hash(self, kernel: str) -> str:
        return cpu_kernel_hash(kernel)

    def bound(self, kernel: str, inputs: SparseInputs, rows: NDArray[np.int64], out: F64, look: Look = survey) -> F64:
        own = {
            EMULATION: fp16_bound, BF16_EMULATION: bf16_bound, DIGITS_EMULATION: digits_bound, WS_EMULATION: ws_bound,
            UNION_EMULATION: union_bound,
        }  # fmt: skip
        bound = own.get(kernel, fp32_bound)
        return bound(inputs, rows, out, look)

    def rounds_keys(self, kernel: str) -> bool:
        return kernel == BF16_EMULATION

    def device_kernels(self, variant: VariantPlan) -> tuple[str, ...]:
        return ()

    def load(self, inputs: SparseInputs, l2: str) -> "CpuSparseBuffers":
        return CpuSparseBuffers(inputs, self._run)

    def synchronize(self) -> None:
        """A launch returns when its work is done."""

    def close(self) -> None:
        self._pool.shutdown()
        self._blas.restore_original_limits()

    def _run(self, task: Callable[[int], None], count: int) -> None:
        for _ in self._pool.map(task, range(count)):
            pass


class CpuSparseBuffers:
    """One cell's inputs, its output (or a caller's), and the launches over them."""

    copies = 1

    def __init__(
        self,
        inputs: SparseInputs,
        run: Callable[[Callable[[int], None], int], None],
        out: NDArray[Any] | None = None,
    ) -> None:
        self._inputs = inputs
        self._run = run
        self._out = np.zeros(inputs.query.shape, BF16) if out is None else out
        self._paths: dict[str, list[dict[str, int]]] = {}

    def launcher(self, variant: VariantPlan) -> Launch:
        if variant.kernel in EMULATED_BY_PATHS:
            return self._emulated_launch(variant)
        if variant.kernel == BF16_EMULATION:
            return self._bf16_launch()
        if variant.kernel == DIGITS_EMULATION:
            return self._digits_launch(variant)
        return self._split_launch(variant) if variant.is_split else self._unsplit_launch()

    def paths(self, variant: VariantPlan) -> dict[str, int] | None:
        """See backends.base.TellsPaths: the emulation can tell; the other kernels compute in one way."""
        if variant.kernel not in EMULATED_BY_PATHS:
            return None
        if variant.name not in self._paths:
            self._emulated_launch(variant)(0)
        taken = self._paths[variant.name]
        paths = EMULATED_BY_PATHS[variant.kernel].paths
        return {path: sum(of_row_head[path] for of_row_head in taken) for path in paths}

    def fill_output(self, value: float) -> None:
        self._out[:] = value

    def output(self) -> NDArray[np.generic]:
        return self._out.copy()

    def close(self) -> None:
        pass

    def _unsplit_launch(self) -> Launch:
        shape = self._inputs.shape
        whole_list = slice(0, shape.candidates)

        def attend_row_head(task: int) -> None:
            row, kv_head = divmod(task, shape.kv_heads)
            self._merge(row, kv_head, [kernels.attend(self._inputs, row, kv_head, whole_list)])

        return lambda _: self._run(attend_row_head, shape.row_heads)

    def _split_launch(self, variant: VariantPlan) -> Launch:
        shape, plan = self._inputs.shape, variant.split
        partials: list[kernels.Partial] = [
            kernels.empty_partial(shape.group, shape.head_size) for _ in range(shape.row_heads * plan.splits)
        ]

        def attend_split(task: int) -> None:
            row_head, split = divmod(task, plan.splits)
            row, kv_head = divmod(row_head, shape.kv_heads)
            part = plan.candidate_slice(split, shape.candidates)
            partials[task] = kernels.attend(self._inputs, row, kv_head, part)

        def merge_row_head(row_head: int) -> None:
            row, kv_head = divmod(row_head, shape.kv_heads)
            self._merge(row, kv_head, partials[row_head * plan.splits : (row_head + 1) * plan.splits])

        def launch(_: int) -> None:
            self._run(attend_split, shape.row_heads * plan.splits)
            self._run(merge_row_head, shape.row_heads)

        return launch

    def _refuse_beyond_scale(self, kernel: str) -> None:
        if not 0.0 <= self._inputs.scale <= emulation.MAX_SCALE:
            raise VariantRefused(f"softmax scale {self._inputs.scale:g}: {kernel} takes 0 to {emulation.MAX_SCALE:g}")

    def _emulated_launch(self, variant: VariantPlan) -> Launch:
        shape, emulated_by = self._inputs.shape, EMULATED_BY_PATHS[variant.kernel]
        self._refuse_beyond_scale(emulated_by.kernel)

        def attend_rows(task: int) -> None:
            first, kv_head = task // shape.kv_heads * emulated_by.rows, task % shape.kv_heads
            attended = emulated_by.attend(self._inputs, first, kv_head, variant.split)
            for row, emulated in enumerate(attended, first):
                paths[row * shape.kv_heads + kv_head] = emulated.paths
                self._store(row, kv_head, emulated.out)

        def launch(_: int) -> None:
            self._run(attend_rows, ceil_div(shape.rows, emulated_by.rows) * shape.kv_heads)
            self._paths[variant.name] = paths

        paths: list[dict[str, int]] = [{} for _ in range(shape.row_heads)]
        return launch

    def _digits_launch(self, variant: VariantPlan) -> Launch:
        shape = self._inputs.shape
        self._refuse_beyond_scale(DIGITS)

        def attend_row_head(task: int) -> None:
            row, kv_head = divmod(task, shape.kv_heads)
            self._store(row, kv_head, attend_row_digits(self._inputs, row, kv_head, variant.split))

        return lambda _: self._run(attend_row_head, shape.row_heads)

    def _bf16_launch(self) -> Launch:
        shape = self._inputs.shape

        def attend_row_head(task: int) -> None:
            row, kv_head = divmod(task, shape.kv_heads)
            self._store(row, kv_head, attend_row_bf16(self._inputs, row, kv_head))

        return lambda _: self._run(attend_row_head, shape.row_heads)

    def _merge(self, row: int, kv_head: int, partials: list[kernels.Partial]) -> None:
        self._store(row, kv_head, kernels.merge(partials, self._inputs.value_scale[kv_head]))

    def _store(self, row: int, kv_head: int, out: kernels.F32) -> None:
        group = self._inputs.shape.group
        with np.errstate(over="ignore", invalid="ignore"):  # to BF16
            self._out[row, kv_head * group : (kv_head + 1) * group] = out
