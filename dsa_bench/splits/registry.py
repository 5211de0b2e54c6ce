# SPDX-License-Identifier: MIT
"""Every split rule by its name, with what it is and what it does not see."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from dsa_bench.model.costs import SplitCosts
from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.errors import BadInput
from dsa_bench.splits.predicted import ModelRule
from dsa_bench.splits.published import fa2, fa3, flashinfer, one_per_sm, seed_384
from dsa_bench.splits.rules import MAX_SPLITS, capped_splits, seed_wave


class Choose(Protocol):
    """Splits of each row and KV head; 0 means no launch. Pure and total: depends on capacities, never on live data."""

    def __call__(self, tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, max_splits: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Rule:
    """A split rule and what a reader should know of it (docs/split-rules.md)."""

    name: str
    choose: Choose
    formula: str
    source: str
    blind_to: str

    def splits(self, tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, max_splits: int = MAX_SPLITS) -> int:
        """Splits of each row and KV head, at most `max_splits` and at most one a tile; 0 means no launch."""
        return self.choose(tiles, rows, kv_heads, slots, max_splits)


def seed_wave_splits(tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, max_splits: int) -> int:
    """ceil(tiles / t), at most `max_splits`, with t from `seed_wave`."""
    return capped_splits(tiles, seed_wave(tiles, rows * kv_heads, slots.ctas), max(max_splits, 0))


_RULES = (
    Rule(
        "seed-wave",
        seed_wave_splits,
        "ceil(tiles / t), t the smallest power of two with rows * kv_heads * ceil(tiles / t) <= SMs * resident",
        "seed 000, section 2: the automatic rule",
        "merge cost, half-full waves, L2 state, live length",
    ),
    Rule(
        "seed-384",
        seed_384,
        "ceil(384 / (rows * kv_heads))",
        "seed 000: the automatic rule's predecessor",
        "the device, waves, merge cost",
    ),
    Rule(
        "one-per-sm",
        one_per_sm,
        "SMs // (rows * kv_heads)",
        "the form of FlashAttention-4",
        "resident CTAs beyond the first, merge cost",
    ),
    Rule(
        "fa2",
        fa2,
        "1 if rows * kv_heads >= 0.8 * 2 * SMs, else the fewest splits whose wave efficiency is 0.85 of the best's, "
        "of those that shorten the longest split",
        "FlashAttention-2, num_splits_heuristic",
        "resident CTAs (two are assumed), merge cost, the time of a tile",
    ),
    Rule(
        "fa3",
        fa3,
        "1 if rows * kv_heads >= 0.8 * SMs or tiles <= 4, else the fewest splits whose wave efficiency is 0.85 of the "
        "best's",
        "FlashAttention-3, num_splits_heuristic",
        "resident CTAs (one is assumed), merge cost, splits of equal length",
    ),
    Rule(
        "flashinfer",
        flashinfer,
        "ceil(keys / chunk), chunk >= 128 the smallest with rows * kv_heads * ceil(keys / chunk) <= SMs * resident",
        "FlashInfer, the plan of its decode",
        "half-full waves, merge cost, the kernel's tile",
    ),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _RULES}
"""Rules that need no fit. All are capped at min(max_splits, tiles)."""
MODEL = "model"
RULE_NAMES = (*RULES, MODEL)
AUTO = "auto"
"""The name, in a recorded sweep, of whatever ran for 0 tiles per split."""


def model_rule(costs: SplitCosts) -> Rule:
    """The rule `model` with fitted constants."""
    return Rule(
        MODEL,
        ModelRule(costs),
        "least T(S) = F + c * ceil(tiles / S) * g(CTAs per SM) + m * S + a * CTAs + W * (waves - 1) over S",
        "ours, constants fitted to a recorded sweep",
        "another kernel, L2 mode or clock than the fit's, live length, more CTAs on an SM than it saw",
    )


def named_rules(names: Iterable[str], costs: SplitCosts | None) -> dict[str, Rule]:
    """Those rules, in the order asked. Raises BadInput for `model` without its constants."""
    found: dict[str, Rule] = {}
    for name in names:
        if name == MODEL and costs is None:
            raise BadInput("rule model: has constants that are fitted to a sweep; name their file with --model FILE")
        found[name] = model_rule(costs) if name == MODEL and costs is not None else RULES[name]
    return found
