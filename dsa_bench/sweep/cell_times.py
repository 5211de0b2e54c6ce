# SPDX-License-Identifier: MIT
"""The paired times of the split kernels' launches, cell by cell, from a run: what a map is made of."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dsa_bench.model.cell_key import AttentionShape, attention_shape_of_key
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.dense_request import AUTO_RULE
from dsa_bench.model.errors import BadInput
from dsa_bench.model.map_parts import Target
from dsa_bench.model.record import Check, Visit
from dsa_bench.model.request import DIGITS
from dsa_bench.model.run import Run, complete_rounds
from dsa_bench.model.shape import Op
from dsa_bench.model.text import short
from dsa_bench.splits.digits import cluster_counts
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.splits.kernels import automatic_among
from dsa_bench.splits.map_values import splits_of, target_of
from dsa_bench.stats.paired_times import PairedTimes, is_usable, paired_times
from dsa_bench.stats.several import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class CellTimes:
    """One cell's launches that compete: right, and timed.

    times    what each launch is asked for -> one time a round; what runs without a map first
    auto     what runs without a map: the automatic kernel, of those measured, by its automatic rule
    autos    each kernel's automatic launch
    control  second visits of an automatic launch, `controlled`, in the same rounds; None where it has none
    clusters size -> clusters that the device holds of it, of `int8-digits`
    rounds   the indices of the rounds in which all have a time, ascending: three quarters of the complete ones at least
    complete the cell's complete rounds, with those that lack a time
    failed   (variant, reason) of each launch that does not compete
    """

    shape: AttentionShape
    timer: str
    l2: str
    auto: Target
    autos: dict[str, Target]
    times: dict[Target, FloatArray]
    control: FloatArray | None
    controlled: Target | None
    rounds: IntArray
    complete: int
    failed: list[tuple[str, str]]
    clusters: Mapping[int, int]

    @property
    def names(self) -> dict[str, FloatArray]:
        """The times under names, as estimators take them."""
        return {str(target): times for target, times in self.times.items()}

    def of_kernel(self, kernel: str) -> dict[Target, FloatArray]:
        """The launches of one kernel alone."""
        return {target: times for target, times in self.times.items() if target.kernel == kernel}

    def launch(self, target: Target) -> Target | None:
        """The measured launch that a target becomes here; None if it was not measured."""
        found = target_of(self.shape, target.kernel, splits_of(self.shape, target, self.clusters), self.clusters)
        return found if found in self.times else None


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
    run: Run, kernels: Sequence[str], context: int | None = None, op: "Op | Literal['dense']" = "decode"
) -> list[CellTimes | LostCell]:
    """Every cell of an operator that has launches of the first of `kernels`, in numeric order whatever the order of
    lines.

    context  only cells with a cache of so many positions, or of dense decode with so many live keys
    Raises BadInput for a cell that was not measured with the automatic rule, or with two timers or L2 modes, or whose
    automatic rule says splits that no launch has.
    """
    checks: dict[str, dict[str, Check]] = {}
    for check in run.checks:
        if check.kernel in kernels and check.requested:
            checks.setdefault(check.cell, {})[check.variant] = check
    checks = {cell: of for cell, of in checks.items() if any(check.kernel == kernels[0] for check in of.values())}
    rounds: dict[str, list[list[Visit]]] = {cell: [] for cell in checks}
    for cell, _, visits in complete_rounds(run):
        if cell in rounds:
            rounds[cell].append(visits)
    shapes = {cell: attention_shape_of_key(cell) for cell in checks if cell.startswith(f"op={op},")}
    wanted = [(shape, cell) for cell, shape in shapes.items() if context in (None, _asked_context(shape))]
    wanted.sort(key=lambda pair: (getattr(pair[0], "dtype", ""), *pair[0].sizes.values()))
    device = run.header.device
    return [_cell_times(shape, list(checks[cell].values()), rounds[cell], device) for shape, cell in wanted]


def _asked_context(shape: AttentionShape) -> int:
    return shape.length if isinstance(shape, DenseShape) else shape.context


def _cell_times(
    shape: AttentionShape, checks: Sequence[Check], rounds: Sequence[list[Visit]], device: Mapping[str, Any]
) -> CellTimes | LostCell:
    automatic = {check.kernel: check for check in checks if AUTOMATIC in check.requested}
    for kernel in dict.fromkeys(check.kernel for check in checks):
        if kernel not in automatic:
            asking = _asking(shape)
            raise BadInput(
                f"{shape.key}: was measured without the automatic rule of {kernel}; measure it with {asking} ..."
            )
    clusters = cluster_counts(device.get("clusters"))
    targets = {check.variant: target_of(shape, check.kernel, check.splits, clusters) for check in checks}
    measured = [kernel for kernel, check in automatic.items() if check.status == "ok"] or [*automatic]
    capability = device.get("compute_capability")
    auto = automatic[measured[0] if isinstance(shape, DenseShape) else automatic_among(shape, measured, capability)]
    if not rounds:
        wrong = [(check.variant, f"{check.status}: {check.reason}") for check in checks if check.status != "ok"]
        return LostCell(shape, "no round is complete", False, len(wrong) < len(checks), wrong)
    ordered = sorted(checks, key=lambda check: (check is not auto, check.kernel != auto.kernel, -check.splits))
    paired = paired_times(ordered, rounds, auto.variant)
    failed = list(paired.left_out.items())
    if auto.variant not in paired.times:
        return LostCell(shape, _why_lost(auto, paired), bool(_timed(ordered, rounds)), False, failed)
    if auto.kernel == DIGITS and targets[auto.variant] is None:  # a cell says what its rules replace by its value
        reason = f"{auto.variant}, which runs there without a map, is a launch that no tiles per split asks for"
        return LostCell(shape, reason, True, False, failed)
    autos: dict[str, Target] = {}
    for kernel, check in automatic.items():
        own = targets[check.variant]
        if own is None and kernel != DIGITS:
            raise BadInput(
                f"{shape.key}: {check.variant} says {short(check.splits)} splits, which no launch has; record it again"
            )
        if own is not None and check.variant in paired.times:
            autos[kernel] = own
    times: dict[Target, FloatArray] = {}
    for check in ordered:
        target = targets[check.variant]
        if check.variant in paired.times and check.kernel not in autos:
            own = automatic[check.kernel].variant
            why = "has no times" if own not in paired.times else "is a launch that no tiles per split asks for"
            failed.append((check.variant, f"{own}, the automatic launch of its kernel, {why}"))
        elif check.variant in paired.times and target is not None:
            times[target] = paired.times[check.variant]
    controlled = None if paired.controlled is None else targets[paired.controlled]
    return CellTimes(
        shape=shape,
        timer=paired.timer,
        l2=paired.l2,
        auto=autos[auto.kernel],
        autos=autos,
        times=times,
        control=paired.control if controlled in times else None,
        controlled=controlled,
        rounds=paired.rounds,
        complete=paired.complete,
        failed=failed,
        clusters=clusters,
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
