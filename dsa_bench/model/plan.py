# SPDX-License-Identifier: MIT
"""How one row's tiles are shared out."""

from dataclasses import dataclass

from dsa_bench.model.shape import TILE, ceil_div


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """A row's `tiles`, dealt to `splits` contiguous runs that differ by at most one tile.

    `splits` may exceed `tiles`; the splits without tiles then publish empty partials.
    """

    tiles: int
    splits: int

    def __post_init__(self) -> None:
        if self.tiles < 0 or self.splits < 0 or (self.tiles > 0) != (self.splits > 0):
            raise ValueError(f"no plan of {self.tiles} tiles in {self.splits} splits")

    @property
    def tiles_per_split(self) -> int:
        """Tiles of the longest run: what a requested target became after caps and balancing. 0 for no launch."""
        return ceil_div(self.tiles, self.splits) if self.splits else 0

    def tile_range(self, split: int) -> range:
        """Tiles of one split: [tiles * split / splits, tiles * (split + 1) / splits)."""
        return range(self.tiles * split // self.splits, self.tiles * (split + 1) // self.splits)

    def candidate_slice(self, split: int, candidates: int) -> slice:
        """The part of a row's list that one split owns."""
        owned = self.tile_range(split)
        return slice(owned.start * TILE, min(owned.stop * TILE, candidates))


@dataclass(frozen=True, slots=True)
class VariantPlan:
    """One kernel with its effective geometry, and every requested tiles-per-split value and rule that led to it.

    requested  tiles-per-split values as asked, 0 = the automatic rule; empty for a kernel that takes none
    ctas       thread blocks (CPU backend: tasks) of the launch
    rules      names of the split rules that choose this launch, of those that were asked
    heads      query heads of a CTA, for a kernel that can take more or fewer of a group; else 0
    clustered  whether the splits of a row are a cluster
    """

    kernel: str
    requested: tuple[int, ...]
    split: SplitPlan
    ctas: int
    rules: tuple[str, ...] = ()
    heads: int = 0
    clustered: bool = False

    @property
    def is_split(self) -> bool:
        """Whether the kernel takes a number of splits, so that its launches differ by it."""
        return bool(self.requested or self.rules)

    @property
    def name(self) -> str:
        """The variant's name in records: equal launches have equal names."""
        return f"{self.kernel}/splits={self.split.splits}" if self.is_split else self.kernel
