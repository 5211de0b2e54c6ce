# SPDX-License-Identifier: MIT
"""The interface of both backends for the hyper-connection operators."""

from collections.abc import Mapping
from typing import Any, Protocol

from dsa_bench.backends.base import ReadyCall
from dsa_bench.backends.select import cpu_or_gpu
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.hyper import HyperOp, LaunchMode
from dsa_bench.model.hyper_inputs import GateInputs, MixInputs, Tensor
from dsa_bench.model.hyper_request import HyperVariant


class HyperBuffers(Protocol):
    """One cell's tensors where the kernels see them, with outputs in each copy of them."""

    def call(self, variant: HyperVariant) -> ReadyCall:
        """VariantRefused if the variant cannot run here or does not take the shape."""
        ...

    def poison(self, variant: HyperVariant, copy: int, value: float) -> None:
        """Overwrite what the variant writes of one copy with a finite value, and wait until that is done."""
        ...

    def outputs(self, variant: HyperVariant, copy: int) -> Mapping[str, Tensor]:
        """Wait, then copies on the host: mixed, activated, or x and out. Nothing for a copy of bytes."""
        ...

    def close(self) -> None: ...


class HyperBackend(Protocol):
    """A device and the kernels of `mix` or of `gate` on it. `stream` is None on the CPU.

    note  what the user should know of the launches here, if anything
    """

    device: DeviceFacts
    stream: Any
    note: str | None

    def kernel_hash(self, variant: HyperVariant) -> str:
        """Changes when the code of the variant's kernels can have changed."""
        ...

    def down_chain(self, inputs: GateInputs) -> int:
        """Additions behind a product in the down projection that the shape gets, which its bound grows with."""
        ...

    def load(self, inputs: MixInputs | GateInputs, l2: str) -> HyperBuffers:
        """Put a cell's tensors where the kernels see them; how often depends on the L2 mode and the variant."""
        ...

    def sigmoid_differences(self) -> tuple[int, int, float | None]:
        """FP32 numbers tried, how many give different bits in the two forms, and the first of those."""
        ...

    def chain(self, sets: tuple[GateInputs, GateInputs], mode: LaunchMode, launches: int) -> Tensor:
        """Launch pairs back to back, the sets in turn over one x: every launch's out, [launches, rows, rank]."""
        ...

    def synchronize(self) -> None:
        """Wait for everything that was enqueued."""
        ...

    def close(self) -> None: ...


def open_hyper(name: str, op: HyperOp) -> tuple[HyperBackend, list[str]]:
    """Open "cpu", "cuda" or "auto" (the GPU if one works) for an operator; with what to tell the user.

    Raises CannotMeasure for "cuda" where there is no usable GPU, naming what is missing; CompileFailed.
    """
    from dsa_bench.backends.cpu.hyper_cells import CpuHyper

    opened: tuple[HyperBackend, str | None] = cpu_or_gpu(name, lambda: CpuHyper(op), lambda: _open_gpu(op))
    backend, line = opened
    return backend, [text for text in (line, backend.note) if text is not None]


def _open_gpu(op: HyperOp) -> HyperBackend:
    from dsa_bench.backends.cuda.probe import missing_gpu

    missing = missing_gpu()
    if missing is not None:
        raise CannotMeasure(missing)
    from dsa_bench.backends.cuda.hyper_cells import CudaHyper

    return CudaHyper(op)
