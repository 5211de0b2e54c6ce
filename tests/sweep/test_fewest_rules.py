# SPDX-License-Identifier: MIT
"""Rules as rectangles over measured cells. Oracle: every partition of a small grid into rectangles."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsa_bench.sweep.fewest_rules import FoundRule, fewest_rules

ROWS, TILES = (1, 2, 4), (8, 16, 32)
GRID = list(itertools.product(ROWS, TILES))
Accepted = dict[tuple[int, int], dict[int, float]]


def test_neighbours_that_share_a_value_are_one_rule() -> None:
    """C4, vllm-project/vllm#52192: rows 3 lies between rows 2 and 4, which share it; rows 1 does not."""
    cells: Accepted = {(1, 32): {}, (2, 32): {2: 0.0}, (4, 32): {2: 0.0, 3: 1.0}}
    assert fewest_rules(cells) == (FoundRule((2, 4), (32, 32), 2),)


def test_a_rule_never_spans_a_cell_that_does_not_share_it() -> None:
    cells: Accepted = {(2, 32): {2: 0.0}, (4, 32): {}, (8, 32): {2: 0.0}}
    assert fewest_rules(cells) == (FoundRule((2, 2), (32, 32), 2), FoundRule((8, 8), (32, 32), 2))
    hole: Accepted = {shape: {2: 0.0} for shape in GRID if shape != (2, 16)}
    assert not any(rule.rows[0] <= 2 <= rule.rows[1] and rule.size == (8, 32) for rule in fewest_rules(hole))


def test_a_shared_value_may_be_nobodys_first_choice() -> None:
    cells: Accepted = {(1, 8): {2: 0.0, 3: 0.6}, (2, 8): {3: 0.4, 4: 0.0}}
    assert fewest_rules(cells) == (FoundRule((1, 2), (8, 8), 3),)
    assert fewest_rules({}) == ()


def partitions(left: frozenset[tuple[int, int]], cells: Accepted) -> Iterator[int]:
    if not left:
        yield 0
        return
    corner = min(left)
    for rows, tiles in GRID:
        box = {(r, t) for r, t in GRID if corner[0] <= r <= rows and corner[1] <= t <= tiles}
        if box and box <= left and set.intersection(*(set(cells[shape]) for shape in box)):
            yield from (1 + rest for rest in partitions(left - box, cells))


@settings(deadline=None)  # some grids have many partitions
@given(accepted=st.lists(st.sets(st.sampled_from([2, 3]), max_size=2), min_size=9, max_size=9))
def test_there_are_no_fewer(accepted: list[set[int]]) -> None:
    cells: Accepted = {shape: dict.fromkeys(values, 0.0) for shape, values in zip(GRID, accepted, strict=True)}
    rules = fewest_rules(cells)
    assert len(rules) == min(partitions(frozenset(shape for shape in GRID if cells[shape]), cells))
    for shape in GRID:
        values = [rule.value for rule in rules if holds(rule, shape)]
        assert len(values) == bool(cells[shape])
        assert set(values) <= set(cells[shape])
    assert list(rules) == sorted(rules, key=lambda rule: (rule.rows[0], rule.size[0]))


DEFAULT = list(itertools.product((1, 2, 4, 8), (8, 16, 32, 64, 128)))
"""Rows and tiles of the default grid of a GPU."""


def best_plan(left: frozenset[tuple[int, int]], cells: Accepted, known: dict[Any, Any]) -> tuple[int, float]:
    """(rules, distance) of the best partition: every rectangle at the first cell, each remainder worked out once."""
    if not left:
        return 0, 0.0
    if left not in known:
        corner, found = min(left), []
        for rows, tiles in DEFAULT:
            box = frozenset((r, t) for r, t in DEFAULT if corner[0] <= r <= rows and corner[1] <= t <= tiles)
            shared = set.intersection(*(set(cells[shape]) for shape in box)) if box and box <= left else set()
            if shared:
                count, distance = best_plan(left - box, cells, known)
                own = min(sum(cells[shape][value] for shape in box) for value in shared)
                found.append((count + 1, round(distance + own, 9)))
        known[left] = min(found)
    return known[left]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_search_is_exact_on_the_default_grid(seed: int, share: float) -> None:
    """Decision 0016: no plan has fewer rules, and none of as few is nearer to what the cells would take alone."""
    draw = random.Random(seed)
    cells: Accepted = {
        shape: {value: float(draw.randrange(4)) for value in (1, 2, 3, 4, 6) if draw.random() < share}
        for shape in DEFAULT
    }
    rules = fewest_rules(cells)
    distance = sum(
        cells[shape][rule.value] for shape in DEFAULT for rule in rules if holds(rule, shape)
    )  # fmt: skip
    assert (len(rules), distance) == best_plan(frozenset(shape for shape in DEFAULT if cells[shape]), cells, {})


def holds(rule: FoundRule, shape: tuple[int, int]) -> bool:
    return rule.rows[0] <= shape[0] <= rule.rows[1] and rule.size[0] <= shape[1] <= rule.size[1]


@pytest.mark.parametrize("seed", range(3))
def test_a_large_grid_ends_and_its_order_does_not_matter(seed: int) -> None:
    """E7, numpy/numpy#26637."""
    draw = random.Random(seed)
    shapes = list(itertools.product(range(1, 17), range(1, 17)))
    cells: Accepted = {
        shape: {draw.choice((2, 3)): 0.0, 4: draw.random()} if draw.random() < 0.7 else {} for shape in shapes
    }
    rules = fewest_rules(cells)
    draw.shuffle(shapes)
    assert fewest_rules({shape: cells[shape] for shape in shapes}) == rules
