# SPDX-License-Identifier: MIT
"""From a kernel, a shape and a requested tiles-per-split to the launch it becomes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.map_parts import Target
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import DIGITS, RULED_KERNELS, SPLIT_KERNELS
from dsa_bench.model.shape import Op, SparseShape, ceil_div
from dsa_bench.model.sides import plain_kernel
from dsa_bench.splits.digits import NO_CLUSTERS, asked_digit_splits, digit_splits, predicted_us
from dsa_bench.splits.registry import Rule
from dsa_bench.splits.rules import capped_splits, grouped_splits, seed_wave

AUTOMATIC = 0
"""The requested value that asks for the automatic rule."""
TUNED = "map"
"""The name, among those of rules, of what a tuned map chooses."""
NO_RULES: Mapping[str, Rule] = MappingProxyType({})
GROUPED_HEADS_PER_CTA = 8
GATHER_TILES_PER_SPLIT = (1, 2, 4)
"""The gather ceiling is the fastest of these: which one that is depends on the shape and the L2."""


class SparseGeometry(Protocol):
    """How one backend shares out a call; `requested` is None for a kernel that takes no tiles per split.

    slots  what the split rules see of the device
    Prefill has rows enough to fill a GPU: each row and KV head is one CTA, unsplit.
    """

    @property
    def slots(self) -> DeviceSlots: ...

    def plan(self, kernel: str, shape: SparseShape, requested: int | None) -> VariantPlan: ...

    def why(self, kernel: str, shape: SparseShape, requested: int | None) -> str:
        """The rule behind a launch that nobody pinned, with its numbers."""
        ...


@dataclass(frozen=True, slots=True)
class CpuSparse:
    """`previous`: one task per row and KV head, unsplit. `int8-tc`: seed_wave, with one slot per worker."""

    workers: int

    @property
    def slots(self) -> DeviceSlots:
        return DeviceSlots(self.workers, 1)

    def plan(self, kernel: str, shape: SparseShape, requested: int | None) -> VariantPlan:
        if requested is None:
            return unsplit_plan(kernel, shape)
        return int8_tc_plan(kernel, shape, requested, self.workers)

    def why(self, kernel: str, shape: SparseShape, requested: int | None) -> str:
        if requested is None:
            return "one task per row and KV head, unsplit"
        return _why_one_wave(shape, self.workers, f"{self.workers} workers")


@dataclass(frozen=True, slots=True)
class CudaSparse:
    """`previous`: its own rule. `int8-tc`: seed_wave with SMs x resident CTAs slots. Ceilings: theirs.

    `int8-digits`: digit_splits, and asked_digit_splits for a value asked for.

    cta_slots  CTAs of the split kernel resident at once on the device, `resident` of them on each multiprocessor
    clusters   size -> clusters of `int8-digits` of that size resident at once; empty if it has none here
    """

    cta_slots: int
    resident: int = 1
    clusters: Mapping[int, int] = field(default_factory=lambda: NO_CLUSTERS)

    @property
    def slots(self) -> DeviceSlots:
        return DeviceSlots(self.cta_slots // self.resident, self.resident)

    def plan(self, kernel: str, shape: SparseShape, requested: int | None) -> VariantPlan:
        if kernel == "copy" or shape.op == "prefill":
            return unsplit_plan(kernel, shape)
        if plain_kernel(kernel) == DIGITS:
            return self._digits(kernel, shape, requested)
        if requested is None:
            splits = grouped_splits(shape.candidates, shape.rows, shape.kv_heads, shape.group)
            ctas = shape.row_heads * ceil_div(shape.group, GROUPED_HEADS_PER_CTA) * splits
            return VariantPlan(kernel, (), SplitPlan(shape.tiles, splits), ctas)
        return int8_tc_plan(kernel, shape, requested, self.cta_slots)

    def _digits(self, kernel: str, shape: SparseShape, requested: int | None) -> VariantPlan:
        sizes = (shape.tiles, shape.rows, shape.kv_heads, shape.group)
        launch = (
            asked_digit_splits(*sizes, requested, self.slots.sms, self.clusters)
            if requested
            else digit_splits(*sizes, self.slots.sms, self.clusters)
        )
        asked = () if requested is None else (requested,)
        ctas = shape.row_heads * launch.parts * launch.splits
        plan = SplitPlan(shape.tiles, launch.splits)
        return VariantPlan(kernel, asked, plan, ctas, heads=launch.heads, clustered=launch.clustered)

    def _why_digits(self, shape: SparseShape) -> str:
        launch = digit_splits(shape.tiles, shape.rows, shape.kv_heads, shape.group, self.slots.sms, self.clusters)
        if launch.splits == 1:
            return "unsplit, because the device does not hold more CTAs at once or the list has one tile"
        together = f"clusters of {launch.splits}" if launch.clustered else f"{launch.splits} splits, all CTAs resident,"
        return (
            f"{together} with {launch.heads} query heads a CTA, predicted {predicted_us(launch, shape.tiles):.1f} us, "
            "the least of all launches that the device holds at once"
        )

    def why(self, kernel: str, shape: SparseShape, requested: int | None) -> str:
        if shape.op == "prefill":
            return "one CTA per row and KV head, unsplit"
        if plain_kernel(kernel) == DIGITS:
            return self._why_digits(shape)
        if requested is None:
            return "its own fixed rule"
        return _why_one_wave(shape, self.cta_slots, f"{self.cta_slots} CTA slots")


def _why_one_wave(shape: SparseShape, cta_slots: int, slots: str) -> str:
    target = seed_wave(shape.tiles, shape.row_heads, cta_slots)
    if target >= shape.tiles:
        return f"the whole row in one split, because {shape.rows} rows x {shape.kv_heads} KV heads fill {slots}"
    ctas = f"{shape.row_heads} x ceil({shape.tiles} / t) CTAs"
    return f"{target} tiles per split, the smallest power of two t whose {ctas} fit {slots}"


def unsplit_plan(kernel: str, shape: SparseShape) -> VariantPlan:
    """One CTA or task for each row and KV head."""
    return VariantPlan(kernel, (), SplitPlan(shape.tiles, 1), shape.row_heads)


def int8_tc_plan(kernel: str, shape: SparseShape, requested: int, cta_slots: int) -> VariantPlan:
    """The automatic rule for 0, else `requested` as a target; caps and balancing apply to both."""
    target = requested or seed_wave(shape.tiles, shape.row_heads, cta_slots)
    splits = capped_splits(shape.tiles, target)
    return VariantPlan(kernel, (requested,), SplitPlan(shape.tiles, splits), shape.row_heads * splits)


def rule_plan(kernel: str, shape: SparseShape, slots: DeviceSlots, rule: Rule) -> VariantPlan:
    """The launch that a rule chooses, by splits: not every number of them can be asked for in tiles per split."""
    splits = rule.splits(shape.tiles, shape.rows, shape.kv_heads, slots)
    return VariantPlan(kernel, (), SplitPlan(shape.tiles, splits), shape.row_heads * splits, (rule.name,))


def _requested(kernel: str, op: Op, tiles_per_split: Iterable[int]) -> Iterable[int | None]:
    if op == "prefill":
        return [None]
    if kernel == "gather":
        return GATHER_TILES_PER_SPLIT
    return tiles_per_split if plain_kernel(kernel) in SPLIT_KERNELS else [None]


def effective_variants(
    geometry: SparseGeometry,
    shape: SparseShape,
    kernels: Iterable[str],
    tiles_per_split: Iterable[int],
    rules: Mapping[str, Rule] = NO_RULES,
    tuned: Target | None = None,
) -> list[VariantPlan]:
    """Every distinct launch once, in the order asked for; values and rules that lead to the same launch share it.

    tuned  what a tuned map chooses, which is measured as well
    """
    by_name: dict[str, VariantPlan] = {}
    for kernel in kernels:
        planned = [geometry.plan(kernel, shape, value) for value in _requested(kernel, shape.op, tiles_per_split)]
        if kernel in RULED_KERNELS and shape.op == "decode":
            planned += [rule_plan(kernel, shape, geometry.slots, rule) for rule in rules.values()]
        if tuned is not None and kernel == tuned.kernel:
            planned.append(replace(geometry.plan(kernel, shape, tuned.value), rules=(TUNED,)))
        for variant in planned:
            known = by_name.get(variant.name)
            if known is not None:
                requested = tuple(dict.fromkeys((*known.requested, *variant.requested)))
                variant = replace(known, requested=requested, rules=(*known.rules, *variant.rules))
            by_name[variant.name] = variant
    return list(by_name.values())
