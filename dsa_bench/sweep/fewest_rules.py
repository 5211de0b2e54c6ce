# SPDX-License-Identifier: MIT
"""The fewest rules that give every tuned cell a value it accepts, and no other cell any."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dsa_bench.model.map_parts import Interval

Shape = tuple[int, int]
"""rows, tiles"""
Accepted = Mapping[Any, float]
"""What a cell accepts, values of one type that has an order -> how far from what the cell would take alone."""


class FoundRule(NamedTuple):
    """A rectangle of rows and tiles, and the value that its cells share."""

    rows: Interval
    size: Interval
    value: Any

    def holds(self, shape: Shape) -> bool:
        """Whether the rule is for that shape."""
        return self.rows[0] <= shape[0] <= self.rows[1] and self.size[0] <= shape[1] <= self.size[1]


Plan = tuple[int, float, tuple[FoundRule, ...]]
"""Rules, the sum of their cells' distances, and the rules themselves: the least is the best."""

MAX_STEPS = 20_000
"""Rectangles that are tried before the best plan so far is taken; 20 cells need a few hundred."""


def fewest_rules(measured: Mapping[Shape, Accepted]) -> tuple[FoundRule, ...]:
    """Rules over the measured cells; a cell that accepts nothing is left to the automatic rule.

    A rule is a rectangle whose measured cells, its corners among them, all accept one value: it spans unmeasured rows
    or tiles only between measured cells that share it. Among as few rules, those nearest to what the cells would take
    alone. The same cells give the same rules, whatever their order.
    """
    return _Search(measured).best()


class _Search:
    """Depth first: the first cell without a rule is the corner of one, so every plan is reached once."""

    def __init__(self, measured: Mapping[Shape, Accepted]) -> None:
        self._rows = sorted({rows for rows, _ in measured})
        self._tiles = sorted({tiles for _, tiles in measured})
        self._accepted = {shape: measured[shape] for shape in sorted(measured) if measured[shape]}
        self._steps = 0
        self._best: Plan | None = None

    def best(self) -> tuple[FoundRule, ...]:
        self._extend((0, 0.0, ()), frozenset(self._accepted))
        return () if self._best is None else self._best[2]

    def _extend(self, plan: Plan, left: frozenset[Shape]) -> None:
        if not left:
            self._best = plan if self._best is None else min(self._best, plan)
            return
        if self._best is not None and (plan[0] + 1 > self._best[0] or self._steps > MAX_STEPS):
            return
        for cells, rule, distance in self._rectangles(min(left), left):
            self._steps += 1
            self._extend((plan[0] + 1, plan[1] + distance, (*plan[2], rule)), left - cells)

    def _rectangles(self, corner: Shape, left: frozenset[Shape]) -> Iterator[tuple[frozenset[Shape], FoundRule, float]]:
        """Every rule with this first corner, the largest first."""
        found: list[tuple[frozenset[Shape], FoundRule, float]] = []
        rows_on = [rows for rows in self._rows if rows >= corner[0]]
        tiles_on = [tiles for tiles in self._tiles if tiles >= corner[1]]
        width = len(tiles_on)
        for height in range(1, len(rows_on) + 1):
            for wide in range(1, width + 1):
                cells = frozenset((rows, tiles) for rows in rows_on[:height] for tiles in tiles_on[:wide])
                shared = self._shared(cells) if cells <= left else None
                if shared is None:
                    width = wide - 1  # what holds it holds too much as well
                    break
                value, distance = shared
                rule = FoundRule((corner[0], rows_on[height - 1]), (corner[1], tiles_on[wide - 1]), value)
                found.append((cells, rule, distance))
        yield from sorted(found, key=lambda one: (-len(one[0]), one[2], one[1].rows, one[1].size))

    def _shared(self, cells: frozenset[Shape]) -> tuple[Any, float] | None:
        """The value that all cells accept with the least distance, the smallest of equals; None if there is none."""
        accepted = [self._accepted[shape] for shape in sorted(cells)]
        common = set(accepted[0]).intersection(*accepted[1:])
        if not common:
            return None
        distance, value = min((sum(of_cell[value] for of_cell in accepted), value) for value in sorted(common))
        return value, distance
