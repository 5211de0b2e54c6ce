# SPDX-License-Identifier: MIT
"""A recorded sweep of the split kernel: each cell's paired times, and which variant a rule chooses there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsa_bench.bench.timers import known_tick_us
from dsa_bench.model.cell_key import AttentionShape, attention_shape_of_key, cell_words
from dsa_bench.model.costs import SplitCosts
from dsa_bench.model.dense import DENSE_KERNELS, DenseShape
from dsa_bench.model.dense_request import AUTO_RULE
from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.errors import BadInput
from dsa_bench.model.record import Check, Visit
from dsa_bench.model.request import DIGITS, SPLIT_KERNELS
from dsa_bench.model.run import Run, complete_rounds
from dsa_bench.model.shape import SparseShape
from dsa_bench.report.cells import cell_order, cell_shape, noise_floor
from dsa_bench.splits.dense import parse_rule
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.splits.kernels import automatic_among
from dsa_bench.splits.registry import AUTO, MODEL, RULE_NAMES, Rule, named_rules
from dsa_bench.stats.paired_times import paired_times

SWEPT_KERNELS: Mapping[str, tuple[str, ...]] = {"decode": SPLIT_KERNELS, "dense": DENSE_KERNELS}
"""Operator -> kernels that take splits."""


class NothingSwept(BadInput):
    """A run of other operators, or of kernels without splits."""


@dataclass(frozen=True, slots=True)
class SweptCell:
    """One shape and kernel, in the one timer and L2 mode that it was measured with.

    checks    variant -> its correctness run, of every variant of the split kernel
    rounds    [rounds] indices of the rounds in which all of `times` have a time
    times     variant -> [rounds] attention_us, of the variants that compete (stats/paired_times.py)
    left_out  variant -> why it does not
    tick_us   what the timer counts in; None where that is not known
    trusted   whether the cell's null control found nothing, or it has none
    """

    shape: AttentionShape
    kernel: str
    timer: str
    l2: str
    checks: Mapping[str, Check]
    rounds: NDArray[np.int64]
    times: Mapping[str, NDArray[np.float64]]
    left_out: Mapping[str, str]
    tick_us: float | None = None
    trusted: bool = True

    @property
    def label(self) -> str:
        """The shape in words."""
        words = cell_words(cell_shape(self.shape.key))
        return f"{self.kernel}, {words}" if isinstance(self.shape, DenseShape) or not self.is_ruled else words

    @property
    def is_ruled(self) -> bool:
        """Whether named rules choose its splits; `int8-digits` has the rule of its own clusters alone."""
        return self.kernel != DIGITS

    @property
    def sparse(self) -> SparseShape:
        """The shape, of decode. Raises TypeError for dense decode, which callers that ask have left out."""
        if isinstance(self.shape, DenseShape):
            raise TypeError(f"{self.shape.key} is no shape of sparse attention")
        return self.shape


def place_of(shape: AttentionShape) -> dict[str, int]:
    """What tells the cells of a sweep apart, by name."""
    if isinstance(shape, DenseShape):
        return {"rows": shape.rows, "capacity": shape.capacity, "length": shape.length}
    return {"rows": shape.rows, "context": shape.context, "candidates": shape.candidates}


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a rule chooses in a cell.

    variant  its name if it was measured, else None
    reason   why it cannot be scored, else None
    """

    variant: str | None
    reason: str | None = None


def swept_cells(run: Run, op: str = "decode", *, together: bool = False) -> list[SweptCell]:
    """Every cell of an operator with a split kernel and a complete round, in numeric order of the shape.

    op        "decode" or "dense"
    together  whether all kernels of a shape are one cell of decode, that of the one that runs without a map
    Raises NothingSwept if there is none, BadInput if one was measured with two timers or L2 modes.
    """
    checks: dict[str, dict[str, Check]] = {}
    for check in run.checks:
        swept = check.kernel in SWEPT_KERNELS[op] and (check.requested or check.rules)
        if swept and check.cell.startswith(f"op={op},"):
            checks.setdefault(check.cell, {})[check.variant] = check
    rounds: dict[str, list[list[Visit]]] = {}
    for cell, _, visits in complete_rounds(run):
        if cell in checks:
            rounds.setdefault(cell, []).append(visits)
    capability, device = run.header.device.get("compute_capability"), str(run.header.device.get("name"))
    cells: list[SweptCell] = []
    for cell in sorted(rounds, key=cell_order):
        by_kernel = _by_kernel(checks[cell])
        if together:
            shape = attention_shape_of_key(cell)
            kernel = (
                next(iter(by_kernel))
                if isinstance(shape, DenseShape)
                else automatic_among(shape, [*by_kernel], capability)
            )
            by_kernel = {kernel: {**by_kernel[kernel], **checks[cell]}}
        cells += [_swept_cell(kernel, of_kernel, rounds[cell], device) for kernel, of_kernel in by_kernel.items()]
    if not cells:
        raise NothingSwept(f"the run has no complete round of a split kernel in {op}; record one with `{op} --record`")
    return cells


