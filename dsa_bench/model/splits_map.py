# SPDX-License-Identifier: MIT
"""The tuned map, `splits.json`: which tiles per split, or for dense decode which chunk, beat the automatic rule, for
which launches, and by how much.

Tables of both operators have the same parts under their own names: a launch is rows and a size (tiles, or capacity),
and a rule gives it a value (tiles per split, or a chunk). `size`, `value` and `shape` are what they share.

Published as JSON Schema in docs/schemas/splits.schema.json, which is these dataclasses written down. What types cannot
say (order, overlap, what was measured) is checked by dsa_bench.dispatch.map_file.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from dsa_bench.model.dense_map import DenseMapCell, DenseMapRule, DenseRegretSummary, DenseTable
from dsa_bench.model.device import clusters_text
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

SCHEMA = "dsa-bench/splits"
SCHEMA_VERSION = 1


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
class Against:
    """What a launch gets without the map where that is another kernel than the table's.

    us     its median time
    ratio  time of the table's best / its time over paired rounds, as in MapCell
    """

    kernel: str
    tiles_per_split: Count
    us: Microseconds
    ratio: tuple[Ratio, Ratio, Ratio]


@dataclass(frozen=True, slots=True)
class MapCell:
    """One measured shape. Values are tiles per split; each stands for every target that becomes the same launch.

    auto     the automatic rule's choice, with its median time auto_us
    us       median time of every value that was measured and right, in microseconds
    best     the fastest value
    ratio    time of best / time of auto over paired rounds: estimate, low end, high end; below 1 best is faster
    ties     values that are not told apart from best
    against  what the table's kernel replaces here; absent where it is what runs without the map
    """

    rows: Count
    tiles: Count
    auto: Count
    auto_us: Microseconds
    us: dict[str, Microseconds]
    best: Count
    ratio: tuple[Ratio, Ratio, Ratio]
    ties: tuple[Count, ...]
    against: Against | None = None

    @property
    def size(self) -> int:
        return self.tiles

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.tiles


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
class RegretSummary(RegretFigures):
    """Cross-fitted regret over cells, as a share of the best time: mean with its 95 % interval, and the largest.

    rows, tiles  the cell of the largest
    """

    tiles: Count

    @property
    def size(self) -> int:
        return self.tiles


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
class SplitTable:
    """The cells and rules of one kernel with one head geometry and L2 mode.

    cta_slots  SMs x resident CTAs per SM      tile  candidates of one tile      group  query heads of one KV head
    clusters   of `int8-digits`: size -> clusters that the device holds at once; absent without clusters

    Of a map that chose among kernels, each kernel's table holds its own cells and the rules that name it, no two rules
    meet, and `validation` is that of the choice among all of them.
    """

    op: Literal["decode"]
    kernel: str
    kernel_hash: str
    cta_slots: Count
    clusters: dict[str, Annotated[int, Limits(0, LARGEST_COUNT)]] | None = field(default=None, kw_only=True)
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
        slots = (self.cta_slots, self.tile) if self.clusters is None else (self.cta_slots, self.held, self.tile)
        return (self.op, self.kernel, self.kernel_hash, *slots, *heads, self.l2)

    @property
    def held(self) -> str | None:
        """`clusters` in words."""
        return None if self.clusters is None else clusters_text(self.clusters)

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
    def launches(self) -> tuple[Any, ...]:
        """Which launches the rules are for, whatever kernel they take."""
        return self.op, self.head_size, self.group, self.kv_heads, self.l2

    @property
    def words(self) -> MapWords:
        return WORDS[self.op]

    @property
    def measured_at(self) -> str:
        """What the choice must not depend on and was measured at, in words."""
        return f"context {self.policy.context}"


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
