# SPDX-License-Identifier: MIT
"""Why a launch gets its tiles per split: the map's table, rule and measured cell, or why the map does not hold."""

from dataclasses import dataclass

from dsa_bench.backends.base import Backend
from dsa_bench.dispatch.facts import launch_facts
from dsa_bench.dispatch.look_up import MapTable, applicable, nearest
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.splits_map import MapCell, MapRule, SplitsMap, SplitTable
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.splits.targets import smallest_target

KERNEL = "int8-tc"
"""The kernel that takes tiles per split."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What a map says of one launch.

    outcome  "hit": a rule holds; "miss": none does; "mismatch": the map is not for this device or launch
    here     what is said of the device, kernel and driver, if anything; from dispatch.look_up.applicable
    table    the table that holds, or the nearest that does not
    value    the tiles per split that the launch gets; 0 for the automatic rule
    """

    file: str
    outcome: str
    here: str | None
    table: SplitTable | None
    rows: int
    candidates: int
    tiles: int
    value: int
    splits: int
    automatic: int
    automatic_splits: int

    @property
    def rule(self) -> MapRule | None:
        """The rule that the table has for the shape, whether it holds here or not."""
        if self.table is None or MapTable(self.table).tiles_per_split(self.rows, self.tiles) is None:
            return None
        return next(
            rule
            for rule in self.table.rules
            if rule.rows[0] <= self.rows <= rule.rows[1] and rule.tiles[0] <= self.tiles <= rule.tiles[1]
        )

    @property
    def cell(self) -> MapCell | None:
        """The shape as it was measured, if it was."""
        cells = () if self.table is None else self.table.cells
        return next((cell for cell in cells if (cell.rows, cell.tiles) == (self.rows, self.tiles)), None)


def explain_launch(file: str, splits_map: SplitsMap, backend: Backend, shape: SparseShape, l2: str) -> Explained:
    """What the map, read from `file`, says of a decode launch on an open backend."""
    facts = launch_facts(backend, KERNEL, shape, l2)
    holding, said = applicable(splits_map, facts)
    value = None if holding is None else holding.tiles_per_split(shape.rows, shape.tiles)
    automatic = backend.geometry.plan(KERNEL, shape, AUTOMATIC).split
    chosen = backend.geometry.plan(KERNEL, shape, value or AUTOMATIC).split
    return Explained(
        file=file,
        outcome="mismatch" if holding is None else "miss" if value is None else "hit",
        here=said[0] if said else None,
        table=nearest(splits_map, facts),
        rows=shape.rows,
        candidates=shape.candidates,
        tiles=shape.tiles,
        value=value or AUTOMATIC,
        splits=chosen.splits,
        automatic=smallest_target(shape.tiles, automatic.splits) or automatic.tiles_per_split,
        automatic_splits=automatic.splits,
    )
