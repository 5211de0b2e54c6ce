# SPDX-License-Identifier: MIT
"""Drift strip: clocks and log ratios over the rounds of a run, in the order in which they were taken."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsa_bench.model.record import Visit
from dsa_bench.model.run import Run, complete_rounds
from dsa_bench.model.text import printable
from dsa_bench.report.cells import cell_shape
from dsa_bench.report.plots.canvas import COLORS, GREY, legend_below, new_figure
from dsa_bench.report.plots.subject import NothingToDraw, Subject, rows_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLOCKS = {"sm_mhz": "SM clock (MHz)", "memory_mhz": "memory clock (MHz)"}
MAX_NAMED_CELLS = 8


@dataclass(frozen=True, slots=True)
class DriftRound:
    """One complete round.

    null      ln(second visit / first visit) of the null control; None without both times
    low, high least and largest, over variants, of ln(time / the round's reference) less its median over the cell's
              rounds; None with fewer than two variants
    clocks    median of each clock over the round's visits
    """

    cell: str
    mode: tuple[str, str]
    null: float | None
    low: float | None
    high: float | None
    clocks: dict[str, float]


def drift_rounds(run: Run) -> list[DriftRound]:
    """The rounds of each cell and mode together, cells in the order in which they were begun, rounds ascending."""
    cells: dict[tuple[str, tuple[str, str]], list[tuple[int, list[Visit]]]] = {}
    for cell, index, visits in complete_rounds(run):
        cells.setdefault((cell, (visits[0].timer, visits[0].l2)), []).append((index, visits))
    found: list[DriftRound] = []
    for (cell, mode), rounds in cells.items():
        ordered = [visits for _, visits in sorted(rounds, key=lambda pair: pair[0])]
        ratios = [_log_ratios(visits) for visits in ordered]
        names = {name for of_round in ratios for name in of_round}
        centres = {name: statistics.median([of[name] for of in ratios if name in of]) for name in names}
        for visits, of_round in zip(ordered, ratios, strict=True):
            off = [value - centres[name] for name, value in of_round.items()]
            found.append(
                DriftRound(cell, mode, _null(visits), min(off, default=None), max(off, default=None), _clocks(visits))
            )
    return found


def _times(visits: Sequence[Visit]) -> tuple[dict[str, float], tuple[str, float] | None]:
    """(time of each variant, the null control's name and second time)."""
    times = {visit.variant: visit.attention_us for visit in visits if visit.attention_us and not visit.control}
    second = next(
        ((visit.variant, visit.attention_us) for visit in visits if visit.control and visit.attention_us), None
    )
    return times, second


def _null(visits: Sequence[Visit]) -> float | None:
    times, second = _times(visits)
    return None if second is None or second[0] not in times else math.log(second[1] / times[second[0]])


def _log_ratios(visits: Sequence[Visit]) -> dict[str, float]:
    """ln(time / time of the null control's variant) of the other variants."""
    times, _ = _times(visits)
    reference = next((visit.variant for visit in visits if visit.control), None)
    if reference not in times:
        return {}
    return {name: math.log(time_us / times[reference]) for name, time_us in times.items() if name != reference}


def _clocks(visits: Sequence[Visit]) -> dict[str, float]:
    read = {name: [visit.clocks[name] for visit in visits if name in visit.clocks] for name in CLOCKS}
    return {name: statistics.median(values) for name, values in read.items() if values}


def draw(subject: Subject) -> "Figure":
    """Clocks where the record has them, then log ratios; thin lines part the cells."""
    rounds = drift_rounds(subject.run)
    if not rounds:
        raise NothingToDraw("no cell has a complete round")
    clocks = {name: words for name, words in CLOCKS.items() if any(name in one.clocks for one in rounds)}
    height = 2.9 + 1.1 * len(clocks) + (0.15 if any("selection" in cell_shape(one.cell) for one in rounds) else 0)
    figure = new_figure("Drift over the rounds, in the order taken", subject.about(), height)
    made = figure.subplots(
        len(clocks) + 1, 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": [1.0] * len(clocks) + [2.2]}
    )
    axes: list[Axes] = list(made.flat)
    for ax, (name, words) in zip(axes, clocks.items(), strict=False):
        read = [(at, one.clocks[name]) for at, one in enumerate(rounds) if name in one.clocks]
        ax.plot(*zip(*read, strict=True), drawstyle="steps-mid", color=COLORS[0], linewidth=1.2)
        ax.set_ylabel(words.replace(" (", "\n("), fontsize=8)
        values = [value for _, value in read]
        room = max(0.03 * max(values), 0.3 * (max(values) - min(values)))
        ax.set_ylim(min(values) - room, max(values) + room)
        ax.ticklabel_format(axis="y", useOffset=False, style="plain")
    _draw_ratios(axes[-1], rounds)
    _part_cells(axes, rounds)
    legend_below(figure, [axes[-1]])
    return figure


def _draw_ratios(ax: "Axes", rounds: Sequence[DriftRound]) -> None:
    label: str | None = "other variants against the control's first visit, less their medians"
    for start, end in _stretches(rounds):
        edges: list[float] = []
        low: list[float] = []
        high: list[float] = []
        for at in range(start, end):
            one = rounds[at]
            if one.low is not None and one.high is not None:
                edges += [at - 0.5, at + 0.5]
                low += [100 * one.low] * 2
                high += [100 * one.high] * 2
        if edges:
            ax.fill_between(edges, low, high, color="#bcbcbc", linewidth=0, label=label)
            label = None
    null = [(at, 100 * one.null) for at, one in enumerate(rounds) if one.null is not None]
    if null:
        ax.plot(
            *zip(*null, strict=True), linestyle="none", marker="o", markersize=2.6, color=COLORS[1],
            label="null control: second visit against the first",
        )  # fmt: skip
    ax.axhline(0, color="black", linewidth=0.7)
    ax.set_ylabel("log ratio (%)")
    ax.set_xlabel("round")


def _stretches(rounds: Sequence[DriftRound]) -> list[tuple[int, int]]:
    """[start, end) of each cell's rounds."""
    starts = [at for at, one in enumerate(rounds) if not at or _of(one) != _of(rounds[at - 1])]
    return list(zip(starts, [*starts[1:], len(rounds)], strict=True))


def _of(one: DriftRound) -> tuple[str, tuple[str, str]]:
    return one.cell, one.mode


def _part_cells(axes: "list[Axes]", rounds: Sequence[DriftRound]) -> None:
    stretches = _stretches(rounds)
    for ax in axes:
        ax.grid(visible=False, axis="x")
        ax.set_xlim(-1, len(rounds))
        for start, _ in stretches[1:]:
            ax.axvline(start - 0.5, color=GREY, linewidth=0.6 if len(stretches) <= MAX_NAMED_CELLS else 0.3)
    if len(stretches) <= MAX_NAMED_CELLS:
        for start, end in stretches:
            shape = cell_shape(rounds[start].cell)
            name = printable(rows_text(shape["rows"]) if "rows" in shape else f"{shape['length']} keys")
            if "context" in shape:
                name += f"\nctx {printable(shape['context'])}"
            elif "capacity" in shape:
                name += f"\nof {printable(shape['capacity'])}"
            if "selection" in shape:
                name += f"\n{printable(shape['selection'])}"
            axes[0].text(
                (start + end - 1) / 2, 1.03, name, fontsize=7.5, ha="center", va="bottom",
                transform=axes[0].get_xaxis_transform(),
            )  # fmt: skip
