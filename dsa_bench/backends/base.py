# SPDX-License-Identifier: MIT
"""The interface that both backends implement."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.inputs import DecodeInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.oracle.attention import F64
from dsa_bench.splits.geometry import DecodeGeometry

Launch = Callable[[int], None]
"""Enqueue one call. The argument counts calls, so that a launch can rotate through copies of its inputs."""


class DecodeBuffers(Protocol):
    """One cell's tensors where the kernels see them. Made by Backend.load, given back by close."""

    def launcher(self, variant: VariantPlan) -> Launch:
        """A call that is ready to enqueue: every check made, every buffer allocated."""
        ...

    def fill_output(self, value: float) -> None:
        """Overwrite the output with one finite value and wait until that is done."""
        ...

    def output(self) -> NDArray[np.generic]:
        """Wait, then a copy of the output on the host: [rows, query_heads, head_size] bf16."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """A device and the decode kernels on it."""

    device: DeviceFacts
    geometry: DecodeGeometry

    def kernel_hash(self, kernel: str) -> str:
        """Changes when the kernel's code can have changed, and only then."""
        ...

    def bound(self, kernel: str, inputs: DecodeInputs, rows: NDArray[np.int64], out: F64) -> F64:
        """How far the kernel's output may lie from the FP64 oracle, elementwise (oracle/tolerance.py)."""
        ...

    def load(self, inputs: DecodeInputs) -> DecodeBuffers: ...

    def close(self) -> None: ...
