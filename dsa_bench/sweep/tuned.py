# SPDX-License-Identifier: MIT
"""Measuring what a tuned map chooses, beside the automatic rule in the same rounds."""

from collections.abc import Callable
from dataclasses import replace

from dsa_bench.backends.base import Backend
from dsa_bench.dispatch.facts import launch_facts
from dsa_bench.dispatch.look_up import MapTable, applicable
from dsa_bench.model.errors import BadInput, CannotMeasure
from dsa_bench.model.request import DataSpec, Policy, SparseRequest
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.splits_map import SplitsMap, SplitTable
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.sweep.tuned_map import KERNEL


def with_tuned(
    request: SparseRequest, backend: Backend, file: str, splits_map: SplitsMap, warn: Callable[[str], None]
) -> SparseRequest:
    """The request with the map's choice and the automatic rule for each shape, as a dispatcher here would choose.

    A map that does not hold for this device or these launches chooses the automatic rule, with a warning.
    """
    if KERNEL not in request.kernels:
        raise BadInput(f"--splits {file}: chooses splits of {KERNEL}, and --kernels leaves it out")
    holding, said = applicable(splits_map, launch_facts(backend, KERNEL, request.shapes[0], request.policy.l2))
    for line in said:
        warn(f"{file}: {line}")
    return replace(
        request,
        tiles_per_split=tuple(dict.fromkeys((AUTOMATIC, *request.tiles_per_split))),
        tuned=tuple(_value(holding, shape) for shape in request.shapes),
    )


def _value(holding: MapTable | None, shape: SparseShape) -> int:
    value = None if holding is None else holding.tiles_per_split(shape.rows, shape.tiles)
    return AUTOMATIC if value is None else value


def verify_request(table: SplitTable, rounds: int, timer: str, data: DataSpec) -> SparseRequest | None:
    """Every measured cell of the table that has a rule, with its value; None for a table without a rule."""
    look_up = MapTable(table)
    tuned: dict[SparseShape, int] = {}
    for cell in table.cells:
        value = look_up.tiles_per_split(cell.rows, cell.tiles)
        if value is not None:
            heads = (table.group * table.kv_heads, table.kv_heads, table.head_size)
            tuned[SparseShape(cell.rows, table.policy.context, cell.tiles * table.tile, *heads)] = value
    if not tuned:
        return None
    policy = Policy(rounds, None, timer, _l2(table))
    return SparseRequest(tuple(tuned), (KERNEL,), (AUTOMATIC,), data, policy, tuned=tuple(tuned.values()))


def _l2(table: SplitTable) -> str:
    """The mode to ask for; any does on a device that has none."""
    return "cold" if table.l2 == "none" else table.l2


def refuse_elsewhere(file: str, splits_map: SplitsMap, table: SplitTable, here: Backend) -> None:
    """Raises CannotMeasure where the table does not hold for this device, kernel or L2 mode, naming what differs."""
    of_heads = SparseShape(1, 1, 1, table.group * table.kv_heads, table.kv_heads, table.head_size)
    facts = launch_facts(here, KERNEL, of_heads, _l2(table))
    holding, said = applicable(replace(splits_map, tables=(table,)), facts)
    if holding is None:
        raise CannotMeasure(f"{file}: cannot be verified here: {said[0]}")
