# SPDX-License-Identifier: MIT
"""How often something of a known chance may happen in simulated runs before it is no chance."""

import math

ONE_IN = 1000
"""A right estimator fails such a bound in one of so many choices of the seed."""


def fewest_held(runs: int, share: float) -> int:
    """The fewest of `runs` in which an interval that holds in `share` of them does; fewer happen once in ONE_IN."""
    return runs - most_wrong(runs, 1 - share)


def most_wrong(runs: int, share: float) -> int:
    """The most of `runs` in which an error of chance `share` happens; more happen once in ONE_IN."""
    left = 1.0
    for count in range(runs + 1):
        left -= math.comb(runs, count) * share**count * (1 - share) ** (runs - count)
        if left <= 1 / ONE_IN:
            return count
    return runs
