# SPDX-License-Identifier: MIT
"""The tuned map, `splits.json`: which tiles per split, or for dense decode which chunk, beat the automatic rule, for
which launches, and by how much.

Tables of both operators have the same parts under their own names: a launch is rows and a size (tiles, or capacity),
and a rule gives it a value (tiles per split, or a chunk). `size`, `value` and `shape` are what they share.

Published as JSON Schema in docs/schemas/splits.schema.json, which is these dataclasses written down. What types cannot
say (order, overlap, what was measured) is checked by dsa_bench.dispatch.map_file.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from dsa_bench.model.documents import Limits
from dsa_bench.model.run import LONGEST_US
from dsa_bench.model.text import short

SCHEMA = "dsa-bench/splits"
SCHEMA_VERSION = 1


LARGEST_COUNT = 2**53 - 1
"""The largest integer that every reader of JSON keeps exactly."""
Count = Annotated[int, Limits(1, LARGEST_COUNT)]
Number = Annotated[float, Limits(-1e300, 1e300)]
Microseconds = Annotated[float, Limits(1e-9, LONGEST_US)]
Ratio = Annotated[float, Limits(1e-30, 1e30)]
Share = Annotated[float, Limits(0.0, 1.0)]
Interval = tuple[Count, Count]
"""A closed range of integers, both ends in it."""


@dataclass(frozen=True, slots=True)
class MapDevice:
    """What the map was measured on. A fact that is not known is null."""

    name: str
    compute_capability: str | None
    sm_count: Count
    l2_bytes: Count | None
    driver: str | None
    cuda_runtime: str | None


@dataclass(frozen=True, slots=True)
class MapPolicy:
    """How the cells were measured and what a rule had to show.

    rounds      paired rounds of the cell that has the fewest
    context     KV positions of the cache in every cell
    margin      the gain over the automatic rule that a rule's lower bound exceeds, as a ratio less 1
    confidence  of that bound, over all cells of the table together
    """

    timer: Literal["cupti", "events", "wall"]
    rounds: Count
    context: Count
    margin: Share
    confidence: Share


@dataclass(frozen=True, slots=True)
class DenseMapPolicy:
    """As MapPolicy, of dense decode, whose cells each say their length."""

    timer: Literal["cupti", "events", "wall"]
    rounds: Count
    margin: Share
    confidence: Share


@dataclass(frozen=True, slots=True)
class MapCell:
    """One measured shape. Values are tiles per split; each stands for every target that becomes the same launch.

    auto   the automatic rule's choice, with its median time auto_us
    us     median time of every value that was measured and right, in microseconds
    best   the fastest value
    ratio  time of best / time of auto over paired rounds: estimate, low end, high end; below 1 best is faster
    ties   values that are not told apart from best
    """

    rows: Count
    tiles: Count
    auto: Count
    auto_us: Microseconds
    us: dict[str, Microseconds]
    best: Count
    ratio: tuple[Ratio, Ratio, Ratio]
    ties: tuple[Count, ...]

    @property
    def size(self) -> int:
        return self.tiles

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.tiles


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
class MapRule:
    """The tiles per split of every launch with rows and tiles in these closed ranges."""

    rows: Interval
    tiles: Interval
    tiles_per_split: Count

    @property
    def size(self) -> Interval:
        return self.tiles

    @property
    def value(self) -> int:
        return self.tiles_per_split


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
class RegretSummary:
    """Cross-fitted regret over cells, as a share of the best time: mean with its 95 % interval, and the largest.

    rows, tiles  the cell of the largest
    """

    cells: Count
    mean: Number
    low: Number | None
    high: Number | None
    max: Number
    rows: Count
    tiles: Count

    @property
    def size(self) -> int:
        return self.tiles


@dataclass(frozen=True, slots=True)
class DenseRegretSummary:
    """As RegretSummary, of dense decode."""

    cells: Count
    mean: Number
    low: Number | None
    high: Number | None
    max: Number
    rows: Count
    capacity: Count

    @property
    def size(self) -> int:
        return self.capacity


@dataclass(frozen=True, slots=True)
class NullSummary:
    """The automatic rule against its own second visit: the ratio that is farthest from 1, and the untrusted cells.

    rows, tiles  the cell of that ratio
    """

    cells: Count
    ratio: Ratio
    rows: Count
    tiles: Count
    untrusted: Annotated[int, Limits(0, LARGEST_COUNT)]

    @property
    def size(self) -> int:
        return self.tiles


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
class Validation:
    """What the rules are worth; null where it could not be computed.

    regret_auto, regret_map  of the automatic rule everywhere, and of the rules with the automatic rule outside them
    held_out                 of rules made without a cell, in that cell, over all cells
    """

    regret_auto: RegretSummary | None
    regret_map: RegretSummary | None
    held_out: RegretSummary | None
    null_control: NullSummary | None


@dataclass(frozen=True, slots=True)
class DenseValidation:
    """As Validation, of dense decode."""

    regret_auto: DenseRegretSummary | None
    regret_map: DenseRegretSummary | None
    held_out: DenseRegretSummary | None
    null_control: DenseNullSummary | None


class MapWords(NamedTuple):
    """What a table calls its launches' size and the rules' value: as fields, in sentences, and as a heading."""

    size: str
    value: str
    of_value: str
    heading: str


WORDS = {
    "decode": MapWords("tiles", "tiles_per_split", "tiles per split", "tiles/split"),
    "dense": MapWords("capacity", "chunk", "keys per split", "chunk"),
}
"""By operator."""


@dataclass(frozen=True, slots=True)
class SplitTable:
    """The cells and rules of one kernel with one head geometry and L2 mode.

    cta_slots  SMs x resident CTAs per SM      tile  candidates of one tile      group  query heads of one KV head
    """

    op: Literal["decode"]
    kernel: str
    kernel_hash: str
    cta_slots: Count
    tile: Count
    max_splits: Count
    head_size: Count
    group: Count
    kv_heads: Count
    l2: Literal["cold", "warm", "none"]
    policy: MapPolicy
    cells: tuple[MapCell, ...]
    rules: tuple[MapRule, ...]
    validation: Validation

    @property
    def identity(self) -> tuple[Any, ...]:
        """What two tables of one file may not share."""
        heads = (self.head_size, self.group, self.kv_heads)
        return (self.op, self.kernel, self.kernel_hash, self.cta_slots, self.tile, *heads, self.l2)

    @property
    def name(self) -> str:
        """The table in words."""
        heads = f"heads {self.group * self.kv_heads}/{self.kv_heads}, head size {self.head_size}"
        return f"{self.op} {short(self.kernel)}, {heads}, L2 {self.l2}"

    @property
    def subject(self) -> tuple[Any, ...]:
        """What the table is about, whatever device and kernel version it was made with."""
        return self.op, self.kernel, self.head_size, self.group, self.kv_heads, self.l2

    @property
    def words(self) -> MapWords:
        return WORDS[self.op]

    @property
    def measured_at(self) -> str:
        """What the choice must not depend on and was measured at, in words."""
        return f"context {self.policy.context}"


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


AnyTable = SplitTable | DenseTable
AnyCell = MapCell | DenseMapCell
AnyRule = MapRule | DenseMapRule
AnyRegret = RegretSummary | DenseRegretSummary


@dataclass(frozen=True, slots=True)
class SplitsMap:
    """A whole file: `created` and `generator` are those of the run that was measured."""

    created: str
    generator: str
    device: MapDevice
    tables: tuple[SplitTable | DenseTable, ...]
    schema: Literal["dsa-bench/splits"] = SCHEMA
    schema_version: Literal[1] = SCHEMA_VERSION
