# SPDX-License-Identifier: MIT
"""Which backend measures."""

from dsa_bench.backends.base import Backend
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.shape import Op


def open_backend(name: str, op: Op = "decode", pad_smem: int = 0) -> tuple[Backend, str | None]:
    """Open "cpu", "cuda" or "auto" (the GPU if one works); with a line to tell the user, if there is one.

    op        the operator whose kernels a GPU backend compiles
    pad_smem  bytes of shared memory added to its split kernel

    Raises CannotMeasure for "cuda" where there is no usable GPU, naming what is missing.
    """
    from dsa_bench.backends.cpu.backend import CpuBackend

    if name == "cpu":
        return CpuBackend(), None
    try:
        return _open_gpu(op, pad_smem), None
    except CannotMeasure as error:
        if name == "cuda":
            raise CannotMeasure(f"--backend cuda: {error}") from error
        return CpuBackend(), f"measuring the CPU backend: {error}"


def _open_gpu(op: Op, pad_smem: int) -> Backend:
    from dsa_bench.backends.cuda.probe import missing_gpu

    missing = missing_gpu()
    if missing is not None:
        raise CannotMeasure(missing)
    from dsa_bench.backends.cuda.backend import CudaBackend

    return CudaBackend(op, pad_smem=pad_smem)
