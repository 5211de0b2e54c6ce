# SPDX-License-Identifier: MIT
"""Which backend measures."""

from dsa_bench.backends.base import Backend
from dsa_bench.model.errors import CannotMeasure


def open_backend(name: str) -> tuple[Backend, str | None]:
    """Open "cpu", "cuda" or "auto" (the GPU if one works); with a line to tell the user, if there is one.

    Raises CannotMeasure for "cuda" where there is no usable GPU, naming what is missing.
    """
    from dsa_bench.backends.cpu.backend import CpuBackend
    from dsa_bench.backends.cuda.probe import missing_gpu

    if name == "cpu":
        return CpuBackend(), None
    missing = missing_gpu()
    if missing is None:
        from dsa_bench.backends.cuda.backend import CudaBackend

        return CudaBackend(), None
    if name == "cuda":
        raise CannotMeasure(f"--backend cuda: {missing}")
    return CpuBackend(), f"measuring the CPU backend: {missing}"
