# SPDX-License-Identifier: MIT
"""Which backend measures."""

from dsa_bench.backends.base import Backend
from dsa_bench.model.errors import CannotMeasure


def open_backend(name: str) -> tuple[Backend, str | None]:
    """Open "cpu", "cuda" or "auto" (the GPU if one works); with a line to tell the user, if there is one.

    Raises CannotMeasure for "cuda" where there is no usable GPU, naming what is missing.
    """
    from dsa_bench.backends.cpu.backend import CpuBackend

    if name == "cpu":
        return CpuBackend(), None
    try:
        return _open_gpu(), None
    except CannotMeasure as error:
        if name == "cuda":
            raise CannotMeasure(f"--backend cuda: {error}") from error
        return CpuBackend(), f"measuring the CPU backend: {error}"


def _open_gpu() -> Backend:
    from dsa_bench.backends.cuda.probe import missing_gpu

    missing = missing_gpu()
    if missing is not None:
        raise CannotMeasure(missing)
    from dsa_bench.backends.cuda.backend import CudaBackend

    return CudaBackend()
