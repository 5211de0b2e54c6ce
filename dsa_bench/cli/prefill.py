# SPDX-License-Identifier: MIT
"""`dsa-bench prefill`. Its options are read by cli/sparse.py, from the context."""

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.sparse import measure_sparse
from dsa_bench.model.request import PREFILL_KERNELS


def prefill(
    ctx: typer.Context,
    rows: opt.Rows = [128],
    context: opt.Context = [8192],
    candidates: opt.Candidates = [2048],
    query_heads: opt.QueryHeads = 24,
    kv_heads: opt.KvHeads = 2,
    kernels: opt.PrefillKernels = list(PREFILL_KERNELS),
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
    selection: opt.EachSelection = ["sorted"],
    scales_from: opt.ScalesFrom = None,
    inputs: opt.Inputs = None,
    format: opt.Format = "table",
    record: opt.Record = None,
    resume: opt.Resume = False,
    plan: opt.Plan = False,
    sms: opt.Sms = None,
    resident: opt.Resident = None,
    explain: opt.Explain = False,
    ceiling: opt.PrefillCeiling = None,
    dense: opt.Dense = None,
) -> None:
    """Measure the prefill kernels over a grid of shapes. Rounds are paired, and each kernel is checked
    against FP64 first.

    The default of 128 rows is one that a laptop's CPU bears; a GPU takes --rows 128 2048 8192.
    """
    measure_sparse(ctx, "prefill")
