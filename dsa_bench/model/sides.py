# SPDX-License-Identifier: MIT
"""Names of kernels of which two revisions are measured in one run: `int8-tc@A` and `int8-tc@B`."""

from typing import Literal

Side = Literal["A", "B"]
SIDES: tuple[Side, Side] = ("A", "B")


def at_side(kernel: str, side: Side) -> str:
    """The kernel's name on one side."""
    return f"{kernel}@{side}"


def plain_kernel(kernel: str) -> str:
    """The kernel whatever its side."""
    return kernel.partition("@")[0]


def side_of(kernel: str) -> Side | None:
    """The side in a kernel's name; None where it has none."""
    return next((side for side in SIDES if kernel == at_side(plain_kernel(kernel), side)), None)
