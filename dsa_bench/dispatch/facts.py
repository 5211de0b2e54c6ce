# SPDX-License-Identifier: MIT
"""The facts that a map's tables are matched with, of a backend that is open."""

from typing import Any, Protocol

from dsa_bench.backends.dense import DenseBackend
from dsa_bench.dispatch.look_up import DenseLaunchFacts, LaunchFacts
from dsa_bench.model.dense import DenseKernel, DenseShape
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.request import DIGITS
from dsa_bench.model.shape import TILE, SparseShape
from dsa_bench.splits.geometry import SparseGeometry
from dsa_bench.splits.kernels import kernel_slots

DENSE_KERNEL: DenseKernel = "fast"
"""The kernel of dense decode whose chunks are tuned."""


class Host(Protocol):
    """What a choice has to know of where it launches, apart from the gates: any Backend or Runtime."""

    @property
    def device(self) -> DeviceFacts: ...

    @property
    def geometry(self) -> SparseGeometry: ...

    def kernel_hash(self, kernel: str) -> str: ...


def launch_facts(backend: Host, kernel: str, shape: SparseShape, l2: str) -> LaunchFacts:
    """What a launch of `kernel` for such heads is made with here."""
    return LaunchFacts(
        op=shape.op,
        kernel=kernel,
        kernel_hash=backend.kernel_hash(kernel),
        cta_slots=kernel_slots(kernel, backend.geometry.slots),
        clusters=backend.device.held if kernel == DIGITS else None,
        tile=TILE,
        head_size=shape.head_size,
        group=shape.group,
        kv_heads=shape.kv_heads,
        l2=l2,
        **_of_device(backend.device),
    )


def dense_launch_facts(backend: DenseBackend, shape: DenseShape, l2: str) -> DenseLaunchFacts:
    """What a split launch of the tuned kernel for such heads is made with here.

    Raises VariantRefused where the kernel does not take them, CompileFailed.
    """
    return DenseLaunchFacts(
        op="dense",
        kernel=DENSE_KERNEL,
        kernel_hash=backend.kernel_hash(DENSE_KERNEL, shape),
        cta_slots=backend.device.sm_count * backend.resident_ctas(DENSE_KERNEL, shape),
        dtype=shape.dtype,
        head_size=shape.head_size,
        value_head_size=shape.value_head_size,
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        l2=l2,
        **_of_device(backend.device),
    )


def _of_device(device: DeviceFacts) -> dict[str, Any]:
    return {
        "device": device.name,
        "compute_capability": device.compute_capability,
        "sm_count": device.sm_count,
        "driver": device.driver,
        "runtime": device.runtime,
    }
