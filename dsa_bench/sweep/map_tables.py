# SPDX-License-Identifier: MIT
"""A table of a map from scored cells: rules, what was measured, and what rules cost on cells that they never saw."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dsa_bench.dispatch.facts import DENSE_KERNEL
from dsa_bench.dispatch.look_up import RuleLookUp
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
from dsa_bench.model.shape import TILE, SparseShape
from dsa_bench.model.splits_map import (
    MapCell,
    MapPolicy,
    MapRule,
    NullSummary,
    RegretSummary,
    SplitTable,
    Validation,
)
from dsa_bench.splits.dense import MAX_SPLITS as DENSE_MAX_SPLITS
from dsa_bench.splits.map_values import size_of
from dsa_bench.splits.rules import MAX_SPLITS
from dsa_bench.stats.location import paired_ratio
from dsa_bench.stats.regret import Regret, overall
from dsa_bench.sweep.cell_times import FloatArray
from dsa_bench.sweep.fewest_rules import Shape
from dsa_bench.sweep.scored_cell import CONFIDENCE, ScoredCell, rules_of

KERNEL = "int8-tc"
"""The kernel that takes tiles per split."""


def heads_of(shape: AttentionShape) -> tuple[int | str, ...]:
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
    heads = heads_of(scored[0].cell.shape)
    without = {(shape.rows, size_of(shape)) for shape in lost if heads_of(shape) == heads}
    rules = rules_of(scored, margin, without)
    cells = tuple(_cell(one) for one in sorted(scored, key=lambda one: one.shape))
    return _Content(cells, rules, _validation(rules, scored, without, margin))


def decode_table(
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


def dense_table(
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


def _median(times: FloatArray) -> float:
    return float(np.median(times))


def _rounded(number: float) -> float:
    """Seven digits: a nanosecond of a second, and no last bit of an arithmetic that another machine does otherwise."""
    return float(f"{number:.7g}") + 0.0
