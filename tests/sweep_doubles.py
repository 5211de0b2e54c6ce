# SPDX-License-Identifier: MIT
"""Recorded sweeps over tiles per split whose times are made up."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.record import Check, Header, Visit
from dsa_bench.model.run import Run
from dsa_bench.model.shape import SparseShape
from dsa_bench.splits.digits import cluster_counts
from dsa_bench.splits.geometry import CpuSparse, CudaSparse, effective_variants

Time = Callable[[SparseShape, int], float]
"""(shape, tiles per split of the longest split) -> microseconds, before noise."""
H200 = DeviceFacts("cuda", "NVIDIA H200", 132, "9.0", resident_ctas=3, clusters={
    "16": 7, "8": 15, "7": 15, "6": 17, "5": 22, "4": 30, "3": 39, "2": 66, "1": 132
})  # fmt: skip
"""As its driver counted on 2026-11-30."""


def swept(
    shapes: Sequence[SparseShape],
    time_us: Time,
    *,
    values: Sequence[int] = (0, 1, 2, 4, 8),
    rounds: int = 16,
    noise: float = 0.005,
    seed: int = 0,
    slots: int = 396,
    control: float = 1.0,
    fails: Mapping[int, str | float] | None = None,
    header: Mapping[str, Any] | None = None,
    digits: Time | None = None,
    device: DeviceFacts = H200,
) -> Run:
    """A run on a fake CPU with `slots` workers. fails: tiles per split -> status of its check, or NaN for no time.

    digits  the times of `int8-digits` beside it: then the run is one of `device`, an H200
    """
    facts = DeviceFacts("cpu", "CPU", slots, runtime="numpy 2", resident_ctas=1) if digits is None else device
    clusters = cluster_counts(facts.clusters)
    device_geometry = CpuSparse(slots) if digits is None else CudaSparse(396, 3, clusters)
    of_kernel = {"int8-tc": time_us} if digits is None else {"int8-tc": time_us, "int8-digits": digits}
    fields: dict[str, Any] = {
        "created": "2026-01-02T03:04:05Z", "version": "0.1.0", "commit": None, "dirty": None, "argv": ("tune",),
        "seed": 0, "device": asdict(facts), "versions": {}, "plan": {"op": "decode"},
        "kernel_hashes": {"int8-tc": "1" * 16, **({} if digits is None else {"int8-digits": "2" * 16})},
    }  # fmt: skip
    run = Run(Header(**(fields | dict(header or {}))))
    draw = random.Random(seed)
    for shape in shapes:
        plans = effective_variants(device_geometry, shape, [*of_kernel], values)
        right = []
        for plan in plans:
            failure = next((how for value, how in (fails or {}).items() if value in plan.requested), None)
            status: Any = failure if isinstance(failure, str) else "ok"
            geometry = (plan.split.tiles_per_split, plan.split.splits, plan.ctas)
            run.add(Check(shape.key, plan.name, plan.kernel, "1" * 16, plan.requested, *geometry, "d", status,
                          None if status == "ok" else "out[0, 0, 0] is 9", 1e-3, 1e-3))  # fmt: skip
            if status == "ok":
                right.append((plan, failure))
        auto = next((plan for plan, _ in right if 0 in plan.requested), right[0][0] if right else None)
        for index in range(rounds):
            drift = 1 + 0.02 * draw.random()
            slots_of_round = [*((plan, failure, False) for plan, failure in right), (auto, None, True)] if right else []
            for place, (plan, failure, second) in enumerate(slots_of_round):
                read = of_kernel[plan.kernel](shape, plan.split.tiles_per_split) * drift * (1 + draw.gauss(0, noise))
                read *= control if second else 1.0
                timed = (read, read, "ok", None) if failure is None else (None, None, "below_resolution", "read 0 us")
                place_in_run = (index, 0, place, second, "wall", "none", 10)
                run.add(Visit(shape.key, plan.name, "1" * 16, plan.requested, plan.split.splits, *place_in_run, *timed))
    return run
