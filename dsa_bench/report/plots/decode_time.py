# SPDX-License-Identifier: MIT
"""Decode time against tiles per split."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsa_bench.report.cells import CellTable
from dsa_bench.report.plots.canvas import GREY, MARKERS, grid_of, kernel_color, legend_below, new_figure, plain_log
from dsa_bench.report.plots.subject import NothingToDraw, Subject, grouped, rows_text, swept_place, titles
from dsa_bench.report.swept import SweptCell
from dsa_bench.stats.location import hodges_lehmann

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class TimePoint:
    """One launch: effective tiles per split, and the Hodges-Lehmann centre of its time over rounds with its 95 %
    interval, which is the centre itself where the rounds give none."""

    tiles_per_split: int
    splits: int
    time_us: float
    low_us: float
    high_us: float
    automatic: bool


def time_points(cell: SweptCell) -> list[TimePoint]:
    """The launches of a cell that tiles per split were asked for, ascending. One without a time is left out."""
    points: list[TimePoint] = []
    for variant, times in cell.times.items():
        check = cell.checks[variant]
        if check.requested:
            found = hodges_lehmann(np.log(times)).exp()
            low, high = found.interval or (found.centre, found.centre)
            points.append(
                TimePoint(check.tiles_per_split, check.splits, found.centre, low, high, automatic=0 in check.requested)
            )
    return sorted(points, key=lambda point: (point.tiles_per_split, -point.splits))


def draw(subject: Subject) -> "Figure":
    """A panel for each context and list length, a line for each kernel and number of rows."""
    offered = {cell.shape.key for cell in subject.choices if time_points(cell)}
    cells = [cell for cell in subject.swept if cell.shape.key in offered and time_points(cell)]
    if not cells:
        raise NothingToDraw("no tiles per split were asked for")
    groups = grouped(cells, lambda cell: tuple(_panel(cell).values()))
    figure = new_figure("Decode time against tiles per split", subject.about(), 1.5 + 2.4 * -(-len(groups) // 3))
    axes = grid_of(figure, len(groups), 3)
    rows = sorted({cell.sparse.rows for cell in cells})
    times = [point.time_us for cell in cells for point in time_points(cell)]
    subs = (1.0, 2.0, 5.0) if max(times) > 8 * min(times) else (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    headings = titles([_panel(group[0]) for group in groups], ("context", "candidates"))
    for at, (ax, group, heading) in enumerate(zip(axes, groups, headings, strict=True)):
        ticks = sorted({float(point.tiles_per_split) for cell in group for point in time_points(cell)})
        plain_log(ax, "x", 2, ticks)
        plain_log(ax, "y", 10, subs=subs)
        ax.set_title(heading, fontsize=8 if len(heading) > 34 else 9)
        ax.set_xlabel("tiles per split (effective)")
        if at % 3 == 0:
            ax.set_ylabel("time (µs)")
        for cell in group:
            _draw_cell(ax, cell, rows.index(cell.sparse.rows))
        for cell in group:
            _ring_choice(ax, cell)
            _draw_previous(ax, cell, rows.index(cell.sparse.rows), _previous_us(subject.tables, cell))
    legend_below(figure, axes, columns=5, spacing=1.0)
    return figure


def _panel(cell: SweptCell) -> dict[str, str]:
    """What tells a panel from others: kernels share one, to be compared in it."""
    return {name: value for name, value in swept_place(cell).items() if name != "kernel"}


def _draw_cell(ax: "Axes", cell: SweptCell, at: int) -> None:
    points = time_points(cell)
    style: dict[str, Any] = {} if cell.is_ruled else {"linestyle": (0, (1, 1)), "markerfacecolor": "white"}
    color = kernel_color(cell.kernel, at)
    x = [point.tiles_per_split for point in points]
    y = [point.time_us for point in points]
    below = [point.time_us - point.low_us for point in points]
    above = [point.high_us - point.time_us for point in points]
    ax.plot(
        x, y, color=color, marker=MARKERS[at % len(MARKERS)], markersize=4.5, linewidth=1.4, label=_label(cell), **style
    )
    ax.errorbar(x, y, [below, above], linestyle="none", color=color, capsize=2.5)


def _ring_choice(ax: "Axes", cell: SweptCell) -> None:
    chosen = next((point for point in time_points(cell) if point.automatic), None)
    if chosen is not None:
        ax.plot(
            [chosen.tiles_per_split], [chosen.time_us], linestyle="none", marker="o", markersize=12, zorder=3,
            markerfacecolor="none", markeredgecolor=GREY, markeredgewidth=1.8, label="automatic choice",
        )  # fmt: skip


def _draw_previous(ax: "Axes", cell: SweptCell, at: int, previous_us: float | None) -> None:
    if previous_us is not None:
        ax.plot(
            [0, 0.97], [previous_us] * 2, transform=ax.get_yaxis_transform(),
            label=f"previous, {rows_text(cell.sparse.rows)}",
            color=kernel_color("previous", at), linestyle=(0, (4, 2)), linewidth=1.1,
            marker=MARKERS[at % len(MARKERS)], markersize=4.5, markevery=[1],
        )  # fmt: skip


def _label(cell: SweptCell) -> str:
    return f"{cell.kernel}, {rows_text(cell.sparse.rows)}"


def _previous_us(tables: Sequence[CellTable], cell: SweptCell) -> float | None:
    """Median time of the kernel that a switch replaces, in the same rounds; None where it was not measured."""
    sizes = {name: str(size) for name, size in cell.sparse.sizes.items()}
    return next(
        (
            row.time_us
            for table in tables
            if table.op == "decode" and (table.timer, table.l2) == (cell.timer, cell.l2)
            and all(table.shape.get(name) == size for name, size in sizes.items())
            for row in table.rows
            if row.check.kernel == "previous"
        ),
        None,
    )  # fmt: skip
