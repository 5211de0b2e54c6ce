# SPDX-License-Identifier: MIT
"""`dsa-bench decode`."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note
from dsa_bench.cli.measure import judge, measure
from dsa_bench.cli.sides import dispatcher_sides
from dsa_bench.cli.sources import cells_of_inputs, with_scales
from dsa_bench.cli.tables import print_tables
from dsa_bench.model.costs import SplitCosts
from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import SPARSE_KERNELS, SPLIT_KERNELS, DataSpec, Policy, SparseRequest
from dsa_bench.model.shape import SparseShape
from dsa_bench.splits.model_file import read_model
from dsa_bench.splits.registry import MODEL

if TYPE_CHECKING:
    from dsa_bench.backends.base import Backend

DEFAULT_ROUNDS = 16


def decode(
    ctx: typer.Context,
    rows: opt.Rows = [1, 8],
    context: opt.Context = [8192],
    candidates: opt.Candidates = [2048],
    query_heads: opt.QueryHeads = 24,
    kv_heads: opt.KvHeads = 2,
    tiles_per_split: opt.TilesPerSplit = [0],
    kernels: opt.Kernels = list(SPARSE_KERNELS),
    option: opt.DispatcherOption = None,
    backend: opt.BackendName = "auto",
    timer: opt.TimerName = "auto",
    l2: opt.L2 = "warm",
    rounds: opt.Rounds = None,
    budget: opt.Budget = None,
    seed: opt.Seed = 0,
    query_std: opt.QueryStd = 1.4,
    key_scale_multiplier: opt.KeyScaleMultiplier = 1.0,
    value_scale_multiplier: opt.ValueScaleMultiplier = 1.0,
    invalid_fraction: opt.InvalidFraction = 0.0,
    selection: opt.Selection = "sorted",
    scales_from: opt.ScalesFrom = None,
    inputs: opt.Inputs = None,
    format: opt.Format = "table",
    record: opt.Record = None,
    resume: opt.Resume = False,
    plan: opt.Plan = False,
    sms: opt.Sms = None,
    resident: opt.Resident = None,
    explain: opt.Explain = False,
    ceiling: opt.Ceiling = False,
    rules: opt.Rules = None,
    model: opt.Model = None,
    pad_smem: opt.PadSmem = 0,
    splits: opt.Splits = None,
) -> None:
    """Measure the decode kernels over a grid of shapes, in paired rounds, after checking each against FP64."""
    if inputs is not None:
        shapes, data = cells_of_inputs(ctx, inputs)
    else:
        grid = itertools.product(rows, context, candidates)
        shapes = tuple(SparseShape(r, c, n, query_heads, kv_heads) for r, c, n in grid)
        data = DataSpec(seed, query_std, key_scale_multiplier, value_scale_multiplier, invalid_fraction, selection)
        if scales_from is not None:
            data = with_scales(data, scales_from, shapes[0])
    sides, tuned_map = dispatcher_sides(ctx, option, splits)
    request = SparseRequest(
        shapes=shapes,
        kernels=tuple(kernels),
        tiles_per_split=tuple(tiles_per_split),
        data=data,
        policy=Policy(DEFAULT_ROUNDS if rounds is None and budget is None else rounds, budget, timer, l2),
        ceiling=ceiling,
        sides=sides,
        splits=tuned_map,
        rules=tuple(rules or ()),
        costs=_costs(rules or [], model, kernels),
        pad_smem=pad_smem,
    )
    if resume and record is None:
        raise BadInput("--resume: needs --record FILE, the run to go on with")
    opt.refuse_lone_device_facts(sms, resident, plan, backend)
    if plan:
        if splits is not None:
            raise BadInput("--splits: what a map chooses depends on the device, and --plan asks none; leave one out")
        if record is not None or explain:
            raise BadInput("--plan: measures nothing, so --record, --resume and --explain have no use beside it")
        if format not in ("table", "json"):
            raise BadInput(f"--format {format}: --plan prints JSON, and only that")
        from dsa_bench.sweep.plan import plan_document

        slots = None if sms is None or resident is None else DeviceSlots(sms, resident)
        emit(plan_document(request, backend, slots))
        return
    adapt = None if splits is None or sides else _tuned(splits)
    measured = measure(request, backend, record, resume, explain, adapt)
    if measured.failure is not None and not measured.run.visits:
        raise measured.failure
    tables = print_tables(measured.run, format)
    if measured.failure is not None:
        raise measured.failure
    judge(tables)


def _tuned(file: Path) -> "Callable[[SparseRequest, Backend], SparseRequest]":
    """What a request becomes with the map's choices in it. Raises BadInput naming file and place of a bad map."""
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.sweep.tuned import with_tuned

    splits_map = read_map(file)
    return lambda request, backend: with_tuned(
        request, backend, str(file), splits_map, lambda line: note(f"warning: {line}")
    )


def _costs(rules: list[str], model: Path | None, kernels: list[str]) -> SplitCosts | None:
    """The constants of the rule `model`, if it is asked for. Raises BadInput for options that do not go together."""
    if rules and not set(kernels) & set(SPLIT_KERNELS):
        raise BadInput("--rules: choose splits of int8-tc, and --kernels leaves it out")
    if (MODEL in rules) != (model is not None):
        raise BadInput("--rules model, --model FILE: go together; FILE is what `dsa-bench rule fit` wrote")
    return None if model is None else read_model(model).costs
