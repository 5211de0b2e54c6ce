# SPDX-License-Identifier: MIT
"""Split rules of other projects and of the seed's predecessor, as functions of integers. All give splits, and 0 where
there is nothing to launch.

tiles      [tiles/row]  ceil(candidates / TILE)      rows, kv_heads  each (row, KV head) is an independent problem
slots      multiprocessors, and resident CTAs on each
max_splits [splits]     what the merge and the workspace are made for
"""

from fractions import Fraction

from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.shape import TILE, ceil_div

TARGET_CTAS = 384
FEWEST_KEYS = 128
FULL_ENOUGH = Fraction(8, 10)
"""FlashAttention does not split when the blocks alone fill this share of the slots."""
GOOD_ENOUGH = Fraction(85, 100)
"""FlashAttention takes the fewest splits that come within this share of the best wave efficiency."""
FEW_TILES = 4


def nothing_to_launch(tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, max_splits: int) -> bool:
    """Whether a row, head, candidate, slot or split is missing."""
    return min(tiles, rows, kv_heads, slots.sms, slots.resident, max_splits) <= 0


def seed_384(tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, max_splits: int) -> int:
    """About 384 CTAs, whatever the device: clamp(ceil(384 / (rows * kv_heads)), 1, min(max_splits, tiles)).

    Blind to the device, waves, merge cost. Source: seed 000, the rule before seed_wave.
    """
    if nothing_to_launch(tiles, rows, kv_heads, slots, max_splits):
        return 0
    return min(ceil_div(TARGET_CTAS, rows * kv_heads), max_splits, tiles)


def one_per_sm(tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, max_splits: int) -> int:
    """One CTA for each multiprocessor: SMs // (rows * kv_heads), clipped to [1, min(max_splits, tiles)].

    Blind to resident CTAs beyond the first, merge cost. Source: the form of FlashAttention-4.
    """
    if nothing_to_launch(tiles, rows, kv_heads, slots, max_splits):
        return 0
    return min(max(slots.sms // (rows * kv_heads), 1), max_splits, tiles)


def fa2(tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, max_splits: int) -> int:
    """Fewest splits whose waves are nearly as full as any: slots = 2 * SMs.

    1 if rows * kv_heads fill 0.8 of the slots; else the smallest s whose wave efficiency w / ceil(w), with
    w = rows * kv_heads * s / slots, is at least 0.85 of the best; only s with a shorter longest split than s - 1 count.
    Blind to resident CTAs (two are assumed), merge cost, the time of a tile. Source: FlashAttention-2,
    num_splits_heuristic.
    """
    if nothing_to_launch(tiles, rows, kv_heads, slots, max_splits):
        return 0
    return _fullest_waves(tiles, rows * kv_heads, 2 * slots.sms, max_splits, every=False)


def fa3(tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, max_splits: int) -> int:
    """fa2 with slots = SMs, every number of splits allowed, and rows of at most 4 tiles unsplit.

    Blind to resident CTAs (one is assumed), merge cost, splits of equal length. Its exception for caches beyond the L2
    does not occur in these shapes. Source: FlashAttention-3, num_splits_heuristic.
    """
    if nothing_to_launch(tiles, rows, kv_heads, slots, max_splits):
        return 0
    if tiles <= FEW_TILES:
        return 1
    return _fullest_waves(tiles, rows * kv_heads, slots.sms, max_splits, every=True)


def flashinfer(tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, max_splits: int) -> int:
    """The smallest chunk of at least 128 keys with rows * kv_heads * ceil(keys / chunk) <= SMs * resident.

    keys = tiles * TILE: the padded list. Unsplit where no chunk fits. Blind to half-full waves, merge cost, the tile.
    Source: FlashInfer, the binary search of its decode plan.
    """
    if nothing_to_launch(tiles, rows, kv_heads, slots, max_splits):
        return 0
    keys = tiles * TILE
    most = max(slots.ctas // (rows * kv_heads), 1)  # chunks of one problem that fit
    chunk = max(FEWEST_KEYS, ceil_div(keys, most))  # ceil(keys / chunk) <= most is chunk >= keys / most
    return min(ceil_div(keys, chunk), max_splits, tiles)


def _fullest_waves(tiles: int, blocks: int, slots: int, max_splits: int, *, every: bool) -> int:
    if blocks >= FULL_ENOUGH * slots:
        return 1
    most = min(max_splits, slots, tiles)
    efficiency = {
        splits: Fraction(blocks * splits, slots * ceil_div(blocks * splits, slots))
        for splits in range(1, most + 1)
        if every or splits == 1 or ceil_div(tiles, splits) != ceil_div(tiles, splits - 1)
    }
    enough = GOOD_ENOUGH * max(efficiency.values())
    return next(splits for splits, reached in efficiency.items() if reached >= enough)
