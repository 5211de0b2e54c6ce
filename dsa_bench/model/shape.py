# SPDX-License-Identifier: MIT
"""The shapes of one operator call."""

import re
from dataclasses import asdict, dataclass, fields
from typing import Literal, cast

from dsa_bench.model.errors import BadInput

TILE = 64
"""Candidates that one main-loop step of the split kernels handles (the seed document's tile)."""
INT32_MAX = 2**31 - 1


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer >= numerator / denominator, for non-negative numerator and positive denominator."""
    return -(-numerator // denominator)


MAX_CANDIDATES = 2**30
"""Kernels count entries of a list in 32 bits and look a few tiles ahead of its end."""


Op = Literal["decode", "prefill"]
OPS: tuple[Op, ...] = ("decode", "prefill")


@dataclass(frozen=True, slots=True)
class SparseShape:
    """One call of a sparse-attention operator: `decode` splits each row's list, `prefill` has rows enough without.

    query, out [rows, query_heads, head_size] bf16 · key, value [kv_heads, context, head_size] int8 ·
    key_scale, value_scale [kv_heads, head_size] fp32 · selected [rows, candidates] int32.
    Raises BadInput if a dimension is not positive, the heads do not divide, rows do not fit the context, or the
    context does not fit INT32.
    """

    rows: int
    context: int = 8192
    candidates: int = 2048
    query_heads: int = 24
    kv_heads: int = 2
    head_size: int = 256
    op: Op = "decode"

    def __post_init__(self) -> None:
        for name, value in self.sizes.items():
            if value < 1:
                raise BadInput(f"--{name.replace('_', '-')} {value}: must be at least 1")
        if self.query_heads % self.kv_heads:
            raise BadInput(
                f"--query-heads {self.query_heads}: must be a multiple of --kv-heads {self.kv_heads}, "
                "because the query heads of a group share one KV head"
            )
        if self.context > INT32_MAX:
            raise BadInput(f"--context {self.context}: must be at most {INT32_MAX}, because positions are INT32")
        if self.candidates > MAX_CANDIDATES:
            raise BadInput(f"--candidates {self.candidates}: must be at most {MAX_CANDIDATES}, the kernels' limit")
        if self.rows > self.context:
            raise BadInput(
                f"--rows {self.rows}: must be at most --context {self.context}, because the rows are the context's last"
            )

    @property
    def sizes(self) -> dict[str, int]:
        """Every dimension by name."""
        dimensions = asdict(self)
        del dimensions["op"]
        return dimensions

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.query_heads // self.kv_heads

    @property
    def tiles(self) -> int:
        """Tiles of one row's list: ceil(candidates / TILE)."""
        return ceil_div(self.candidates, TILE)

    @property
    def row_heads(self) -> int:
        """Independent attention problems that share nothing but the cache: rows x kv_heads."""
        return self.rows * self.kv_heads

    @property
    def key(self) -> str:
        """The cell's name in records. Cells of two runs match when their keys are equal."""
        return f"op={self.op}," + ",".join(f"{name}={value}" for name, value in self.sizes.items())


SORTED = "sorted"
"""How lists are drawn unless something else is asked for; a cell's name leaves it out."""
RUN_LENGTH, SHARE = "[1-9][0-9]{0,17}", "(0|1|0\\.[0-9]{0,21}[1-9])"
"""What N of blocks:N and F of overlap:F look like: one spelling each, so that a cell has one name."""
CELL_KEY = re.compile(
    f"op=({'|'.join(OPS)})"
    + "".join(f",{field.name}=[1-9][0-9]{{0,17}}" for field in fields(SparseShape) if field.name != "op")
    + f"(,selection=(random|blocks:{RUN_LENGTH}|overlap:{SHARE}))?"
)
"""What names a cell: `SparseShape.key`, and how its lists are drawn."""


def shape_of_key(key: str) -> SparseShape:
    """The shape that a cell is named after. Raises BadInput if it is another operator's, or its sizes cannot be one."""
    if not CELL_KEY.fullmatch(key):
        raise BadInput(f"{key}: is no cell of decode or prefill; name a record of one of them")
    (_, op), *sizes = (part.split("=", 1) for part in key.split(","))
    return SparseShape(op=cast("Op", op), **{name: int(size) for name, size in sizes if name != "selection"})


def cache_row_offset(head: int, position: int, context: int, head_size: int) -> int:
    """Byte offset of one cached row in an INT8 cache [kv_heads, context, head_size]; may exceed 2^31.

    Python integers do not wrap; kernels compute the same number in 64 bits.
    """
    return (head * context + position) * head_size
