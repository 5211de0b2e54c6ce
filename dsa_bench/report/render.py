# SPDX-License-Identifier: MIT
"""Tables as text for people, and as Markdown. ASCII only; data is never markup."""

import io
import textwrap
from collections.abc import Callable

from dsa_bench.model.dense import DENSE_KERNELS
from dsa_bench.model.hyper import HYPER_OPS
from dsa_bench.model.record import Check
from dsa_bench.model.request import DENSE
from dsa_bench.model.shape import SORTED
from dsa_bench.model.text import printable
from dsa_bench.report.cells import CellTable, VariantRow
from dsa_bench.report.flat import BESIDE, to_csv, to_json, to_jsonl
from dsa_bench.report.words import asked_for, conclusion, what_dense_is
from dsa_bench.stats.location import Estimate


def to_markdown(tables: list[CellTable]) -> str:
    """The seed's table: one line for each variant, then a line for each cell with its floors and its conclusion.

    Dimensions of the shape other than rows and context, capacity and length have a column where they differ.
    """
    if not tables:
        return ""
    names = dict.fromkeys(name for table in tables for name in table.shape)
    shape = [name for name in names if name != "op" and (name in ALWAYS or _varies(tables, name))]
    columns = [*(name.replace("_", " ") for name in shape), *_columns(tables)]
    lines = ["| " + " | ".join(columns) + " |", "|" + " ---: |" * len(columns)]
    for table in tables:
        for row in table.rows:
            cells = [*(table.shape.get(name, SORTED) for name in shape), *_cells(row, tables)]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines.append("")
    lines += [printable(f"- {table.label}: {_floors(table)}. {_sentences(table)}") for table in tables]
    return "\n".join(lines)


ALWAYS = ("rows", "context", "capacity", "length")
"""Dimensions that a Markdown table has a column for even where all cells share one."""


def _varies(tables: list[CellTable], name: str) -> bool:
    return len({table.shape.get(name, SORTED) for table in tables}) > 1


def _columns(tables: list[CellTable]) -> list[str]:
    """Headings of the cells that `_cells` gives. Only attention is split; the geometry of others is their CTAs."""
    geometry = ["CTAs"] if _is_unsplit(tables) else ["tiles/split", "eff.", "splits", "CTAs"]
    if _is_dense(tables):
        geometry = ["rule", "grid", "chunk", "alive", "waves", "occ."]
    return ["kernel", *geometry, "time", "speedup", "interval", *_yardsticks(tables), "RMS err"]


def _is_dense(tables: list[CellTable]) -> bool:
    return any(table.op == "dense" for table in tables)


def _is_unsplit(tables: list[CellTable]) -> bool:
    return any(table.op != "decode" for table in tables)


def _of_copy(tables: list[CellTable]) -> str:
    """Heading of the share of the ceiling: a copy's, or a gather's."""
    return "of copy" if any(table.op in (*HYPER_OPS, "dense") for table in tables) else "gather"


def _of_bytes(tables: list[CellTable]) -> str:
    """Heading of the bytes per second."""
    return "read/s" if _is_dense(tables) else "gathered/s"


def _yardsticks(tables: list[CellTable]) -> list[str]:
    """Headings of comparisons that at least one row of the tables has; bytes per second where nothing is split."""
    rows = [row for table in tables for row in table.rows]
    gathered = _is_unsplit(tables) and any(row.gathered_gbps is not None for row in rows)
    share = any(row.gather_share is not None for row in rows)
    dense = any(row.dense_ratio is not None for row in rows)
    beside = {what: any(what in row.beside for row in rows) for what in BESIDE}
    shown = {**beside, _of_bytes(tables): gathered, _of_copy(tables): share, "dense": dense}
    return [heading for heading, is_shown in shown.items() if is_shown]


def _cells(row: VariantRow, tables: list[CellTable]) -> list[str]:
    """One variant as text, under `_columns`."""
    check, ratio = row.check, row.speedup
    asked = " = ".join(asked_for(check)) or "-"
    time = row.status.replace("_", " ") if row.time_us is None else time_text(row.time_us)
    speedup = "-" if ratio is None else f"{ratio.centre:.2f}x"
    interval = "-" if ratio is None or ratio.interval is None else "{:.2f}-{:.2f}".format(*ratio.interval)
    yardsticks = {what: _ratio_text(row.beside.get(what)) for what in BESIDE}
    yardsticks |= {
        _of_bytes(tables): "-" if row.gathered_gbps is None else rate_text(row.gathered_gbps),
        _of_copy(tables): "-" if row.gather_share is None else f"{row.gather_share:.0%}",
        "dense": "-" if row.dense_ratio is None else f"{row.dense_ratio.centre:.2f}x",
    }
    rms = "-" if check.rms_error is None else f"{check.rms_error:.2e}".replace("e-0", "e-")
    ctas = str(check.ctas) if check.ctas else "-"
    geometry = [ctas] if _is_unsplit(tables) else [asked, str(check.tiles_per_split), str(check.splits), ctas]
    if _is_dense(tables):
        geometry = _dense_geometry(check, ctas)
    name = check.variant if check.kernel == DENSE else check.kernel
    shown = [yardsticks[heading] for heading in _yardsticks(tables)]
    return [printable(name), *geometry, time, speedup, interval, *shown, rms]


