# SPDX-License-Identifier: MIT
"""Rounds on fake timers: order, launches, warm-up, resolution, clocks, stopping and resuming."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dsa_bench.bench.rounds import (
    MAX_LAUNCHES,
    MAX_PILOT_PASSES,
    MAX_REPEATS,
    WARMUP_US,
    Slot,
    Stop,
    pilot,
    round_slots,
    take_rounds,
)
from dsa_bench.bench.timers import WallTimer
from dsa_bench.bench.variant import Sample, Variant
from dsa_bench.model.errors import CannotMeasure

Make = Callable[..., list[Variant]]


def slots_of(variants: list[Variant], control: str, launches: int = 1) -> list[Slot]:
    return round_slots(variants, control, {variant.name: launches for variant in variants})


def names(slots: list[Slot]) -> list[str]:
    return [slot.variant.name + "*" * slot.control for slot in slots]


@pytest.mark.parametrize(
    ("count", "control", "order"),
    [
        (1, "a", ["a", "a*"]),
        (2, "a", ["a", "a*", "b"]),
        (2, "b", ["b", "b*", "a"]),
        (3, "a", ["a", "b", "a*", "c"]),
        (4, "c", ["c", "d", "c*", "a", "b"]),
        (5, "a", ["a", "b", "c", "a*", "d", "e"]),
    ],
)
def test_the_control_stands_half_a_round_away(fake_variants: Make, count: int, control: str, order: list[str]) -> None:
    assert names(slots_of(fake_variants(*"abcde"[:count]), control)) == order


def test_rounds_visit_every_slot_in_mirrored_pairs(fake_variants: Make, fake_timer: Any) -> None:
    slots = slots_of(fake_variants("a", "b", "c"), "b")
    samples = list(take_rounds(slots, fake_timer(lambda *_: 5.0), Stop(8)))
    rounds = [[s.variant + "*" * s.control for s in samples if s.round == index] for index in range(8)]
    assert [sample.round for sample in samples] == sorted(sample.round for sample in samples)
    for even, odd in zip(rounds[::2], rounds[1::2], strict=True):
        assert even == odd[::-1]
    assert all(sorted(order) == ["a", "b", "b*", "c"] for order in rounds)
    assert {order[0] for order in rounds[::2]} == {"a", "b", "b*", "c"}
    assert all(sample.place == rounds[sample.round].index(sample.variant + "*" * sample.control) for sample in samples)
    assert all(sample.timing == (5.0, 5.0) and sample.status == "ok" and sample.attempt == 0 for sample in samples)


@pytest.mark.parametrize(
    ("time_us", "launches"),
    [(1e6, 1), (40.0, 1), (39.9, 2), (10.0, 4), (0.05, 800), (0.04, 1000), (0.01, MAX_LAUNCHES), (0.0, MAX_LAUNCHES)],
)
def test_a_visit_lasts_as_long_as_the_timer_wants(
    fake_variants: Make, fake_timer: Any, time_us: float, launches: int
) -> None:
    timer = fake_timer(lambda *_: time_us, min_visit_us=40.0)
    assert pilot(fake_variants("a"), timer) == {"a": launches}


def test_launches_come_from_each_variants_shortest_call(fake_variants: Make, fake_timer: Any) -> None:
    timer = fake_timer(lambda name, call, _: 1e6 if call == 0 else {"fast": 1.0, "slow": 20.0}[name])
    assert pilot(fake_variants("fast", "slow"), timer) == {"fast": 40, "slow": 2}


@pytest.mark.parametrize("time_us", [0.0, 1.0, 900.0, 1e6])
def test_warm_up_is_bounded_and_shared(fake_variants: Make, fake_timer: Any, time_us: float) -> None:
    timer = fake_timer(lambda *_: time_us)
    pilot(fake_variants("a", "b"), timer)
    calls = Counter(name for name, _ in timer.calls)
    assert calls["a"] == calls["b"]
    assert 2 <= calls["a"] <= MAX_PILOT_PASSES
    assert calls["a"] == MAX_PILOT_PASSES or timer.elapsed_us >= WARMUP_US


def test_a_timer_that_reads_zero_gives_no_time(fake_variants: Make, fake_timer: Any) -> None:
    """B1, triton-lang/triton#8948: bounded work and a status, no division by zero and no fast result."""
    timer = fake_timer(lambda *_: 0.0)
    variants = fake_variants("a", "b")
    samples = list(take_rounds(round_slots(variants, "a", pilot(variants, timer)), timer, Stop(4)))
    assert len(samples) == 12
    assert {(sample.status, sample.timing) for sample in samples} == {("below_resolution", None)}
    assert samples[0].reason == "wall read 0 us over 1000 launches"
    assert sum(launches for _, launches in timer.calls) <= 2 * MAX_PILOT_PASSES + 12 * MAX_LAUNCHES


