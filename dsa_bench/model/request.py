# SPDX-License-Identifier: MIT
"""What a user asked for, validated, before any device is known."""

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from dsa_bench.model.costs import SplitCosts
from dsa_bench.model.errors import BadInput
from dsa_bench.model.map_parts import Target
from dsa_bench.model.shape import RUN_LENGTH, SHARE, SORTED, Op, SparseShape

SPARSE_KERNELS = ("previous", "int8-tc")
"""Those of either operator."""
DIGITS = "int8-digits"
"""Decode in integer arithmetic, merged in the kernel. Measured by default on a GPU: what the CPU backend runs under its
name computes as `int8-tc` does there."""
DECODE_KERNELS = (*SPARSE_KERNELS, DIGITS)
WS = "int8-ws"
"""Prefill by warps that gather and warps that compute."""
PREFILL_KERNELS = (*SPARSE_KERNELS, WS)
UNION = "int8-union"
"""int8-ws, but four neighbouring rows read what they select once: measured and dispatched on request only."""
UNION_GROUP = 12
UNION_CONTEXT = 131072
UNION_KV_HEADS = 128
"""Up to which it shares anything (kernels/dsa/prefill_int8_union.cu)."""
PREFILL_CHOICES = (*PREFILL_KERNELS, UNION)
KERNELS: dict[Op, tuple[str, ...]] = {"decode": DECODE_KERNELS, "prefill": PREFILL_CHOICES}
"""All of each operator."""
KERNEL_NAMES = tuple(dict.fromkeys(name for kernels in KERNELS.values() for name in kernels))
CEILINGS = ("gather", "copy")
"""Kernels that compute nothing: they bound what the others can reach."""
DENSE = "dense"
"""Dense attention of the same queries over every earlier position: another computation, for comparison."""
YARDSTICKS = (*CEILINGS, DENSE)
"""What is measured beside the sparse kernels, and is never a choice among them."""


def is_yardstick(kernel: str) -> bool:
    """Whether a kernel is one of YARDSTICKS; a copy may say whose bytes it copies (`copy/pre-mix`)."""
    return kernel.partition("/")[0] in YARDSTICKS


EMULATION = "emulation"
"""The arithmetic of int8-tc in NumPy, step by step: checked on the CPU backend, never measured."""
BF16_EMULATION = "emulation-bf16"
"""That of prefill's `previous`."""
DIGITS_EMULATION = "emulation-digits"
"""That of int8-digits."""
WS_EMULATION = "emulation-ws"
"""That of int8-ws."""
UNION_EMULATION = "emulation-union"
"""That of int8-union."""
EMULATIONS = (EMULATION, BF16_EMULATION, DIGITS_EMULATION, WS_EMULATION, UNION_EMULATION)
CHECKED_KERNELS: dict[Op, tuple[str, ...]] = {
    "decode": (*KERNELS["decode"], EMULATION, DIGITS_EMULATION),
    "prefill": (*KERNELS["prefill"], EMULATION, BF16_EMULATION, WS_EMULATION, UNION_EMULATION),
}
RULED_KERNELS = ("int8-tc", EMULATION, DIGITS_EMULATION)
"""Kernels whose splits a named rule may choose (dsa_bench.splits.registry)."""
SPLIT_KERNELS = (*RULED_KERNELS, DIGITS)
"""Kernels that take tiles per split."""


def default_kernels(op: Op, backend: str) -> tuple[str, ...]:
    """What a backend measures of an operator where no kernel is named."""
    if op == "prefill":
        return PREFILL_KERNELS
    return DECODE_KERNELS if backend == "cuda" else SPARSE_KERNELS


TIMERS = ("auto", "cupti", "events", "wall")
L2_MODES = ("warm", "cold")
BACKENDS = ("auto", "cpu", "cuda")
MIN_TUNED_ROUNDS = 16
"""Fewest rounds of a cell in a tuned map: halves of 8 have pairs enough to choose on one and score on the other.

Also the fewest of a cell that ends because its intervals are narrow enough.
"""


@dataclass(frozen=True, slots=True)
class DataSource:
    """Real tensors of a file: all "inputs" of a cell, or its "scales" (docs/inputs.md).

    file    as the user named it
    digest  of the tensors, so that a record goes on with the same ones only
    """

    part: Literal["inputs", "scales"]
    file: str
    digest: str


@dataclass(frozen=True, slots=True)
class DataSpec:
    """How the synthetic inputs of a cell are drawn (docs/data.md).

    query_std                       standard deviation of the BF16 queries
    key_scale_multiplier, value_... factors on the uniform scales
    invalid_fraction                share of each list that is replaced by values outside [0, context)
    selection                       "sorted", "random", "blocks:N" or "overlap:F", in its only spelling
    source                          real tensors in place of synthetic ones: all, and no knob counts, or the scales
    """

    seed: int = 0
    query_std: float = 1.4
    key_scale_multiplier: float = 1.0
    value_scale_multiplier: float = 1.0
    invalid_fraction: float = 0.0
    selection: str = SORTED
    source: DataSource | None = None

    def __post_init__(self) -> None:
        kind, _, parameter = self.selection.partition(":")
        if kind == "blocks":
            if not re.fullmatch(RUN_LENGTH, parameter, re.ASCII):
                raise BadInput(
                    f"--selection {self.selection}: blocks:N takes a positive run length of at most 18 digits "
                    "without leading zeros, such as blocks:16"
                )
        elif kind == "overlap":
            if not re.fullmatch(SHARE, parameter, re.ASCII):
                raise BadInput(
                    f"--selection {self.selection}: overlap:F takes a share from 0 to 1 in as few digits as it needs, "
                    "such as overlap:0.9"
                )
        elif self.selection not in (SORTED, "random"):
            raise BadInput(f"--selection {self.selection}: must be sorted, random, blocks:N or overlap:F")


