# SPDX-License-Identifier: MIT
"""Calls on other people's NumPy arrays. The tasks are those of the CPU backend, on a pool of their own."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from dsa_bench.backends.base import Enqueue
from dsa_bench.backends.cpu.backend import CpuSparseBuffers, cpu_device, cpu_kernel_hash
from dsa_bench.model.call import SparseCall, TensorView
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.shape import SparseShape
from dsa_bench.splits.geometry import CpuSparse, SparseGeometry


class CpuRuntime:
    """A launch returns when its work is done; a stream means nothing here."""

    def __init__(self) -> None:
        self.device = cpu_device()
        self.geometry: SparseGeometry = CpuSparse(self.device.sm_count)
        self._pool = ThreadPoolExecutor(self.device.sm_count, thread_name_prefix="dsa-bench")

    def site(self) -> None:
        """No GPU, so no gates of one."""
        return None

    def kernel_hash(self, kernel: str) -> str:
        return cpu_kernel_hash(kernel)

    def allocate(self, nbytes: int) -> TensorView:
        """Never touched: the tasks keep their partials to themselves."""
        memory = np.empty(nbytes + 16, np.uint8)
        memory = memory[-memory.ctypes.data % 16 :][:nbytes]
        return TensorView("workspace", (nbytes,), "uint8", memory.ctypes.data, nbytes, "cpu", 0, memory)

    def launches(
        self, variant: VariantPlan, shape: SparseShape, call: SparseCall, workspace: TensorView | None, stream: int
    ) -> list[Enqueue]:
        inputs = SparseInputs(
            query=_array(call.query), key=_array(call.key), value=_array(call.value),
            key_scale=_array(call.key_scale), value_scale=_array(call.value_scale), selected=_array(call.selected),
            scale=call.scale, op=shape.op,
        )  # fmt: skip
        launch = CpuSparseBuffers(inputs, self._run, _array(call.out)).launcher(variant)

        def attend() -> None:
            with threadpool_limits(limits=1):  # the pool's tasks are the parallelism, and the caller's BLAS is his
                launch(0)

        return [attend]

    def union_bytes(self, variant: VariantPlan, shape: SparseShape) -> int:
        """Rows share nothing here."""
        return 0

    def zero(self, out: TensorView, stream: int) -> list[Enqueue]:
        array = _array(out)
        return [lambda: array.fill(0)]

    def close(self) -> None:
        self._pool.shutdown()

    def _run(self, task: Callable[[int], None], count: int) -> None:
        for _ in self._pool.map(task, range(count)):
            pass


def _array(view: TensorView) -> NDArray[Any]:
    """The caller's memory as a NumPy array; a CPU tensor of torch has no other way to hand over BF16."""
    dtype = BF16 if view.dtype == "bfloat16" else np.dtype(view.dtype)
    if isinstance(view.owner, np.ndarray):
        return cast("NDArray[Any]", view.owner).view(dtype)
    if not view.nbytes:
        return np.zeros(view.shape, dtype)
    memory: Any = (ctypes.c_char * view.nbytes).from_address(view.address)
    return np.frombuffer(memory, dtype).reshape(view.shape)
