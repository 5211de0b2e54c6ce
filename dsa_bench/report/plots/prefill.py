# SPDX-License-Identifier: MIT
"""Prefill: time and gathered bytes per second against rows, with ceilings and the dense line."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsa_bench.model.request import DENSE
from dsa_bench.report.cells import CellTable
from dsa_bench.report.plots.canvas import draw_line, legend_below, new_figure, plain_log
from dsa_bench.report.plots.subject import NothingToDraw, Subject, grouped, titles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_COLUMNS = 5


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """One kernel at one number of rows: median time in microseconds, and 10^12 bytes gathered each second."""

    rows: int
    time_us: float
    gathered_tbps: float | None


def prefill_lines(tables: list[CellTable]) -> dict[str, list[PrefillPoint]]:
    """The points of each kernel by ascending rows; a kernel without a time at some rows has a gap there."""
    lines: dict[str, list[PrefillPoint]] = {}
    for table in sorted(tables, key=lambda table: int(table.shape["rows"])):
        for row in table.rows:
            if row.time_us is not None:
                name = row.check.variant if row.check.kernel == DENSE else row.check.kernel
                rate = None if row.gathered_gbps is None else row.gathered_gbps / 1e3
                lines.setdefault(name, []).append(PrefillPoint(int(table.shape["rows"]), row.time_us, rate))
    return lines


def draw(subject: Subject) -> "Figure":
    """A column for each context, list length, selection and mode: time above, gathered bytes per second below."""
    tables = [table for table in subject.tables if table.op == "prefill" and table.rounds]
    if not tables:
        raise NothingToDraw("no prefill cell has a time")
    groups = grouped(tables, lambda table: tuple(_place(table).values()))
    if len(groups) > MAX_COLUMNS:
        raise NothingToDraw(
            f"{len(groups)} contexts, list lengths, selections and modes are too many side by side; {MAX_COLUMNS} fit"
        )
    lines = [prefill_lines(group) for group in groups]
    names = list(dict.fromkeys(name for of_group in lines for name in of_group))
    rated = any(point.gathered_tbps is not None for of_group in lines for one in of_group.values() for point in one)
    figure = new_figure("Prefill against rows", subject.about(), 5.6 if rated else 3.4)
    axes = figure.subplots(2 if rated else 1, len(groups), squeeze=False, sharey="row")
    headings = titles([_place(group[0]) for group in groups], ("context", "candidates"))
    for column, (of_group, heading) in enumerate(zip(lines, headings, strict=True)):
        ticks = sorted({float(point.rows) for one in of_group.values() for point in one})
        above = axes[0][column]
        above.set_title(heading if len(groups) < 3 else heading.replace(", ", "\n"))
        plain_log(above, "x", 2, ticks)
        plain_log(above, "y", 10)
        above.set_xlim(ticks[0] / 1.4, ticks[-1] * 1.4)
        for name, points in of_group.items():
            draw_line(above, names, name, [(point.rows, point.time_us) for point in points])
        if rated:
            below = axes[1][column]
            plain_log(below, "x", 2, ticks)
            below.set_xlim(above.get_xlim())
            for name, points in of_group.items():
                draw_line(
                    below, names, name, [(p.rows, p.gathered_tbps) for p in points if p.gathered_tbps is not None]
                )
        axes[-1][column].set_xlabel("rows")
    axes[0][0].set_ylabel("time (µs)")
    if rated:
        axes[1][0].set_ylim(bottom=0)  # once all is drawn: it fixes the top that a row's panels share
        axes[1][0].set_ylabel("gathered (TB/s)")
    legend_below(figure, list(axes.flat), columns=4)
    return figure


def _place(table: CellTable) -> dict[str, str]:
    shape = table.shape
    return {
        "context": shape["context"], "candidates": shape["candidates"],
        "heads": f"{shape['query_heads']}/{shape['kv_heads']}", "head size": shape["head_size"],
        "timer": str(table.timer), "L2": str(table.l2), "selection": str(table.selection),
    }  # fmt: skip
