# SPDX-License-Identifier: MIT
"""The interface of both backends for dense decode."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.base import ReadyCall
from dsa_bench.backends.select import cpu_or_gpu
from dsa_bench.model.dense import DenseKernel, DenseShape
from dsa_bench.model.dense_inputs import DenseInputs
from dsa_bench.model.dense_request import DenseVariant
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import CannotMeasure


class DenseCellBuffers(Protocol):
    """One cell's tensors where the kernels see them, with an output for each variant."""

    def call(self, variant: DenseVariant) -> ReadyCall:
        """VariantRefused if the variant cannot run here or does not take the shape, CompileFailed."""
        ...

    def copy_call(self) -> ReadyCall:
        """A plain copy of as many bytes as the live keys and values have. VariantRefused on the CPU."""
        ...

    def poison(self, variant: DenseVariant, value: float) -> None:
        """Overwrite a variant's output with one finite value, and wait until that is done."""
        ...

    def output(self, variant: DenseVariant) -> NDArray[np.generic]:
        """Wait, then a copy of the output on the host: [rows, value_head_size]."""
        ...

    def close(self) -> None: ...


class DenseBackend(Protocol):
    """A device and the kernels of dense decode on it. `stream` is None on the CPU."""

    device: DeviceFacts
    stream: Any

    def kernel_hash(self, kernel: str, shape: DenseShape) -> str:
        """Changes when the code of the kernel, or of the copy, can have changed."""
        ...

    def resident_ctas(self, kernel: DenseKernel, shape: DenseShape) -> int:
        """CTAs of the split kernel that one multiprocessor holds at once; 1 on the CPU. Raises as `call` does."""
        ...

    def load(self, inputs: DenseInputs, l2: str) -> DenseCellBuffers:
        """Put a cell's tensors where the kernels see them, as often as the L2 mode needs."""
        ...

    def synchronize(self) -> None:
        """Wait for everything that was enqueued."""
        ...

    def close(self) -> None: ...


def open_dense_decode(name: str) -> tuple[DenseBackend, str | None]:
    """Open "cpu", "cuda" or "auto" (the GPU if one works); with a line to tell the user, if there is one.

    Raises CannotMeasure for "cuda" where there is no usable GPU, naming what is missing; CompileFailed.
    """
    from dsa_bench.backends.cpu.dense_cells import CpuDense

    return cpu_or_gpu(name, CpuDense, _open_gpu)


def _open_gpu() -> DenseBackend:
    from dsa_bench.backends.cuda.probe import missing_gpu

    missing = missing_gpu()
    if missing is not None:
        raise CannotMeasure(missing)
    from dsa_bench.backends.cuda.dense_cells import CudaDense

    return CudaDense()
