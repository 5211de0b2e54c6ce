# SPDX-License-Identifier: MIT
"""What `dsa-bench decode` and `dsa-bench prefill` do with their options, which are the same but for a few."""

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note
from dsa_bench.cli.measure import measure, print_measured
from dsa_bench.cli.sides import dispatcher_sides
from dsa_bench.cli.sources import cells_of_inputs, with_scales
from dsa_bench.model.costs import SplitCosts
from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import RULED_KERNELS, DataSpec, Policy, SparseRequest
from dsa_bench.model.shape import Op, SparseShape
from dsa_bench.splits.model_file import read_model
from dsa_bench.splits.registry import MODEL

if TYPE_CHECKING:
    from dsa_bench.backends.base import Backend

DEFAULT_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class SparseOptions:
    """The options of either command under their names in cli/options.py; those with a default are not in both."""

    rows: list[int]
    context: list[int]
    candidates: list[int]
    query_heads: int
    kv_heads: int
    kernels: list[str] | None
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
    selection: str | list[str]
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
    rules: list[str] | None = None
    model: Path | None = None
    pad_smem: int = 0
    splits: Path | None = None
    option: list[str] | None = None

    @property
    def selections(self) -> list[str]:
        return [self.selection] if isinstance(self.selection, str) else self.selection

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
        slots = None if sms is None or resident is None else DeviceSlots(sms, resident)
        emit(plan_document(request, options.backend, slots))
        return
    adapt = None if options.splits is None or request.sides else _tuned(options.splits)
    measured = measure(request, options.backend, options.record, options.resume, options.explain, adapt)
    print_measured(measured, options.format)


def _tuned(file: Path) -> "Callable[[SparseRequest, Backend], SparseRequest]":
    """What a request becomes with the map's choices in it. Raises BadInput naming file and place of a bad map."""
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.sweep.tuned import with_tuned

    splits_map = read_map(file)
    return lambda request, backend: with_tuned(
        request, backend, str(file), splits_map, lambda line: note(f"warning: {line}")
    )


def _request(ctx: typer.Context, op: Op, options: SparseOptions) -> SparseRequest:
    shapes, data = _cells(ctx, op, options)
    sides, tuned_map = dispatcher_sides(ctx, options.option, options.splits)
    rounds = DEFAULT_ROUNDS if options.rounds is None and options.budget is None else options.rounds
    return SparseRequest(
        shapes=shapes,
        kernels=() if sides else tuple(options.kernels or ()),
        tiles_per_split=tuple(options.tiles_per_split),
        data=data,
        policy=Policy(rounds, options.budget, options.timer, options.l2),
        ceiling=options.ceiling,
        dense=options.dense,
        rules=tuple(options.rules or ()),
        costs=_costs(options),
        pad_smem=options.pad_smem,
        sides=sides,
        splits=tuned_map,
        selections=tuple(options.selections) if len(options.selections) > 1 else (),
    )


def _costs(options: SparseOptions) -> SplitCosts | None:
    """The constants of the rule `model`, if it is asked for. Raises BadInput for options that do not go together."""
    rules = options.rules or []
    if rules and options.kernels and not set(options.kernels) & set(RULED_KERNELS):
        raise BadInput("--rules: choose splits of int8-tc, and --kernels leaves it out")
    if (MODEL in rules) != (options.model is not None):
        raise BadInput("--rules model, --model FILE: go together; FILE is what `dsa-bench rule fit` wrote")
    return None if options.model is None else read_model(options.model).costs


def _cells(ctx: typer.Context, op: Op, options: SparseOptions) -> tuple[tuple[SparseShape, ...], DataSpec]:
    """The shapes, and the data of each, where they differ in their selection with the first."""
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
        options.selections[0],
    )
    return shapes, data if options.scales_from is None else with_scales(data, options.scales_from, shapes[0])


def _refuse_contradictions(options: SparseOptions) -> None:
    """Raises BadInput naming the options that do not go together."""
    opt.refuse_lone_device_facts(options.sms, options.resident, options.plan, options.backend)
    opt.refuse_contradictions(asdict(options))


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
