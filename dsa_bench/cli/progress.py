# SPDX-License-Identifier: MIT
"""How a run goes on, on stderr: a bar on a terminal, one line for each cell elsewhere."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dsa_bench.cli.console import note
from dsa_bench.cli.part import WHOLE, Part
from dsa_bench.model.cell_key import cell_words


class RunProgress:
    """Follows cells and visits. A context manager, so that an interrupt leaves the terminal as it was.

    announcements  said before the first cell, so that a request that never gets there ends in its one line of error
    part           where the cells stand in a run of several requests
    """

    def __init__(self, announcements: list[str], part: Part = WHOLE) -> None:
        self._announcements = announcements
        self._part = part
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.1f}/{task.total:.0f} cells", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._live = sys.stderr.isatty()
        self._task = self._bar.add_task("", total=1)
        self._visit_share = 0.0
        self._first: tuple[int, float] | None = None

    def begin_cell(self, cell: str, number: int, cells: int) -> None:
        number, cells = number + self._part.before, self._part.of or cells
        parts = dict(part.split("=", 1) for part in cell.split(","))
        label = cell_words(parts, heads=False)
        while self._announcements:
            note(self._announcements.pop(0))
        if not self._live:
            note(f"cell {number + 1} of {cells}: {label}{self._left(number, cells)}")
        self._bar.update(self._task, description=label, completed=number, total=cells)

    def _left(self, number: int, cells: int) -> str:
        """How long the other cells will take if they take as long as those so far; nothing before there is one."""
        now_s = time.monotonic()
        if self._first is None:
            self._first = number, now_s
            return ""
        first, start_s = self._first
        return f", about {(now_s - start_s) / (number - first) * (cells - number):.0f} s left"

    def took_paths(self, variant: str, ctas: Mapping[str, int]) -> None:
        if ctas:
            note(f"{variant}: " + ", ".join(f"{count} CTAs on path {path}" for path, count in ctas.items()))

    def said(self, text: str) -> None:
        note(text)

    def begin_rounds(self, visits: int | None) -> None:
        self._visit_share = 1 / visits if visits else 0.0

    def visited(self) -> None:
        self._bar.advance(self._task, self._visit_share)

    def __enter__(self) -> "RunProgress":
        if self._live:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._bar.stop()


class CaseProgress:
    """Names the case that runs, on a terminal; says nothing elsewhere."""

    def __init__(self, cases: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed} of {task.total} cases", markup=False),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("", total=cases)
        self._begun = 0

    def begin(self, case: str) -> None:
        self._bar.update(self._task, description=case, completed=self._begun)
        self._begun += 1

    def __enter__(self) -> "CaseProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
