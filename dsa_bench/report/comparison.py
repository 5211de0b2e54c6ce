# SPDX-License-Identifier: MIT
"""What a comparison of two sides holds: rows, cells, the whole."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from dsa_bench.model.cell_key import cell_words
from dsa_bench.model.record import Check
from dsa_bench.model.request import is_yardstick
from dsa_bench.report.matching import Mismatch
from dsa_bench.report.shift import CommonShift
from dsa_bench.report.sides import Metric, Mode, SideCell
from dsa_bench.stats.location import Estimate

Status = Literal["slower", "faster", "same", "inconclusive", "invalid", "failed", "missing", "new"]
STATUSES: tuple[Status, ...] = (
    "slower",
    "faster",
    "same",
    "inconclusive",
    "invalid",
    "failed",
    "missing",
    "new",
)
GATED: tuple[Status, ...] = ("slower", "invalid", "failed", "missing")
"""What a gate does not let pass."""


@dataclass(frozen=True, slots=True)
class Row:
    """One variant of one cell on both sides.

    requested         tiles-per-split values that led here; 0 is the automatic rule
    base_us, head_us  median over rounds of the metric
    ratio             Hodges-Lehmann estimate of head / base with its interval; above 1 the head is slower
    rounds_to_decide  if inconclusive, an estimate of the rounds of each side that would decide
    same_code         both sides ran kernels of one hash; None with one side only
    """

    kernel: str
    requested: tuple[int, ...]
    base: Check | None
    head: Check | None
    status: Status
    reason: str | None = None
    base_us: float | None = None
    head_us: float | None = None
    ratio: Estimate | None = None
    rounds_to_decide: int | None = None

    @property
    def is_yardstick(self) -> bool:
        """Whether the row bounds others and is no result: it is shown, and neither gates nor counts in the mean."""
        return is_yardstick(self.kernel)

    @property
    def gates(self) -> bool:
        return self.status in GATED and not self.is_yardstick

    @property
    def compared(self) -> bool:
        return self.ratio is not None and not self.is_yardstick

    @property
    def change(self) -> float | None:
        """head / base - 1 of the two printed times."""
        return None if self.base_us is None or self.head_us is None else self.head_us / self.base_us - 1

    @property
    def same_code(self) -> bool | None:
        if self.base is None or self.head is None:
            return None
        return self.base.kernel_hash == self.head.kernel_hash


@dataclass(frozen=True, slots=True)
class CellComparison:
    """One cell: its rows, and what each side's null control showed.

    mismatches  where the sides are not alike in this cell or in their devices; compared all the same, because asked
    """

    shape: dict[str, str]
    base: SideCell | None
    head: SideCell | None
    rows: list[Row]
    mismatches: list[Mismatch]

    @property
    def mode(self) -> Mode | None:
        """Timer and L2 mode: the head's, where the sides differ."""
        return next((side.mode for side in (self.head, self.base) if side and side.mode), None)

    @property
    def label(self) -> str:
        """The shape in words, and the timer and L2 mode."""
        said = "" if self.mode is None else ", {}, L2 {}".format(*self.mode)
        return f"{self.shape['op']}, {cell_words(self.shape)}{said}"

    @property
    def untrusted(self) -> list[str]:
        """Sides whose null control was off."""
        sides = (("base", self.base), ("head", self.head))
        return [name for name, side in sides if side is not None and side.noise is not None and not side.noise.trusted]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All cells of two sides.

    names   what the sides are called: files, revisions or folders
    paired  the rounds of the sides are the same rounds
    noted   versions that differ and may be what is compared
    mean    geometric mean of head / base over the rows with a number on both sides; None without one
    shift   what all rows have in common, if they have
    """

    names: tuple[str, str]
    commits: tuple[str, str]
    paired: bool
    metric: Metric
    margin: float
    cells: list[CellComparison]
    noted: list[Mismatch]
    mean: Estimate | None
    shift: CommonShift | None

    @property
    def rows(self) -> list[Row]:
        return [row for cell in self.cells for row in cell.rows]

    @property
    def counts(self) -> dict[Status, int]:
        """Rows of each status that there is; ceilings are not counted."""
        counted = Counter(row.status for row in self.rows if not row.is_yardstick)
        return {status: counted[status] for status in STATUSES if counted[status]}

    def gate_reasons(self, strict: bool = False) -> list[str]:
        """What a gate holds against the head, in words; empty if it passes. `strict`: INCONCLUSIVE does not pass."""
        gated = (*GATED, "inconclusive") if strict else GATED
        return [f"{count} {status}" for status, count in self.counts.items() if status in gated]
