# SPDX-License-Identifier: MIT
"""A run with its place, and how places and data are written in Markdown, where data is never markup."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from dsa_bench.model.run import Run
from dsa_bench.model.text import printable
from dsa_bench.report.cells import CellTable, cell_tables

NOT_WHAT_WAS_MEASURED = ("--record", "-o", "--output")
"""Options that name where a result went."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run that a report is made of.

    name   its file's name without the ending      link  the file as the report links to it
    table  link to the page beside it that holds its whole table, where there is one
    plots  (kind, link) of the pictures beside it
    """

    name: str
    link: str
    run: Run
    tables: Sequence[CellTable]
    table: str | None = None
    plots: tuple[tuple[str, str], ...] = ()

    @property
    def is_measured(self) -> bool:
        return any(table.rounds for table in self.tables)


def recorded(name: str, link: str, run: Run) -> Recorded:
    return Recorded(name, link, run, cell_tables(run))


def plain(text: object) -> str:
    """Data as Markdown text: signs that would be markup are escaped, control characters shown."""
    return re.sub(r"([\\`*\[\]<>])", r"\\\1", printable(str(text)))


def code(text: object) -> str:
    """Data as a code span."""
    shown = printable(str(text))
    fence = "``" if "`" in shown else "`"
    return f"{fence} {shown} {fence}" if "`" in shown else f"`{shown}`"


def link(text: str, target: str) -> str:
    return f"[{plain(text)}]({quote(target)})"


def command(run: Run) -> str:
    """The command line that measured a run, without where its record went."""
    words: list[str] = []
    rest = list(run.header.argv)
    while rest:
        word = rest.pop(0)
        if word in NOT_WHAT_WAS_MEASURED:
            del rest[:1]
        elif word != "--resume" and not word.startswith(
            tuple(f"{name}=" for name in NOT_WHAT_WAS_MEASURED if len(name) > 2)
        ):
            words.append(word)
    return code(f"dsa-bench {shlex.join(words)}".rstrip())
