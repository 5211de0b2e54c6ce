# SPDX-License-Identifier: MIT
"""Dense decode: its shape, and how a row's keys are shared out."""

import re
from dataclasses import asdict, dataclass, fields
from typing import Literal, cast

from dsa_bench.model.errors import BadInput
from dsa_bench.model.shape import ceil_div

DenseDtype = Literal["f32", "f16", "bf16"]
ITEM_BYTES: dict[DenseDtype, int] = {"f32": 4, "f16": 2, "bf16": 2}
"""Every type by name, with the bytes of an element."""
LARGEST: dict[DenseDtype, float] = {
    "f32": 2.0**127 * (2 - 2.0**-23),
    "f16": 2.0**15 * (2 - 2.0**-10),
    "bf16": 2.0**127 * (2 - 2.0**-7),
}
"""The largest finite number of each type."""
DenseKernel = Literal["previous", "fast"]
DENSE_KERNELS: tuple[DenseKernel, ...] = ("previous", "fast")
MAX_CAPACITY = 2**30 - 1
"""Kernels count keys in 32 bits and look a few steps ahead of the end."""
MIN_LIVE_CHUNK = 128
"""Keys per split that the rule `live` never goes below (seed 004's ATTN_SPLIT_MIN_CHUNK)."""


@dataclass(frozen=True, slots=True)
class DenseShape:
    """One call of dense decode attention over a cache of `capacity` keys, of which the first `length` are live.

    query, out [batch, query_heads, query_len, head_size | value_head_size] · key [batch, kv_heads, capacity, head_size]
    · value [batch, kv_heads, capacity, value_head_size], all of `dtype`.
    Raises BadInput if a dimension is not positive, the heads do not divide, the length is beyond the capacity, the
    capacity beyond what the kernels count, or the type is none of ITEM_BYTES. A length of 0 is a call: it gives zeros.
    """

    capacity: int
    length: int
    query_heads: int = 16
    kv_heads: int = 16
    head_size: int = 192
    value_head_size: int = 128
    batch: int = 1
    query_len: int = 1
    dtype: DenseDtype = "f16"

    def __post_init__(self) -> None:
        for name, value in self.sizes.items():
            if value < (0 if name == "length" else 1):
                raise BadInput(f"--{name.replace('_', '-')} {value}: must be at least {0 if name == 'length' else 1}")
        if self.dtype not in ITEM_BYTES:
            raise BadInput(f"--dtype {self.dtype}: must be one of {', '.join(ITEM_BYTES)}")
        if self.query_heads % self.kv_heads:
            raise BadInput(
                f"--query-heads {self.query_heads}: must be a multiple of --kv-heads {self.kv_heads}, "
                "because the query heads of a group share one KV head"
            )
        if self.capacity > MAX_CAPACITY:
            raise BadInput(f"--capacity {self.capacity}: must be at most {MAX_CAPACITY}, the kernels' limit")
        if self.length > self.capacity:
            raise BadInput(
                f"--length {self.length}: must be at most --capacity {self.capacity}, because the cache holds no more"
            )

    @property
    def sizes(self) -> dict[str, int]:
        """Every dimension by name."""
        dimensions = asdict(self)
        del dimensions["dtype"]
        return dimensions

    @property
    def rows(self) -> int:
        """Independent attention problems: batch x query_heads x query_len."""
        return self.batch * self.query_heads * self.query_len

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.query_heads // self.kv_heads

    @property
    def live_bytes(self) -> int:
        """K and V bytes that a call must read at least once: every live key of every KV head."""
        keys = self.batch * self.kv_heads * self.length
        return keys * (self.head_size + self.value_head_size) * ITEM_BYTES[self.dtype]

    @property
    def cache_bytes(self) -> int:
        """K and V bytes of the whole capacity."""
        keys = self.batch * self.kv_heads * self.capacity
        return keys * (self.head_size + self.value_head_size) * ITEM_BYTES[self.dtype]

    @property
    def key(self) -> str:
        """The cell's name in records. Cells of two runs match when their keys are equal."""
        return f"op=dense,dtype={self.dtype}," + ",".join(f"{name}={value}" for name, value in self.sizes.items())


DENSE_CELL_KEY = re.compile(
    f"op=dense,dtype=({'|'.join(ITEM_BYTES)})"
    + "".join(
        f",{field.name}=({'0|' if field.name == 'length' else ''}[1-9][0-9]{{0,17}})"
        for field in fields(DenseShape)
        if field.name != "dtype"
    )
)
"""What `DenseShape.key` looks like."""


def dense_shape_of_key(key: str) -> DenseShape:
    """The shape that a cell is named after. Raises BadInput if it is another operator's, or its sizes cannot be one."""
    if not DENSE_CELL_KEY.fullmatch(key):
        raise BadInput(f"{key}: is no cell of dense; name a record of it")
    _, (_, dtype), *sizes = (part.split("=", 1) for part in key.split(","))
    return DenseShape(dtype=cast("DenseDtype", dtype), **{name: int(size) for name, size in sizes})


@dataclass(frozen=True, slots=True)
class DensePlan:
    """How a row's keys are shared out, known from capacity and rows alone, so that a captured launch stays right.

    splits  CTAs of a row; 1 is the monolithic kernel, 0 no launch
    chunk   keys per split; where `live`, the least that a split gets: the device takes max(chunk, ceil(T / splits))
    """

    splits: int
    chunk: int
    live: bool = False

    def __post_init__(self) -> None:
        if self.splits < 0 or (self.splits > 0) != (self.chunk > 0):
            raise ValueError(f"no plan of {self.splits} splits of {self.chunk} keys")

    @property
    def name(self) -> str:
        """The geometry's name in records: equal launches have equal names."""
        if self.splits == 1:
            return "off"
        return f"splits={self.splits},chunk={'live' if self.live else self.chunk}"

    def covers(self, capacity: int) -> bool:
        """Whether every key has a split, whatever the live length."""
        return (self.live and self.splits > 0) or self.splits * self.chunk >= capacity

    def keys_per_split(self, length: int) -> int:
        """What the device takes for a live length."""
        return max(self.chunk, ceil_div(length, self.splits)) if self.live and self.splits else self.chunk

    def slice(self, split: int, length: int) -> range:
        """Keys of one split at a live length: [split * chunk, min((split + 1) * chunk, length)), empty past the end."""
        chunk = self.keys_per_split(length)
        return range(min(split * chunk, length), min((split + 1) * chunk, length))

    def alive(self, length: int) -> int:
        """Splits of a row that hold keys at a live length."""
        return min(self.splits, ceil_div(length, self.keys_per_split(length))) if self.splits else 0

    def workspace_bytes(self, rows: int, value_head_size: int) -> int:
        """Of `fast`: FP32 partials of each split (acc [value_head_size], m, l) and a row's counter. 0 if monolithic."""
        return 4 * rows * (self.splits * (value_head_size + 2) + 1) if self.splits > 1 else 0
