# SPDX-License-Identifier: MIT
"""Oracle: values worked by hand, literal forms of the published rules, and what all rules must hold."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsa_bench.model.costs import SplitCosts
from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.errors import BadInput
from dsa_bench.model.plan import SplitPlan
from dsa_bench.model.shape import SparseShape, ceil_div
from dsa_bench.splits.explain import explain_cell
from dsa_bench.splits.geometry import CpuSparse, CudaSparse, effective_variants
from dsa_bench.splits.predicted import launch_load, predicted_us
from dsa_bench.splits.registry import RULE_NAMES, RULES, Rule, model_rule, named_rules
from dsa_bench.splits.rules import MAX_SPLITS

COSTS = SplitCosts(fixed_us=3.5, tile_us=1.0, slowdown=(1.0, 1.5, 2.5), merge_us=0.01, cta_us=0.002, wave_us=4.0)
EVERY = named_rules(RULE_NAMES, COSTS)
H200, A100 = DeviceSlots(132, 3), DeviceSlots(108, 2)
every_rule = pytest.mark.parametrize("rule", EVERY.values(), ids=EVERY)
tiles_of = st.integers(1, 300)
rows_of = st.integers(1, 300)
heads_of = st.integers(1, 16)
slots_of = st.builds(DeviceSlots, st.integers(1, 200), st.integers(1, 8))
caps_of = st.integers(1, 64)


@pytest.mark.parametrize(
    ("name", "slots", "rows", "candidates", "splits"),
    [
        ("seed-wave", H200, 1, 2048, 32),
        ("seed-wave", H200, 8, 2048, 16),
        ("seed-wave", H200, 8, 2112, 17),
        ("seed-wave", H200, 4, 4096, 32),
        ("seed-wave", H200, 8, 8192, 16),
        ("seed-wave", A100, 8, 2048, 8),
        ("seed-384", H200, 1, 2048, 32),  # 192, capped
        ("seed-384", H200, 8, 2048, 24),
        ("seed-384", A100, 8, 2048, 24),  # blind to the device
        ("seed-384", H200, 8, 512, 8),  # no more than one a tile
        ("seed-384", H200, 400, 2048, 1),
        ("one-per-sm", H200, 4, 2048, 16),  # 132 // 8
        ("one-per-sm", H200, 8, 2048, 8),
        ("one-per-sm", A100, 8, 2048, 6),
        ("one-per-sm", H200, 100, 2048, 1),
        ("fa2", H200, 8, 2048, 16),  # 16 of 264 slots: 0.97 of a wave, and 15 does not shorten the longest split
        ("fa2", H200, 8, 8192, 15),  # 240 / 264 is 0.91 of a wave; 14 does not shorten the longest split
        ("fa2", H200, 106, 2048, 1),  # 212 >= 0.8 x 264
        ("fa3", H200, 8, 2048, 7),  # 112 / 132 = 0.848 is at least 0.85 x 0.97
        ("fa3", H200, 1, 256, 1),  # 4 tiles
        ("fa3", H200, 53, 2048, 1),  # 106 >= 0.8 x 132
        ("flashinfer", H200, 1, 2048, 16),  # 128 keys at least
        ("flashinfer", H200, 8, 8192, 24),  # 396 // 16 = 24 chunks: 342 keys
        ("flashinfer", H200, 8, 2048, 16),
        ("flashinfer", H200, 200, 2048, 1),  # 400 > 396: no chunk fits
    ],
)
def test_worked_values(name: str, slots: DeviceSlots, rows: int, candidates: int, splits: int) -> None:
    """D4, Dao-AILab/flash-attention#2901: more than one SM count, KV heads and not query heads."""
    assert RULES[name].splits(ceil_div(candidates, 64), rows, 2, slots) == splits


