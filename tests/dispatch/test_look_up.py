# SPDX-License-Identifier: MIT
"""Which rule holds for a launch, and when a table holds at all."""

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from map_doubles import table

from dsa_bench.dispatch.look_up import MapTable, applicable
from dsa_bench.model.splits_map import MapRule

NAMES = ["NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA H20"]


@pytest.mark.parametrize("written", NAMES)
def test_a_map_holds_on_its_own_device_and_no_other(make_map: Any, make_facts: Any, written: str) -> None:
    """C2, vllm-project/vllm#28349: one name, compared whole; a miss names both."""
    made = make_map(device=replace(make_map().device, name=written))
    for name in NAMES:
        found, said = applicable(made, make_facts(device=name))
        assert (found is not None) == (name == written)
        if name != written:
            assert said == [
                f"the map is not used: device name is {written} in the map and {name} here; the automatic rule decides"
            ]


def test_a_partition_is_another_device(make_map: Any, make_facts: Any) -> None:
    """C2, vllm-project/vllm#50436: H200 with 16 SMs never finds 132 SMs; one line names both fields."""
    found, said = applicable(make_map(), make_facts(sm_count=16, cta_slots=48))
    assert found is None
    assert len(said) == 1
    assert "sm_count is 132 in the map and 16 here, cta_slots is 396 in the map and 48 here" in said[0]


MUST = {
    "op": "prefill", "kernel": "previous", "kernel_hash": "x", "device": "NVIDIA B200", "compute_capability": "10.0",
    "sm_count": 148, "cta_slots": 444, "tile": 128, "head_size": 128, "group": 8, "kv_heads": 4, "l2": "warm",
}  # fmt: skip


@pytest.mark.parametrize("field", MUST)
def test_each_fact_that_must_match_decides(make_map: Any, make_facts: Any, field: str) -> None:
    """C5, flashinfer-ai/flashinfer#3363: the key holds everything that the choice depends on."""
    found, said = applicable(make_map(), make_facts(**{field: MUST[field]}))
    assert found is None
    assert len(said) == 1
    assert f"{'device name' if field == 'device' else field} is " in said[0]
    assert str(MUST[field]) in said[0]


def test_facts_that_should_match_are_one_warning(make_map: Any, make_facts: Any) -> None:
    found, said = applicable(make_map(), make_facts(driver="600.1", runtime=None))
    assert found is not None
    assert said == [
        "the map was tuned otherwise and is used: driver is 580.1 in the map and 600.1 here, "
        "runtime is CUDA 13.2 in the map and unknown here; tune again"
    ]
    assert applicable(make_map(), make_facts())[1] == []


def test_a_table_without_l2_modes_satisfies_any(make_map: Any, make_table: Any, make_facts: Any) -> None:
    for mode in ("cold", "warm"):
        assert applicable(make_map(make_table(l2="none")), make_facts(l2=mode))[0] is not None


def test_tables_of_one_file_are_told_apart(make_map: Any, make_table: Any, make_facts: Any) -> None:
    """C5: KV heads 2 and 4 with opposite winners, and two kernels of one operator."""
    tables = [
        make_table(kv_heads=kv_heads, kernel=kernel, rules=(MapRule((8, 8), (32, 32), value),))
        for kv_heads, kernel, value in ((2, "int8-tc", 2), (4, "int8-tc", 4), (2, "later", 3))
    ]
    for one in tables:
        found, said = applicable(make_map(*tables), make_facts(kv_heads=one.kv_heads, kernel=one.kernel))
        assert found is not None
        assert (found.value(8, 32), said) == (one.rules[0].tiles_per_split, [])
    _, said = applicable(make_map(*tables), make_facts(kernel_hash="changed"))
    assert said == [f"its table of int8-tc is not used: kernel_hash is {'ab' * 8} in the map and changed here"]


def test_a_stale_table_beside_one_that_holds_is_named(make_map: Any, make_table: Any, make_facts: Any) -> None:
    """The other kernel's rule may hit in the same answer, so neither the map is unused nor the automatic rule asked."""
    made = make_map(make_table(), make_table(kernel="int8-digits", kernel_hash="old", rules=()))
    assert applicable(made, make_facts())[0] is not None
    found, said = applicable(made, make_facts(kernel="int8-digits"))
    assert found is None
    assert said == [f"its table of int8-digits is not used: kernel_hash is old in the map and {'ab' * 8} here"]
    _, said = applicable(made, make_facts(op="prefill"))
    assert said == ["its table of int8-tc is not used: op is decode in the map and prefill here"]


def test_outside_the_rules_the_automatic_rule_applies(make_table: Any) -> None:
    """C4, vllm-project/vllm#52192: no nearest key; rows 3 has what rows 2 and 4 share."""
    found = MapTable(make_table())
    assert [found.value(rows, 32) for rows in (1, 2, 3, 4, 5, 8, 9, 4096)] == [
        None, 2, 2, 2, None, None, None, None,
    ]  # fmt: skip
    assert [found.value(3, tiles) for tiles in (1, 31, 32, 33, 10**9)] == [None, None, 2, None, None]
    apart = MapTable(make_table(rules=(MapRule((2, 2), (32, 32), 2), MapRule((4, 4), (32, 32), 3))))
    assert apart.value(3, 32) is None


Ranges = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(sorted).map(tuple)


@settings(deadline=None)  # the first example pays for imports
@given(rectangles=st.lists(st.tuples(Ranges, Ranges), max_size=8))
def test_a_look_up_is_the_rule_that_contains_it(rectangles: Any) -> None:
    rules: list[MapRule] = []
    for rows, tiles in sorted(rectangles):
        if not any(_inside(rule, r, t) for rule in rules for r in _span(rows) for t in _span(tiles)):
            rules.append(MapRule(rows, tiles, len(rules) + 1))
    found = MapTable(table(rules=tuple(rules)))
    for rows in range(14):
        for tiles in range(14):
            expected = next((rule.tiles_per_split for rule in rules if _inside(rule, rows, tiles)), None)
            assert found.value(rows, tiles) == expected


def _span(ends: tuple[int, int]) -> range:
    return range(ends[0], ends[1] + 1)


def _inside(rule: MapRule, rows: int, tiles: int) -> bool:
    return rows in _span(rule.rows) and tiles in _span(rule.tiles)


def test_a_look_up_takes_less_than_two_microseconds(make_table: Any) -> None:
    rules = tuple(MapRule((rows, rows), (tiles, tiles + 3), 2) for rows in range(1, 65) for tiles in range(8, 129, 8))
    look_up = MapTable(make_table(rules=rules)).value
    best_us = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for rows in range(2000):
            look_up(rows % 80, 32)
        best_us = min(best_us, (time.perf_counter() - start) / 2000 * 1e6)
    assert best_us < 2
