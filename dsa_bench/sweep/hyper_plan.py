# SPDX-License-Identifier: MIT
"""What `mix` or `gate` would measure, as JSON, without touching a device."""

import json
from dataclasses import asdict

from dsa_bench.bench.select import refuse_gpu_ceiling, refuse_gpu_timer
from dsa_bench.bench.timers import WallTimer
from dsa_bench.model.hyper import MixShape
from dsa_bench.model.hyper_request import HyperRequest, HyperShape
from dsa_bench.sweep.plan import GPU_VISIT_S, PLAN_SCHEMA, SETUP_S

CPU_GBPS = 0.25
"""Of a sigmoid's inputs and outputs, with two workers."""
CPU_GFLOPS = 50.0
"""Of the projection, with two workers."""


def refuse_gpu_options(request: HyperRequest, backend: str) -> None:
    """Raises BadInput for a GPU's timer or ceiling beside the CPU backend."""
    refuse_gpu_timer(request.policy.timer, backend)
    refuse_gpu_ceiling(request.ceiling, backend)


def hyper_plan(request: HyperRequest, backend: str) -> str:
    """Cells and variants, and a time estimate that knows the number of visits, not this machine.

    Raises BadInput as refuse_gpu_options does.
    """
    refuse_gpu_options(request, backend)
    request = request.on("cpu" if backend != "cuda" else "cuda")
    document = {
        "schema": PLAN_SCHEMA,
        "schema_version": 1,
        "op": request.op,
        "backend": backend,
        "requested": [shape.sizes for shape in request.shapes],
        "kernels": [variant.name for variant in request.variants],
        "data": {"seed": request.seed},
        "policy": asdict(request.policy),
        "estimate_s": round(_estimate_s(request, backend), 1),
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _estimate_s(request: HyperRequest, backend: str) -> float:
    setup_s = len(request.shapes) * SETUP_S
    if request.policy.budget_s is not None:
        return setup_s + request.policy.budget_s
    assert request.policy.rounds is not None
    visit_s = sum(GPU_VISIT_S if backend == "cuda" else _cpu_visit_s(shape) for shape in request.shapes)
    return setup_s + request.policy.rounds * (1 + len(request.variants)) * visit_s


def _cpu_visit_s(shape: HyperShape) -> float:
    if isinstance(shape, MixShape):
        launch_s = shape.mix_bytes / (CPU_GBPS * 1e9)
    else:
        flops = 2 * shape.rows * shape.width * shape.rank
        launch_s = shape.gate_bytes / (CPU_GBPS * 1e9) + flops / (CPU_GFLOPS * 1e9)
    return max(WallTimer.min_visit_us / 1e6, launch_s)
