# SPDX-License-Identifier: MIT
"""`dsa-bench mix`."""

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.hyper import measure_hyper
from dsa_bench.model.hyper import BRANCHES
from dsa_bench.model.hyper_request import MIX_KERNELS


def mix(
    ctx: typer.Context,
    rows: opt.Rows = [1, 8, 2048, 8192],
    hidden: opt.Hidden = 2560,
    branches: opt.Branches = BRANCHES,
    rank: opt.Rank = 320,
    kernels: opt.MixKernels = list(MIX_KERNELS),
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
    ceiling: opt.CopyCeiling = None,
) -> None:
    """Measure PreMix and ScaledSilu with either sigmoid. Branchy and branch-free are measured in the same
    rounds, and each is checked against FP64 first."""
    measure_hyper("mix", ctx.params)
