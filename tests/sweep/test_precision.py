# SPDX-License-Identifier: MIT
"""When intervals are narrow enough."""

import math
import random
from collections.abc import Callable

import pytest

from dsa_bench.sweep.precision import Precision


def read(rounds: int, other_us: Callable[[int], float], precision: float, tick_us: float | None = None) -> Precision:
    followed = Precision(precision, "auto", ["auto", "other"], tick_us)
    for index in range(rounds):
        followed.add("auto", index, False, 10.0)
        followed.add("auto", index, True, 99.0)
        followed.add("other", index, False, other_us(index))
    return followed


def taken(rounds: int, spread: float, precision: float = 0.01, ratio: float = 1.2) -> Precision:
    draw = random.Random(0)
    return read(rounds, lambda _: 10.0 * ratio * math.exp(draw.gauss(0, spread)), precision)


@pytest.mark.parametrize("rounds", [16, 24, 32, 64])
def test_times_that_alternate_are_not_known_to_a_hundredth_of_a_percent(rounds: int) -> None:
    """Two values 10 % apart: the ratio is known to the spread of their mean, 1.3 % after 64 rounds."""
    for turn in (1, 2, 3):
        assert not read(rounds, lambda index, n=turn: 10.0 + (index // n) % 2, 0.0001).reached()
    assert not read(64, lambda index: 10.0 + index % 2, 0.01).reached()
    assert read(64, lambda index: 10.0 + index % 2, 0.013).reached()


@pytest.mark.parametrize("at", [4, 8, 16, 28, 31])
def test_a_step_is_no_precision(at: int) -> None:
    """10 % slower from one round on, whichever it is."""
    assert not read(32, lambda index: 10.0 if index < at else 11.0, 0.003).reached()
    assert read(32, lambda index: 11.0, 0.003).reached()


@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
def test_the_width_is_a_share_of_the_ratio(ratio: float) -> None:
    """1 % of noise gives some +-0.5 % of any ratio after 16 rounds."""
    assert taken(16, 0.01, 0.01, ratio).reached()
    assert not taken(16, 0.01, 0.003, ratio).reached()
    assert [taken(rounds, 0.01, 0.005, ratio).reached() for rounds in (16, 20, 24, 28, 32, 40)] == [
        taken(rounds, 0.01, 0.005).reached() for rounds in (16, 20, 24, 28, 32, 40)
    ]


def test_what_lies_within_a_tick_is_not_known() -> None:
    """Equal readings of 4.8 us in ticks of 0.032 are known to 0.7 %."""
    for precision, known in ((0.006, False), (0.007, True)):
        followed = Precision(precision, "auto", ["auto", "other"], 0.032)
        for index in range(16):
            followed.add("auto", index, False, 9.6)
            followed.add("other", index, False, 4.8)
        assert followed.reached() == known


def test_a_narrow_interval_is_enough_after_16_rounds() -> None:
    assert taken(16, 0.001).reached()
    assert not taken(14, 0.001).reached()
    assert not taken(16, 0.1).reached()
    assert not taken(64, 0.1).reached()
    assert taken(16, 0.1, precision=0.2).reached()


def test_the_width_decides_and_not_the_ratio() -> None:
    """Surely slower, but not known well enough."""
    assert not taken(32, 0.02, precision=0.001).reached()


def test_a_round_that_is_taken_again_replaces_itself_and_a_failed_one_is_none() -> None:
    precision = taken(16, 0.0)
    precision.add("other", 3, False, None)
    assert not precision.reached()
    precision.add("other", 3, False, 12.0)
    assert precision.reached()
    for index in range(8):
        precision.add("other", index, False, 15.0)
    assert not precision.reached()
