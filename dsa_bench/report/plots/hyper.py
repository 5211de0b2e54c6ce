# SPDX-License-Identifier: MIT
"""The hyper-connection kernels: `mix` over tokens with its share of the copy ceiling, `gate` with the gain of a launch
mode."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dsa_bench.model.hyper import HyperOp
from dsa_bench.report.cells import CellTable, VariantRow, part_of
from dsa_bench.report.plots.canvas import COLORS, MARKERS, draw_line, legend_below, new_figure, plain_log
from dsa_bench.report.plots.subject import NothingToDraw, Subject, grouped, lines_over, titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_COLUMNS = 4


def lines_of(tables: Sequence[CellTable], value: Callable[[VariantRow], float | None]) -> dict[str, dict[int, float]]:
    """variant without its part -> rows -> value."""
    return lines_over(tables, _rows, _form, value)


def draw_mix(subject: Subject) -> "Figure":
    """A column for each kernel: time above, share of the copy ceiling below where a copy was measured."""
    groups = _groups(subject, "mix")
    times = [lines_of(group, lambda row: row.time_us) for group in groups]
    shares = [lines_of(group, lambda row: row.gather_share and 100 * row.gather_share) for group in groups]
    figure = new_figure("PreMix and ScaledSilu against rows", subject.about(), 5.6 if any(shares) else 3.4)
    axes = figure.subplots(2 if any(shares) else 1, len(groups), squeeze=False)
    names = list(dict.fromkeys(name for lines in times for name in lines))
    for column, (group, of_time, of_share) in enumerate(zip(groups, times, shares, strict=True)):
        ticks = [float(rows) for rows in sorted({_rows(table) for table in group})]
        for ax, lines in zip(axes[:, column], (of_time, of_share), strict=False):
            plain_log(ax, "x", 2, ticks)
            ax.set_xlim(ticks[0] / 1.4, ticks[-1] * 1.4)
            for name, points in lines.items():
                draw_line(ax, names, name, list(points.items()))
        plain_log(axes[0][column], "y", 10)
        if any(shares):
            axes[1][column].axhline(100, color="black", linewidth=0.7)
            axes[1][column].set_ylim(bottom=0)
        axes[-1][column].set_xlabel("rows")
    _head(axes, groups, ("time (µs)", "share of the copy ceiling (%)"))
    legend_below(figure, list(axes.flat), columns=5)
    return figure


def draw_gate(subject: Subject) -> "Figure":
    """A column for each mode of measuring: time above, speedup over the plain launch with its interval below."""
    groups = _groups(subject, "gate")
    figure = new_figure("gate-mul and its successor, by the way they are launched", subject.about(), 5.6)
    axes = figure.subplots(2, len(groups), squeeze=False)
    names = list(dict.fromkeys(_form(row) for group in groups for table in group for row in table.rows))
    for column, group in enumerate(groups):
        rows = sorted({_rows(table) for table in group})
        places = {count: at for at, count in enumerate(rows)}  # side by side: 1 to 8 and thousands share no scale
        for name, points in lines_of(group, lambda row: row.time_us).items():
            draw_line(axes[0][column], names, name, [(places[count], time_us) for count, time_us in points.items()])
        plain_log(axes[0][column], "y", 10)
        _draw_gains(axes[1][column], names, group, places)
        for ax in axes[:, column]:
            ax.set_xticks(range(len(rows)), [str(count) for count in rows])
            ax.set_xlim(-0.5, len(rows) - 0.5)
        axes[1][column].set_xlabel("rows")
    _head(axes, groups, ("time of the pair (µs)", "speedup over plain"))
    legend_below(figure, list(axes.flat), columns=5)
    return figure


def _draw_gains(ax: "Axes", names: Sequence[str], group: Sequence[CellTable], places: dict[int, int]) -> None:
    ax.axhline(1, color="black", linewidth=0.7)
    for name in names:
        rows = {_rows(table): row for table in group for row in table.rows if _form(row) == name and row.speedup}
        found = [(places[count], row.speedup) for count, row in sorted(rows.items()) if row.speedup]
        if not found:
            continue
        at = names.index(name)
        ends = [(one.interval or (one.centre, one.centre), one.centre) for _, one in found]
        apart = 0.16 * (at - (len(names) - 1) / 2)  # so that intervals of two modes don't cover each other
        ax.errorbar(
            [place + apart for place, _ in found],
            [centre for _, centre in ends],
            [[centre - low for (low, _), centre in ends], [high - centre for (_, high), centre in ends]],
            linestyle="none", marker=MARKERS[at % len(MARKERS)], markersize=4.5, color=COLORS[at % len(COLORS)],
            capsize=2.5,
        )  # fmt: skip


def _groups(subject: Subject, op: HyperOp) -> list[list[CellTable]]:
    tables = [table for table in subject.tables if table.op == op and table.rounds]
    if not tables:
        raise NothingToDraw(f"no {op} cell has a time")
    groups = grouped(tables, lambda table: tuple(_place(table).values()))
    if len(groups) > MAX_COLUMNS:
        raise NothingToDraw(f"{len(groups)} sizes and modes are too many side by side; {MAX_COLUMNS} fit")
    return groups


def _place(table: CellTable) -> dict[str, str]:
    """What tells a panel from others: the kernel, every size but the rows, and how it was measured."""
    sizes = {name: value for name, value in table.shape.items() if name not in ("op", "rows")}
    return {"": str(table.part), **sizes, "timer": str(table.timer), "L2": str(table.l2)}


def _head(axes: Any, groups: Sequence[Sequence[CellTable]], words: Sequence[str]) -> None:
    """axes [panels, groups]: a heading for each column and a label for each row of panels."""
    for ax, heading in zip(axes[0], titles([_place(group[0]) for group in groups], ("",)), strict=True):
        ax.set_title(heading)
    for of_row, label in zip(axes, words, strict=False):
        of_row[0].set_ylabel(label)


def _rows(table: CellTable) -> int:
    return int(table.shape["rows"])


def _form(row: VariantRow) -> str:
    """The variant's name without its part: `branch-free`, `pdl-early`, and `copy` or `copy/8-to-1` of a copy."""
    return "/".join(word for word in row.check.variant.split("/") if word != part_of(row.check.kernel))
