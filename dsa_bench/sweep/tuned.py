# SPDX-License-Identifier: MIT
"""Measuring what a tuned map chooses, beside the automatic rule in the same rounds."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from dsa_bench.backends.base import Backend
from dsa_bench.backends.dense import DenseBackend
from dsa_bench.dispatch.facts import DENSE_KERNEL, dense_launch_facts, launch_facts
from dsa_bench.dispatch.look_up import LaunchFacts, MapTable, applicable, speaks_of
from dsa_bench.dispatch.target import find_target
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.dense_map import DenseTable
from dsa_bench.model.dense_request import AUTO_RULE, DenseRequest
from dsa_bench.model.errors import BadInput, CannotMeasure
from dsa_bench.model.map_parts import Target
from dsa_bench.model.request import DataSpec, MapFile, Policy, SparseRequest
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.splits_map import AnyTable, SplitsMap, SplitTable
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.splits.kernels import INT8_TC, TUNED_KERNELS, automatic_kernel


def with_tuned(
    request: SparseRequest, backend: Backend, file: str, splits_map: SplitsMap, warn: Callable[[str], None]
) -> SparseRequest:
    """The request with the map's choice and the automatic rule for each shape, as a dispatcher here would choose of
    the kernels that are measured.

    A map that does not hold for this device or these launches chooses the automatic rule, with a warning.
    """
    request = request.on(backend.device.backend)
    if INT8_TC not in request.kernels:
        raise BadInput(f"--splits {file}: chooses splits of {INT8_TC}, and --kernels leaves it out")
    tables: dict[LaunchFacts, MapTable | None] = {}

    def of_map(shape: SparseShape, kernel: str) -> tuple[int | None, str]:
        facts = launch_facts(backend, kernel, shape, request.policy.l2)
        if facts not in tables:
            tables[facts], said = applicable(splits_map, facts) if speaks_of(splits_map, facts) else (None, [])
            for line in said:
                warn(f"{file}: {line}")
        table = tables[facts]
        return None if table is None else table.value(shape.rows, shape.tiles), ""

    kernels = [kernel for kernel in TUNED_KERNELS if kernel in request.kernels]
    capability = backend.device.compute_capability
    found = [find_target(partial(of_map, shape), shape, kernels, capability) for shape in request.shapes]
    return replace(
        request,
        tiles_per_split=tuple(dict.fromkeys((AUTOMATIC, *request.tiles_per_split))),
        tuned=tuple(one.target for one in found),
    )


def verify_request(
    table: SplitTable, capability: object, rounds: int, timer: str, data: DataSpec
) -> SparseRequest | None:
    """Every measured cell of the table that has a rule, with its value, and the kernels that run there without a map.

    capability  of the device, on which these kernels depend
    None for a table without a rule.
    """
    look_up = MapTable(table)
    tuned: dict[SparseShape, Target] = {}
    kernels = {table.kernel}
    for cell in table.cells:
        value = look_up.value(cell.rows, cell.tiles)
        if value is not None:
            heads = (table.group * table.kv_heads, table.kv_heads, table.head_size)
            shape = SparseShape(cell.rows, table.policy.context, cell.tiles * table.tile, *heads)
            tuned[shape] = Target(table.kernel, value)
            kernels.add(automatic_kernel(shape, capability))
    if not tuned:
        return None
    policy = Policy(rounds, None, timer, _l2(table))
    measured = tuple(kernel for kernel in TUNED_KERNELS if kernel in kernels)
    return SparseRequest(tuple(tuned), measured, (AUTOMATIC,), data, policy, tuned=tuple(tuned.values()))


def verify_dense_request(table: DenseTable, rounds: int, timer: str, seed: int) -> DenseRequest | None:
    """As verify_request, of dense decode."""
    look_up = MapTable(table)
    tuned: dict[DenseShape, int] = {}
    for cell in table.cells:
        chunk = look_up.value(cell.rows, cell.capacity)
        if chunk is not None:
            sizes = (table.query_heads, table.kv_heads, table.head_size, table.value_head_size)
            batch = max(cell.rows // table.query_heads, 1)
            tuned[DenseShape(cell.capacity, cell.length, *sizes, batch, dtype=table.dtype)] = chunk
    if not tuned:
        return None
    policy = Policy(rounds, None, timer, _l2(table))
    rules, chunks = (AUTO_RULE,), tuple(tuned.values())
    return DenseRequest(tuple(tuned), (DENSE_KERNEL,), rules, seed, policy=policy, ceiling=False, tuned=chunks)


def with_tuned_chunks(
    request: DenseRequest, backend: DenseBackend, file: Path, splits_map: SplitsMap, warn: Callable[[str], None]
) -> DenseRequest:
    """As with_tuned, of dense decode; the capacity and the rows of a shape decide, never its length."""
    if DENSE_KERNEL not in request.kernels:
        raise BadInput(f"--splits {file}: chooses chunks of {DENSE_KERNEL}, and --kernels leaves it out")
    holding: dict[str, MapTable | None] = {}
    for shape in request.shapes:
        if shape.dtype not in holding:
            facts = dense_launch_facts(backend, shape, request.policy.l2)
            holding[shape.dtype], said = applicable(splits_map, facts)
            for line in said:
                warn(f"{file}: {line}")
    chosen = ((table := holding[shape.dtype]) and table.value(shape.rows, shape.capacity) for shape in request.shapes)
    return replace(
        request,
        rules=tuple(dict.fromkeys((*request.rules, AUTO_RULE))),
        splits=MapFile(str(file), hashlib.sha256(file.read_bytes()).hexdigest()[:16]),
        tuned=tuple(chunk or AUTOMATIC for chunk in chosen),
    )


def refuse_dense_elsewhere(file: str, splits_map: SplitsMap, table: DenseTable, here: DenseBackend) -> None:
    """As refuse_elsewhere, of dense decode."""
    of_heads = DenseShape(
        1, 1, table.query_heads, table.kv_heads, table.head_size, table.value_head_size, dtype=table.dtype
    )
    facts = dense_launch_facts(here, of_heads, _l2(table))
    holding, said = applicable(replace(splits_map, tables=(table,)), facts)
    if holding is None:
        raise CannotMeasure(f"{file}: cannot be verified here: {said[0]}")


def _l2(table: AnyTable) -> str:
    """The mode to ask for; any does on a device that has none."""
    return "cold" if table.l2 == "none" else table.l2


def refuse_elsewhere(file: str, splits_map: SplitsMap, table: SplitTable, here: Backend) -> None:
    """Raises CannotMeasure where the table does not hold for this device, kernel or L2 mode, naming what differs."""
    of_heads = SparseShape(1, 1, 1, table.group * table.kv_heads, table.kv_heads, table.head_size)
    facts = launch_facts(here, table.kernel, of_heads, _l2(table))
    holding, said = applicable(replace(splits_map, tables=(table,)), facts)
    if holding is None:
        raise CannotMeasure(f"{file}: cannot be verified here: {said[0]}")
