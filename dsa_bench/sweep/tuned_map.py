# SPDX-License-Identifier: MIT
"""From a run to a map: which cells are worth a rule, the rules, and what they cost on cells that they never saw.

A pure function of the run: the same samples give the same map, in whatever order they were recorded.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from dsa_bench.dispatch.facts import DENSE_KERNEL
from dsa_bench.dispatch.look_up import RuleLookUp
from dsa_bench.dispatch.map_file import map_text, parse_map
from dsa_bench.model.cell_key import AttentionShape
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.dense_map import (
    DenseMapCell,
    DenseMapPolicy,
    DenseMapRule,
    DenseNullSummary,
    DenseRegretSummary,
    DenseTable,
    DenseValidation,
)
from dsa_bench.model.documents import Misfit
from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import MIN_TUNED_ROUNDS
from dsa_bench.model.run import Run
from dsa_bench.model.shape import TILE, SparseShape
from dsa_bench.model.splits_map import (
    MapCell,
    MapDevice,
    MapPolicy,
    MapRule,
    NullSummary,
    RegretSummary,
    SplitsMap,
    SplitTable,
    Validation,
)
from dsa_bench.splits.dense import MAX_SPLITS as DENSE_MAX_SPLITS
from dsa_bench.splits.map_values import size_of
from dsa_bench.splits.rules import MAX_SPLITS
from dsa_bench.stats.location import paired_ratio
from dsa_bench.stats.regret import Regret, overall
from dsa_bench.stats.verdict import MARGIN
from dsa_bench.sweep.cell_times import CellTimes, FloatArray, LostCell, cells_of_run
from dsa_bench.sweep.fewest_rules import Shape
from dsa_bench.sweep.scored_cell import CONFIDENCE, ScoredCell, rules_of, score_cell

KERNEL = "int8-tc"
"""The kernel that takes tiles per split."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """A map and what a user should hear about it.

    planned    cells that the run set out to measure; None where a selection of them was asked for
    lost       cells that the map does not hold
    untrusted  cells whose null control was off: their gain has to exceed what it was off by as well
    """

    splits_map: SplitsMap
    planned: int | None
    cells: list[CellTimes]
    lost: list[LostCell]
    untrusted: list[CellTimes]


def tuned_map(run: Run, *, context: int | None = None, margin: float = MARGIN, where: str = "the run") -> Tuned:
    """The map of a run's cells of decode or dense decode: a table for each head geometry (and type) and L2 mode.

    context  only cells with so many positions, or of dense decode with so many live keys
    where    how errors name the run
    Raises BadInput if no cell of the run can be in a map, if one has too few complete rounds, if two would be one
    entry, or if the record lacks what a map says of its device.
    """
    dense = run.header.plan.get("op") == "dense"
    kernel = DENSE_KERNEL if dense else KERNEL
    found = cells_of_run(run, kernel, context, "dense" if dense else "decode")
    cells = [cell for cell in found if isinstance(cell, CellTimes)]
    lost = [cell for cell in found if isinstance(cell, LostCell)]
    if not found:
        of_context = "" if context is None else f" with {'length' if dense else 'context'} {context}"
        op = "dense" if dense else "decode"
        raise BadInput(f"{where}: holds no {op} cell of {kernel}{of_context}; measure some with tune --record FILE")
    complete = [(cell.shape, cell.complete) for cell in cells] + [(cell.shape, 0) for cell in lost if cell.unfinished]
    for shape, rounds in complete:
        if rounds < MIN_TUNED_ROUNDS:
            raise BadInput(
                f"{where}: {shape.key} has {rounds} complete rounds and a map needs {MIN_TUNED_ROUNDS}; "
                "finish it with --resume, or give it more --rounds or --budget"
            )
    _refuse_two_in_one(cells, where)
    groups: dict[tuple[Any, ...], list[CellTimes]] = {}
    make = _dense_table if dense else _table
    for cell in cells:
        groups.setdefault((*_heads(cell.shape), cell.l2), []).append(cell)
    scored = {key: [score_cell(cell, len(group), margin) for cell in group] for key, group in sorted(groups.items())}
    slots = _cta_slots(run, kernel, where)
    made = SplitsMap(
        created=run.header.created,
        generator=f"dsa-bench {run.header.version}",
        device=_device(run.header.device),
        tables=tuple(
            make(group, [one.shape for one in lost], run.header.kernel_hashes.get(kernel, ""), slots, margin)
            for group in scored.values()
        ),
    )
    try:
        checked = parse_map(map_text(made).encode())
    except Misfit as misfit:
        raise BadInput(f"{where}: {misfit.place} of the map {misfit}; measure again") from misfit
    untrusted = [one.cell for group in scored.values() for one in group if not one.trusted]
    planned = run.header.plan.get("shapes")
    count = len(cast("list[Any]", planned)) if context is None and isinstance(planned, list) else None
    return Tuned(checked, count, cells, lost, untrusted)


def _refuse_two_in_one(cells: Sequence[CellTimes], where: str) -> None:
    """A map tells launches apart by rows, size, heads and L2 mode, and by nothing else."""
    seen: dict[tuple[Any, ...], CellTimes] = {}
    for cell in cells:
        shape = cell.shape
        one = seen.setdefault((shape.rows, size_of(shape), *_heads(shape), cell.l2), cell)
        if one is not cell:
            if isinstance(one.shape, DenseShape) or isinstance(shape, DenseShape):
                raise BadInput(
                    f"{where}: {one.shape.key} and {shape.key} are one entry of a map; choose one length with --length"
                )
            if one.shape.context != shape.context:
                raise BadInput(
                    f"{where}: holds rows {shape.rows}, {shape.tiles} tiles at contexts {one.shape.context} and "
                    f"{shape.context}, which are one entry of a map; choose one with --context"
                )
            raise BadInput(
                f"{where}: {one.shape.key} and {shape.key} are both {shape.tiles} tiles; measure one of them"
            )
    contexts = {cell.shape.context for cell in cells if not isinstance(cell.shape, DenseShape)}
    for name, values in (("timers", {cell.timer for cell in cells}), ("contexts", contexts)):
        if len(values) > 1:
            said = " and ".join(map(str, sorted(values, key=str)))
            raise BadInput(
                f"{where}: its cells have {name} {said}; a map has one: choose with --context, or measure again"
            )


def _heads(shape: AttentionShape) -> tuple[int | str, ...]:
    """What all cells of a table share."""
    if isinstance(shape, DenseShape):
        return shape.dtype, shape.head_size, shape.value_head_size, shape.query_heads, shape.kv_heads
    return shape.kv_heads, shape.group, shape.head_size


@dataclass(frozen=True, slots=True)
class _Content:
    """What a table of either operator holds, under the names of decode: `tiles` stands for the size of any launch."""

    cells: tuple[MapCell, ...]
    rules: tuple[MapRule, ...]
    validation: Validation


def _content(scored: Sequence[ScoredCell], lost: Sequence[AttentionShape], margin: float) -> _Content:
    heads = _heads(scored[0].cell.shape)
    without = {(shape.rows, size_of(shape)) for shape in lost if _heads(shape) == heads}
    rules = rules_of(scored, margin, without)
    cells = tuple(_cell(one) for one in sorted(scored, key=lambda one: one.shape))
    return _Content(cells, rules, _validation(rules, scored, without, margin))


def _table(
    scored: Sequence[ScoredCell], lost: Sequence[AttentionShape], kernel_hash: str, cta_slots: int, margin: float
) -> SplitTable:
    first, content = scored[0].cell, _content(scored, lost, margin)
    assert isinstance(first.shape, SparseShape)
    return SplitTable(
        op="decode",
        kernel=KERNEL,
        kernel_hash=kernel_hash,
        cta_slots=cta_slots,
        tile=TILE,
        max_splits=MAX_SPLITS,
        head_size=first.shape.head_size,
        group=first.shape.group,
        kv_heads=first.shape.kv_heads,
        l2=first.l2,  # pyright: ignore[reportArgumentType] - checked with the whole map
        policy=MapPolicy(
            timer=first.timer,  # pyright: ignore[reportArgumentType]
            rounds=min(len(one.cell.rounds) for one in scored),
            context=first.shape.context,
            margin=margin,
            confidence=CONFIDENCE,
        ),
        cells=content.cells,
        rules=content.rules,
        validation=content.validation,
    )


def _dense_table(
    scored: Sequence[ScoredCell], lost: Sequence[AttentionShape], kernel_hash: str, cta_slots: int, margin: float
) -> DenseTable:
    first, content = scored[0].cell, _content(scored, lost, margin)
    shape, lengths = first.shape, {one.shape: one.cell.shape.sizes["length"] for one in scored}
    assert isinstance(shape, DenseShape)
    return DenseTable(
        op="dense",
        kernel=DENSE_KERNEL,
        kernel_hash=kernel_hash,
        cta_slots=cta_slots,
        max_splits=DENSE_MAX_SPLITS,
        dtype=shape.dtype,
        head_size=shape.head_size,
        value_head_size=shape.value_head_size,
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        l2=first.l2,  # pyright: ignore[reportArgumentType] - checked with the whole map
        policy=DenseMapPolicy(
            timer=first.timer,  # pyright: ignore[reportArgumentType]
            rounds=min(len(one.cell.rounds) for one in scored),
            margin=margin,
            confidence=CONFIDENCE,
        ),
        cells=tuple(DenseMapCell(*cell.shape, lengths[cell.shape], *_values(cell)[2:]) for cell in content.cells),
        rules=tuple(DenseMapRule(*_values(rule)) for rule in content.rules),
        validation=_of_dense(content.validation),
    )


def _of_dense(validation: Validation) -> DenseValidation:
    regrets = (validation.regret_auto, validation.regret_map, validation.held_out)
    null = validation.null_control
    auto, tuned, held_out = (one and DenseRegretSummary(*_values(one)) for one in regrets)
    return DenseValidation(auto, tuned, held_out, null and DenseNullSummary(*_values(null)))


def _values(one: MapCell | MapRule | RegretSummary | NullSummary) -> list[Any]:
    """Its fields in order; those of dense decode come in the same order."""
    return [getattr(one, field.name) for field in fields(one)]


def _cell(one: ScoredCell) -> MapCell:
    us = {str(value): _rounded(_median(times)) for value, times in sorted(one.cell.times.items())}
    ratio = paired_ratio(one.cell.times[one.best], one.cell.times[one.cell.auto])
    assert ratio.low is not None, "a cell of a map has more rounds than an interval needs"
    assert ratio.high is not None
    return MapCell(
        rows=one.shape[0],
        tiles=one.shape[1],
        auto=one.cell.auto,
        auto_us=us[str(one.cell.auto)],
        us=us,
        best=one.best,
        ratio=(_rounded(ratio.centre), _rounded(ratio.low), _rounded(ratio.high)),
        ties=tuple(one.ties),
    )


def _validation(
    rules: tuple[MapRule, ...], scored: Sequence[ScoredCell], lost: Collection[Shape], margin: float
) -> Validation:
    """What rules are worth: everywhere, and in each cell by rules that were made without it."""

    def regret_of(one: ScoredCell, rules: tuple[MapRule, ...]) -> Regret | None:
        value = one.value_of(RuleLookUp(rules).value(*one.shape))
        return None if value is None else one.regrets[value]

    without = [rules_of([other for other in scored if other is not one], margin, lost) for one in scored]
    return Validation(
        regret_auto=_summary({one.shape: regret_of(one, ()) for one in scored}),
        regret_map=_summary({one.shape: regret_of(one, rules) for one in scored}),
        held_out=_summary({one.shape: regret_of(one, rules) for one, rules in zip(scored, without, strict=True)})
        if len(scored) > 1
        else None,
        null_control=_null_summary(scored),
    )


def _summary(regrets_of: Mapping[Shape, Regret | None]) -> RegretSummary | None:
    """Over the cells that can be scored; None if there is none."""
    scored = {
        shape: one for shape, one in sorted(regrets_of.items()) if one is not None and one.cross_fitted is not None
    }
    if not scored:
        return None
    over = overall({f"{rows} {tiles}": one for (rows, tiles), one in scored.items()})
    rows, tiles = map(int, over.at.split())
    low, high = (None if end is None else _rounded(end) for end in (over.low, over.high))
    return RegretSummary(over.cells, _rounded(over.mean), low, high, _rounded(over.maximum), rows, tiles)


def _null_summary(scored: Sequence[ScoredCell]) -> NullSummary | None:
    controlled = [(abs(math.log(one.noise.ratio.centre)), one) for one in scored if one.noise is not None]
    if not controlled:
        return None
    _, worst = max(controlled, key=lambda pair: (pair[0], pair[1].shape))
    assert worst.noise is not None
    untrusted = sum(not one.trusted for one in scored)
    return NullSummary(len(controlled), _rounded(worst.noise.ratio.centre), *worst.shape, untrusted)


def _device(device: Mapping[str, Any]) -> MapDevice:
    """The record's device. What is missing or of another type is found when the whole map is checked."""
    names = ("name", "compute_capability", "sm_count", "l2_bytes", "driver", "runtime")
    return MapDevice(*(cast(Any, device.get(name)) for name in names))


def _median(times: FloatArray) -> float:
    return float(np.median(times))


def _rounded(number: float) -> float:
    """Seven digits: a nanosecond of a second, and no last bit of an arithmetic that another machine does otherwise."""
    return float(f"{number:.7g}") + 0.0


def _cta_slots(run: Run, kernel: str, where: str) -> int:
    """Resident CTAs of the kernel on the whole device, as recorded."""
    device = run.header.device
    sms, resident = device.get("sm_count"), device.get("resident_ctas")
    if type(resident) is not int or type(sms) is not int:
        raise BadInput(
            f"{where}: its header does not say how many CTAs of {kernel} one SM holds (device.resident_ctas), which "
            "a map needs; record it again"
        )
    return sms * resident
