# SPDX-License-Identifier: MIT
"""Which of the split kernels a decode call takes that neither an option nor a map decides."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.request import DIGITS
from dsa_bench.model.shape import SparseShape

INT8_TC = "int8-tc"
TUNED_KERNELS = (INT8_TC, DIGITS)
"""Decode kernels that take tiles per split, and so those that a map chooses among."""


class Measured(NamedTuple):
    """Where `int8-digits` was measured to be the faster, warm and cold: closed ranges of rows and tiles, and the heads.

    The ends of a range were measured, and what was measured between them agrees.
    """

    rows: tuple[int, int]
    tiles: tuple[int, int]
    kv_heads: int
    group: int


FASTER_DIGITS: Mapping[str, tuple[Measured, ...]] = MappingProxyType({"9.0": (Measured((1, 8), (8, 128), 2, 12),)})
"""Compute capability -> shapes. Source: one H200; 2 rows of 64 tiles are alike warm, within 0.3 % (decision 0039)."""


def automatic_kernel(shape: SparseShape, capability: object) -> str:
    """`int8-digits` inside FASTER_DIGITS, else `int8-tc`. Pure: capacities and the device, never live lengths.

    Blind to: the L2's state, other devices of that capability.
    """
    for one in FASTER_DIGITS.get(str(capability), ()):
        if (
            one.rows[0] <= shape.rows <= one.rows[1]
            and one.tiles[0] <= shape.tiles <= one.tiles[1]
            and (shape.kv_heads, shape.group) == (one.kv_heads, one.group)
        ):
            return DIGITS
    return INT8_TC


def automatic_among(shape: SparseShape, measured: Sequence[str], capability: object) -> str:
    """The automatic kernel of those that were measured: where it was not, `int8-tc`, and without that the first."""
    wanted = (automatic_kernel(shape, capability), INT8_TC)
    return next((kernel for kernel in wanted if kernel in measured), measured[0])


def kernel_slots(kernel: str, slots: DeviceSlots) -> int:
    """CTAs of a kernel resident at once on the device: one of `int8-digits` fills a multiprocessor."""
    return slots.sms if kernel == DIGITS else slots.ctas


def dispatched_kernels(backend: object, clusters: object) -> tuple[str, ...]:
    """Those of TUNED_KERNELS that the dispatcher launches on a device: `int8-digits` on GPUs with clusters alone."""
    return TUNED_KERNELS if backend != "cuda" or clusters else (INT8_TC,)