@dataclass(frozen=True, slots=True)
class Policy:
    """How a run is measured (docs/measuring.md).

    rounds     paired rounds for each cell, even; None takes as many mirrored pairs as `budget_s` allows
    precision  half-width of the 95 % interval of each variant's ratio to the automatic rule at which a cell ends
               before its rounds do; None never ends it so
    """

    rounds: int | None = 16
    budget_s: float | None = None
    timer: str = "auto"
    l2: str = "warm"
    precision: float | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and (self.rounds < 2 or self.rounds % 2):
            raise BadInput(
                f"--rounds {self.rounds}: must be even and at least 2, because rounds come in mirrored pairs"
            )
        if self.rounds is None and self.budget_s is None:
            raise ValueError("a policy needs rounds or a budget")


@dataclass(frozen=True, slots=True)
class SideOption:
    """One option of the dispatcher, resolved: `source` is "option", "environment" or "default"."""

    name: str
    value: int
    source: str


@dataclass(frozen=True, slots=True)
class MapFile:
    """A tuned map: its file as the user named it, and a digest of its bytes, so that a record goes on with the same."""

    file: str
    digest: str


Side = tuple[SideOption, ...]
"""Every option of one dispatcher, in the dispatcher's order."""


@dataclass(frozen=True, slots=True)
class SparseCell:
    """A shape, and the data that it is measured on."""

    shape: SparseShape
    data: DataSpec

    @property
    def key(self) -> str:
        """The cell's name in records: its shape, and how its lists are drawn where they are not sorted."""
        kind = self.data.selection
        return self.shape.key if kind == SORTED else f"{self.shape.key},selection={kind}"


@dataclass(frozen=True, slots=True)
class SparseRequest:
    """A grid of cells of one operator and the variants to measure in each.

    selections  how lists are drawn, each in cells of its own; without any, as `data` says. Raises BadInput for one that
                there is not
    kernels  those to measure; none leaves it to the device: `default_kernels`, or where there are sides any
    ceiling  adds the kernels of CEILINGS; dense, dense attention. None for either: if the device turns out to be a GPU
    sides   where there are any, the variants are what the dispatcher takes with each, and `kernels` and
            `tiles_per_split` say nothing
    splits  the dispatcher's tuned map
    rules    split rules whose own choice is measured too; costs, the constants of the rule `model`
    pad_smem bytes of shared memory added to the split kernel, so that fewer of its CTAs are resident
    tuned    for each shape the kernel and tiles per split that a tuned map gives it, 0 where it leaves it to the
             automatic rule; measured too, as the rule `map`; empty without a map
    """

    shapes: tuple[SparseShape, ...]
    kernels: tuple[str, ...] = ()
    tiles_per_split: tuple[int, ...] = (0,)
    data: DataSpec = field(default_factory=DataSpec)
    policy: Policy = field(default_factory=Policy)
    ceiling: bool | None = False
    dense: bool | None = False
    sides: tuple[Side, ...] = ()
    splits: MapFile | None = None
    rules: tuple[str, ...] = ()
    costs: SplitCosts | None = None
    pad_smem: int = 0
    tuned: tuple[Target, ...] = ()
    selections: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind in self.selections:
            replace(self.data, selection=kind)  # refuses what is none

    @property
    def cells(self) -> tuple[SparseCell, ...]:
        """Every shape with each of its data, in the order in which they are measured."""
        drawn = [replace(self.data, selection=kind) for kind in self.selections or (self.data.selection,)]
        return tuple(SparseCell(shape, data) for shape in self.shapes for data in drawn)

    @property
    def cell_keys(self) -> tuple[str, ...]:
        return tuple(cell.key for cell in self.cells)

    @property
    def op(self) -> Op:
        """The operator, the same in every cell."""
        return self.shapes[0].op

    def tuned_target(self, shape: SparseShape) -> Target | None:
        """What the map gives one of the shapes; None without a map."""
        return self.tuned[self.shapes.index(shape)] if self.tuned else None

    @property
    def measured_kernels(self) -> tuple[str, ...]:
        """Every kernel that a cell may have a planned variant of, ceilings last: with sides, what the dispatcher takes
        is among them. Dense attention has no plan."""
        return (*self.kernels, *CEILINGS) if self.ceiling else self.kernels

    def on(self, backend: str) -> "SparseRequest":
        """The request with what it leaves to the device decided."""
        on_gpu = backend == "cuda"
        kernels = self.kernels or (KERNELS[self.op] if self.sides else default_kernels(self.op, backend))
        ceiling, dense = (on_gpu if asked is None else asked for asked in (self.ceiling, self.dense))
        return replace(self, kernels=kernels, ceiling=ceiling, dense=dense)
