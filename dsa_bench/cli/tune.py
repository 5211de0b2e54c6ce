# SPDX-License-Identifier: MIT
"""`dsa-bench tune`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note
from dsa_bench.cli.measure import measure
from dsa_bench.cli.sources import given, with_scales
from dsa_bench.cli.values import file_name, integer_list, name_list, one_integer, one_of, percentage
from dsa_bench.model.dense import ITEM_BYTES
from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import DataSpec, SparseRequest
from dsa_bench.model.text import quoted
from dsa_bench.splits.kernels import INT8_TC, TUNED_KERNELS, dispatched_kernels

if TYPE_CHECKING:
    from dsa_bench.backends.base import Backend
    from dsa_bench.model.dense_request import DenseRequest
    from dsa_bench.model.run import Run

DEFAULT_CONTEXT = 8192
OPS = ("decode", "dense")
WITH_FROM = ("from_run", "op", "context", "length", "output")
"""Options that mean something where nothing is measured."""
NOT_OF = {
    "decode": ("batch", "capacity", "length", "chunk", "head_size", "value_head_size", "dtype"),
    "dense": (
        "kernels", "rows", "candidates", "tiles_per_split", "context", "key_scale_multiplier", "value_scale_multiplier",
        "invalid_fraction", "selection", "scales_from", "sms", "resident",
    ),
}  # fmt: skip
"""Operator -> options that only the other one has."""


def tune(
    ctx: typer.Context,
    op: Annotated[
        str, typer.Option("--op", parser=one_of(OPS), metavar="|".join(OPS), help="The operator.")
    ] = "decode",
    kernels: Annotated[
        list[str] | None,
        opt.list_option(
            "--kernels",
            name_list(TUNED_KERNELS),
            f"Among which the map chooses, {INT8_TC} one of them. [default: {' '.join(TUNED_KERNELS)} on a GPU "
            f"with clusters, else {INT8_TC}]",
            "NAME...",
        ),
    ] = None,
    rows: Annotated[
        list[int] | None,
        opt.list_option(
            "--rows", integer_list(1), "Query tokens in the launch. [default: 1 2 4 8 on a GPU, 1 4 on the CPU]", "N..."
        ),
    ] = None,
    candidates: Annotated[
        list[int] | None,
        opt.list_option(
            "--candidates",
            integer_list(1),
            "Positions selected for each row. [default: 512 1024 2048 4096 8192 on a GPU, 512 2048 on the CPU]",
            "N...",
        ),
    ] = None,
    tiles_per_split: Annotated[
        list[int] | None,
        opt.list_option(
            "--tiles-per-split",
            integer_list(0),
            "Targets of 64-candidate tiles per split, beside the automatic rule. "
            "[default: 1 2 3 4 6 8 16 on a GPU, 1 2 4 8 on the CPU]",
            "N...",
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context", parser=one_integer(1), metavar="N", help="KV positions in the cache. [default: 8192]"
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        opt.list_option(
            "--batch", integer_list(1), "Of dense: batch entries. [default: 1 2 4 8 on a GPU, 1 on the CPU]", "N..."
        ),
    ] = None,
    capacity: Annotated[
        list[int] | None,
        opt.list_option(
            "--capacity",
            integer_list(1),
            "Of dense: keys that the cache has room for. [default: 512 to 32768 on a GPU, 512 1024 on the CPU]",
            "N...",
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            "--length", parser=one_integer(1), metavar="N", help="Of dense: live keys. [default: each whole capacity]"
        ),
    ] = None,
    chunk: Annotated[
        list[int] | None,
        opt.list_option(
            "--chunk",
            integer_list(1),
            "Of dense: keys per split, beside the automatic rule. [default: 64 to 2048 on a GPU, else 128 to 1024]",
            "N...",
        ),
    ] = None,
    query_heads: Annotated[
        int | None,
        typer.Option(
            "--query-heads", parser=one_integer(1), metavar="N", help="Query heads. [default: 24, of dense 16]"
        ),
    ] = None,
    kv_heads: Annotated[
        int | None,
        typer.Option("--kv-heads", parser=one_integer(1), metavar="N", help="KV heads. [default: 2, of dense 16]"),
    ] = None,
    head_size: Annotated[
        int | None,
        typer.Option(
            "--head-size",
            parser=one_integer(1),
            metavar="N",
            help="Of dense: channels of queries and keys. [default: 192]",
        ),
    ] = None,
    value_head_size: Annotated[
        int | None,
        typer.Option(
            "--value-head-size", parser=one_integer(1), metavar="N", help="Of dense: channels of values. [default: 128]"
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            parser=one_of((*ITEM_BYTES,)),
            metavar="|".join(ITEM_BYTES),
            help="Of dense: type of the elements. [default: f16]",
        ),
    ] = None,
    backend: opt.BackendName = "auto",
    timer: opt.TimerName = "auto",
    l2: opt.L2 = "cold",
    rounds: opt.Rounds = None,
    budget: opt.Budget = None,
    precision: Annotated[
        float | None,
        typer.Option(
            "--precision",
            parser=percentage,
            metavar="P%",
            help="End a cell when the half-width of its intervals is at most this, after 16 rounds or more; "
            "at most 64 without --rounds.",
        ),
    ] = None,
    seed: opt.Seed = 0,
    query_std: opt.QueryStd = 1.4,
    key_scale_multiplier: opt.KeyScaleMultiplier = 1.0,
    value_scale_multiplier: opt.ValueScaleMultiplier = 1.0,
    invalid_fraction: opt.InvalidFraction = 0.0,
    selection: opt.Selection = "sorted",
    scales_from: opt.ScalesFrom = None,
    record: opt.Record = None,
    resume: opt.Resume = False,
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from", parser=file_name, metavar="RUN", help="Measure nothing: make the map of a run that was recorded."
        ),
    ] = None,
    output: opt.OutputFile = None,
    plan: opt.Plan = False,
    sms: opt.Sms = None,
    resident: opt.Resident = None,
) -> None:
    """Find the splits that surely beat the automatic rule, as a map. These are tiles per split, or of dense decode
    chunks (docs/tuning.md)."""
    if from_run is not None:
        _refuse_beside_from(ctx)
        if output is not None:
            _refuse_output(output, None)
        from dsa_bench.model.run import read_run

        run = read_run(from_run)
        _refuse_of_another_run(ctx, run, str(from_run))
        _write(run, context if length is None else length, str(from_run), output)
        return
    from dsa_bench.sweep.tune import tune_policy, tune_request

    _refuse_of_another_op(ctx, op)
    if op == "dense":
        _tune_dense(ctx.params)
        return
    if kernels and INT8_TC not in kernels:
        raise BadInput(f"--kernels {' '.join(kernels)}: must name {INT8_TC}, which runs where no rule holds; add it")
    heads = query_heads or 24, kv_heads or 2
    data = DataSpec(seed, query_std, key_scale_multiplier, value_scale_multiplier, invalid_fraction, selection)
    policy = tune_policy(rounds, budget, precision, timer, l2)

    def request(on_gpu: bool, clusters: bool = True) -> SparseRequest:
        grid = (rows, candidates, tiles_per_split, context or DEFAULT_CONTEXT, heads)
        asked = tune_request(on_gpu, clusters, kernels, *grid, data, policy)
        if scales_from is None:
            return asked
        from dataclasses import replace

        return replace(asked, data=with_scales(data, scales_from, asked.shapes[0]))

    opt.refuse_lone_device_facts(sms, resident, plan, backend)
    _refuse_beside_plan(ctx.params)
    if plan:
        from dsa_bench.sweep.plan import plan_document

        slots = None if sms is None or resident is None else DeviceSlots(sms, resident)
        emit(plan_document(request(backend != "cpu"), backend, slots))
        return
    if resume and record is None:
        raise BadInput("--resume: needs --record FILE, the run to go on with")
    if output is not None:
        _refuse_output(output, record)

    def on_backend(_: SparseRequest, opened: "Backend") -> SparseRequest:
        launched = dispatched_kernels(opened.device.backend, opened.device.clusters)
        for kernel in kernels or ():
            if kernel not in launched:
                raise BadInput(
                    f"--kernels {kernel}: the dispatcher launches it on GPUs with clusters alone, and this device has "
                    "none; leave it out of the map"
                )
        return request(opened.device.backend == "cuda", bool(opened.device.clusters))

    measured = measure(request(backend != "cpu"), backend, record, resume, explain=False, adapt=on_backend)
    if measured.failure is not None:
        raise measured.failure
    _write(measured.run, None, "this run" if record is None else str(record), output)


def _refuse_beside_from(ctx: typer.Context) -> None:
    for name in given(ctx, tuple(name for name in ctx.params if name not in WITH_FROM), ("COMMANDLINE",)):
        raise BadInput(f"--{name.replace('_', '-')}: has no use beside --from, which measures nothing; leave it out")


def _refuse_of_another_run(ctx: typer.Context, run: "Run", where: str) -> None:
    """Raises BadInput for an operator that the run is none of, or for an option that only the other one has."""
    op = "dense" if run.header.plan.get("op") == "dense" else "decode"
    if given(ctx, ("op",)) and ctx.params["op"] != op:
        raise BadInput(
            f"--op {ctx.params['op']}: {where} is a run of {quoted(run.header.plan.get('op'))}; leave it out"
        )
    for name in given(ctx, NOT_OF[op], ("COMMANDLINE",)):
        raise BadInput(f"--{name}: has no use with a run of {op}; leave it out")


def _refuse_beside_plan(options: Mapping[str, Any]) -> None:
    if options["plan"] and (options["resume"] or options["record"] is not None or options["output"] is not None):
        raise BadInput("--plan: measures nothing, so --record, --resume and -o have no use beside it")


def _refuse_output(output: Path, record: Path | None) -> None:
    """Raises BadInput for a map that could not be written, or would be written over the record."""
    from dsa_bench.model.files import refuse_unwritable

    refuse_unwritable(output)
    if record is not None and os.path.realpath(output) == os.path.realpath(record):
        raise BadInput(f"-o {output}: is what --record names too; name another file")


def _refuse_of_another_op(ctx: typer.Context, op: str) -> None:
    """Raises BadInput for an option that only the other operator has."""
    for name in given(ctx, NOT_OF[op]):
        raise BadInput(f"--{name.replace('_', '-')}: has no use with --op {op}; leave it out")


def _tune_dense(options: Mapping[str, Any]) -> None:
    """Measure the grid of dense decode as the options say, and print or write its map."""
    from dsa_bench.cli.dense import measure_dense
    from dsa_bench.model.dense import DenseShape
    from dsa_bench.sweep.dense_plan import dense_plan
    from dsa_bench.sweep.tune import tune_dense_request, tune_policy

    record, output, backend = options["record"], options["output"], options["backend"]
    names = ("query_heads", "kv_heads", "head_size", "value_head_size", "dtype")
    heads = DenseShape(1, 1, **{name: options[name] for name in names if options[name] is not None})
    measuring = (options[name] for name in ("rounds", "budget", "precision", "timer", "l2"))
    policy = tune_policy(*measuring)

    def request(on_gpu: bool) -> "DenseRequest":
        return tune_dense_request(
            on_gpu, options["batch"], options["capacity"], options["length"], options["chunk"], heads,
            options["seed"], options["query_std"], policy,
        )  # fmt: skip

    _refuse_beside_plan(options)
    if options["plan"]:
        emit(dense_plan(request(backend != "cpu"), backend))
        return
    if options["resume"] and record is None:
        raise BadInput("--resume: needs --record FILE, the run to go on with")
    if output is not None:
        _refuse_output(output, record)
    measured = measure_dense(
        request(backend != "cpu"), backend, record, options["resume"],
        adapt=lambda _, opened: request(opened.device.backend == "cuda"),
    )  # fmt: skip
    if measured.failure is not None:
        raise measured.failure
    _write(measured.run, None, "this run" if record is None else str(record), output)


def _write(run: "Run", context: int | None, where: str, output: Path | None) -> None:
    """Print or write the run's map; what a user should hear goes to stderr before it, a wrong result fails after it."""
    from dsa_bench.dispatch.map_file import map_text, write_map
    from dsa_bench.sweep.tune import refuse_unmeasured, refuse_wrong, summary_of, warnings_of
    from dsa_bench.sweep.tuned_map import tuned_map

    tuned = tuned_map(run, context=context, where=where)
    for line in warnings_of(tuned):
        note(f"warning: {line}")
    refuse_unmeasured(tuned)
    for line in summary_of(tuned):
        note(line)
    if output is None:
        emit(map_text(tuned.splits_map))
    else:
        write_map(output, tuned.splits_map)
    refuse_wrong(tuned)
