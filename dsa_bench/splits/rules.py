# SPDX-License-Identifier: MIT
"""Rules that choose how many splits share a row. Integers in, integer out."""

from dsa_bench.model.shape import TILE, ceil_div

MAX_SPLITS = 32
"""Splits that the merge and the workspace are made for (seed 000, section 2)."""


def seed_wave(tiles: int, row_heads: int, cta_slots: int) -> int:
    """Tiles per split: the smallest power of two whose CTAs all fit one wave. 0 where there is nothing to launch.

    tiles      [tiles/row]  ceil(candidates / TILE)      row_heads  [row-heads]  rows x kv_heads
    cta_slots  [CTAs]       SMs x resident CTAs per SM
    Blind to: merge cost, half-full waves, L2 state, live length. Source: seed 000, section 2
    (GetInt8TcDecodeSplitCount).
    """
    if tiles <= 0 or row_heads <= 0 or cta_slots <= 0:
        return 0
    per_split = 1
    while per_split < tiles and row_heads * ceil_div(tiles, per_split) > cta_slots:
        per_split *= 2
    return per_split


def capped_splits(tiles: int, tiles_per_split: int, max_splits: int = MAX_SPLITS) -> int:
    """Splits that a target of tiles per split results in: ceil(tiles / target), at most `max_splits`."""
    if tiles <= 0 or tiles_per_split <= 0:
        return 0
    return min(ceil_div(tiles, tiles_per_split), max_splits)


def grouped_splits(candidates: int, rows: int, kv_heads: int, group: int) -> int:
    """Splits of the CUDA-core grouped decode (`previous`): about 128 CTAs, at least one tile each.

    min(ceil(candidates / 64), ceil(128 / (rows * kv_heads * ceil(group / 8)))); 0 where there is nothing to launch.
    Blind to the device: the target of 128 is fixed. Source: seed 000's predecessor kernel.
    """
    blocks = rows * kv_heads * ceil_div(group, 8)
    if candidates <= 0 or blocks <= 0:
        return 0
    return min(ceil_div(candidates, TILE), ceil_div(128, blocks))
