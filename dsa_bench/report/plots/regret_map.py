# SPDX-License-Identifier: MIT
"""Regret of the automatic rule over rows and candidates."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsa_bench.report.plots.canvas import grid_of, new_figure
from dsa_bench.report.plots.subject import NothingToDraw, Subject, grouped, swept_place, titles
from dsa_bench.report.regret import ScoredChoice, score
from dsa_bench.report.swept import SweptCell
from dsa_bench.splits.registry import AUTO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

LEAST_SCALE = 0.02
"""The colour scale reaches at least this far, so that a map of noise does not look like one of losses."""
SURE, UNSURE, NO_INTERVAL = "", "////", "...."


@dataclass(frozen=True, slots=True)
class RegretTile:
    """One shape. hatch: SURE, also of a regret of 0 alone; UNSURE where the interval spans 0 or the regret is less than
    the timer's tick, or NO_INTERVAL for too few rounds."""

    rows: int
    across: int
    regret: float
    hatch: str


def regret_tile(one: ScoredChoice, across: int) -> RegretTile | None:
    """None where the rounds are too few to cross-fit."""
    found = one.regret
    if found.cross_fitted is None:
        return None
    if found.low is None or found.high is None:
        hatch = NO_INTERVAL
    else:
        ends = (found.low, found.cross_fitted, found.high)  # draws that hardly vary leave the estimate outside them
        hatch = UNSURE if any(ends) and (min(ends) <= 0 <= max(ends) or one.is_below_tick) else SURE
    return RegretTile(one.cell.sparse.rows, across, found.cross_fitted, hatch)


def draw(subject: Subject) -> "Figure":
    """A panel for each context; over contexts instead of candidates where only those were swept."""
    cells = subject.choices
    scores = score(cells, [AUTO], subject.slots, None)
    over = _across(cells)
    tiles = {id(one.cell): tile for one in scores.of(AUTO) if (tile := regret_tile(one, getattr(one.cell.shape, over)))}
    if not tiles:
        reasons = sorted({one.reason for one in scores.unscored}) or ["its rounds are too few to cross-fit"]
        raise NothingToDraw(f"the automatic rule has no regret: {'; '.join(reasons)}")
    places = [_place(cell, over) for cell in cells]
    groups = grouped(range(len(places)), lambda at: tuple(places[at].values()))
    rows = sorted({cell.sparse.rows for cell in cells})
    columns = min(2, len(groups))
    height = 1.5 + -(-len(groups) // columns) * (0.9 + 0.42 * len(rows))
    figure = new_figure(
        "Regret of the automatic rule, cross-fitted, against the best measured split", subject.about(), height
    )
    axes = grid_of(figure, len(groups), columns)
    scale = max(LEAST_SCALE, *(tile.regret for tile in tiles.values()))
    from matplotlib import colormaps

    colors = colormaps["Blues"]
    for ax, group, heading in zip(axes, groups, titles([places[group[0]] for group in groups]), strict=True):
        _draw_panel(ax, [cells[at] for at in group], tiles, (over, rows, scale), colors)
        ax.set_title(heading)
    _scale_bar(figure, axes, scale, colors)
    figure.supxlabel(
        "hatched: the 95 % interval spans 0, or less than a tick of the timer; dotted: too few rounds for an interval; "
        "-: no figure",
        fontsize=8,
    )
    return figure


def _across(cells: Sequence[SweptCell]) -> str:
    shapes = [cell.sparse for cell in cells]
    swept_contexts = len({shape.context for shape in shapes}) > 1 and len({shape.candidates for shape in shapes}) == 1
    return "context" if swept_contexts else "candidates"


def _place(cell: SweptCell, over: str) -> dict[str, str]:
    return {name: value for name, value in swept_place(cell).items() if name != over}


def _draw_panel(
    ax: "Axes",
    cells: list[SweptCell],
    tiles: dict[int, RegretTile],
    axis: tuple[str, list[int], float],
    colors: "Colormap",
) -> None:
    from matplotlib.patches import Rectangle

    over, rows, scale = axis
    across = sorted({getattr(cell.sparse, over) for cell in cells})
    drawn = {(getattr(cell.sparse, over), cell.sparse.rows) for cell in cells}
    for x, y in itertools.product(range(len(across)), range(len(rows))):
        if (across[x], rows[y]) not in drawn:
            ax.text(x, y, "-", ha="center", va="center", fontsize=8.5)
    for cell in cells:
        x, y = across.index(getattr(cell.sparse, over)), rows.index(cell.sparse.rows)
        tile = tiles.get(id(cell))
        face = "white" if tile is None else colors(min(max(tile.regret / scale, 0.0), 1.0))
        ink = "white" if tile is not None and tile.regret / scale > 0.55 else "black"
        ax.add_patch(
            Rectangle(
                (x - 0.49, y - 0.49), 0.98, 0.98, facecolor=face, edgecolor=ink, hatch=tile and tile.hatch, linewidth=0
            )
        )
        text = "-" if tile is None else f"{round(100 * tile.regret, 1) + 0.0:.1f}%"
        ax.text(x, y, text, ha="center", va="center", color=ink, fontsize=8.5,
                bbox={"facecolor": face, "edgecolor": "none", "pad": 1.5})  # fmt: skip
    ax.set_xlim(-0.5, len(across) - 0.5)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xticks(range(len(across)), [str(value) for value in across])
    ax.set_yticks(range(len(rows)), [str(value) for value in rows])
    ax.grid(visible=False)
    ax.set_xlabel(over)
    ax.set_ylabel("rows")


def _percent(value: float, _: int) -> str:
    return f"{100 * value:.3g}%"


def _scale_bar(figure: "Figure", axes: list["Axes"], scale: float, colors: "Colormap") -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import FuncFormatter

    bar = figure.colorbar(ScalarMappable(Normalize(0, scale), colors), ax=axes, shrink=0.9, aspect=14, pad=0.02)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(_percent))
    bar.set_label("regret")
