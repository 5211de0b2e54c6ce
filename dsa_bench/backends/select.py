# SPDX-License-Identifier: MIT
"""Which backend measures."""

from collections.abc import Callable
from typing import TypeVar

from dsa_bench.backends.base import Backend, Dense
from dsa_bench.model.errors import CannotMeasure, CompileFailed
from dsa_bench.model.shape import Op

Opened = TypeVar("Opened")


def open_backend(name: str, op: Op = "decode", pad_smem: int = 0) -> tuple[Backend, str | None]:
    """Open "cpu", "cuda" or "auto" (the GPU if one works); with a line to tell the user, if there is one.

    op        the operator whose kernels a GPU backend compiles
    pad_smem  bytes of shared memory added to its split kernel

    Raises CannotMeasure for "cuda" where there is no usable GPU, naming what is missing.
    """
    from dsa_bench.backends.cpu.backend import CpuBackend

    return cpu_or_gpu(name, CpuBackend, lambda: _open_gpu(op, pad_smem))


def cpu_or_gpu(name: str, cpu: Callable[[], Opened], gpu: Callable[[], Opened]) -> tuple[Opened, str | None]:
    """What `cpu` or `gpu` opens for "cpu", "cuda" or "auto" (the GPU if one works); with a line to tell the user, if
    there is one.

    Raises what `gpu` raises for "cuda", and CompileFailed for "auto" too: it is no reason to measure something else.
    """
    if name == "cpu":
        return cpu(), None
    try:
        return gpu(), None
    except CompileFailed:
        raise
    except CannotMeasure as error:
        if name == "cuda":
            raise CannotMeasure(f"--backend cuda: {error}") from error
        return cpu(), f"measuring the CPU backend: {error}"


def _open_gpu(op: Op, pad_smem: int) -> Backend:
    from dsa_bench.backends.cuda.probe import missing_gpu

    missing = missing_gpu()
    if missing is not None:
        raise CannotMeasure(missing)
    from dsa_bench.backends.cuda.backend import CudaBackend

    return CudaBackend(op, pad_smem=pad_smem)


def open_dense(asked: bool | None, l2: str, backend: Backend) -> tuple[Dense | None, str | None]:
    """Dense attention beside the sparse kernels of a GPU, or none; with a line to tell the user, if there is one.

    asked  None takes it where it is to be had; for True, CannotMeasure says what it lacks
    Opened after the timer: torch then finds the profiler's CUPTI in the process and brings no second one.
    """
    if asked is False or backend.device.backend != "cuda":
        return None, None
    from dsa_bench.backends.cuda.torch_sdpa import TorchDense

    try:
        if l2 == "cold":
            raise CannotMeasure("dense attention rotates through no copies, so it has no cold L2; use --l2 warm")
        return TorchDense(backend.stream), None
    except CannotMeasure as error:
        if asked:
            raise CannotMeasure(f"--dense: {error}") from error
        return None, f"no dense line: {error}"
