# SPDX-License-Identifier: MIT
"""The facts that a map's tables are matched with, of a backend that is open."""

from dsa_bench.backends.base import Backend
from dsa_bench.dispatch.look_up import LaunchFacts
from dsa_bench.model.shape import TILE, SparseShape


def launch_facts(backend: Backend, kernel: str, shape: SparseShape, l2: str) -> LaunchFacts:
    """What a launch of `kernel` for such heads is made with here."""
    device = backend.device
    return LaunchFacts(
        op=shape.op,
        kernel=kernel,
        kernel_hash=backend.kernel_hash(kernel),
        device=device.name,
        compute_capability=device.compute_capability,
        sm_count=device.sm_count,
        cta_slots=backend.geometry.slots.ctas,
        tile=TILE,
        head_size=shape.head_size,
        group=shape.group,
        kv_heads=shape.kv_heads,
        l2=l2,
        driver=device.driver,
        runtime=device.runtime,
    )
