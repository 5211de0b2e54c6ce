# SPDX-License-Identifier: MIT
"""Check, warm up, then visit every variant in paired, order-balanced rounds."""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dsa_bench.bench.order import counterbalanced
from dsa_bench.bench.ranges import annotate
from dsa_bench.bench.timers import Timer
from dsa_bench.bench.variant import Sample, Timing, Variant, VisitFailed
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.record import Status

PILOT_PASSES = 2
WARMUP_US = 50_000.0
"""The variants run in turn until all of them together have run this long: no first visit pays for a cold device."""
MAX_PILOT_PASSES = 50
MAX_LAUNCHES = 1000
CLOCK_FLOOR = 0.97
MAX_REPEATS = 8
"""Rounds of one cell that may be taken again for a low clock before the run is called untrusted."""

Clocks = Callable[[], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Slot:
    """A variant's place in every round; the null control has a second one."""

    variant: Variant
    launches: int
    control: bool = False


class Stop:
    """When a cell has enough rounds: after `rounds`, when the next mirrored pair would pass the deadline, or when
    `enough` says so after a pair."""

    def __init__(
        self,
        rounds: int | None,
        deadline_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        enough: Callable[[], bool] | None = None,
    ) -> None:
        self._rounds = rounds
        self._deadline_s = deadline_s
        self._clock = clock
        self._enough = enough
        self._pair_start_s: float | None = None

    def wants(self, round_index: int) -> bool:
        """Whether to take this round. A pair that is begun is finished, and one pair is always taken."""
        if self._rounds is not None and round_index >= self._rounds:
            return False
        if round_index % 2:
            return True
        if round_index and self._enough is not None and self._enough():
            return False
        if self._deadline_s is None:
            return True
        now_s = self._clock()
        last_pair_s = None if self._pair_start_s is None else now_s - self._pair_start_s
        self._pair_start_s = now_s
        return last_pair_s is None or now_s + last_pair_s <= self._deadline_s


def pilot(variants: Sequence[Variant], timer: Timer) -> dict[str, int]:
    """Warm up, and find for each variant how many launches of its shortest make a visit of timer.min_visit_us.

    An estimate of zero (a timer too coarse for one call) gives the largest count, never a division by zero.
    """
    shortest_us: dict[str, float] = {}
    total_us = 0.0
    for taken in range(MAX_PILOT_PASSES):
        if taken >= PILOT_PASSES and total_us >= WARMUP_US:
            break
        for variant in variants:
            known_us = shortest_us.get(variant.name)
            launches = _launches(variant, known_us, timer) if known_us else 1
            try:
                call_us = timer.time(variant, launches).call_us
            except VisitFailed:  # the rounds will record it
                continue
            shortest_us[variant.name] = min(call_us, shortest_us.get(variant.name, math.inf))
            total_us += call_us * launches
    return {variant.name: _launches(variant, shortest_us.get(variant.name, 0.0), timer) for variant in variants}


def _launches(variant: Variant, call_us: float, timer: Timer) -> int:
    """Launches of a visit, in whole turns of the copies, so that every visit starts at the first."""
    enough = call_us > timer.min_visit_us / MAX_LAUNCHES
    launches = math.ceil(timer.min_visit_us / call_us) if enough else MAX_LAUNCHES
    return math.ceil(launches / variant.copies) * variant.copies


def round_slots(variants: Sequence[Variant], control: str, launches: dict[str, int]) -> list[Slot]:
    """One slot for each variant, and a second one for the null control, half a round away from its first."""
    slots = [Slot(variant, launches[variant.name]) for variant in variants]
    at = next(index for index, slot in enumerate(slots) if slot.variant.name == control)
    slots = [*slots[at:], *slots[:at]]
    slots.insert((len(slots) + 1) // 2, Slot(slots[0].variant, slots[0].launches, control=True))
    return slots


def take_rounds(
    slots: Sequence[Slot],
    timer: Timer,
    stop: Stop,
    clocks: Clocks | None = None,
    done: Mapping[int, float] = MappingProxyType({}),
    attempts: Mapping[int, int] = MappingProxyType({}),
) -> Iterator[Sample]:
    """Visit every slot once a round and yield each visit as it is taken.

    After each round all of the cell's are judged, and one whose SM clock lies below CLOCK_FLOOR of their median is
    taken again as a whole.

    done      rounds that an earlier run completed, with the lowest SM clock of each (infinity where it is not known)
    attempts  round -> the attempts that it already had; a round that was cut short is taken again as a whole
    Raises CannotMeasure when more than MAX_REPEATS rounds had to be taken again.
    """
    clock_mhz = dict(done)
    tries = dict(attempts)
    repeats = 0
    for planned in itertools.count():
        if not stop.wants(planned):
            return
        index = None if planned in done else planned
        while index is not None:
            attempt = tries.get(index, 0)
            tries[index] = attempt + 1
            clock_mhz[index] = math.inf
            for sample in _visit_round(slots, index, attempt, timer, clocks):
                clock_mhz[index] = min(clock_mhz[index], sample.clocks.get("sm_mhz", math.inf))
                yield sample
            floor_mhz = CLOCK_FLOOR * statistics.median(clock_mhz.values())
            index, low_mhz = next(((taken, mhz) for taken, mhz in clock_mhz.items() if mhz < floor_mhz), (None, 0.0))
            if index is not None:
                yield _untrusted(slots[0], index, tries[index])
                tries[index] += 1
                repeats += 1
            if repeats > MAX_REPEATS:
                raise CannotMeasure(
                    f"the SM clock fell below {CLOCK_FLOOR:.0%} of the cell's median in more than {MAX_REPEATS} rounds "
                    f"(to {low_mhz:.0f} MHz) and the run is untrusted; let the device cool, then --resume"
                )


def _untrusted(slot: Slot, index: int, attempt: int) -> Sample:
    """Marks that a round's attempts so far do not count: its last attempt is now this one, and not complete."""
    reason = "the attempt before was taken at a low SM clock"
    return Sample(slot.variant.name, slot.control, index, attempt, 0, slot.launches, None, "untrusted", reason)


def _visit_round(
    slots: Sequence[Slot], index: int, attempt: int, timer: Timer, clocks: Clocks | None
) -> Iterator[Sample]:
    for place, slot in enumerate(counterbalanced(slots, index)):
        timing, status, reason = _visit(slot, index, timer)
        state = clocks() if clocks is not None and place == 0 else {}
        yield Sample(
            slot.variant.name, slot.control, index, attempt, place, slot.launches, timing, status, reason, state
        )


def _visit(slot: Slot, index: int, timer: Timer) -> tuple[Timing | None, Status, str | None]:
    try:
        with annotate(f"{slot.variant.name} round {index}"):
            timing = timer.time(slot.variant, slot.launches)
    except VisitFailed as failure:
        return None, failure.status, str(failure)
    if min(timing) > 0:
        return timing, "ok", None
    return None, "below_resolution", f"{timer.name} read {min(timing):g} us over {slot.launches} launches"
