# SPDX-License-Identifier: MIT
"""Rules of the dense split: the document's worked values, and what every rule must hold to."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_bench.model.dense import DensePlan
from dsa_bench.model.errors import BadInput
from dsa_bench.splits.dense import (
    CHUNK_VARIABLE,
    MAX_SPLITS,
    MIN_CHUNK,
    NO_LAUNCH,
    RULES,
    adaptive,
    fixed,
    live,
    off,
    parse_rule,
    pinned_name,
    seed_adaptive,
)

ROWS = (1, 3, 8, 16, 600)
CAPACITIES = (*range(1, 4097), 8191, 8192, 16384)


def geometry(plan: DensePlan) -> tuple[int, int]:
    return plan.splits, plan.chunk


@pytest.mark.parametrize(
    ("capacity", "rows", "expected"),
    [
        (4096, 16, (32, 128)),
        (16384, 16, (32, 512)),
        (512, 16, (4, 128)),
        (128, 16, (1, 128)),
        (129, 16, (2, 65)),  # the promise of 128 keys, broken
        (16384, 1, (64, 256)),
        (4096, 600, (1, 4096)),
        (4097, 16, (32, 129)),
    ],
)
def test_the_documents_formula(capacity: int, rows: int, expected: tuple[int, int]) -> None:
    assert geometry(seed_adaptive(capacity, rows)) == expected


@pytest.mark.parametrize(
    ("capacity", "chunk", "expected"),
    [(4096, 256, (16, 256)), (512, 256, (2, 256)), (256, 256, (1, 256)), (257, 256, (2, 129)), (32768, 256, (64, 512))],
)
def test_a_fixed_chunk(capacity: int, chunk: int, expected: tuple[int, int]) -> None:
    assert geometry(fixed(capacity, 16, chunk)) == expected


@pytest.mark.parametrize(
    ("capacity", "rows", "expected"),
    [(4096, 16, (32, 128)), (129, 16, (1, 129)), (255, 16, (1, 255)), (256, 16, (2, 128)), (300, 16, (2, 150))],
)
def test_adaptive_keeps_the_documents_promise(capacity: int, rows: int, expected: tuple[int, int]) -> None:
    assert geometry(adaptive(capacity, rows)) == expected


def test_off_is_monolithic() -> None:
    assert off(4096, 16) == DensePlan(1, 4096)
    assert off(4096, 16).name == "off"


@pytest.mark.parametrize("rule", RULES)
def test_every_capacity_is_covered_by_splits_that_share_no_key(rule: str) -> None:
    """Every capacity of the issue times its rows: covers, in range, one launch, workspace for every partial."""
    choose = parse_rule(rule)
    for rows in ROWS:
        for capacity in CAPACITIES:
            plan = choose(capacity, rows)
            assert plan == choose(capacity, rows)
            assert 1 <= plan.splits <= MAX_SPLITS
            assert plan.covers(capacity)
            assert plan.workspace_bytes(rows, 128) == (4 * rows * (plan.splits * 130 + 1) if plan.splits > 1 else 0)
            if rule in ("adaptive", "live") and plan.splits > 1:
                assert plan.chunk >= MIN_CHUNK


@pytest.mark.parametrize("rule", RULES)
@given(capacity=st.integers(1, 20_000), rows=st.integers(1, 2000), share=st.floats(0, 1))
def test_at_every_live_length_each_key_has_one_split(rule: str, capacity: int, rows: int, share: float) -> None:
    plan, length = parse_rule(rule)(capacity, rows), round(share * capacity)
    slices = [plan.slice(split, length) for split in range(plan.splits)]
    assert [key for owned in slices for key in owned] == list(range(length))
    assert sum(1 for owned in slices if owned) == plan.alive(length)


def test_no_rule_sees_the_live_length() -> None:
    """D9's lesson for graphs: eager and captured launches agree because nothing else is an argument."""
    for rule in RULES:
        chosen = parse_rule(rule)
        assert list(inspect.signature(chosen).parameters) == ["capacity", "rows"]


@given(st.integers(256, 20_000), st.integers(1, 600), st.floats(0, 1))
def test_live_leaves_no_split_idle_once_each_has_its_128_keys(capacity: int, rows: int, share: float) -> None:
    plan, length = live(capacity, rows), round(share * capacity)
    if plan.splits > 1 and length >= MIN_CHUNK * plan.splits:
        assert plan.alive(length) == plan.splits


def test_live_does_not_see_the_capacity_where_the_others_idle() -> None:
    """T = 2600 in a capacity of 32768: by capacity 3 of 32 splits are alive, live as many as in 4096."""
    assert adaptive(32768, 16).alive(2600) == 3
    assert live(32768, 16).alive(2600) == live(4096, 16).alive(2600) == adaptive(4096, 16).alive(2600) == 21
    assert live(32768, 16).name == "splits=32,chunk=live"


@pytest.mark.parametrize("rule", [*RULES, "fixed:1"])
@pytest.mark.parametrize(("capacity", "rows"), [(0, 16), (4096, 0), (0, 0), (-1, 16), (4096, -1)])
def test_nothing_to_do_is_no_launch(rule: str, capacity: int, rows: int) -> None:
    """D3, Dao-AILab/flash-attention#2503."""
    plan = parse_rule(rule)(capacity, rows)
    assert plan == NO_LAUNCH
    assert plan.alive(0) == plan.workspace_bytes(16, 128) == 0


@pytest.mark.parametrize("name", ["", "fixed", "fixed:", "fixed:0", "fixed:-1", "fixed:１", "fixed:1.5", "seed"])
def test_an_unknown_rule_is_one_line(name: str) -> None:
    with pytest.raises(BadInput, match=r"--rule .*: must be off, fixed:N"):
        parse_rule(name)


def test_the_variable_pins_the_chunk() -> None:
    assert pinned_name({CHUNK_VARIABLE: "0256"}) == "fixed:256"
    assert geometry(parse_rule("fixed:256")(4096, 16)) == (16, 256)
    assert pinned_name({}) is pinned_name({CHUNK_VARIABLE: ""}) is None
    for said in ("0", "-1", "x", " 256", "1e3", "２", "9" * 40):
        with pytest.raises(BadInput, match=f"{CHUNK_VARIABLE}="):
            pinned_name({CHUNK_VARIABLE: said})


def test_a_plan_without_keys_or_splits_is_none() -> None:
    with pytest.raises(ValueError, match="no plan"):
        DensePlan(2, 0)
    with pytest.raises(ValueError, match="a chunk of 0 keys"):
        fixed(4096, 16, 0)
