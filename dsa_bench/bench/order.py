# SPDX-License-Identifier: MIT
"""The order of visits inside rounds."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def counterbalanced(slots: Sequence[T], round_index: int) -> list[T]:
    """The order of one round: rounds 2k and 2k + 1 mirror each other, and pair k starts with slot k mod n.

    A slow drift and a cost of going first then weigh on every slot alike; tests/bench/test_order.py has the simulation.
    """
    pair, mirrored = divmod(round_index, 2)
    first = pair % len(slots)
    order = [*slots[first:], *slots[:first]]
    return order[::-1] if mirrored else order
