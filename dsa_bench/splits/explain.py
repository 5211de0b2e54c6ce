# SPDX-License-Identifier: MIT
"""Why a launch has the geometry it has, in words."""

from collections.abc import Mapping, Sequence

from dsa_bench.model.map_parts import Target
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import DIGITS
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.sides import plain_kernel
from dsa_bench.splits.geometry import AUTOMATIC, NO_RULES, TUNED, SparseGeometry, effective_variants
from dsa_bench.splits.registry import Rule
from dsa_bench.splits.rules import MAX_SPLITS


def explain_cell(
    geometry: SparseGeometry,
    shape: SparseShape,
    kernels: Sequence[str],
    tiles_per_split: Sequence[int],
    rules: Mapping[str, Rule] = NO_RULES,
    tuned: Target | None = None,
) -> list[str]:
    """One line for the cell, then one for each launch and each requested value or rule that leads to it."""
    variants = effective_variants(geometry, shape, kernels, tiles_per_split, rules, tuned)
    head = f"rows {shape.rows}, context {shape.context}, candidates {shape.candidates}: {shape.tiles} tiles a row"
    return [head, *(f"  {line}" for variant in variants for line in _explain(geometry, shape, variant))]


def _explain(geometry: SparseGeometry, shape: SparseShape, variant: VariantPlan) -> list[str]:
    plan = variant.split
    splits = f"{plan.splits} split{'s' if plan.splits > 1 else ''}"
    launch = f"{splits} of at most {plan.tiles_per_split} tiles, {variant.ctas} CTAs"
    if not variant.is_split:
        return [f"{variant.kernel}: {geometry.why(variant.kernel, shape, None)} -> {launch}"]
    asked = [_asked(geometry, variant.kernel, shape, value) for value in variant.requested]
    return [f"{variant.kernel}, {why} -> {launch}" for why in (*asked, *map(_named, variant.rules))]


def _named(rule: str) -> str:
    return "the tuned map" if rule == TUNED else f"rule {rule}"


def _asked(geometry: SparseGeometry, kernel: str, shape: SparseShape, value: int) -> str:
    if value == AUTOMATIC:
        return f"automatic: {geometry.why(kernel, shape, value)}"
    limit = f"at most {MAX_SPLITS} splits"
    if plain_kernel(kernel) == DIGITS:
        limit += ", and in clusters one of those that the device holds"
    return f"{value} tiles per split asked, {limit}"
