# SPDX-License-Identifier: MIT
"""A comparison as text and as Markdown. ASCII only; data is never markup."""

import io
import re
import textwrap

from dsa_bench.model.shape import OPS
from dsa_bench.model.text import printable
from dsa_bench.report.compare_words import (
    faster_or_slower,
    interval_text,
    mark,
    noise_text,
    percent,
    requested_text,
    rules_text,
    sentences,
    splits_text,
)
from dsa_bench.report.comparison import CellComparison, Comparison, Row
from dsa_bench.report.render import UNLIMITED, time_text

STYLES = {"slowest": "bold red", "slow": "yellow", "fast": "green", "bad": "red", "": ""}
BADGES = {
    "slowest": ":red_circle:",
    "slow": ":warning:",
    "fast": ":green_circle:",
    "bad": ":x:",
    "": ":white_check_mark:",
}


def _columns(comparison: Comparison) -> list[str]:
    """Tiles per split and rules where an operator has them, splits where the sides launch differently somewhere, and
    what differs where something does."""
    moved = ["splits"] if any("->" in splits_text(row) for row in comparison.rows) else []
    differs = ["NOT ALIKE"] if any(cell.mismatches for cell in comparison.cells) else []
    ops = {cell.shape["op"] for cell in comparison.cells}
    asked = ["tiles/split"] if ops.intersection(OPS) else []
    rules = ["rule"] if "dense" in ops else []
    return ["kernel", *asked, *rules, *moved, "base", "head", "change", "interval", "verdict", *differs]


def _cells(cell: CellComparison, row: Row, columns: list[str]) -> list[str]:
    found = {
        "kernel": row.kernel,
        "tiles/split": "-" if cell.shape["op"] == "dense" else requested_text(row),
        "rule": rules_text(row),
        "splits": splits_text(row),
        "base": "-" if row.base_us is None else time_text(row.base_us),
        "head": "-" if row.head_us is None else time_text(row.head_us),
        "change": "-" if row.change is None else percent(1 + row.change),
        "interval": interval_text(row.ratio),
        "verdict": _verdict(row),
        "NOT ALIKE": ", ".join(mismatch.field.removeprefix("device.") for mismatch in cell.mismatches) or "-",
    }
    return [printable(found[column]) for column in columns]


def _verdict(row: Row) -> str:
    if row.change is not None and row.status == ("slower" if row.change > 0 else "faster"):
        return faster_or_slower(1 + row.change)
    needed = row.rounds_to_decide
    return row.status if needed is None else f"{row.status} (~{needed} rounds)"


def _heading(comparison: Comparison) -> str:
    sides = zip(("base", "head"), comparison.names, comparison.commits, strict=True)
    said = ", ".join(f"{side} {called} ({commit})" for side, called, commit in sides)
    return printable(f"{said}; {comparison.metric} time, margin {100 * comparison.margin:g}%")


def compare_text(comparison: Comparison, *, color: bool, width: int | None) -> str:
    """For people: a block for each cell. Tables are never cut or wrapped; sentences are, at `width` columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    console = Console(
        file=out, force_terminal=color, no_color=not color, color_system="standard" if color else None,
        width=UNLIMITED, markup=False, highlight=False, emoji=False,
    )  # fmt: skip
    columns = _columns(comparison)

    def say(text: str, style: str = "") -> None:
        text = printable(text)
        console.print(Text(text if width is None else textwrap.fill(text, width), style=style))

    say(_heading(comparison))
    for cell in comparison.cells:
        console.print()
        say(cell.label, "bold")
        grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        for column in columns:
            left = column in ("kernel", "tiles/split", "rule", "verdict", "NOT ALIKE")
            grid.add_column(column, justify="left" if left else "right", no_wrap=True)
        for row in cell.rows:
            grid.add_row(*map(Text, _cells(cell, row, columns)), style=STYLES[mark(row)])
        console.print(grid)
        say(noise_text(cell, comparison.paired))
        for mismatch in cell.mismatches:
            say(f"NOT ALIKE: {mismatch}", "red")
    console.print()
    for sentence in sentences(comparison):
        say(sentence)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def compare_markdown(comparison: Comparison) -> str:
    """One table for a pull request: the seed's marks in front, the null controls behind, the sentences below."""
    columns = _columns(comparison)
    lines = [_markdown(_heading(comparison)), ""]
    heads = ["", "cell", *columns, "null control"]
    lines += ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for cell in comparison.cells:
        noise = noise_text(cell, comparison.paired).removeprefix("null control ")
        for row in cell.rows:
            fields = [cell.label, *_cells(cell, row, columns), noise]
            lines.append(f"| {BADGES[mark(row)]} | " + " | ".join(map(_markdown, fields)) + " |")
    lines.append("")
    lines += [f"- {_markdown(sentence)}" for sentence in sentences(comparison)]
    lines.append(
        "- Marks only colour: :warning: from 15% and :red_circle: from 30% slower, :green_circle: from 15% faster, :x: "
        "no number. The verdicts are judged by the margin."
    )
    return "\n".join(lines)


def _markdown(text: str) -> str:
    return re.sub(r"([|<*_`\\])", r"\\\1", printable(text))
