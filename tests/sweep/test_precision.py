# SPDX-License-Identifier: MIT
"""When intervals are narrow enough."""

from dsa_bench.sweep.precision import Precision


def taken(rounds: int, spread: float, half_width: float = 0.01) -> Precision:
    precision = Precision(half_width, "auto", ["auto", "other"])
    for index in range(rounds):
        precision.add("auto", index, False, 10.0)
        precision.add("auto", index, True, 99.0)
        precision.add("other", index, False, 12.0 * (1 + spread * (-1) ** index))
    return precision


def test_a_narrow_interval_is_enough_after_16_rounds() -> None:
    assert taken(16, 0.001).reached()
    assert not taken(14, 0.001).reached()
    assert not taken(16, 0.05).reached()
    assert not taken(64, 0.05).reached()
    assert taken(16, 0.05, half_width=0.1).reached()


def test_the_width_decides_and_not_the_ratio() -> None:
    """Surely slower, but not known well enough."""
    assert not taken(32, 0.02, half_width=0.001).reached()


def test_a_round_that_is_taken_again_replaces_itself_and_a_failed_one_is_none() -> None:
    precision = taken(16, 0.0)
    precision.add("other", 3, False, None)
    assert not precision.reached()
    precision.add("other", 3, False, 12.0)
    assert precision.reached()
    for index in range(8):
        precision.add("other", index, False, 15.0)
    assert not precision.reached()
