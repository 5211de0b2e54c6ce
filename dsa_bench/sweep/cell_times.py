# SPDX-License-Identifier: MIT
"""The paired times of a split kernel's launches, cell by cell, from a run: what a map is made of."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dsa_bench.model.cell_key import AttentionShape, attention_shape_of_key
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.dense_request import AUTO_RULE
from dsa_bench.model.errors import BadInput
from dsa_bench.model.record import Check, Visit
from dsa_bench.model.run import Run, complete_rounds
from dsa_bench.model.shape import Op
from dsa_bench.model.text import short
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.splits.map_values import value_of
from dsa_bench.stats.paired_times import PairedTimes, is_usable, paired_times
from dsa_bench.stats.several import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class CellTimes:
    """One cell's launches that compete: right, and timed.

    times    tiles per split (the smallest target of its launch), or of dense decode the chunk -> one time a round; the
             automatic rule's first
    auto     the automatic rule's value
    control  the automatic rule's second visits, in the same rounds; None where it has none
    rounds   the indices of the rounds in which all have a time, ascending: three quarters of the complete ones at least
    complete the cell's complete rounds, with those that lack a time
    failed   (variant, reason) of each launch that does not compete
    """

    shape: AttentionShape
    timer: str
    l2: str
    auto: int
    times: dict[int, FloatArray]
    control: FloatArray | None
    rounds: IntArray
    complete: int
    failed: list[tuple[str, str]]

    @property
    def names(self) -> dict[str, FloatArray]:
        """The times under names, as estimators take them."""
        return {str(value): times for value, times in self.times.items()}


@dataclass(frozen=True, slots=True)
class LostCell:
    """A cell that no map can hold, and why.

    timed       whether a launch of it has times in enough of the rounds
    unfinished  whether a launch was right and no round is complete: the run was cut short
    """

    shape: AttentionShape
    reason: str
    timed: bool
    unfinished: bool
    failed: list[tuple[str, str]]


def cells_of_run(
    run: Run, kernel: str, context: int | None = None, op: "Op | Literal['dense']" = "decode"
) -> list[CellTimes | LostCell]:
    """Every cell of an operator that has launches of `kernel`, in numeric order whatever the order of lines.

    context  only cells with a cache of so many positions, or of dense decode with so many live keys
    Raises BadInput for a cell that was not measured with the automatic rule, or with two timers or L2 modes, or whose
    automatic rule says splits that no launch has.
    """
    checks: dict[str, dict[str, Check]] = {}
    for check in run.checks:
        if check.kernel == kernel and check.requested:
            checks.setdefault(check.cell, {})[check.variant] = check
    rounds: dict[str, list[list[Visit]]] = {cell: [] for cell in checks}
    for cell, _, visits in complete_rounds(run):
        if cell in rounds:
            rounds[cell].append(visits)
    shapes = {cell: attention_shape_of_key(cell) for cell in checks if cell.startswith(f"op={op},")}
    wanted = [(shape, cell) for cell, shape in shapes.items() if context in (None, _asked_context(shape))]
    wanted.sort(key=lambda pair: (getattr(pair[0], "dtype", ""), *pair[0].sizes.values()))
    return [_cell_times(shape, list(checks[cell].values()), rounds[cell]) for shape, cell in wanted]


def _asked_context(shape: AttentionShape) -> int:
    return shape.length if isinstance(shape, DenseShape) else shape.context


def _cell_times(shape: AttentionShape, checks: Sequence[Check], rounds: Sequence[list[Visit]]) -> CellTimes | LostCell:
    auto = next((check for check in checks if AUTOMATIC in check.requested), None)
    if auto is None:
        raise BadInput(f"{shape.key}: was measured without the automatic rule; measure it with {_asking(shape)} ...")
    if not rounds:
        wrong = [(check.variant, f"{check.status}: {check.reason}") for check in checks if check.status != "ok"]
        return LostCell(shape, "no round is complete", False, len(wrong) < len(checks), wrong)
    ordered = sorted(checks, key=lambda check: (check is not auto, -check.splits))
    paired = paired_times(ordered, rounds, auto.variant)
    failed = list(paired.left_out.items())
    if auto.variant not in paired.times:
        return LostCell(shape, _why_lost(auto, paired), bool(_timed(ordered, rounds)), False, failed)
    values = {check.variant: value_of(shape, check.splits) for check in ordered}
    own = values[auto.variant]
    if own is None:
        raise BadInput(
            f"{shape.key}: {auto.variant} says {short(auto.splits)} splits, which no launch has; record it again"
        )
    return CellTimes(
        shape=shape,
        timer=paired.timer,
        l2=paired.l2,
        auto=own,
        times={
            value: paired.times[name] for name, value in values.items() if value is not None and name in paired.times
        },
        control=paired.control,
        rounds=paired.rounds,
        complete=paired.complete,
        failed=failed,
    )


def _asking(shape: AttentionShape) -> str:
    """The option that asks for the automatic rule."""
    return f"--rule {AUTO_RULE}" if isinstance(shape, DenseShape) else "--tiles-per-split 0"


def _why_lost(auto: Check, paired: PairedTimes) -> str:
    """Why the automatic rule's launch cannot be compared with."""
    if auto.status != "ok":
        return f"the automatic rule's launch {auto.variant} has no times"
    return f"the automatic rule's launch {auto.variant} cannot be compared with: {paired.left_out[auto.variant]}"


def _timed(checks: Sequence[Check], rounds: Sequence[list[Visit]]) -> list[str]:
    """Launches with times in enough of the rounds."""
    counted = Counter(
        visit.variant for visits in rounds for visit in visits if visit.attention_us is not None and not visit.control
    )
    return [check.variant for check in checks if is_usable(counted[check.variant], len(rounds))]
