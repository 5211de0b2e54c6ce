# SPDX-License-Identifier: MIT
"""Tables of a map from scored cells: rules, what was measured, and what rules cost on cells that they never saw."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dsa_bench.dispatch.facts import DENSE_KERNEL
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
from dsa_bench.model.map_parts import Target
from dsa_bench.model.shape import TILE, SparseShape
from dsa_bench.model.splits_map import (
    Against,
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
from dsa_bench.stats.regret import Regret, overall, regrets
from dsa_bench.stats.several import tie_set
from dsa_bench.sweep.cell_times import FloatArray, IntArray
from dsa_bench.sweep.fewest_rules import FoundRule, Shape
from dsa_bench.sweep.scored_cell import CONFIDENCE, ScoredCell, rules_of


def heads_of(shape: AttentionShape) -> tuple[int | str, ...]:
    """What all cells of a table share."""
    if isinstance(shape, DenseShape):
        return shape.dtype, shape.head_size, shape.value_head_size, shape.query_heads, shape.kv_heads
    return shape.kv_heads, shape.group, shape.head_size


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What a table says of its kernel: see SplitTable."""

    kernel: str
    kernel_hash: str
    cta_slots: int
    clusters: dict[str, int] | None = None


class _Content:
    """What tables of either operator hold, under the names of decode: `tiles` stands for the size of any launch.

    Rules and their validation are of all kernels together.
    """

    def __init__(self, scored: Sequence[ScoredCell], lost: Sequence[AttentionShape], margin: float) -> None:
        self._scored = sorted(scored, key=lambda one: one.shape)
        heads = heads_of(scored[0].cell.shape)
        without = {(shape.rows, size_of(shape)) for shape in lost if heads_of(shape) == heads}
        self._rules = rules_of(scored, margin, without)
        self.validation = _validation(self._rules, scored, without, margin)

    def cells(self, kernel: str) -> tuple[MapCell, ...]:
        """The cells that have launches of a kernel."""
        return tuple(_cell(one, kernel) for one in self._scored if kernel in one.cell.autos)

    def rules(self, kernel: str) -> tuple[MapRule, ...]:
        """The rules that take a kernel."""
        rules = (rule for rule in self._rules if rule.value.kernel == kernel)
        return tuple(MapRule(rule.rows, rule.size, rule.value.value) for rule in rules)


def decode_tables(
    scored: Sequence[ScoredCell], lost: Sequence[AttentionShape], kernels: Sequence[KernelFacts], margin: float
) -> list[SplitTable]:
    """A table for each kernel that has a cell; which kernel a shape gets is chosen over all of them."""
    content = _Content(scored, lost, margin)
    tables = [_decode_table(scored, content, kernel, margin) for kernel in kernels]
    return [table for table in tables if table.cells]


def _decode_table(scored: Sequence[ScoredCell], content: _Content, kernel: KernelFacts, margin: float) -> SplitTable:
    first = scored[0].cell
    assert isinstance(first.shape, SparseShape)
    return SplitTable(
        op="decode",
        kernel=kernel.kernel,
        kernel_hash=kernel.kernel_hash,
        cta_slots=kernel.cta_slots,
        clusters=kernel.clusters,
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
        cells=content.cells(kernel.kernel),
        rules=content.rules(kernel.kernel),
        validation=content.validation,
    )


def dense_tables(
    scored: Sequence[ScoredCell], lost: Sequence[AttentionShape], kernels: Sequence[KernelFacts], margin: float
) -> list[DenseTable]:
    """As decode_tables, of dense decode, whose maps are of one kernel."""
    (kernel,) = kernels
    content, first = _Content(scored, lost, margin), scored[0].cell
    shape, lengths = first.shape, {one.shape: one.cell.shape.sizes["length"] for one in scored}
    assert isinstance(shape, DenseShape)
    table = DenseTable(
        op="dense",
        kernel=kernel.kernel,
        kernel_hash=kernel.kernel_hash,
        cta_slots=kernel.cta_slots,
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
        cells=tuple(
            DenseMapCell(*cell.shape, lengths[cell.shape], *_values(cell)[2:-1]) for cell in content.cells(DENSE_KERNEL)
        ),
        rules=tuple(DenseMapRule(*_values(rule)) for rule in content.rules(DENSE_KERNEL)),
        validation=_of_dense(content.validation),
    )
    return [table]


def _of_dense(validation: Validation) -> DenseValidation:
    regrets = (validation.regret_auto, validation.regret_map, validation.held_out)
    null = validation.null_control
    auto, tuned, held_out = (one and DenseRegretSummary(*_values(one)) for one in regrets)
    return DenseValidation(auto, tuned, held_out, null and DenseNullSummary(*_values(null)))


def _values(one: MapCell | MapRule | RegretSummary | NullSummary) -> list[Any]:
    """Its fields in order; those of dense decode come in the same order, but for `against`, the last of a cell."""
    return [getattr(one, field.name) for field in fields(one)]


def _cell(one: ScoredCell, kernel: str) -> MapCell:
    times, cell = one.cell.of_kernel(kernel), one.cell
    us = {str(target.value): _rounded(_median(of_target)) for target, of_target in sorted(times.items())}
    auto, against = cell.autos[kernel], None
    best, ties = _best(times, cell.rounds)
    if kernel != cell.auto.kernel:
        ratio = _ratio(times[best], cell.times[cell.auto])
        against = Against(*cell.auto, _rounded(_median(cell.times[cell.auto])), ratio)
    return MapCell(
        rows=one.shape[0],
        tiles=one.shape[1],
        auto=auto.value,
        auto_us=us[str(auto.value)],
        us=us,
        best=best.value,
        ratio=_ratio(times[best], times[auto]),
        ties=tuple(tie.value for tie in ties),
        against=against,
    )


def _best(times: Mapping[Target, FloatArray], rounds: IntArray) -> tuple[Target, list[Target]]:
    """The fastest of one kernel's launches, and what the rounds do not tell from it."""
    targets = {str(target): target for target in times}
    names = {name: times[target] for name, target in targets.items()}
    best = regrets(names, [next(iter(names))], rounds, resamples=1)[next(iter(names))].best
    return targets[best], sorted(targets[name] for name in tie_set(names, best) if name != best)


def _ratio(times: FloatArray, reference: FloatArray) -> tuple[float, float, float]:
    ratio = paired_ratio(times, reference)
    assert ratio.low is not None, "a cell of a map has more rounds than an interval needs"
    assert ratio.high is not None
    return _rounded(ratio.centre), _rounded(ratio.low), _rounded(ratio.high)


def _validation(
    rules: tuple[FoundRule, ...], scored: Sequence[ScoredCell], lost: Collection[Shape], margin: float
) -> Validation:
    """What rules are worth: everywhere, and in each cell by rules that were made without it."""

    def regret_of(one: ScoredCell, rules: tuple[FoundRule, ...]) -> Regret | None:
        holding = (rule.value for rule in rules if rule.holds(one.shape))
        launch = one.launch(next(holding, None))
        return None if launch is None else one.regrets[launch]

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