def ruled(cells: Sequence[SweptCell]) -> list[SweptCell]:
    """The cells whose splits named rules choose. Raises NothingSwept if there is none."""
    found = [cell for cell in cells if cell.is_ruled]
    if not found:
        raise NothingSwept("the run has no complete round of int8-tc, whose splits named rules choose; sweep it too")
    return found


def run_slots(run: Run, resident: int | None = None) -> DeviceSlots | None:
    """What the split rules saw of the run's device; None if the record does not say how many CTAs were resident.

    resident  stands for what the record does not say. Raises BadInput for facts that are no counts.
    """
    sms, recorded = run.header.device.get("sm_count"), run.header.device.get("resident_ctas")
    for name, fact in (("sm_count", sms), ("resident_ctas", recorded)):
        if fact is not None and (type(fact) is not int or fact < 1):
            raise BadInput(f"the header's device has {name} {fact!r:.40}, which is no count")
    known = resident if recorded is None else recorded
    return None if sms is None or known is None else DeviceSlots(sms, known)


def choices(cells: Sequence[SweptCell], name: str, slots: DeviceSlots | None, costs: SplitCosts | None) -> list[Chosen]:
    """What one rule chooses in each cell: worked out where the slots are known, else as recorded.

    Rules of dense decode need no slots.
    """
    if any(isinstance(cell.shape, DenseShape) for cell in cells):
        return [_chosen_chunk(cell, name) for cell in cells]
    if name not in (AUTO, *RULE_NAMES):
        return [Chosen(None, "is a rule of dense decode, and the run is of decode") for _ in cells]
    rule = None if name == AUTO or (name == MODEL and costs is None) else named_rules([name], costs)[name]
    return [_chosen(cell, name, rule if slots is not None else None, slots) for cell in cells]


def _chosen(cell: SweptCell, name: str, rule: Rule | None, slots: DeviceSlots | None) -> Chosen:
    if rule is not None and slots is not None:
        shape = cell.sparse
        splits = rule.splits(shape.tiles, shape.rows, shape.kv_heads, slots)
        variant = f"{cell.kernel}/splits={splits}"
        if variant not in cell.checks:
            return Chosen(None, f"chooses {splits} splits, which were not measured; add --rules {name} to the sweep")
    else:
        recorded = (key for key, check in cell.checks.items() if _stands_for(check, name))
        variant = next(recorded, None)
        if variant is None:
            return Chosen(None, _UNKNOWN.get(name, _UNKNOWN_SLOTS))
    if variant in cell.left_out:
        return Chosen(None, f"chooses {variant}, which has no time: {cell.left_out[variant]}")
    return Chosen(variant)


def _chosen_chunk(cell: SweptCell, name: str) -> Chosen:
    if name in RULE_NAMES:
        return Chosen(None, "is a rule of decode, and the run is of dense decode")
    plan = parse_rule(AUTO_RULE if name == AUTO else name)(cell.shape.sizes["capacity"], cell.shape.rows)
    variant = f"{cell.kernel}/{plan.name}"
    if variant not in cell.checks:
        return Chosen(None, f"chooses {plan.name}, which was not measured; add --rule {name} to the sweep")
    if variant in cell.left_out:
        return Chosen(None, f"chooses {variant}, which has no time: {cell.left_out[variant]}")
    return Chosen(variant)


_UNKNOWN_SLOTS = "the record does not say how many CTAs were resident; say it with --resident N"
_UNKNOWN = {
    AUTO: "0 tiles per split, the automatic rule, was not asked for",
    MODEL: "its constants are not given and the sweep did not ask for it; name them with --model FILE",
}


def _stands_for(check: Check, name: str) -> bool:
    """Whether a check line says that this variant is the rule's choice. The automatic rule is seed-wave."""
    return name in check.rules or (name in (AUTO, "seed-wave") and 0 in check.requested)


def _by_kernel(checks: Mapping[str, Check]) -> dict[str, dict[str, Check]]:
    found: dict[str, dict[str, Check]] = {}
    for variant, check in checks.items():
        found.setdefault(check.kernel, {})[variant] = check
    return found


def _swept_cell(kernel: str, checks: Mapping[str, Check], rounds: Sequence[list[Visit]], device: str) -> SweptCell:
    automatic = next((name for name, check in checks.items() if AUTOMATIC in check.requested), None)
    paired = paired_times(list(checks.values()), rounds, automatic)
    noise = noise_floor(rounds)
    return SweptCell(
        shape=attention_shape_of_key(next(iter(checks.values())).cell),
        kernel=kernel,
        timer=paired.timer,
        l2=paired.l2,
        checks=checks,
        rounds=paired.rounds,
        times=paired.times,
        left_out=paired.left_out,
        tick_us=known_tick_us(paired.timer, device),
        trusted=noise is None or noise.trusted,
    )
