# SPDX-License-Identifier: MIT
"""Cells of dense decode on the CPU: a task for each row and split on a thread pool, one BLAS thread each."""

import functools
import hashlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from dsa_bench.backends.base import ReadyCall
from dsa_bench.backends.cpu import dense
from dsa_bench.backends.cpu.backend import cpu_device
from dsa_bench.model.dense import DenseKernel, DenseShape
from dsa_bench.model.dense_inputs import DTYPES, DenseInputs
from dsa_bench.model.dense_request import COPY, DenseVariant
from dsa_bench.model.errors import VariantRefused


@functools.cache
def _hash(kernel: str) -> str:
    source = Path(dense.__file__).read_bytes() + Path(__file__).read_bytes()
    return hashlib.sha256(f"{kernel}\0{np.__version__}\0".encode() + source).hexdigest()[:16]


class CpuDense:
    """Dense decode in NumPy."""

    def __init__(self) -> None:
        self.device = cpu_device()
        self.stream = None
        self._blas = threadpool_limits(limits=1)
        self.pool = ThreadPoolExecutor(self.device.sm_count, thread_name_prefix="dsa-bench")

    def kernel_hash(self, kernel: str, shape: DenseShape) -> str:
        return _hash(kernel)

    def resident_ctas(self, kernel: DenseKernel, shape: DenseShape) -> int:
        return 1

    def load(self, inputs: DenseInputs, l2: str) -> "CpuDenseCell":
        return CpuDenseCell(inputs, self)

    def synchronize(self) -> None:
        """A launch returns when its work is done."""

    def close(self) -> None:
        self.pool.shutdown()
        self._blas.restore_original_limits()


class CpuDenseCell:
    """One cell; see DenseCellBuffers. A launch has ended when the next begins, so all variants share an output."""

    def __init__(self, inputs: DenseInputs, backend: CpuDense) -> None:
        self._inputs = inputs
        self._backend = backend
        shape = inputs.shape
        self._out = np.zeros((shape.rows, shape.value_head_size), DTYPES[shape.dtype])

    def call(self, variant: DenseVariant) -> ReadyCall:
        rows, plan = self._inputs.shape.rows, variant.plan
        tasks = list(itertools.product(range(rows), range(plan.splits)))

        def one(task: tuple[int, int]) -> dense.Partial:
            return dense.attention_split(self._inputs, task[0], plan, task[1], variant.kernel)

        def whole(row: int) -> dense.F32:
            return dense.attention_row(self._inputs, row, variant.kernel)

        def launch(_: int) -> None:
            if plan.splits == 1:
                found = list(self._backend.pool.map(whole, range(rows)))
            else:
                partials = list(self._backend.pool.map(one, tasks))
                of_row = (partials[row * plan.splits :][: plan.splits] for row in range(rows))
                found = list(map(dense.attention_combine, of_row))
            with np.errstate(over="ignore"):
                self._out[:] = np.stack(found).astype(self._out.dtype)

        workers = self._backend.device.sm_count
        return ReadyCall(launch, len(tasks), facts={"resident": 1, "waves": len(tasks) / workers})

    def copy_call(self) -> ReadyCall:
        raise VariantRefused(f"{COPY}: the CPU backend has no such kernel")

    def poison(self, variant: DenseVariant, value: float) -> None:
        self._out[:] = value

    def output(self, variant: DenseVariant) -> NDArray[np.generic]:
        return self._out.copy()

    def close(self) -> None:
        pass
