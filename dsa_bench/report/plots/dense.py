# SPDX-License-Identifier: MIT
"""Dense decode: time, bytes per second and splits that hold keys, against the live length, a line for each rule."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dsa_bench.model.request import is_yardstick
from dsa_bench.report.cells import CellTable, VariantRow
from dsa_bench.report.plots.canvas import draw_line, legend_below, new_figure, plain_log
from dsa_bench.report.plots.subject import NothingToDraw, Subject, grouped, lines_over, titles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_COLUMNS = 4
VALUES: dict[str, Callable[[VariantRow], float | None]] = {
    "time (µs)": lambda row: row.time_us,
    "read (TB/s)": lambda row: None if row.gathered_gbps is None else row.gathered_gbps / 1e3,
    "splits that hold keys": lambda row: row.check.facts.get("alive"),
}
"""Label of a panel -> what it shows. Bytes are those of the live keys and values; of a copy, read and written."""


def lines_of(tables: Sequence[CellTable], value: Callable[[VariantRow], float | None]) -> dict[str, dict[int, float]]:
    """rules of a launch, or the copy -> live length -> value."""
    return lines_over(tables, _length, _name, value)


def draw(subject: Subject) -> "Figure":
    """A column for each kernel and capacity. A length of 0 has no place on its axis."""
    tables = [table for table in subject.tables if table.op == "dense" and table.rounds and _length(table)]
    if not tables:
        raise NothingToDraw("no dense cell has a time")
    groups = grouped(tables, lambda table: tuple(_place(table).values()))
    if len(groups) > MAX_COLUMNS:
        raise NothingToDraw(f"{len(groups)} kernels, capacities and modes are too many side by side; {MAX_COLUMNS} fit")
    figure = new_figure("Dense decode against live length, by split rule", subject.about(), 8.0)
    axes = figure.subplots(len(VALUES), len(groups), squeeze=False, sharey="row")
    names = list(dict.fromkeys(_name(row) for table in tables for row in table.rows))
    for column, group in enumerate(groups):
        ticks = sorted({float(_length(table)) for table in group})
        for ax, value in zip(axes[:, column], VALUES.values(), strict=True):
            plain_log(ax, "x", 2, ticks)
            ax.tick_params(axis="x", labelrotation=45)
            ax.set_xlim(ticks[0] / 1.4, ticks[-1] * 1.4)
            for name, points in lines_of(group, value).items():
                draw_line(ax, names, name, list(points.items()))
        plain_log(axes[0][column], "y", 10)
        plain_log(axes[2][column], "y", 2, [2.0**n for n in range(7)])
        axes[-1][column].set_xlabel("live length (keys)")
    axes[1][0].set_ylim(bottom=0)  # once all is drawn: it fixes the top that a row's panels share
    for ax, heading in zip(axes[0], titles([_place(group[0]) for group in groups], ("", "capacity")), strict=True):
        ax.set_title(heading)
    for of_row, label in zip(axes, VALUES, strict=True):
        of_row[0].set_ylabel(label)
    legend_below(figure, list(axes.flat), columns=3)
    return figure


def _place(table: CellTable) -> dict[str, str]:
    """What tells a column from others: the kernel, every size but the length, and how it was measured."""
    sizes = {name: value for name, value in table.shape.items() if name not in ("op", "length")}
    return {"": str(table.part), **sizes, "timer": str(table.timer), "L2": str(table.l2)}


def _length(table: CellTable) -> int:
    return int(table.shape["length"])


def _name(row: VariantRow) -> str:
    return row.check.kernel if is_yardstick(row.check.kernel) else " = ".join(row.check.rules)
