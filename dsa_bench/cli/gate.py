# SPDX-License-Identifier: MIT
"""`dsa-bench gate`."""

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.hyper import measure_hyper


def gate(
    ctx: typer.Context,
    rows: opt.Rows = [*range(1, 9), 8192],
    gated: opt.Gated = 6144,
    width: opt.Width = 10240,
    rank: opt.Rank = 320,
    backend: opt.BackendName = "auto",
    timer: opt.TimerName = "auto",
    l2: opt.L2 = "warm",
    rounds: opt.Rounds = None,
    budget: opt.Budget = None,
    seed: opt.Seed = 0,
    format: opt.Format = "table",
    record: opt.Record = None,
    resume: opt.Resume = False,
    plan: opt.Plan = False,
) -> None:
    """Measure gate-mul and the down projection behind it. They are launched plainly, by programmatic dependent
    launch, and by it with the early trigger, in the same rounds."""
    measure_hyper("gate", ctx.params)
