# SPDX-License-Identifier: MIT
"""Shapes of the hyper-connection operators: `mix`, and `gate` with its down projection."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal

from dsa_bench.model.errors import BadInput

WIDE = 8
"""BF16 numbers that the kernels access at once: 16 bytes."""
BRANCHES = 4
"""Branches of the residual stream, which the kernels' loops are written for."""
DEPTH = 32
"""Channels that one step of the down projection takes."""
MAX_VECTORS = 2**31 - 1
"""Vectors of WIDE numbers that the kernels count in 32 bits."""

HyperOp = Literal["mix", "gate"]
HYPER_OPS: tuple[HyperOp, ...] = ("mix", "gate")
Sigmoid = Literal["branchy", "branch-free"]
SIGMOIDS: tuple[Sigmoid, ...] = ("branchy", "branch-free")
LaunchMode = Literal["plain", "pdl", "pdl-early"]
LAUNCH_MODES: tuple[LaunchMode, ...] = ("plain", "pdl", "pdl-early")
"""How gate-mul and its successor are launched: one after the other, or the successor by programmatic dependent launch
with gate-mul's trigger at the end, or first."""


@dataclass(frozen=True, slots=True)
class MixShape:
    """One call of PreMix and ScaledSilu.

    normed, up [rows, branches, hidden] -> mixed [rows, hidden] · low_rank [rows, rank] -> activated [rows, rank], all
    BF16. Raises BadInput if a dimension is not positive, is no multiple of the vector width, or is beyond the kernels'.
    """

    rows: int
    hidden: int = 2560
    branches: int = BRANCHES
    rank: int = 320

    def __post_init__(self) -> None:
        _refuse_non_positive(self.sizes)
        _refuse_broken_vectors(self.sizes, ("hidden", "rank"))
        if self.branches != BRANCHES:
            raise BadInput(f"--branches {self.branches}: must be {BRANCHES}, what the kernels are written for")
        _refuse_too_many(self.rows, max(self.hidden, self.rank))

    @property
    def sizes(self) -> dict[str, int]:
        """Every dimension by name."""
        return asdict(self)

    @property
    def key(self) -> str:
        """The cell's name in records."""
        return _key("mix", self.sizes)

    @property
    def mix_bytes(self) -> int:
        """Bytes that PreMix reads and writes: both inputs once, the output once."""
        return 2 * self.rows * self.hidden * (2 * self.branches + 1)

    @property
    def silu_bytes(self) -> int:
        """Bytes that ScaledSilu reads and writes."""
        return 2 * 2 * self.rows * self.rank


@dataclass(frozen=True, slots=True)
class GateShape:
    """One call of gate-mul and of the down projection behind it.

    attention, gate [rows, gated] -> x[:, :gated] · x [rows, width], whose other columns are ready beforehand ·
    weight [rank, width] -> out [rows, rank], all BF16. Raises BadInput as MixShape does, and if gated exceeds width.
    """

    rows: int
    gated: int = 6144
    width: int = 10240
    rank: int = 320

    def __post_init__(self) -> None:
        _refuse_non_positive(self.sizes)
        _refuse_broken_vectors(self.sizes, ("gated", "rank"))
        if self.width % DEPTH:
            raise BadInput(
                f"--width {self.width}: must be a multiple of {DEPTH}, the channels of one step of the down projection"
            )
        if self.gated > self.width:
            raise BadInput(
                f"--gated {self.gated}: must be at most --width {self.width}, as it is a part of the columns"
            )
        _refuse_too_many(self.rows, self.width)

    @property
    def sizes(self) -> dict[str, int]:
        """Every dimension by name."""
        return asdict(self)

    @property
    def key(self) -> str:
        """The cell's name in records."""
        return _key("gate", self.sizes)

    @property
    def gate_bytes(self) -> int:
        """Bytes that gate-mul reads and writes."""
        return 2 * 3 * self.rows * self.gated

    @property
    def down_bytes(self) -> int:
        """Bytes that the down projection reads and writes, each tensor once."""
        return 2 * (self.rows * self.width + self.rank * self.width + self.rows * self.rank)


CELL_KEYS: dict[str, re.Pattern[str]] = {
    op: re.compile(f"op={op}" + "".join(f",{field.name}=[1-9][0-9]{{0,17}}" for field in fields(shape)))
    for op, shape in (("mix", MixShape), ("gate", GateShape))
}
"""Operator -> what `key` looks like."""


def _refuse_non_positive(sizes: Mapping[str, int]) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise BadInput(f"--{name} {value}: must be at least 1")


def _refuse_broken_vectors(sizes: Mapping[str, int], names: tuple[str, ...]) -> None:
    for name in names:
        if sizes[name] % WIDE:
            raise BadInput(
                f"--{name} {sizes[name]}: must be a multiple of {WIDE}, because the kernels access {WIDE} BF16 numbers "
                "at once"
            )


def _refuse_too_many(rows: int, width: int) -> None:
    limit = MAX_VECTORS // (width // WIDE)
    if rows > limit:
        raise BadInput(
            f"--rows {rows}: must be at most {limit} at this width, because kernels count vectors in 32 bits"
        )


def _key(op: str, sizes: Mapping[str, int]) -> str:
    return f"op={op}," + ",".join(f"{name}={value}" for name, value in sizes.items())
