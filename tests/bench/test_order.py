# SPDX-License-Identifier: MIT
"""Oracles: arithmetic for the design, and fake visits of two identical sides for what each order makes of them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsa_bench.bench.order import counterbalanced
from dsa_bench.stats.location import hodges_lehmann, paired_log_ratio

slot_counts = st.integers(1, 9)


@given(slot_counts, st.integers(0, 99))
def test_each_slot_once_a_round(slots: int, round_index: int) -> None:
    assert sorted(counterbalanced(range(slots), round_index)) == list(range(slots))


@given(slot_counts, st.integers(0, 99))
def test_rounds_of_a_pair_mirror_each_other(slots: int, pair: int) -> None:
    assert counterbalanced(range(slots), 2 * pair + 1) == counterbalanced(range(slots), 2 * pair)[::-1]


@given(slot_counts)
def test_first_and_last_place_are_shared_out_evenly(slots: int) -> None:
    orders = [counterbalanced(range(slots), r) for r in range(2 * slots)]
    assert [order[0] for order in orders[::2]] == list(range(slots))
    assert set(Counter(order[0] for order in orders).values()) == {2}
    assert set(Counter(order[-1] for order in orders).values()) == {2}


@given(slot_counts, st.integers(0, 99))
def test_a_straight_drift_cancels_in_each_pair(slots: int, pair: int) -> None:
    visits = counterbalanced(range(slots), 2 * pair) + counterbalanced(range(slots), 2 * pair + 1)
    times = [[when for when, slot in enumerate(visits) if slot == wanted] for wanted in range(slots)]
    assert {sum(when) for when in times} == {2 * slots - 1}


def test_the_given_order_comes_first_and_is_left_alone() -> None:
    slots = ["rule", "control", "previous"]
    assert [counterbalanced(slots, r) for r in range(4)] == [
        ["rule", "control", "previous"],
        ["previous", "control", "rule"],
        ["control", "previous", "rule"],
        ["rule", "previous", "control"],
    ]
    assert slots == ["rule", "control", "previous"]


ROUNDS = 16
SCHEDULES: dict[str, list[Sequence[str]]] = {
    "A then B": [*["AA"] * (ROUNDS // 2), *["BB"] * (ROUNDS // 2)],
    "fixed": ["AB"] * ROUNDS,
    "counterbalanced": [counterbalanced("AB", r) for r in range(ROUNDS)],
    "counterbalanced among five": [counterbalanced("ABCDE", r) for r in range(ROUNDS)],
}


def false_difference_rate(schedule: Sequence[Sequence[str]], runs: int = 2000) -> float:
    """Share of runs whose 95 % interval excludes equality, though A and B are the same.

    A run's clock drifts by up to 4 % from start to end, either way. The first visit of a round costs 0.4 % more. Noise
    is 0.4 % lognormal, with one visit in twenty up to 10 % late.
    """
    rng = np.random.default_rng(1963)
    side = np.array([slot for order in schedule for slot in order])
    goes_first = np.array([place == 0 for order in schedule for place in range(len(order))])
    drift = rng.uniform(-0.04, 0.04, (runs, 1)) * np.linspace(0, 1, side.size)
    late = rng.uniform(0, 0.1, (runs, side.size)) * (rng.random((runs, side.size)) < 0.05)
    noise = rng.lognormal(0, 0.004, (runs, side.size)) * (1 + late)
    visits_us = 10 * (1 + drift) * (1 + 0.004 * goes_first) * noise

    estimates = [hodges_lehmann(paired_log_ratio(run[side == "A"], run[side == "B"])) for run in visits_us]
    return float(np.mean([not low <= 0 <= high for low, high in (e.interval for e in estimates if e.interval)]))


def test_only_mirrored_orders_keep_identical_sides_alike() -> None:
    """Seen: .78, .51, .02 and .03, where .044 is nominal. The first two rise as noise falls; the others don't."""
    rates = {name: false_difference_rate(schedule) for name, schedule in SCHEDULES.items()}
    assert rates["A then B"] > 0.5
    assert rates["fixed"] > 0.4
    assert rates["counterbalanced"] < 0.07
    assert rates["counterbalanced among five"] < 0.07
