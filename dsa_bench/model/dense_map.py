# SPDX-License-Identifier: MIT
"""The tables of dense decode in a tuned map: as those of decode (model/splits_map.py), with capacities and chunks."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from dsa_bench.model.documents import Limits
from dsa_bench.model.map_parts import (
    LARGEST_COUNT,
    WORDS,
    Count,
    Interval,
    MapWords,
    Microseconds,
    Ratio,
    RegretFigures,
    Share,
)
from dsa_bench.model.text import short


@dataclass(frozen=True, slots=True)
class DenseMapPolicy:
    """As MapPolicy, of dense decode, whose cells each say their length."""

    timer: Literal["cupti", "events", "wall"]
    rounds: Count
    margin: Share
    confidence: Share


@dataclass(frozen=True, slots=True)
class DenseMapCell:
    """One measured shape of dense decode, as MapCell. Values are chunks, in keys.

    length  live keys while it was measured: what is fastest depends on it, and the choice must not
    """

    rows: Count
    capacity: Count
    length: Count
    auto: Count
    auto_us: Microseconds
    us: dict[str, Microseconds]
    best: Count
    ratio: tuple[Ratio, Ratio, Ratio]
    ties: tuple[Count, ...]

    @property
    def size(self) -> int:
        return self.capacity

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.capacity


@dataclass(frozen=True, slots=True)
class DenseMapRule:
    """The chunk of every launch of dense decode with rows and capacity in these closed ranges."""

    rows: Interval
    capacity: Interval
    chunk: Count

    @property
    def size(self) -> Interval:
        return self.capacity

    @property
    def value(self) -> int:
        return self.chunk


@dataclass(frozen=True, slots=True)
class DenseRegretSummary(RegretFigures):
    """As RegretSummary, of dense decode."""

    capacity: Count

    @property
    def size(self) -> int:
        return self.capacity


@dataclass(frozen=True, slots=True)
class DenseNullSummary:
    """As NullSummary, of dense decode."""

    cells: Count
    ratio: Ratio
    rows: Count
    capacity: Count
    untrusted: Annotated[int, Limits(0, LARGEST_COUNT)]

    @property
    def size(self) -> int:
        return self.capacity


@dataclass(frozen=True, slots=True)
class DenseValidation:
    """As Validation, of dense decode."""

    regret_auto: DenseRegretSummary | None
    regret_map: DenseRegretSummary | None
    held_out: DenseRegretSummary | None
    null_control: DenseNullSummary | None


@dataclass(frozen=True, slots=True)
class DenseTable:
    """The cells and rules of one kernel of dense decode with one type, head geometry and L2 mode.

    cta_slots  SMs x resident CTAs per SM of the split kernel
    """

    op: Literal["dense"]
    kernel: str
    kernel_hash: str
    cta_slots: Count
    max_splits: Count
    dtype: Literal["f32", "f16", "bf16"]
    head_size: Count
    value_head_size: Count
    query_heads: Count
    kv_heads: Count
    l2: Literal["cold", "warm", "none"]
    policy: DenseMapPolicy
    cells: tuple[DenseMapCell, ...]
    rules: tuple[DenseMapRule, ...]
    validation: DenseValidation

    @property
    def identity(self) -> tuple[Any, ...]:
        """See SplitTable."""
        return (*self.subject, self.kernel_hash, self.cta_slots)

    @property
    def name(self) -> str:
        """The table in words."""
        heads = f"heads {self.query_heads}/{self.kv_heads} x {self.head_size}/{self.value_head_size}"
        return f"{self.op} {short(self.kernel)}, {heads}, {self.dtype}, L2 {self.l2}"

    @property
    def subject(self) -> tuple[Any, ...]:
        """See SplitTable."""
        sizes = (self.head_size, self.value_head_size, self.query_heads, self.kv_heads)
        return (self.op, self.kernel, self.dtype, *sizes, self.l2)

    @property
    def words(self) -> MapWords:
        return WORDS[self.op]

    @property
    def measured_at(self) -> str:
        """See SplitTable."""
        if all(cell.length == cell.capacity for cell in self.cells):
            return "every key live"
        return f"length {' '.join(map(str, sorted({cell.length for cell in self.cells})))}"
