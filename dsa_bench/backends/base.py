# SPDX-License-Identifier: MIT
"""The interface that both backends implement."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.call import LaunchSite, SparseCall, TensorView
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.attention import F64
from dsa_bench.oracle.survey import Look, survey
from dsa_bench.splits.geometry import SparseGeometry

Launch = Callable[[int], None]
"""Enqueue one call. The argument counts calls, so that a launch can rotate through copies of its inputs."""
Enqueue = Callable[[], None]
"""Enqueue one kernel whose arguments are fixed: one driver call, which allocates and waits for nothing."""


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call of dense decode or of a hyper-connection operator that is ready to enqueue.

    ctas     thread blocks (CPU backend: tasks): of all its kernels, of dense decode of the attention kernel alone
    kernels  names under which a profiler sees its kernels; empty on the CPU
    copies   copies of the tensors that launches rotate through
    facts    of an attention kernel of dense decode: `resident` CTAs that one SM holds, `waves` of the launch on the
             whole device, and on a GPU `occupancy`, the share of the device's warps that it fills
    """

    launch: Launch
    ctas: int
    kernels: tuple[str, ...] = ()
    copies: int = 1
    facts: Mapping[str, float] = field(default_factory=dict[str, float])


class SparseBuffers(Protocol):
    """One cell's tensors where the kernels see them. Made by Backend.load, given back by close.

    copies  copies of the inputs that launches rotate through
    """

    copies: int

    def launcher(self, variant: VariantPlan) -> Launch:
        """A call that is ready to enqueue: every check made, every buffer allocated.

        Raises VariantRefused or CompileFailed for this variant alone, BadInput for data beyond its arithmetic.
        """
        ...

    def fill_output(self, value: float) -> None:
        """Overwrite the output with one finite value and wait until that is done."""
        ...

    def output(self) -> NDArray[np.generic]:
        """Wait, then a copy of the output on the host: [rows, query_heads, head_size] bf16."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class TellsPaths(Protocol):
    """What SparseBuffers may offer in addition: how the CTAs of a launch decided to compute (docs/numerics.md)."""

    def paths(self, variant: VariantPlan) -> dict[str, int] | None:
        """Launch once, counting: {path: CTAs that ended on it}, every path of the kernel, the fastest first.

        The counts add up to variant.ctas. None for a kernel that has one path. Waits; not for timed launches.
        """
        ...


class Timed(Protocol):
    """What a timer must know of a backend. `stream` is where launches go; None on the CPU."""

    device: DeviceFacts
    stream: Any

    def synchronize(self) -> None:
        """Wait for everything that was enqueued."""
        ...


class Backend(Protocol):
    """A device and the kernels on it. `stream` is where launches go; None on the CPU."""

    device: DeviceFacts
    geometry: SparseGeometry
    stream: Any

    def site(self) -> LaunchSite | None:
        """What the gates may know of the device and of the kernels loaded on it; None on the CPU."""
        ...

    def kernel_hash(self, kernel: str) -> str:
        """Changes when the kernel's code can have changed, and only then."""
        ...

    def bound(self, kernel: str, inputs: SparseInputs, rows: NDArray[np.int64], out: F64, look: Look = survey) -> F64:
        """How far the kernel's output may lie from the FP64 oracle, elementwise (oracle/tolerance.py).

        look  how closely the rows' logits are looked at
        """
        ...

    def rounds_keys(self, kernel: str) -> bool:
        """Whether the kernel multiplies queries with keys in BF16, whose noise its RMS error may then have."""
        ...

    def device_kernels(self, variant: VariantPlan) -> tuple[str, ...]:
        """Names under which a profiler sees the kernels of one call; empty on the CPU."""
        ...

    def load(self, inputs: SparseInputs, l2: str) -> SparseBuffers:
        """Put a cell's tensors where the kernels see them, as often as the L2 mode needs."""
        ...

    def synchronize(self) -> None:
        """Wait for everything that was enqueued."""
        ...

    def close(self) -> None: ...


class Runtime(Protocol):
    """A device as a program uses it that has its own arrays and streams (dsa_bench.dispatch)."""

    device: DeviceFacts
    geometry: SparseGeometry

    def site(self) -> LaunchSite | None:
        """See Backend; of the kernels of both operators."""
        ...

    def kernel_hash(self, kernel: str) -> str:
        """See Backend; of a decode kernel."""
        ...

    def allocate(self, nbytes: int) -> TensorView:
        """Memory of the device, aligned to 16 bytes at least, which lives as long as the view's owner."""
        ...

    def launches(
        self, variant: VariantPlan, shape: SparseShape, call: SparseCall, workspace: TensorView | None, stream: int
    ) -> list[Enqueue]:
        """The kernels of one call, in order. `workspace` holds the partials of variant.split, or union_bytes; None
        where neither is needed, and for `int8-digits`, for which a runtime keeps what it needs."""
        ...

    def union_bytes(self, variant: VariantPlan, shape: SparseShape) -> int:
        """Workspace of a prefill call: the unions of rows that share candidates; 0 for a kernel that makes none."""
        ...

    def zero(self, out: TensorView, stream: int) -> list[Enqueue]:
        """What sets an output to zeros."""
        ...

    def close(self) -> None: ...


class DenseBuffers(Protocol):
    """One cell's tensors for dense attention.

    implementations  those that a library may have, by name
    last_resort      the one that is run only if no other is right
    """

    implementations: tuple[str, ...]
    last_resort: str

    def launcher(self, implementation: str) -> Launch:
        """A call that is warm and ready to enqueue or capture. VariantRefused saying why it cannot run."""
        ...

    def time_us(self, launch: Launch) -> float:
        """Roughly how long one call takes."""
        ...

    def output(self) -> NDArray[np.generic]:
        """Wait, then what the last call computed: [rows, query_heads, head_size] bf16."""
        ...

    def close(self) -> None: ...


class Dense(Protocol):
    """A library's dense attention, on the backend's device and stream. `version` stands for its kernels' hash."""

    @property
    def version(self) -> str: ...

    def load(self, inputs: SparseInputs) -> DenseBuffers:
        """VariantRefused if the device's memory does not hold the cell."""
        ...
