# SPDX-License-Identifier: MIT
"""How `int8-digits` shares out a row: its splits merge inside the kernel, so they must all run at the same time."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from dsa_bench.model.shape import ceil_div
from dsa_bench.splits.rules import MAX_SPLITS, capped_splits
from dsa_bench.splits.targets import smallest_target

FEW_HEADS, ALL_HEADS = 4, 12
"""Query heads of a KV head that a CTA takes: few where the row has CTAs to spare, as they gather the same rows."""
CLUSTERS = (16, 8, 7, 6, 5, 4, 3, 2)
"""Sizes of clusters that are launched, of those that the kernel merges (kernels/dsa/digits.cuh)."""
TILES_PER_RUN = 2
"""Tiles that a CTA multiplies at a time."""
NO_CLUSTERS: Mapping[int, int] = MappingProxyType({})
PLANNED_CLUSTERS: Mapping[int, Mapping[int, int]] = MappingProxyType(
    {132: MappingProxyType({16: 7, 8: 15, 7: 15, 6: 17, 5: 22, 4: 30, 3: 39, 2: 66})}
)
"""For a device that is planned for, by its number of multiprocessors: clusters of each size that it holds at once.

Those of an H200, as its driver counts (results/nvidia-h200/kernel-choice).
"""


class DigitSplits(NamedTuple):
    """A launch.

    heads      query heads of a CTA
    splits     of each row and KV head
    parts      CTAs that share a group's heads
    clustered  whether the splits are a cluster; else they merge through global memory, from CTAs that all run at once
    """

    heads: int
    splits: int
    parts: int
    clustered: bool


class Cost(NamedTuple):
    """Time of a launch whose CTAs all run at once: `base_us`, and `run_us` for each run of 128 candidates of a split,
    one and a half of them at least."""

    base_us: float
    run_us: float


FEW_CLUSTERED, ALL_CLUSTERED, ALL_RESIDENT = Cost(2.6, 0.97), Cost(3.4, 1.4), Cost(4.4, 1.4)
"""By heads of a CTA and how its splits merge. Source: one H200, warm, lines through launches of up to 8 runs a split,
which they miss by up to 0.7 us; they are compared with each other alone (decision 0033)."""


def predicted_us(launch: DigitSplits, tiles: int) -> float:
    """What a launch takes that the device holds at once, by its line."""
    clustered = FEW_CLUSTERED if launch.heads == FEW_HEADS else ALL_CLUSTERED
    cost = clustered if launch.clustered else ALL_RESIDENT
    runs = ceil_div(ceil_div(tiles, launch.splits), TILES_PER_RUN)
    return cost.base_us + cost.run_us * max(runs, 1.5)


def digit_splits(
    tiles: int, rows: int, kv_heads: int, group: int, sms: int, clusters: Mapping[int, int] = NO_CLUSTERS
) -> DigitSplits:
    """Of the launches that the device holds at once, with a cluster's number of splits or as many as it can hold, the
    one predicted to be the fastest, with the fewest splits. No other is predicted to be faster.

    tiles     [tiles/row]  ceil(candidates / TILE); no launch has more splits
    sms       [SMs]        of which each holds one CTA
    clusters  size -> clusters of that size that the device holds at once
    Zero rows, heads or candidates give zero splits, no launch. Where nothing fits at once, the row is not split.
    Blind to: L2 state, the number of valid entries, what else runs. Ours, from the occupancy that the driver counts.
    """
    if min(tiles, rows, kv_heads, group, sms) <= 0:
        return DigitSplits(ALL_HEADS, 0, 0, clustered=False)
    most = min(tiles, MAX_SPLITS, _resident_splits(rows * kv_heads, group, sms))
    held = (_held_at_once(splits, rows * kv_heads, group, sms, clusters) for splits in {most, *CLUSTERS})
    launches = [launch for launch in held if launch is not None and launch.splits <= tiles]
    return min(launches, key=lambda launch: (predicted_us(launch, tiles), launch.splits))


def asked_digit_splits(
    tiles: int, rows: int, kv_heads: int, group: int, target: int, sms: int, clusters: Mapping[int, int] = NO_CLUSTERS
) -> DigitSplits:
    """What a target of tiles per split becomes: asked_splits, or where the device does not hold them at once as many as
    the largest cluster of which it holds any, if need be in waves, or without clusters as many as it holds.

    Arguments and no launch as in digit_splits. Launches of as many splits of a shape are one.
    """
    if min(tiles, rows, kv_heads, group, sms) <= 0:
        return DigitSplits(ALL_HEADS, 0, 0, clustered=False)
    splits = asked_splits(tiles, target, clusters)
    launch = _held_at_once(splits, rows * kv_heads, group, sms, clusters)
    if launch is not None:
        return launch
    largest = _largest_cluster(splits, clusters)
    fewer = largest if largest > 1 else min(splits, _resident_splits(rows * kv_heads, group, sms))
    in_waves = DigitSplits(ALL_HEADS, fewer, ceil_div(group, ALL_HEADS), clustered=True)
    return _held_at_once(fewer, rows * kv_heads, group, sms, clusters) or in_waves


def asked_splits(tiles: int, target: int, clusters: Mapping[int, int]) -> int:
    """Splits that a target asks for, whatever the rows: on a device with clusters MAX_SPLITS or the largest cluster of
    up to ceil(tiles / target) CTAs of which it holds any, else ceil(tiles / target), at most MAX_SPLITS."""
    splits = capped_splits(tiles, target)
    return splits if splits == MAX_SPLITS or not clusters else _largest_cluster(splits, clusters)


def smallest_digit_target(tiles: int, splits: int, clusters: Mapping[int, int]) -> int | None:
    """The smallest tiles per split that asks for so many splits; None where none does."""
    for asked in range(min(MAX_SPLITS, tiles), 0, -1):  # a larger target asks for fewer
        target = smallest_target(tiles, asked)
        if target is not None and asked_splits(tiles, target, clusters) == splits:
            return target
    return None


def _held_at_once(splits: int, row_heads: int, group: int, sms: int, clusters: Mapping[int, int]) -> DigitSplits | None:
    """The fastest launch of so many splits of which all CTAs run at the same time; None where there is none. Without
    splits no CTA waits for another, so that any number of rows will do."""
    for heads in (FEW_HEADS, ALL_HEADS):
        parts = ceil_div(group, heads)
        if splits > 1 and row_heads * parts <= clusters.get(splits, 0):
            return DigitSplits(heads, splits, parts, clustered=True)
    if splits <= _resident_splits(row_heads, group, sms):
        return DigitSplits(ALL_HEADS, splits, ceil_div(group, ALL_HEADS), clustered=False)
    return None


def _resident_splits(row_heads: int, group: int, sms: int) -> int:
    """Into how many splits rows may be cut that merge through global memory."""
    return max(1, sms // (row_heads * ceil_div(group, ALL_HEADS)))


def _largest_cluster(most: int, clusters: Mapping[int, int]) -> int:
    """The largest cluster of up to so many CTAs of which the device holds any, or 1."""
    return max((size for size in CLUSTERS if size <= most and clusters.get(size, 0)), default=1)


def cluster_counts(recorded: Mapping[str, int] | None) -> Mapping[int, int]:
    """Clusters as rules take them, of those that a record or a map holds."""
    return NO_CLUSTERS if recorded is None else {int(size): count for size, count in recorded.items()}
