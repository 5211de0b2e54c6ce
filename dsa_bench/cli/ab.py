# SPDX-License-Identifier: MIT
"""`dsa-bench ab`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.compare import Format, Metric, Threshold, print_comparison
from dsa_bench.cli.measure import measure
from dsa_bench.cli.sparse import sparse_request
from dsa_bench.cli.values import integer_list, one_of
from dsa_bench.model.errors import BadInput, CannotMeasure, GateFailed
from dsa_bench.model.request import KERNELS, SPARSE_KERNELS
from dsa_bench.model.shape import OPS
from dsa_bench.model.sides import SIDES, at_side

if TYPE_CHECKING:
    from dsa_bench.model.run import Run
    from dsa_bench.model.shape import Op
    from dsa_bench.report.comparison import Comparison

DEFAULT_ROWS = {"decode": [1, 8], "prefill": [128]}
NO_SPLITS = [0]


def ab(
    ctx: typer.Context,
    rev_a: Annotated[str, typer.Argument(help="A git revision, or a folder of kernels.", metavar="REV_A")],
    rev_b: Annotated[str, typer.Argument(help="Another one; . is the tree as it lies.", metavar="REV_B")],
    op: Annotated[
        str, typer.Option("--op", parser=one_of(OPS), metavar="|".join(OPS), help="The operator.")
    ] = "decode",
    rows: Annotated[
        list[int] | None,
        opt.list_option(
            "--rows", integer_list(1), "Query tokens in the launch. [default: 1 8; for prefill 128]", "N..."
        ),
    ] = None,
    context: opt.Context = [8192],
    candidates: opt.Candidates = [2048],
    query_heads: opt.QueryHeads = 24,
    kv_heads: opt.KvHeads = 2,
    tiles_per_split: opt.TilesPerSplit = NO_SPLITS,
    kernels: opt.Kernels = list(SPARSE_KERNELS),
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
    threshold: Threshold = "1%",  # pyright: ignore[reportArgumentType] - parsed
    metric: Metric = "attention",
    format: Format = "table",
    record: opt.Record = None,
    resume: opt.Resume = False,
) -> None:
    """Measure the kernels of two git revisions in the same rounds. Or of two folders. A wrong result is
    exit 1; it needs a GPU.

    Both are compiled side by side and checked against FP64; B is judged against A. Verdicts change no exit code.
    """
    from dsa_bench.jit.revisions import kernel_trees
    from dsa_bench.report.ab import compare_ab
    from dsa_bench.report.compare import Terms

    operator = cast("Op", op)
    if operator == "prefill" and tiles_per_split != NO_SPLITS:
        raise BadInput("--tiles-per-split: prefill is unsplit; leave it out")
    for kernel in kernels:
        if kernel not in KERNELS[operator]:
            raise BadInput(f"--kernels {kernel}: is no kernel of {op}; there are {', '.join(KERNELS[operator])}")
    ctx.params["rows"] = rows or DEFAULT_ROWS[op]
    request = sparse_request(ctx, operator)
    request = replace(request, kernels=tuple(at_side(kernel, side) for kernel in request.kernels for side in SIDES))
    terms = Terms("call" if metric == "call" else "attention", threshold, paired=True)
    with kernel_trees(rev_a, rev_b) as (a, b):
        from dsa_bench.backends.cuda.sides import open_sides

        folders = a.folder, b.folder
        measured = measure(request, "cuda", record, resume, explain=False, opener=lambda: open_sides(operator, folders))
        names = f"A = {rev_a}", f"B = {rev_b}"
        commits = a.origin[:12], b.origin[:12]
    if measured.failure is not None and not measured.run.visits:
        raise measured.failure
    comparison = compare_ab(measured.run, names, commits, terms)
    print_comparison(comparison, format)
    if measured.failure is not None:
        raise measured.failure
    _judge(measured.run, comparison)


def _judge(run: "Run", comparison: "Comparison") -> None:
    """Raise if a side was wrong, or if a cell has nothing to compare."""
    last = {(check.cell, check.variant): check for check in run.checks}
    wrong = [f"{check.variant} ({check.reason})" for check in last.values() if check.status == "wrong_result"]
    if wrong:
        raise GateFailed(f"wrong result: {'; '.join(wrong)}")
    empty = [cell for cell in comparison.cells if not any(row.compared for row in cell.rows)]
    if empty:
        reason = next((row.reason for row in empty[0].rows if row.reason), "no complete round")
        raise CannotMeasure(f"nothing could be compared in {empty[0].label}: {reason}")
