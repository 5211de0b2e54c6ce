# SPDX-License-Identifier: MIT
"""What the kernels of one call, or the CTAs of one kernel, leave each other in device memory."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsa_bench.backends.cuda.memory import NULL, Device, allocate, upload
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.shape import SparseShape

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """Every split's partial, FP32: acc [rows, query_heads, splits, head_size], m and l [rows, query_heads, splits]."""

    acc: Device
    m: Device
    l: Device  # noqa: E741 - the maths

    @classmethod
    def allocate(cls, shape: SparseShape, plan: SplitPlan) -> "Workspace":
        partials = (shape.rows, shape.query_heads, plan.splits)
        return cls(
            allocate((*partials, shape.head_size), np.float32),
            allocate(partials, np.float32),
            allocate(partials, np.float32),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Mailboxes:
    """Where the CTAs of `int8-digits` that are no cluster leave each other their partials.

    pieces  un-normalised results of every split      sums  m and l of every split, for each CTA that merges
    """

    pieces: Any = NULL
    sums: Any = NULL

    @classmethod
    def of(cls, memory: Device, variant: VariantPlan, shape: SparseShape) -> "Mailboxes":
        """The mailboxes of a launch in memory for at least these, which holds those of other launches as well."""
        return cls(memory, memory[_piece_bytes(variant, shape) // memory.itemsize :])


@dataclass(frozen=True, slots=True, eq=False)
class Unions:
    """What the kernels of a call of `int8-union` leave each other.

    lists  the union of each group of rows      taken  uint8 [rows, kv_heads], whether a row is attended with its group
    """

    lists: Device
    taken: Device

    @classmethod
    def allocate(cls, shapes: "UnionShapes") -> "Unions":
        return cls(allocate(shapes.lists, np.uint8), allocate(shapes.taken, np.uint8))


@dataclass(frozen=True, slots=True)
class UnionShapes:
    """The bytes of both. In one piece of memory `taken` follows the lists, which are then aligned as it is."""

    lists: tuple[int, int]
    taken: tuple[int, int]

    @property
    def list_bytes(self) -> int:
        return math.prod(self.lists)

    @property
    def nbytes(self) -> int:
        return self.list_bytes + math.prod(self.taken)


def empty_mailboxes(nbytes: int) -> Device:
    """Memory for mailboxes of one stream's launches: all bits are set, and are again after each launch of any size."""
    return upload(np.full(nbytes // FLOAT_BYTES, 0xFFFFFFFF, np.uint32))


def mailbox_bytes(variant: VariantPlan, shape: SparseShape) -> int:
    """Memory for the mailboxes of a launch of `int8-digits`; 0 if its CTAs are clusters."""
    if variant.clustered:
        return 0
    return _piece_bytes(variant, shape) + variant.ctas * variant.heads * variant.split.splits * 2 * FLOAT_BYTES


def _piece_bytes(variant: VariantPlan, shape: SparseShape) -> int:
    return variant.ctas * variant.heads * shape.head_size * FLOAT_BYTES
