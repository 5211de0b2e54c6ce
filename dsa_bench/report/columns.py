# SPDX-License-Identifier: MIT
"""Rows of cells as aligned text, Markdown and CSV. ASCII only; data is never markup."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from dsa_bench.model.text import printable


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()) -> str:
    """A table in columns; those named in `left` are flush left. Never cut or wrapped."""
    lines = [tuple(columns), *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()) -> str:
    """A Markdown table."""
    rule = "|" + "|".join(" --- " if column in left else " ---: " for column in columns) + "|"
    lines = [columns, *([printable(cell).replace("|", "\\|") for cell in row] for row in rows)]
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([head, rule, *body])


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Flat records as CSV; a missing number is an empty field."""
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue().rstrip("\n")


def percent(ratio: float | None) -> str:
    """A share as a person reads it, two decimals; never a negative zero."""
    return "-" if ratio is None else f"{round(100 * ratio, 2) + 0.0:.2f}%"


def interval(low: float | None, high: float | None) -> str:
    """Both ends of an interval of shares."""
    return "-" if low is None or high is None else f"{percent(low)} to {percent(high)}"
