# SPDX-License-Identifier: MIT
"""What a request would measure, as JSON, without touching a device."""

import json
from dataclasses import asdict
from typing import Any

from dsa_bench.backends.cpu.backend import cpu_device
from dsa_bench.bench.select import refuse_gpu_ceiling, refuse_gpu_timer
from dsa_bench.bench.timers import WallTimer
from dsa_bench.dispatch.choice import Choice
from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import DENSE, SPLIT_KERNELS, Side, SparseCell, SparseRequest
from dsa_bench.model.shape import SparseShape
from dsa_bench.splits.digits import NO_CLUSTERS, PLANNED_CLUSTERS
from dsa_bench.splits.geometry import CpuSparse, CudaSparse, SparseGeometry
from dsa_bench.sweep.cpu_time import cpu_launch_s
from dsa_bench.sweep.variants import Place, cell_choices, cell_variants, side_name, side_variants

PLAN_SCHEMA = "dsa-bench/plan"
SETUP_S = 0.4
"""Data, oracle and checks of a cell of the default shape on two cores."""
GPU_VISIT_S = 0.004


def plan_document(request: SparseRequest, backend: str, slots: DeviceSlots | None) -> str:
    """Requested configurations always; effective ones for the CPU backend or for given `slots`; a time estimate.

    The estimate is rough: it knows the number of visits, not this machine.
    """
    refuse_gpu_timer(request.policy.timer, backend)
    gpu_options = {"--ceiling": request.ceiling, "--dense": request.dense, "--pad-smem": request.pad_smem}
    for flag, asked in gpu_options.items():
        refuse_gpu_ceiling(asked, backend, flag)
    request = request.on("cpu" if slots is None and backend != "cuda" else "cuda")
    geometry: SparseGeometry | None = None
    cta_slots = None if slots is None else slots.ctas
    if slots is not None:
        geometry = CudaSparse(slots.ctas, slots.resident, PLANNED_CLUSTERS.get(slots.sms, NO_CLUSTERS))
    elif backend == "cpu":
        geometry = CpuSparse(cpu_device().sm_count)
    document = {
        "schema": PLAN_SCHEMA,
        "schema_version": 1,
        "op": request.op,
        "backend": backend,
        "cta_slots": cta_slots,
        "requested": [{**_cell(request, cell), **asked} for cell in request.cells for asked in _asked(request)],
        "kernels": [*request.measured_kernels, *([DENSE] if request.dense else [])],
        "sides": [[asdict(option) for option in side] for side in request.sides],
        "rules": list(request.rules),
        "pad_smem": request.pad_smem,
        "effective": None if geometry is None else [_effective(request, geometry, cell) for cell in request.cells],
        "data": asdict(request.data),
        "policy": asdict(request.policy),
        "estimate_s": round(_estimate_s(request, backend, cta_slots), 1),
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _asked(request: SparseRequest) -> list[dict[str, Any]]:
    if request.sides:
        return [{"option": side_name(side)} for side in request.sides]
    if request.op == "prefill":  # is unsplit: there is nothing to ask for
        return [{}]
    return [{"tiles_per_split": value} for value in request.tiles_per_split]


def _cell(request: SparseRequest, cell: SparseCell) -> dict[str, Any]:
    """Its sizes, and how its lists are drawn where cells differ in that."""
    return {**cell.shape.sizes, **({"selection": cell.data.selection} if request.selections else {})}


def _effective(request: SparseRequest, geometry: SparseGeometry, cell: SparseCell) -> dict[str, Any]:
    place = Place.planned(request, geometry)
    if not request.sides:
        variants = cell_variants(request, place, cell.shape)
        return {**_cell(request, cell), "variants": [_variant(variant) for variant in variants]}
    choices = cell_choices(request, place, cell.shape)
    return {
        **_cell(request, cell),
        "choices": [_choice(*one) for one in zip(request.sides, choices, strict=True)],
        "variants": [_variant(variant) for variant in side_variants(request, place, cell.shape, choices)],
    }


def _choice(side: Side, choice: Choice) -> dict[str, Any]:
    """What the dispatcher takes for a side, and the gates of kernels asked before that said no."""
    assert choice.variant is not None
    refused = [f"{gate.kernel}: {gate}" for gate in choice.refusals]
    return {"option": side_name(side), "kernel": choice.kernel, "variant": choice.variant.name, "refused": refused}


def _variant(variant: VariantPlan) -> dict[str, Any]:
    return {
        "name": variant.name,
        "kernel": variant.kernel,
        "requested": list(variant.requested),
        "rules": list(variant.rules),
        "tiles_per_split": variant.split.tiles_per_split,
        "splits": variant.split.splits,
        "ctas": variant.ctas,
    }


def _estimate_s(request: SparseRequest, backend: str, cta_slots: int | None) -> float:
    if request.policy.budget_s is not None:
        return len(request.cells) * SETUP_S + request.policy.budget_s
    assert request.policy.rounds is not None
    values = 1 if request.op == "prefill" else len(request.tiles_per_split) + len(request.rules)
    slots = 1 + bool(request.dense)
    slots += sum(values if kernel in SPLIT_KERNELS else 1 for kernel in request.measured_kernels)
    if request.sides:
        slots = 1 + len(request.sides)
    on_gpu = backend == "cuda" or cta_slots is not None
    visits_s = sum(GPU_VISIT_S if on_gpu else _cpu_visit_s(cell.shape) for cell in request.cells)
    return len(request.cells) * SETUP_S + request.policy.rounds * slots * visits_s


def _cpu_visit_s(shape: SparseShape) -> float:
    return max(WallTimer.min_visit_us / 1e6, cpu_launch_s(shape, cpu_device().sm_count))