def test_zero_in_the_pilot_only_is_a_normal_time_afterwards(fake_variants: Make, fake_timer: Any) -> None:
    """B1, triton-lang/triton#8948."""
    timer = fake_timer(lambda _, call, __: 0.0 if call < MAX_PILOT_PASSES else 9.5)
    variants = fake_variants("a")
    samples = list(take_rounds(round_slots(variants, "a", pilot(variants, timer)), timer, Stop(2)))
    assert {(sample.status, sample.timing) for sample in samples} == {("ok", (9.5, 9.5))}


@pytest.mark.parametrize("slow", ["a", "b", "c"])
@pytest.mark.parametrize("names", list(itertools.permutations("abc")))
def test_a_slow_start_does_not_fall_on_the_first(
    fake_variants: Make, fake_timer: Any, names: tuple[str, ...], slow: str
) -> None:
    """B8, pytorch/helion#2994: +30 % for the first 25 ms of the process, whatever the order of the variants."""
    own_us = dict.fromkeys("abc", 1000.0) | {slow: 1100.0}
    timer = fake_timer(lambda name, _, elapsed_us: own_us[name] * (1.3 if elapsed_us < 25_000 else 1.0))
    variants = fake_variants(*names)
    samples = list(take_rounds(round_slots(variants, "b", pilot(variants, timer)), timer, Stop(4)))
    times = {name: {s.timing for s in samples if s.variant == name} for name in "abc"}
    assert times == {name: {(time_us, time_us)} for name, time_us in own_us.items()}


class Clock:
    """SM clocks in MHz, one for each round as taken."""

    def __init__(self, *mhz: float) -> None:
        self.mhz = itertools.chain(mhz, itertools.repeat(mhz[-1]))

    def __call__(self) -> dict[str, float]:
        return {"sm_mhz": next(self.mhz)}


def attempts(samples: list[Sample]) -> list[tuple[int, int]]:
    return list(dict.fromkeys((sample.round, sample.attempt) for sample in samples))


def test_a_clock_dip_repeats_the_whole_round(fake_variants: Make, fake_timer: Any) -> None:
    slots = slots_of(fake_variants("a", "b"), "a")
    clocks = Clock(1000, 1000, 969, 971, 1000)
    samples = list(take_rounds(slots, fake_timer(lambda *_: 1.0), Stop(4), clocks))
    marker = samples.pop(next(at for at, sample in enumerate(samples) if sample.status == "untrusted"))
    assert (marker.round, marker.attempt, marker.timing) == (2, 1, None), (
        "attempt 0 does not count, whatever comes next"
    )
    assert attempts(samples) == [(0, 0), (1, 0), (2, 0), (2, 2), (3, 0)]
    assert Counter((s.round, s.attempt) for s in samples) == dict.fromkeys(attempts(samples), 3)
    orders = [[s.variant for s in samples if (s.round, s.attempt) == (2, attempt)] for attempt in (0, 2)]
    assert orders[0] == orders[1]
    assert [s.clocks for s in samples if s.round == 0] == [{"sm_mhz": 1000}, {}, {}]


def test_a_clock_that_stays_low_ends_the_run(fake_variants: Make, fake_timer: Any) -> None:
    slots, samples = slots_of(fake_variants("a"), "a"), list[Sample]()
    with pytest.raises(CannotMeasure, match="900 MHz"):  # noqa: PT012 - the samples before it count
        for sample in take_rounds(slots, fake_timer(lambda *_: 1.0), Stop(4), Clock(1000, 1000, 900)):
            samples.append(sample)
    assert sum(sample.status == "untrusted" for sample in samples) == MAX_REPEATS + 1
    assert (samples[-1].round, samples[-1].status) == (2, "untrusted"), "its last attempt is not complete"


