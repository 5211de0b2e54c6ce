# SPDX-License-Identifier: MIT
"""What `dsa-bench decode` and `dsa-bench prefill` do with their options, which are the same but for a few."""

import itertools
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import typer

from dsa_bench.cli.console import emit
from dsa_bench.cli.measure import judge, measure
from dsa_bench.cli.sources import cells_of_inputs, with_scales
from dsa_bench.cli.tables import print_tables
from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import DataSpec, Policy, SparseRequest
from dsa_bench.model.shape import Op, SparseShape

DEFAULT_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class SparseOptions:
    """The options of either command under their names in cli/options.py; those with a default are not in both."""

    rows: list[int]
    context: list[int]
    candidates: list[int]
    query_heads: int
    kv_heads: int
    kernels: list[str]
    backend: str
    timer: str
    l2: str
    rounds: int | None
    budget: float | None
    seed: int
    query_std: float
    key_scale_multiplier: float
    value_scale_multiplier: float
    invalid_fraction: float
    selection: str
    scales_from: str | None
    inputs: str | None
    format: str
    record: Path | None
    resume: bool
    plan: bool
    sms: int | None
    resident: int | None
    explain: bool
    ceiling: bool | None
    tiles_per_split: tuple[int, ...] = (0,)
    dense: bool | None = False

    @classmethod
    def of(cls, ctx: typer.Context) -> "SparseOptions":
        """As parsed, from the command that runs."""
        return cls(**{field.name: ctx.params[field.name] for field in fields(cls) if field.name in ctx.params})


def measure_sparse(ctx: typer.Context, op: Op) -> None:
    """Measure what the command's options ask for and print its table; or print what would be measured."""
    options = SparseOptions.of(ctx)
    request = _request(ctx, op, options)
    _refuse_contradictions(options)
    if options.plan:
        from dsa_bench.sweep.plan import plan_document

        sms, resident = options.sms, options.resident
        emit(plan_document(request, options.backend, None if sms is None or resident is None else sms * resident))
        return
    measured = measure(request, options.backend, options.record, options.resume, options.explain)
    if measured.failure is not None and not measured.run.visits:
        raise measured.failure
    tables = print_tables(measured.run, options.format)
    if measured.failure is not None:
        raise measured.failure
    judge(tables)


def _request(ctx: typer.Context, op: Op, options: SparseOptions) -> SparseRequest:
    shapes, data = _cells(ctx, op, options)
    rounds = DEFAULT_ROUNDS if options.rounds is None and options.budget is None else options.rounds
    return SparseRequest(
        shapes=shapes,
        kernels=tuple(options.kernels),
        tiles_per_split=tuple(options.tiles_per_split),
        data=data,
        policy=Policy(rounds, options.budget, options.timer, options.l2),
        ceiling=options.ceiling,
        dense=options.dense,
    )


def _cells(ctx: typer.Context, op: Op, options: SparseOptions) -> tuple[tuple[SparseShape, ...], DataSpec]:
    if options.inputs is not None:
        return cells_of_inputs(ctx, options.inputs, op)
    grid = itertools.product(options.rows, options.context, options.candidates)
    shapes = tuple(SparseShape(r, c, n, options.query_heads, options.kv_heads, op=op) for r, c, n in grid)
    data = DataSpec(
        options.seed,
        options.query_std,
        options.key_scale_multiplier,
        options.value_scale_multiplier,
        options.invalid_fraction,
        options.selection,
    )
    return shapes, data if options.scales_from is None else with_scales(data, options.scales_from, shapes[0])


def _refuse_contradictions(options: SparseOptions) -> None:
    """Raises BadInput naming the options that do not go together."""
    if options.resume and options.record is None:
        raise BadInput("--resume: needs --record FILE, the run to go on with")
    if (options.sms is None) != (options.resident is None) or (options.sms is not None and not options.plan):
        raise BadInput("--sms, --resident: go together and with --plan, where they stand for the device's facts")
    if options.sms is not None and options.backend == "cpu":
        raise BadInput("--sms, --resident: are facts of a GPU, and --backend cpu has none")
    if options.plan and (options.record is not None or options.explain):
        raise BadInput("--plan: measures nothing, so --record, --resume and --explain have no use beside it")
    if options.plan and options.format not in ("table", "json"):
        raise BadInput(f"--format {options.format}: --plan prints JSON, and only that")


_NOT_ASKED: dict[str, Any] = {
    "backend": "auto",
    "format": "table",
    "record": None,
    "resume": False,
    "plan": False,
    "sms": None,
    "resident": None,
    "explain": False,
    "ceiling": False,
}
"""What stands for the options that another command than `decode` and `prefill` does not have."""


def sparse_request(ctx: typer.Context, op: Op) -> SparseRequest:
    """The request of a command that has the options of cells, data and policy, and maybe not the others."""
    asked = {field.name: ctx.params[field.name] for field in fields(SparseOptions) if field.name in ctx.params}
    options = SparseOptions(**(_NOT_ASKED | asked))
    _refuse_contradictions(options)
    return _request(ctx, op, options)
