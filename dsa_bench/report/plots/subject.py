# SPDX-License-Identifier: MIT
"""What pictures are drawn of, and the words that they share."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.errors import BadInput
from dsa_bench.model.run import Run
from dsa_bench.model.splits_map import SplitsMap
from dsa_bench.model.text import printable
from dsa_bench.report.cells import CellTable, VariantRow, cell_tables
from dsa_bench.report.swept import NothingSwept, SweptCell, run_slots, swept_cells

T = TypeVar("T")


class NothingToDraw(Exception):
    """A run holds nothing for one kind of picture; str() says what it lacks."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A run with what was made of it once for all pictures.

    tables  its cells with every variant      swept  its decode cells of the split kernel; empty where there are none
    slots   what split rules saw of the device, where known      tuned  a map whose choices are drawn beside the rule's
    """

    run: Run
    tables: Sequence[CellTable]
    swept: Sequence[SweptCell]
    slots: DeviceSlots | None
    tuned: SplitsMap | None = None

    @property
    def choices(self) -> list[SweptCell]:
        """The swept cells that offered a choice. Raises NothingToDraw if none did."""
        cells = [cell for cell in self.swept if len(cell.times) > 1]
        if not cells:
            raise NothingToDraw("no decode cell has times of two launches of the split kernel to choose from")
        return cells

    def about(self) -> str:
        """What the run was taken on and how, in one line."""
        header = self.run.header
        modes = sorted({f"{table.timer}, L2 {table.l2}" for table in self.tables if table.timer})
        rounds = sorted({table.rounds for table in self.tables if table.rounds})
        counted = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}" if rounds else "no"
        commit = f", commit {header.commit[:7]}" if header.commit else ""
        name = header.device.get("name") or "unknown device"
        return printable(f"{name}; {' / '.join(modes)}; {counted} rounds; {header.created[:10]}{commit}")


def subject_of(run: Run, resident: int | None = None, tuned: SplitsMap | None = None) -> Subject:
    """Raises BadInput for a run without any measured cell, with a cell of two timers, or with facts that are none."""
    slots = run_slots(run, resident)
    tables = cell_tables(run)
    if not any(table.rounds for table in tables):
        raise BadInput("no cell has a complete round, so there is nothing to draw; measure first")
    try:
        swept = swept_cells(run)
    except NothingSwept:
        swept = []
    return Subject(run, tables, swept, slots, tuned)


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """The items by key, in the order in which keys first occur."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def titles(places: Sequence[dict[str, str]], always: Sequence[str] = ()) -> list[str]:
    """A heading for each panel: the parts that tell it from the others, and those asked for always."""
    shown = [
        name for name in (places[0] if places else {}) if name in always or len({place[name] for place in places}) > 1
    ]
    return [printable(", ".join(f"{name} {place[name]}".strip() for name in shown)) for place in places]


def lines_over(
    tables: Sequence[CellTable],
    at: Callable[[CellTable], int],
    name: Callable[[VariantRow], str],
    value: Callable[[VariantRow], float | None],
) -> dict[str, dict[int, float]]:
    """name -> place -> value, places ascending; what has no time or no value somewhere has a gap there."""
    lines: dict[str, dict[int, float]] = {}
    for table in sorted(tables, key=at):
        for row in table.rows:
            found = value(row)
            if found is not None and row.time_us is not None:
                lines.setdefault(name(row), {})[at(table)] = found
    return lines


def swept_place(cell: SweptCell) -> dict[str, str]:
    """What tells a cell from others, apart from its rows."""
    shape = cell.sparse
    return {
        "context": str(shape.context),
        "candidates": str(shape.candidates),
        "heads": f"{shape.query_heads}/{shape.kv_heads}",
        "head size": str(shape.head_size),
        "kernel": cell.kernel,
        "timer": cell.timer,
        "L2": cell.l2,
    }


def rows_text(rows: int | str) -> str:
    """A number of rows in words."""
    return f"{rows} row" if str(rows) == "1" else f"{rows} rows"
