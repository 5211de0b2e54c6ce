# SPDX-License-Identifier: MIT
"""How long a launch takes on the CPU backend, roughly, and from where on that is no measurement any more."""

from dsa_bench.data.synthetic import peak_bytes
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.shape import SparseShape

CPU_GFLOPS_PER_WORKER = 10.0
LONGEST_LAUNCH_S = 10.0
"""A cell has some 60 launches: two of each variant, then 16 rounds with three."""


def cpu_launch_s(shape: SparseShape, workers: int) -> float:
    """Seconds of one call: two products of rows * query_heads * candidates * head_size terms."""
    flops = 4 * shape.rows * shape.query_heads * shape.candidates * shape.head_size
    return flops / (CPU_GFLOPS_PER_WORKER * 1e9 * workers)


def refuse_long_launches(shape: SparseShape, workers: int) -> None:
    """Raises CannotMeasure if a prefill would take longer than LONGEST_LAUNCH_S a launch, naming its memory as well."""
    launch_s = cpu_launch_s(shape, workers)
    if shape.op == "prefill" and launch_s > LONGEST_LAUNCH_S:
        fitting = max(int(shape.rows * LONGEST_LAUNCH_S / launch_s), 1)
        raise CannotMeasure(
            f"{shape.key}: takes {peak_bytes(shape) / 2**30:.1f} GiB of memory and about {launch_s:.0f} s a launch on "
            f"{workers} CPU workers, and the CPU backend measures launches of up to {LONGEST_LAUNCH_S:g} s; ask for up "
            f"to {fitting} --rows, or for --backend cuda"
        )