def test_a_first_round_at_a_low_clock_is_taken_again(fake_variants: Make, fake_timer: Any) -> None:
    samples = list(
        take_rounds(slots_of(fake_variants("a"), "a"), fake_timer(lambda *_: 1.0), Stop(4), Clock(700, 1000))
    )
    assert [(s.round, s.attempt) for s in samples if s.clocks == {"sm_mhz": 700}] == [(0, 0)]
    assert attempts([s for s in samples if s.status == "ok"]) == [(0, 0), (1, 0), (0, 2), (2, 0), (3, 0)]


def test_rounds_of_an_earlier_run_are_judged_too(fake_variants: Make, fake_timer: Any) -> None:
    slots = slots_of(fake_variants("a"), "a")
    earlier = {0: 1000.0, 1: 1000.0}
    samples = list(take_rounds(slots, fake_timer(lambda *_: 1.0), Stop(4), Clock(900, 1000), done=earlier))
    assert attempts([s for s in samples if s.status == "ok"]) == [(2, 0), (2, 2), (3, 0)]


def test_no_clock_is_no_dip(fake_variants: Make, fake_timer: Any) -> None:
    slots = slots_of(fake_variants("a"), "a")
    samples = list(take_rounds(slots, fake_timer(lambda *_: 1.0), Stop(4), dict))
    assert attempts(samples) == [(index, 0) for index in range(4)]


def taken(stop: Stop, spend: Callable[[int], None] = lambda _: None) -> int:
    for index in itertools.count():
        if not stop.wants(index):
            return index
        spend(index)
    raise AssertionError


@pytest.mark.parametrize("rounds", [2, 6, 16])
def test_a_count_of_rounds(rounds: int) -> None:
    assert taken(Stop(rounds)) == rounds


@pytest.mark.parametrize(
    ("deadline_s", "rounds"), [(0.0, 2), (2.0, 2), (3.9, 2), (4.0, 4), (5.9, 4), (6.0, 6), (100.0, 100)]
)
def test_a_budget_takes_whole_pairs(deadline_s: float, rounds: int) -> None:
    """A round takes a second. One pair is always taken; then only a pair that will be over in time."""
    now_s = 0.0

    def spend(_: int) -> None:
        nonlocal now_s
        now_s += 1.0

    assert taken(Stop(None, deadline_s, lambda: now_s), spend) == rounds


def test_the_smaller_of_rounds_and_budget_counts() -> None:
    assert taken(Stop(4, 1000.0, lambda: 0.0)) == 4


def test_resuming_takes_only_what_is_missing(fake_variants: Make, fake_timer: Any) -> None:
    """C10, ROCm/aiter#5263: whole rounds stay; one that was cut short is taken again, as a further attempt."""
    slots = slots_of(fake_variants("a", "b"), "a")
    samples = list(
        take_rounds(
            slots, fake_timer(lambda *_: 1.0), Stop(6), done=dict.fromkeys((0, 1, 3), math.inf), attempts={2: 1, 3: 1}
        )
    )
    assert attempts(samples) == [(2, 1), (4, 0), (5, 0)]


def test_the_wall_timer_gives_the_median_of_its_calls(fake_variants: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0, 5_000, 10_000, 19_000, 20_000, 21_000])
    monkeypatch.setattr("dsa_bench.bench.timers.time.perf_counter_ns", lambda: next(ticks))
    calls: list[int] = []
    (variant,) = fake_variants("a")
    timing = WallTimer().time(Variant("a", calls.append, variant.check), 3)
    assert timing == (5.0, 5.0)
    assert calls == [0, 1, 2]


def test_enough_ends_a_cell_after_a_pair_and_never_before_one() -> None:
    asked: list[int] = []

    def enough() -> bool:
        asked.append(1)
        return len(asked) == 3

    stop = Stop(100, enough=enough)
    assert [stop.wants(index) for index in range(7)] == [True] * 6 + [False]
    assert Stop(2, enough=lambda: False).wants(2) is False