def test_the_worked_values_of_the_docs_are_the_rules_own(root: Path) -> None:
    text = (root / "docs/split-rules.md").read_text()
    names = re.search(r"\| rows x candidates \| (.*) \|", text)
    assert names is not None
    shown = re.findall(r"\| (\d+) x (\d+)(, 108 SMs x 2 \(A100\))? \| (.*) \|", text)
    assert len(shown) == 4
    for rows, candidates, a100, splits in shown:
        sizes = (int(candidates) // 64, int(rows), 2, A100 if a100 else H200)
        assert splits == " | ".join(str(RULES[name].splits(*sizes)) for name in names[1].split(" | "))
    assert [name for name in RULE_NAMES if f"| `{name}`" not in text] == []


@every_rule
@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("missing", [0, -1])
def test_nothing_to_do_is_no_launch(rule: Rule, at: int, missing: int) -> None:
    """D3, Dao-AILab/flash-attention#2503: tiles, rows, KV heads, SMs, resident CTAs or splits of zero."""
    sizes = [32, 8, 2, 132, 3, 32]
    sizes[at] = missing
    tiles, rows, kv_heads, sms, resident, cap = sizes
    assert rule.splits(tiles, rows, kv_heads, DeviceSlots(sms, resident), cap) == 0


@every_rule
@given(tiles=tiles_of, rows=rows_of, kv_heads=heads_of, slots=slots_of, cap=caps_of)
def test_every_candidate_is_covered_once_in_balance_and_within_the_caps(
    rule: Rule, tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, cap: int
) -> None:
    splits = rule.splits(tiles, rows, kv_heads, slots, cap)
    assert 1 <= splits <= min(tiles, cap)
    plan = SplitPlan(tiles, splits)
    owned = [plan.tile_range(split) for split in range(splits)]
    assert [tile for part in owned for tile in part] == list(range(tiles))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    assert rule.splits(tiles, rows, kv_heads, slots, cap) == splits


@every_rule
def test_a_choice_depends_on_capacity_alone(rule: Rule) -> None:
    """Capture-safe: two lists of one capacity share a launch, whatever they hold."""
    choices = {rule.splits(SparseShape(8, candidates=count).tiles, 8, 2, H200) for count in (1985, 2000, 2048)}
    assert len(choices) == 1


@every_rule
@pytest.mark.parametrize(("candidates", "most"), [(1, 1), (64, 1), (65, 2)])
def test_small_lists(rule: Rule, candidates: int, most: int) -> None:
    """D3, Dao-AILab/flash-attention#2503."""
    assert 1 <= rule.splits(ceil_div(candidates, 64), 1, 2, H200) <= most


def published_heuristic(blocks: int, slots: int, tiles: int, cap: int, eligible: Callable[[int], bool]) -> int:
    """The published search in floating point, as its authors write it down."""
    if blocks >= 0.8 * slots:
        return 1
    efficiency: list[float] = []
    for splits in range(1, min(cap, slots, tiles) + 1):
        waves = blocks * splits / slots
        efficiency.append(waves / math.ceil(waves) if eligible(splits) else 0.0)
    enough = 0.85 * max(efficiency)
    return next(at + 1 for at, one in enumerate(efficiency) if one and one >= enough - 1e-12)


@given(tiles=tiles_of, rows=rows_of, kv_heads=heads_of, slots=slots_of, cap=caps_of)
@example(tiles=32, rows=8, kv_heads=2, slots=H200, cap=32)
def test_fa2_and_fa3_are_their_published_searches(
    tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, cap: int
) -> None:
    def shortens(splits: int) -> bool:
        return splits == 1 or ceil_div(tiles, splits) != ceil_div(tiles, splits - 1)

    blocks = rows * kv_heads
    two = published_heuristic(blocks, 2 * slots.sms, tiles, cap, shortens)
    one = 1 if tiles <= 4 else published_heuristic(blocks, slots.sms, tiles, cap, lambda _: True)
    assert RULES["fa2"].splits(tiles, rows, kv_heads, slots, cap) == two
    assert RULES["fa3"].splits(tiles, rows, kv_heads, slots, cap) == one


@given(tiles=tiles_of, rows=rows_of, kv_heads=heads_of, slots=slots_of, cap=caps_of)
def test_flashinfer_is_its_search_for_a_chunk(
    tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, cap: int
) -> None:
    low, high = 128, max(tiles * 64, 128)
    while low < high:
        middle = (low + high) // 2
        if rows * kv_heads * ceil_div(tiles * 64, middle) > slots.ctas:
            low = middle + 1
        else:
            high = middle
    assert RULES["flashinfer"].splits(tiles, rows, kv_heads, slots, cap) == min(ceil_div(tiles * 64, low), cap, tiles)


def test_predicted_time_worked_by_hand() -> None:
    """8 rows, 2 KV heads, 32 tiles in 16 splits on an H200: 256 CTAs, 2 an SM, one wave, 2 tiles each."""
    load = launch_load(32, 16, H200, 16)
    assert (load.longest, load.crowd, load.splits, load.ctas, load.waves) == (2, 2, 16, 256, 1)
    assert predicted_us(COSTS, load) == pytest.approx(3.5 + 1.0 * 2 * 1.5 + 0.01 * 16 + 0.002 * 256)
    crowded = launch_load(32, 16, H200, 32)  # 512 CTAs: 4 an SM, of which 3 are resident
    assert (crowded.longest, crowded.crowd, crowded.waves) == (1, 4, 2)
    g_4 = 2.5 * 4 / 3  # beyond what was fitted: in proportion
    assert predicted_us(COSTS, crowded) == pytest.approx(3.5 + 1.0 * 1 * g_4 + 0.01 * 32 + 0.002 * 512 + 4.0)


@given(tiles=tiles_of, rows=st.integers(1, 40), kv_heads=st.integers(1, 4), slots=slots_of, cap=caps_of)
def test_model_takes_the_least_predicted_time(
    tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, cap: int
) -> None:
    splits = model_rule(COSTS).splits(tiles, rows, kv_heads, slots, cap)
    times = [predicted_us(COSTS, launch_load(tiles, rows * kv_heads, slots, s)) for s in range(1, min(cap, tiles) + 1)]
    assert times[splits - 1] == min(times)
    assert splits == 1 + times.index(min(times))


def test_costs_that_are_none_are_refused() -> None:
    for wrong in (
        {"tile_us": -1.0},
        {"fixed_us": math.nan},
        {"slowdown": (1.0, 0.5)},
        {"slowdown": (2.0,)},
        {"slowdown": ()},
    ):
        with pytest.raises(BadInput):
            SplitCosts(
                **(
                    {
                        "fixed_us": 1.0,
                        "tile_us": 1.0,
                        "slowdown": (1.0,),
                        "merge_us": 0.0,
                        "cta_us": 0.0,
                        "wave_us": 0.0,
                    }
                    | wrong
                )
            )
    with pytest.raises(BadInput, match="--model FILE"):
        named_rules(["model"], None)


def test_rules_add_their_own_launches_and_share_equal_ones() -> None:
    """8 rows of 2048 on an H200: seed-wave and fa2 choose what the automatic rule does, fa3 seven splits."""
    rules = named_rules(["seed-wave", "seed-384", "fa2", "fa3"], None)
    variants = effective_variants(CudaSparse(396, 3), SparseShape(8), ["previous", "int8-tc"], [0, 1], rules)
    assert [(variant.name, variant.requested, variant.rules, variant.ctas) for variant in variants] == [
        ("previous", (), (), 128),
        ("int8-tc/splits=16", (0,), ("seed-wave", "fa2"), 256),
        ("int8-tc/splits=32", (1,), (), 512),
        ("int8-tc/splits=24", (), ("seed-384",), 384),
        ("int8-tc/splits=7", (), ("fa3",), 112),
    ]
    lines = explain_cell(CudaSparse(396, 3), SparseShape(8), ["int8-tc"], [0], rules)
    assert "int8-tc, rule fa3 -> 7 splits of at most 5 tiles, 112 CTAs" in lines[-1]


def test_rules_see_the_workers_of_the_cpu_and_leave_prefill_alone() -> None:
    rules = named_rules(["one-per-sm"], None)
    (variant,) = effective_variants(CpuSparse(4), SparseShape(1), ["int8-tc"], [], rules)
    assert (variant.split.splits, variant.rules) == (2, ("one-per-sm",))
    prefill = effective_variants(CudaSparse(396, 3), SparseShape(64, op="prefill"), ["int8-tc"], [0], rules)
    assert [variant.rules for variant in prefill] == [()]


def test_the_default_cap_is_that_of_the_merge() -> None:
    assert RULES["seed-384"].splits(1000, 1, 1, H200) == MAX_SPLITS
