# SPDX-License-Identifier: MIT
"""`dsa-bench decode`."""

import itertools

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit
from dsa_bench.cli.measure import judge, measure
from dsa_bench.cli.sides import dispatcher_sides
from dsa_bench.cli.sources import cells_of_inputs, with_scales
from dsa_bench.cli.tables import print_tables
from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import SPARSE_KERNELS, DataSpec, Policy, SparseRequest
from dsa_bench.model.shape import SparseShape

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
    splits: opt.Splits = None,
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
    )
    if resume and record is None:
        raise BadInput("--resume: needs --record FILE, the run to go on with")
    opt.refuse_lone_device_facts(sms, resident, plan, backend)
    if plan:
        if record is not None or explain:
            raise BadInput("--plan: measures nothing, so --record, --resume and --explain have no use beside it")
        if format not in ("table", "json"):
            raise BadInput(f"--format {format}: --plan prints JSON, and only that")
        from dsa_bench.sweep.plan import plan_document

        cta_slots = None if sms is None or resident is None else sms * resident
        emit(plan_document(request, backend, cta_slots))
        return
    measured = measure(request, backend, record, resume, explain)
    if measured.failure is not None and not measured.run.visits:
        raise measured.failure
    tables = print_tables(measured.run, format)
    if measured.failure is not None:
        raise measured.failure
    judge(tables)
