# SPDX-License-Identifier: MIT
"""What the automatic rule, the best measured launch and a tuned map choose for each shape."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsa_bench.dispatch.look_up import LaunchFacts, MapTable, applicable, speaks_of
from dsa_bench.dispatch.target import find_in_tables
from dsa_bench.model.device import DeviceSlots, clusters_text
from dsa_bench.model.record import Header
from dsa_bench.model.request import DIGITS
from dsa_bench.model.shape import TILE
from dsa_bench.report.plots.canvas import COLORS, legend_below, new_figure, plain_log
from dsa_bench.report.plots.subject import Subject, swept_place, titles
from dsa_bench.report.swept import SweptCell
from dsa_bench.splits.kernels import TUNED_KERNELS, kernel_slots
from dsa_bench.splits.map_values import launched_splits
from dsa_bench.stats.several import tie_set

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAP_RULE = "map"
"""The name under which a sweep with --splits measures a tuned map's choice."""


@dataclass(frozen=True, slots=True)
class SplitChoice:
    """One shape, in splits of each row: None for what was not measured or is not known.

    best  the launch with the least median time      ties  launches that the rounds do not tell from it, itself left out
    """

    cell: SweptCell
    automatic: int | None
    best: int
    ties: tuple[int, ...]
    tuned: int | None


def split_choices(subject: Subject) -> tuple[list[SplitChoice], list[str]]:
    """(every cell that offered a choice, why a given map says nothing of some)."""
    chosen: list[SplitChoice] = []
    unused: dict[str, None] = {}
    for cell in subject.choices:
        best = min(cell.times, key=lambda variant: float(np.median(cell.times[variant])))
        splits = {variant: check.splits for variant, check in cell.checks.items()}
        automatic = next((splits[name] for name, check in cell.checks.items() if 0 in check.requested), None)
        tied = sorted({splits[name] for name in tie_set(cell.times, best)} - {splits[best]})
        tuned = next((splits[name] for name, check in cell.checks.items() if MAP_RULE in check.rules), None)
        if subject.tuned is not None:
            tables, why = _tables(subject, cell)
            unused |= dict.fromkeys(why)
            tuned = _tuned(subject, tables, cell, automatic)
        chosen.append(SplitChoice(cell, automatic, splits[best], tuple(tied), tuned))
    return chosen, list(unused)


def _tuned(subject: Subject, tables: Mapping[str, MapTable], cell: SweptCell, automatic: int | None) -> int | None:
    """The map's splits if the launch takes the cell's kernel; outside its rules those of the automatic rule."""
    header = subject.run.header
    capability = header.device.get("compute_capability")
    found = find_in_tables(tables, cell.sparse, [*header.kernel_hashes], capability)
    if not tables or found.target.kernel != cell.kernel:
        return None
    if not found.by_map:
        return automatic
    return launched_splits(tables[cell.kernel].table, cell.sparse.tiles, found.target.value)


def _tables(subject: Subject, cell: SweptCell) -> tuple[dict[str, MapTable], list[str]]:
    """kernel -> the map's table that holds for the run's device, as the dispatcher would find it."""
    if subject.tuned is None or subject.slots is None:
        return {}, [
            "the map is not used: the record does not say how many CTAs were resident; say it with --resident N"
        ]
    holding: dict[str, MapTable] = {}
    said: list[str] = []
    for kernel in TUNED_KERNELS:
        facts = _facts(subject.run.header, subject.slots, cell, kernel)
        if facts is not None and speaks_of(subject.tuned, facts):
            table, why = applicable(subject.tuned, facts)
            holding |= {} if table is None else {kernel: table}
            said += why
    return holding, said


def _facts(header: Header, slots: DeviceSlots, cell: SweptCell, kernel: str) -> LaunchFacts | None:
    """What the cell's launch is made with by a kernel; None if the run has not measured it."""
    device, shape = header.device, cell.sparse
    if kernel not in header.kernel_hashes:
        return None
    clusters: dict[str, int] = device.get("clusters") or {} if kernel == DIGITS else {}
    return LaunchFacts(
        op="decode", kernel=kernel, kernel_hash=header.kernel_hashes[kernel],
        device=str(device.get("name")), compute_capability=device.get("compute_capability"),
        sm_count=slots.sms, cta_slots=kernel_slots(kernel, slots),
        clusters=clusters_text(clusters) or None, tile=TILE, head_size=shape.head_size, group=shape.group,
        kv_heads=shape.kv_heads, l2=cell.l2, driver=device.get("driver"), runtime=device.get("runtime"),
    )  # fmt: skip


def draw(subject: Subject) -> "Figure":
    """A line for each shape."""
    chosen, _ = split_choices(subject)
    named = ", tuned map" if any(one.tuned is not None for one in chosen) else ""
    title = f"Splits of each row: automatic rule, best measured{named}"
    figure = new_figure(title, subject.about(), 1.7 + 0.26 * len(chosen))
    ax = figure.subplots()
    offered = sorted({float(check.splits) for one in chosen for check in one.cell.checks.values()})
    plain_log(ax, "x", 2, offered if len(offered) <= 12 else [2.0**power for power in range(6)])
    for line, one in enumerate(chosen):
        ends = min([one.best, *one.ties]), max([one.best, *one.ties])
        ax.plot(ends, [line, line], color="#c9dff0", linewidth=9, solid_capstyle="round", zorder=1)
    ties = [(tie, line) for line, one in enumerate(chosen) for tie in one.ties]
    best = [(one.best, line) for line, one in enumerate(chosen)]
    automatic = [(one.automatic, line) for line, one in enumerate(chosen) if one.automatic is not None]
    tuned = [(one.tuned, line) for line, one in enumerate(chosen) if one.tuned is not None]
    _mark(ax, ties, "not told apart from the best", "o", 4, COLORS[0], hollow="white")
    _mark(ax, best, "best measured", "D", 6, COLORS[0])
    _mark(ax, automatic, "automatic rule", "o", 12, COLORS[1], hollow="none")
    _mark(ax, tuned, "tuned map", "x", 8, "black")
    places = [{"rows": str(one.cell.sparse.rows), **swept_place(one.cell)} for one in chosen]
    ax.set_yticks(range(len(chosen)), titles(places, ("rows", "candidates")), fontsize=8)
    ax.set_ylim(len(chosen) - 0.4, -0.6)
    ax.set_xlim(min(offered) / 1.25, max(offered) * 1.25)
    ax.set_xlabel("splits (effective)")
    legend_below(figure, [ax])
    return figure


def _mark(
    ax: "Axes",
    points: list[tuple[int, int]],
    label: str,
    marker: str,
    size: float,
    color: str,
    hollow: str | None = None,
) -> None:
    """One kind of choice at (splits, line). hollow: what fills it where that is not its colour."""
    if points:
        ax.plot(
            *zip(*points, strict=True), linestyle="none", marker=marker, markersize=size, color=color, label=label,
            markerfacecolor=color if hollow is None else hollow, markeredgewidth=1.8 if size > 7 else 1.0, zorder=3,
        )  # fmt: skip
