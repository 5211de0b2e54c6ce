# SPDX-License-Identifier: MIT
"""How every picture looks, and how it becomes a file: the same data give the same bytes with one matplotlib version.

Drawn without pyplot, so that no display and no MPLBACKEND matters; without the user's matplotlibrc; in a font that
matplotlib ships; without date, version and random ids. Text is never parsed as mathematics, because data is no markup.
"""

import io
import os
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dsa_bench.model.request import CEILINGS, DENSE
from dsa_bench.report.plots.names import PictureFormat

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 8.3
"""Inches. At DPI the width of a README's column on a wide screen."""
DPI = 120
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart by colour-blind readers (Color Universal Design, 2008); never the only sign."""
KERNEL_COLORS: Mapping[str, str] = {
    "int8-tc": COLORS[0], "previous": COLORS[1], "int8-digits": COLORS[2], "int8-ws": COLORS[3],
    "int8-union": COLORS[4], DENSE: COLORS[5],
}  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#767676"
_STYLE = {
    "svg.hashsalt": "dsa-bench",
    "svg.fonttype": "path",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "hatch.linewidth": 0.6,
}


@contextmanager
def drawing() -> Generator[None]:
    """Around making and writing of pictures: matplotlib with this style, leaving no folder of its own behind."""
    with _own_folder():
        import matplotlib.style

        with matplotlib.style.context(["default", _STYLE]):  # pyright: ignore[reportArgumentType] - stubs say str
            yield


@contextmanager
def _own_folder() -> Generator[None]:
    """matplotlib keeps its list of fonts in a folder that it makes; where there is none yet it gets a passing one."""
    if os.environ.get("MPLCONFIGDIR") or _has_folder():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="dsa-bench-") as folder:
        os.environ["MPLCONFIGDIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("MPLCONFIGDIR", None)


def _has_folder() -> bool:
    """Whether both folders that matplotlib would use are there and can be written."""
    home = os.environ.get("HOME", "")
    bases = (
        os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config",
        os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache",
    )
    return all(os.access(Path(base) / "matplotlib", os.W_OK) for base in bases)


def new_figure(title: str, about: str, height: float) -> "Figure":
    """An empty figure with its heading: what it shows, and under it what it was taken on. Height in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    figure.suptitle(f"{title}\n{about}", x=0.01, ha="left", fontsize=9.5)
    return figure


def grid_of(figure: "Figure", count: int, columns: int, *, share_y: bool = True) -> list["Axes"]:
    """`count` axes in rows of up to `columns`; the places left over stay empty."""
    columns = min(columns, count)
    rows = -(-count // columns)
    made = figure.subplots(rows, columns, squeeze=False, sharey="all" if share_y else "none")
    axes: list[Axes] = list(made.flat)
    for unused in axes[count:]:
        unused.set_visible(False)
    return axes[:count]


def plain_log(
    ax: "Axes",
    which: Literal["x", "y"],
    base: int,
    ticks: Sequence[float] | None = None,
    subs: Sequence[float] = (1.0, 2.0, 5.0),
) -> None:
    """A logarithmic axis that is labelled with plain numbers: `ticks`, else these multiples of each decade."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    if which == "x":
        ax.set_xscale("log", base=base)
    else:
        ax.set_yscale("log", base=base)
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(LogLocator(10, subs=subs) if ticks is None else FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(_plain))


def _plain(value: float, _: int) -> str:
    return f"{value:g}"


def kernel_color(kernel: str, at: int) -> str:
    """The colour of a sparse kernel, the same in every picture; of another line, of its place among the lines."""
    return KERNEL_COLORS.get(kernel, COLORS[at % len(COLORS)])


def draw_line(ax: "Axes", names: Sequence[str], name: str, points: Sequence[tuple[float, float]]) -> None:
    """One kernel's line in a picture of `names`; what only moves bytes is dotted and grey, dense attention dashed."""
    if not points:
        return
    at, kind = names.index(name), name.partition("/")[0]
    is_ceiling, is_dense = kind in CEILINGS, kind == DENSE
    label = f"{name}, same bytes" if is_ceiling else f"{name} (another computation)" if is_dense else name
    ax.plot(
        *zip(*points, strict=True), label=label, marker=MARKERS[at % len(MARKERS)], markersize=4.5, linewidth=1.4,
        color=GREY if is_ceiling else kernel_color(kind, at),
        linestyle=":" if is_ceiling else "--" if is_dense else "-",
    )  # fmt: skip


def legend_below(figure: "Figure", axes: list["Axes"], columns: int = 4, spacing: float = 2.0) -> None:
    """One legend for all axes, each label once, in the order in which they were drawn. spacing: of columns, in em."""
    handles = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, columnspacing=spacing
    )


def settle(figure: "Figure") -> None:
    """Lay the figure out once, so that every format of it has the same places and none pays for them again."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def picture(figure: "Figure", format: PictureFormat) -> bytes:
    """The figure as a file, with nothing in it of when and by which version it was made."""
    out = io.BytesIO()
    metadata = {"Date": None, "Creator": None, "Format": None, "Type": None} if format == "svg" else {"Software": None}
    figure.savefig(out, format=format, metadata=metadata)
    data = out.getvalue()
    if format == "svg":  # matplotlib ends some lines with a blank, which editors and git complain about
        data = b"\n".join(line.rstrip() for line in data.splitlines()) + b"\n"
    return data
