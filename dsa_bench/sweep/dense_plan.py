# SPDX-License-Identifier: MIT
"""What `dense` would measure, as JSON or in words, without touching a device."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from dsa_bench.bench.select import refuse_gpu_ceiling, refuse_gpu_timer
from dsa_bench.bench.timers import WallTimer
from dsa_bench.model.cell_key import cell_words
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.dense_request import COPY, DenseRequest
from dsa_bench.splits.dense import dense_variants
from dsa_bench.sweep.dense import plan_facts
from dsa_bench.sweep.plan import GPU_VISIT_S, PLAN_SCHEMA, SETUP_S

DRAWN_GBPS = 0.15
"""Of a cell's cache, drawn and hashed, and of the oracle's reading of its live part."""
CPU_GBPS = 1.0
"""Of the live keys and values, with two workers."""


def dense_plan(request: DenseRequest, backend: str) -> str:
    """Cells and variants, each with its geometry, which no device decides; and a time estimate that knows the number of
    visits, not this machine.

    Raises BadInput for a GPU's timer or ceiling beside the CPU backend.
    """
    refuse_gpu_timer(request.policy.timer, backend)
    refuse_gpu_ceiling(request.ceiling, backend)
    request = request.on("cpu" if backend != "cuda" else "cuda")
    document = {
        "schema": PLAN_SCHEMA,
        "schema_version": 1,
        "op": request.op,
        "backend": backend,
        "requested": [{**shape.sizes, "dtype": shape.dtype} for shape in request.shapes],
        "kernels": [*request.kernels, *([COPY] if request.ceiling else [])],
        "rules": list(request.rules),
        "effective": [_effective(request, shape) for shape in request.shapes],
        "data": {"seed": request.seed, "query_std": request.query_std},
        "policy": asdict(request.policy),
        "estimate_s": round(_estimate_s(request, backend), 1),
    }
    return json.dumps(document, indent=1, allow_nan=False)


def explain_dense(request: DenseRequest) -> Iterator[str]:
    """A line for each cell, then one for each launch with the rules that choose it."""
    for shape in request.shapes:
        yield cell_words(dict(part.split("=", 1) for part in shape.key.split(",")))
        for one in dense_variants(request.kernels, request.rules, shape, request.tuned_value(shape)):
            plan, facts = one.plan, plan_facts(one.plan, shape)
            geometry = "monolithic" if plan.splits == 1 else f"{plan.splits} splits of {facts['chunk']:g} keys"
            read = ", the chunk read from the live length" if plan.live else ""
            alive = f"{facts['alive']:g} alive, {shape.rows * plan.splits} CTAs"
            yield f"  {one.name}: {geometry}{read}, {alive}, by {' = '.join(one.rules)}"


def _effective(request: DenseRequest, shape: DenseShape) -> dict[str, Any]:
    variants = [
        {
            "name": one.name,
            "kernel": one.kernel,
            "requested": list(one.requested),
            "rules": list(one.rules),
            "splits": one.plan.splits,
            **plan_facts(one.plan, shape),
            "ctas": shape.rows * one.plan.splits,
        }
        for one in dense_variants(request.kernels, request.rules, shape, request.tuned_value(shape))
    ]
    return {**shape.sizes, "dtype": shape.dtype, "variants": variants}


def _estimate_s(request: DenseRequest, backend: str) -> float:
    setup_s = sum(SETUP_S / 4 + (shape.cache_bytes + shape.live_bytes) / (DRAWN_GBPS * 1e9) for shape in request.shapes)
    if request.policy.budget_s is not None:
        return setup_s + request.policy.budget_s
    assert request.policy.rounds is not None
    visits_s = 0.0
    for shape in request.shapes:
        visits = 1 + len(dense_variants(request.kernels, request.rules, shape)) + bool(request.ceiling)
        visits_s += visits * (GPU_VISIT_S if backend == "cuda" else _cpu_visit_s(shape))
    return setup_s + request.policy.rounds * visits_s


def _cpu_visit_s(shape: DenseShape) -> float:
    return max(WallTimer.min_visit_us / 1e6, shape.live_bytes / (CPU_GBPS * 1e9))
