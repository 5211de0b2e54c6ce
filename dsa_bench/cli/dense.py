# SPDX-License-Identifier: MIT
"""`dsa-bench dense`."""

import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, lines_to_user, note, only_the_result_on_stdout
from dsa_bench.cli.measure import print_measured
from dsa_bench.cli.operator import measure_operator, print_checks
from dsa_bench.cli.part import WHOLE, Part
from dsa_bench.cli.sparse import DEFAULT_ROUNDS
from dsa_bench.model.dense import DENSE_KERNELS, DenseDtype, DenseKernel, DenseShape
from dsa_bench.model.dense_request import DEFAULT_RULES, OFF, DenseRequest
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.request import Policy
from dsa_bench.splits.dense import CHUNK_VARIABLE, parse_rule, pinned_name

if TYPE_CHECKING:
    from dsa_bench.backends.dense import DenseBackend
    from dsa_bench.sweep.runs import Measured


def dense(
    ctx: typer.Context,
    capacity: opt.Capacity = [4096],
    length: opt.Length = [24, 520, 2600],
    batch: opt.Batch = [1],
    query_heads: opt.QueryHeads = 16,
    kv_heads: opt.KvHeads = 16,
    head_size: opt.HeadSize = 192,
    value_head_size: opt.ValueHeadSize = 128,
    dtype: opt.Dtype = ["f16"],
    rule: opt.DenseRules = None,
    kernels: opt.DenseKernels = list(DENSE_KERNELS),
    backend: opt.BackendName = "auto",
    timer: opt.TimerName = "auto",
    l2: opt.L2 = "warm",
    rounds: opt.Rounds = None,
    budget: opt.Budget = None,
    seed: opt.Seed = 0,
    query_std: opt.QueryStd = 1.4,
    format: opt.Format = "table",
    record: opt.Record = None,
    resume: opt.Resume = False,
    plan: opt.Plan = False,
    explain: opt.Explain = False,
    ceiling: opt.LiveCeiling = None,
    splits: opt.MapBeside = None,
) -> None:
    """Measure dense split-KV decode under each split rule. Rounds are paired, and each kernel is checked
    against FP64 first."""
    request = dense_request(ctx.params, os.environ)
    opt.refuse_contradictions(ctx.params)
    if rule is None and (pinned := pinned_name(os.environ)):
        note(f"{CHUNK_VARIABLE} pins the chunk: the rules are {OFF} and {pinned}; --rule names others")
    if plan:
        from dsa_bench.sweep.dense_plan import dense_plan

        emit(dense_plan(request, backend))
        return
    measured = measure_dense(request, backend, record, resume, explain, _tuned(splits) if splits else None)
    print_measured(measured, format)


def dense_request(options: Mapping[str, Any], environment: Mapping[str, str]) -> DenseRequest:
    """The request of the command's options, under their names in cli/options.py; of an entry of a sweep file as well.

    environment  may pin the chunk, where no rule is named
    """
    from dsa_bench.bench.select import refuse_gpu_ceiling

    if options["rule"] is None:
        pinned = pinned_name(environment)
        rules = DEFAULT_RULES if pinned is None else (OFF, pinned)
    else:
        rules = tuple(options["rule"])
    for name in rules:
        parse_rule(name)
    refuse_gpu_ceiling(options["ceiling"], options["backend"])
    rounds, budget_s = options["rounds"], options["budget"]
    rounds = DEFAULT_ROUNDS if rounds is None and budget_s is None else rounds
    heads = options["query_heads"], options["kv_heads"], options["head_size"], options["value_head_size"]
    grid = itertools.product(options["dtype"], options["batch"], options["capacity"], options["length"])
    return DenseRequest(
        shapes=tuple(
            DenseShape(capacity, length, *heads, batch, dtype=cast("DenseDtype", dtype))
            for dtype, batch, capacity, length in grid
        ),
        kernels=tuple(cast("list[DenseKernel]", options["kernels"])),
        rules=rules,
        seed=options["seed"],
        query_std=options["query_std"],
        policy=Policy(rounds, budget_s, options["timer"], options["l2"]),
        ceiling=options["ceiling"],
    )


def _tuned(file: Path) -> "Callable[[DenseRequest, DenseBackend], DenseRequest]":
    """What a request becomes with the map's choices in it. Raises BadInput naming file and place of a bad map."""
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.sweep.tuned import with_tuned_chunks

    splits_map = read_map(file)
    return lambda request, backend: with_tuned_chunks(
        request, backend, file, splits_map, lambda line: note(f"warning: {line}")
    )


def measure_dense(
    request: DenseRequest,
    backend_name: str,
    record: Path | None,
    resume: bool,
    explain: bool = False,
    adapt: "Callable[[DenseRequest, DenseBackend], DenseRequest] | None" = None,
    opener: "Callable[[], DenseBackend] | None" = None,
    part: Part = WHOLE,
) -> "Measured":
    """Measure the request on the backend asked for.

    adapt   what the request becomes on the backend that was opened
    opener  opens another backend than `backend_name` says
    part    the request's place in a larger run
    """
    from dsa_bench.backends.dense import open_dense_decode
    from dsa_bench.bench.select import refuse_gpu_timer
    from dsa_bench.sweep.dense import DenseOperator
    from dsa_bench.sweep.dense_plan import explain_dense

    refuse_gpu_timer(request.policy.timer, backend_name)
    with only_the_result_on_stdout():
        backend, said = (opener(), None) if opener else open_dense_decode(backend_name)
        try:
            if request.ceiling and backend.device.backend != "cuda":
                raise CannotMeasure("--ceiling: measures GPU kernels, and no GPU is used here; leave it out")
            adapted = (request if adapt is None else adapt(request, backend)).on(backend.device.backend)
            if explain:
                lines_to_user([*explain_dense(adapted)])
            return measure_operator(
                lambda l2: DenseOperator(adapted, backend, l2),
                backend, backend_name, adapted.policy, [said] if said else [], record, resume, part,
            )  # fmt: skip
        finally:
            backend.close()


def check_dense_op(backend_name: str, format: str) -> None:
    """Check every kernel and print the result. Raises GateFailed for a wrong one, CannotMeasure where a case is taken
    by none."""
    from dsa_bench.backends.dense import open_dense_decode
    from dsa_bench.cli.progress import CaseProgress
    from dsa_bench.sweep.dense_check import check_dense, dense_cases

    backend, said = open_dense_decode(backend_name)
    try:
        if said:
            note(said)
        with only_the_result_on_stdout(), CaseProgress(len(dense_cases())) as progress:
            results = list(check_dense(backend, progress.begin))
    finally:
        backend.close()
    print_checks("dense", results, backend.device, format)
    idle = {result.case for result in results} - {result.case for result in results if result.status == "ok"}
    if idle:
        raise CannotMeasure(f"no kernel takes {', '.join(sorted(idle))}; see the table for the reason")
