# SPDX-License-Identifier: MIT
"""The paired times of a split kernel's launches, cell by cell, from a run: what a map is made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.errors import BadInput
from dsa_bench.model.record import Check, Visit
from dsa_bench.model.run import Run, complete_rounds
from dsa_bench.model.shape import SparseShape, shape_of_key
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.splits.targets import smallest_target

FloatArray = NDArray[np.float64]
FEWEST_TIMES = 0.75
"""Share of a cell's rounds in which a launch needs a time to compete; rounds that lack one are then left out."""


@dataclass(frozen=True, slots=True)
class CellTimes:
    """One cell's launches that compete: right, and timed.

    times    tiles per split (the smallest target of its launch) -> one time a round; the automatic rule's first
    auto     the automatic rule's value
    control  the automatic rule's second visits, in the same rounds; None where it has none
    rounds   the indices of the rounds in which all have a time, ascending
    complete the cell's complete rounds, with those that lack a time
    failed   (variant, reason) of each launch that does not compete
    """

    shape: SparseShape
    timer: str
    l2: str
    auto: int
    times: dict[int, FloatArray]
    control: FloatArray | None
    rounds: NDArray[np.int64]
    complete: int
    failed: list[tuple[str, str]]

    @property
    def names(self) -> dict[str, FloatArray]:
        """The times under names, as estimators take them."""
        return {str(value): times for value, times in self.times.items()}


@dataclass(frozen=True, slots=True)
class LostCell:
    """A cell that no map can hold, and why.

    timed       whether another launch of it has times
    unfinished  whether a launch was right and no round is complete: the run was cut short
    """

    shape: SparseShape
    reason: str
    timed: bool
    unfinished: bool
    failed: list[tuple[str, str]]


def cells_of_run(run: Run, kernel: str, context: int | None = None) -> list[CellTimes | LostCell]:
    """Every decode cell that has launches of `kernel`, in numeric order whatever the order of lines.

    context  only cells with a cache of so many positions
    Raises BadInput for a cell that was not measured with the automatic rule, or with two timers or L2 modes.
    """
    checks: dict[str, dict[str, Check]] = {}
    for check in run.checks:
        if check.kernel == kernel and check.requested:
            checks.setdefault(check.cell, {})[check.variant] = check
    rounds: dict[str, list[list[Visit]]] = {cell: [] for cell in checks}
    for cell, _, visits in complete_rounds(run):
        if cell in rounds:
            rounds[cell].append(visits)
    shapes = {cell: shape_of_key(cell) for cell in checks}
    wanted = [
        (shape, cell) for cell, shape in shapes.items() if shape.op == "decode" and context in (None, shape.context)
    ]
    wanted.sort(key=lambda pair: tuple(pair[0].sizes.values()))
    return [_cell_times(shape, list(checks[cell].values()), rounds[cell]) for shape, cell in wanted]


def _cell_times(shape: SparseShape, checks: Sequence[Check], rounds: Sequence[list[Visit]]) -> CellTimes | LostCell:
    auto = next((check for check in checks if AUTOMATIC in check.requested), None)
    if auto is None:
        raise BadInput(f"{shape.key}: was measured without the automatic rule; measure it with --tiles-per-split 0 ...")
    if not rounds:
        wrong = [(check.variant, f"{check.status}: {check.reason}") for check in checks if check.status != "ok"]
        return LostCell(shape, "no round is complete", False, len(wrong) < len(checks), wrong)
    modes = {(visit.timer, visit.l2) for visits in rounds for visit in visits}
    if len(modes) > 1:
        said = " and ".join(f"{timer}, L2 {l2}" for timer, l2 in sorted(modes))
        raise BadInput(f"{shape.key}: was measured with {said}, which are never compared; record them apart")
    read = _Read(rounds)
    competing: dict[int, str] = {}
    failed: list[tuple[str, str]] = []
    for check in sorted(checks, key=lambda check: (check is not auto, -check.splits)):
        value = smallest_target(shape.tiles, check.splits)
        reason = f"{check.status}: {check.reason}" if check.status != "ok" else read.failure(check.variant)
        if reason is not None:
            failed.append((check.variant, reason))
        elif value is not None:
            competing[value] = check.variant
    if auto.variant not in competing.values():
        said = f"the automatic rule's launch {auto.variant} has no times"
        return LostCell(shape, said, bool(competing), False, failed)
    common = read.common(competing.values())
    ((timer, l2),) = modes
    second = read.series(auto.variant, common, control=True)
    return CellTimes(
        shape=shape,
        timer=timer,
        l2=l2,
        auto=next(value for value, variant in competing.items() if variant == auto.variant),
        times={value: np.array(read.series(variant, common)) for value, variant in competing.items()},
        control=np.array(second) if len(second) == len(common) else None,
        rounds=np.array(common, np.int64),
        complete=len(rounds),
        failed=failed,
    )


class _Read:
    """Visits by variant and round."""

    def __init__(self, rounds: Sequence[list[Visit]]) -> None:
        self._count = len(rounds)
        self._visits: dict[tuple[str, bool], dict[int, Visit]] = {}
        for visits in rounds:
            for visit in visits:
                self._visits.setdefault((visit.variant, visit.control), {})[visit.round] = visit

    def failure(self, variant: str) -> str | None:
        """Why a right variant cannot compete; None if it can."""
        visits = self._visits.get((variant, False), {})
        timed = sum(visit.attention_us is not None for visit in visits.values())
        if timed and timed >= FEWEST_TIMES * self._count:
            return None
        wrong = next((visit for _, visit in sorted(visits.items()) if visit.attention_us is None), None)
        said = "" if wrong is None else f" ({wrong.status}: {wrong.reason})"
        return f"times in {timed} of {self._count} rounds{said}"

    def common(self, variants: Iterable[str]) -> list[int]:
        """Rounds in which all variants have a time, ascending."""
        timed = [
            {index for index, visit in self._visits[variant, False].items() if visit.attention_us is not None}
            for variant in variants
        ]
        return sorted(set[int].intersection(*timed))

    def series(self, variant: str, rounds: Sequence[int], control: bool = False) -> list[float]:
        """The times of those rounds that have one."""
        visits = self._visits.get((variant, control), {})
        times = (visits[index].attention_us for index in rounds if index in visits)
        return [time_us for time_us in times if time_us is not None]
