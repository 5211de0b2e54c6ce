# SPDX-License-Identifier: MIT
"""`dsa-bench decode`."""

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, lines_to_user, note, only_the_result_on_stdout
from dsa_bench.cli.sources import cells_of_inputs, with_scales
from dsa_bench.cli.tables import print_tables
from dsa_bench.model.errors import BadInput, CannotMeasure, GateFailed
from dsa_bench.model.request import DECODE_KERNELS, DataSpec, DecodeRequest, Policy
from dsa_bench.model.shape import DecodeShape

if TYPE_CHECKING:
    from dsa_bench.model.run import Run

DEFAULT_ROUNDS = 16


def decode(
    ctx: typer.Context,
    rows: opt.Rows = [1, 8],
    context: opt.Context = [8192],
    candidates: opt.Candidates = [2048],
    query_heads: opt.QueryHeads = 24,
    kv_heads: opt.KvHeads = 2,
    tiles_per_split: opt.TilesPerSplit = [0],
    kernels: opt.Kernels = list(DECODE_KERNELS),
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
        shapes = tuple(DecodeShape(r, c, n, query_heads, kv_heads) for r, c, n in grid)
        data = DataSpec(seed, query_std, key_scale_multiplier, value_scale_multiplier, invalid_fraction, selection)
        if scales_from is not None:
            data = with_scales(data, scales_from, shapes[0])
    request = DecodeRequest(
        shapes=shapes,
        kernels=tuple(kernels),
        tiles_per_split=tuple(tiles_per_split),
        data=data,
        policy=Policy(DEFAULT_ROUNDS if rounds is None and budget is None else rounds, budget, timer, l2),
        ceiling=ceiling,
    )
    if resume and record is None:
        raise BadInput("--resume: needs --record FILE, the run to go on with")
    if (sms is None) != (resident is None) or (sms is not None and not plan):
        raise BadInput("--sms, --resident: go together and with --plan, where they stand for the device's facts")
    if plan:
        from dsa_bench.sweep.plan import plan_document

        emit(plan_document(request, backend, None if sms is None or resident is None else sms * resident))
        return
    with only_the_result_on_stdout():
        run = _measure(request, backend, record, resume, explain)
    print_tables(run, format)
    _judge(run)


def _measure(request: DecodeRequest, backend_name: str, record: Path | None, resume: bool, explain: bool) -> "Run":
    from dsa_bench.backends.select import open_backend
    from dsa_bench.bench.clocks import open_clocks
    from dsa_bench.bench.select import open_timer
    from dsa_bench.cli.progress import RunProgress
    from dsa_bench.splits.explain import explain_cell
    from dsa_bench.sweep.decode import Bench, run_decode

    backend, said = open_backend(backend_name)
    try:
        timer, said_of_timer = open_timer(request.policy.timer, backend, backend_name)
        if explain:
            for shape in request.shapes:
                lines_to_user(explain_cell(backend.geometry, shape, request.kernels, request.tiles_per_split))
        on_gpu = backend.device.backend == "cuda"
        if request.ceiling and not on_gpu:
            raise CannotMeasure("--ceiling: measures GPU kernels, and no GPU is used here; leave it out")
        l2, clocks = (request.policy.l2, open_clocks()) if on_gpu else ("none", None)
        with RunProgress([line for line in (said, said_of_timer) if line]) as progress:
            return run_decode(
                request, Bench(backend, timer, l2, clocks), progress, argv=sys.argv[1:], record=record, resume=resume
            )
    except KeyboardInterrupt:
        if record is not None and record.exists():
            note(f"what was measured is in {record}; the same command with --resume goes on")
        raise
    finally:
        backend.close()


def _judge(run: "Run") -> None:
    """Warn of variants without a time; raise if one was wrong, or if a cell has none that was right."""
    for check in run.checks:
        if check.status not in ("ok", "wrong_result"):
            note(f"warning: {check.variant} was not measured: {check.reason}")
    wrong = sorted({check.variant for check in run.checks if check.status == "wrong_result"})
    if wrong:
        raise GateFailed(f"wrong result: {', '.join(wrong)}; see the table for the element and its bound")
    empty = {check.cell for check in run.checks} - {check.cell for check in run.checks if check.status == "ok"}
    if empty:
        raise CannotMeasure(f"no variant could be measured for {', '.join(sorted(empty))}")
