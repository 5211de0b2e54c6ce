# SPDX-License-Identifier: MIT
"""Why a launch gets its splits: the map's table, rule and measured cell, or why the map does not hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsa_bench.backends.base import Backend
from dsa_bench.backends.dense import DenseBackend
from dsa_bench.dispatch.facts import DENSE_KERNEL, dense_launch_facts, launch_facts
from dsa_bench.dispatch.look_up import AnyFacts, MapTable, applicable, mismatches, nearest, speaks_of
from dsa_bench.dispatch.target import find_in_tables
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.splits_map import AnyCell, AnyRule, AnyTable, SplitsMap
from dsa_bench.splits.dense import chunk_of, fixed, seed_adaptive
from dsa_bench.splits.digits import cluster_counts
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.splits.kernels import INT8_TC, TUNED_KERNELS, automatic_kernel
from dsa_bench.splits.map_values import target_of


@dataclass(frozen=True, slots=True)
class Explained:
    """What a map says of one launch.

    outcome  "hit": a rule holds; "miss": none does; "mismatch": the map is not for this device or launch; "pinned": the
             environment's chunk wins over it
    differing  tables that do not hold for this device, kernel or launch -> what differs, a line for each field
    here     what else is said of the map, a line each: it holds no table, or the driver is another
    table    the table that holds, or the nearest that does not
    sizes    what else the launch is asked for by name: candidates and tiles, or capacity; said, the same in words
    size     of these the one that rules are looked up by
    kernel   that the launch gets, of decode with every switch of the dispatcher on; value, its tiles per split or
             chunk, 0 for the automatic rule
    """

    op: str
    file: str
    outcome: str
    differing: Mapping[str, Sequence[str]]
    here: Sequence[str]
    table: AnyTable | None
    rows: int
    sizes: Mapping[str, int]
    said: str
    size: int
    kernel: str
    value: int
    splits: int
    automatic: int
    automatic_kernel: str
    automatic_splits: int

    @property
    def rule(self) -> AnyRule | None:
        """The rule that the table has for the shape, whether it holds here or not."""
        if self.table is None or MapTable(self.table).value(self.rows, self.size) is None:
            return None
        return next(
            rule
            for rule in self.table.rules
            if rule.rows[0] <= self.rows <= rule.rows[1] and rule.size[0] <= self.size <= rule.size[1]
        )

    @property
    def cell(self) -> AnyCell | None:
        """The shape as it was measured, if it was."""
        cells = () if self.table is None else self.table.cells
        return next((cell for cell in cells if cell.shape == (self.rows, self.size)), None)


def explain_launch(file: str, splits_map: SplitsMap, backend: Backend, shape: SparseShape, l2: str) -> Explained:
    """What the map, read from `file`, says of a decode launch on an open backend."""
    facts = {kernel: launch_facts(backend, kernel, shape, l2) for kernel in TUNED_KERNELS}
    found = {kernel: applicable(splits_map, one) for kernel, one in facts.items() if speaks_of(splits_map, one)}
    holding = {kernel: table for kernel, (table, _) in found.items() if table is not None}
    capability = backend.device.compute_capability
    chosen = find_in_tables(holding, shape, TUNED_KERNELS, capability)
    kernel, value = chosen.target
    without = automatic_kernel(shape, capability)
    automatic = backend.geometry.plan(without, shape, AUTOMATIC).split
    target = target_of(shape, without, automatic.splits, cluster_counts(backend.device.clusters))
    return Explained(
        op="decode",
        file=file,
        outcome="mismatch" if not holding else "hit" if chosen.by_map else "miss",
        differing=_differing(splits_map, [facts[kernel] for kernel in found if kernel not in holding]),
        here=[*dict.fromkeys(line for kernel in holding for line in found[kernel][1])] or _no_table(splits_map),
        table=nearest(splits_map, facts[kernel if kernel in found else INT8_TC]),
        rows=shape.rows,
        sizes={"candidates": shape.candidates, "tiles": shape.tiles},
        said=f"candidates {shape.candidates} ({shape.tiles} tiles)",
        size=shape.tiles,
        kernel=kernel,
        value=value,
        splits=backend.geometry.plan(kernel, shape, value).split.splits,
        automatic=automatic.tiles_per_split if target is None else target.value,
        automatic_kernel=without,
        automatic_splits=automatic.splits,
    )


def explain_dense_launch(
    file: str, splits_map: SplitsMap, backend: DenseBackend, shape: DenseShape, l2: str, pinned: int | None = None
) -> Explained:
    """What the map, read from `file`, says of a launch of dense decode on an open backend, whatever its length.

    pinned  the chunk that ONNX_GENAI_ATTN_SPLIT_CHUNK asks for, which wins over a map
    Raises VariantRefused where the tuned kernel does not take the heads, CompileFailed.
    """
    facts = dense_launch_facts(backend, shape, l2)
    holding, said = applicable(splits_map, facts)
    tuned = None if holding is None else holding.value(shape.rows, shape.capacity)
    value = pinned or tuned
    automatic = seed_adaptive(shape.capacity, shape.rows)
    chosen = fixed(shape.capacity, shape.rows, value) if value else automatic
    outcome = "mismatch" if holding is None else "miss" if tuned is None else "hit"
    return Explained(
        op="dense",
        file=file,
        outcome="pinned" if pinned else outcome,
        differing=_differing(splits_map, [facts] if holding is None else []),
        here=_no_table(splits_map) if holding is None else said,
        table=nearest(splits_map, facts),
        rows=shape.rows,
        sizes={"capacity": shape.capacity},
        said=f"capacity {shape.capacity}",
        size=shape.capacity,
        kernel=DENSE_KERNEL,
        value=value or AUTOMATIC,
        splits=chosen.splits,
        automatic=chunk_of(shape.capacity, automatic.splits) or automatic.chunk,
        automatic_kernel=DENSE_KERNEL,
        automatic_splits=automatic.splits,
    )


def _differing(splits_map: SplitsMap, launches: Sequence[AnyFacts]) -> dict[str, list[str]]:
    """The table nearest to each launch that none holds for -> what differs."""
    tables = ((nearest(splits_map, facts), facts) for facts in launches)
    return {table.name: mismatches(splits_map, table, facts) for table, facts in tables if table is not None}


def _no_table(splits_map: SplitsMap) -> list[str]:
    return [] if splits_map.tables else ["the map holds no table"]
