# SPDX-License-Identifier: MIT
"""How many copies of its tensors a call rotates through, so that what it reads is not in the L2."""

from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.shape import ceil_div

COLD_L2_SIZES = 2
"""Bytes read between two reads of one line, in sizes of the L2, for a launch to count as cold."""
MAX_COPIES = 8192
"""A visit is whole turns of the copies, and each launch of it is a node of a graph."""


def bytes_between_reads(device: DeviceFacts) -> int:
    """That must be read before a line is read again, for a launch to count as cold."""
    return COLD_L2_SIZES * (device.l2_bytes or 0)


def cold_copies(cold_bytes: int, read_bytes: int, name: str, size: str = "--rows") -> int:
    """Copies of what a call reads that come to `cold_bytes` together; 1 for a warm L2, whose `cold_bytes` are 0.

    VariantRefused if a visit would be too many launches; `size` is the option that makes the tensors larger.
    """
    copies = max(ceil_div(cold_bytes, read_bytes), 1)
    if copies > MAX_COPIES:
        raise VariantRefused(
            f"{name} reads {read_bytes} bytes, so a cold L2 takes {copies} copies of them and there are at most "
            f"{MAX_COPIES}; use --l2 warm or more {size}"
        )
    return copies