def _dense_geometry(check: Check, ctas: str) -> list[str]:
    """Of a copy only its CTAs."""
    facts = check.facts
    grid = f"{check.ctas // check.splits}x{check.splits}" if check.splits and check.ctas else ctas
    counts = [f"{facts[name]:g}" if name in facts else "-" for name in ("chunk", "alive")]
    waves = f"{facts['waves']:.2f}" if "waves" in facts else "-"
    occupancy = f"{facts['occupancy']:.0%}" if "occupancy" in facts else "-"
    return [" = ".join(check.rules) or "-", grid, *counts, waves, occupancy]


def _ratio_text(ratio: Estimate | None) -> str:
    """A ratio with its interval, where the rounds give one."""
    if ratio is None:
        return "-"
    interval = "" if ratio.interval is None else " ({:.2f}-{:.2f})".format(*ratio.interval)
    return f"{ratio.centre:.2f}x{interval}"


def rate_text(gbps: float) -> str:
    """10^9 bytes per second, or 10^12 where there are thousands of them: three figures, the unit in the text."""
    return f"{gbps / 1e3:.2f} TB/s" if gbps >= 999.5 else f"{gbps:.3g} GB/s"


def _sentences(table: CellTable) -> str:
    """The conclusion, and what the line of dense attention is where there is one."""
    return " ".join(filter(None, (conclusion(table), what_dense_is(table))))


def time_text(time_us: float) -> str:
    """Microseconds up to 10 ms, then milliseconds: three or more figures, the unit in the text."""
    return (
        f"{time_us:.2f} us" if time_us < 100 else f"{time_us:.1f} us" if time_us < 10_000 else f"{time_us / 1e3:.2f} ms"
    )


def _deviation(ratio: float) -> str:
    """How far a ratio is from 1, in percent; never a negative zero."""
    return f"{round(100 * (ratio - 1), 2) + 0.0:+.2f}%"


def _floors(table: CellTable) -> str:
    parts: list[str] = []
    if table.rounding_floor is not None:
        parts.append(f"rounding floor {table.rounding_floor:.2e}".replace("e-0", "e-"))
    if table.noise is not None:
        ratio = table.noise.ratio
        interval = "" if ratio.interval is None else " [{}, {}]".format(*map(_deviation, ratio.interval))
        parts.append(
            f"noise floor {_deviation(ratio.centre)}{interval}" + ("" if table.noise.trusted else " UNTRUSTED")
        )
    parts.append(f"{table.rounds} rounds" + (f", {table.timer}, L2 {table.l2}" if table.timer else ""))
    return ", ".join(parts)


def _narrow(columns: list[str], lines: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """A block of dense decode without what says nothing there: the kernel, which its heading names, so that the name of
    a copy stands under `rule`; and columns that no line has a value in."""
    kernel, rule = columns.index("kernel"), columns.index("rule")
    for line in lines:
        if line[kernel] not in DENSE_KERNELS:
            line[rule] = line[kernel]
    kept = [at for at in range(len(columns)) if at != kernel and any(line[at] != "-" for line in lines)]
    return [columns[at] for at in kept], [[line[at] for at in kept] for line in lines]


UNLIMITED = 10_000


def to_text(tables: list[CellTable], *, color: bool, width: int | None) -> str:
    """For people: a block for each cell, 80 columns at most for everyday numbers. Tables are never cut or wrapped;
    sentences are, at `width` columns if there is a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    console = Console(
        file=out, force_terminal=color, no_color=not color, color_system="standard" if color else None,
        width=UNLIMITED, markup=False, highlight=False, emoji=False,
    )  # fmt: skip
    for at, table in enumerate(tables):
        if at:
            console.print()
        console.print(Text(table.label, style="bold"))
        grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        columns, lines = _columns(tables), [_cells(row, tables) for row in table.rows]
        if table.op == "dense":
            columns, lines = _narrow(columns, lines)
        for column in columns:
            grid.add_column(
                column, justify="left" if column in ("kernel", "tiles/split", "rule") else "right", no_wrap=True
            )
        fastest = table.fastest
        for row, line in zip(table.rows, lines, strict=True):
            style = "green" if fastest and row is fastest.row else "red" if row.status != "ok" else ""
            grid.add_row(*map(Text, line), style=style)
        console.print(grid)
        for row in table.rows:
            if row.reason is not None:
                console.print(
                    Text(printable(f"{row.check.variant}: {row.status.replace('_', ' ')}: {row.reason}"), style="red")
                )
        for sentence in filter(None, (_floors(table), conclusion(table), what_dense_is(table))):
            sentence = printable(sentence)
            console.print(Text(sentence if width is None else textwrap.fill(sentence, width)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


MACHINE_WRITERS: dict[str, Callable[[list[CellTable]], str]] = {
    "json": to_json,
    "jsonl": to_jsonl,
    "csv": to_csv,
    "markdown": to_markdown,
}
