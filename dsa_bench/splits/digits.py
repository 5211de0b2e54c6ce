# SPDX-License-Identifier: MIT
"""How `int8-digits` shares out a row: its splits merge inside the kernel, so they are the CTAs of a cluster."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from dsa_bench.model.shape import ceil_div
from dsa_bench.splits.rules import MAX_SPLITS, capped_splits
from dsa_bench.splits.targets import smallest_target

FEW_HEADS, ALL_HEADS = 4, 12
"""Query heads of a KV head that a CTA takes: few where the row has CTAs to spare, as they gather the same rows."""
CLUSTERS = (16, 8, 7, 6, 5, 4, 3, 2, 1)
"""Sizes of clusters that are launched, of those that the kernel merges (kernels/dsa/digits.cuh); the fastest first."""
SMALLEST_CLUSTER = 2
"""CTAs that it takes to send each other anything: beside a list that is not split there is one without tiles."""
FEW_HEADS_CLUSTERS = (16, 8)
"""Those that are launched with few heads, where each part of a group gathers the row's candidates again."""
NO_CLUSTERS: Mapping[int, int] = MappingProxyType({})
PLANNED_CLUSTERS: Mapping[int, Mapping[int, int]] = MappingProxyType(
    {132: MappingProxyType({16: 7, 8: 15, 7: 15, 6: 17, 5: 22, 4: 30, 3: 39, 2: 66, 1: 132})}
)
"""For a device that is planned for, by its number of multiprocessors: clusters of each size that it holds at once.

Those of an H200, as its driver counts (results/nvidia-h200/kernel-choice).
"""


class DigitSplits(NamedTuple):
    """heads  query heads of a CTA · splits  of each row and KV head · parts  CTAs that share a group's heads"""

    heads: int
    splits: int
    parts: int


def digit_splits(
    tiles: int, rows: int, kv_heads: int, group: int, sms: int, clusters: Mapping[int, int] = NO_CLUSTERS
) -> DigitSplits:
    """The largest cluster of which the device holds all that the call needs at once: few heads in clusters of 16 or 8,
    and where it holds neither, all heads in one of any size.

    tiles     [tiles/row]  ceil(candidates / TILE); a cluster has no more CTAs
    sms       [SMs]        of which each holds one CTA
    clusters  size -> clusters of that size that the device holds at once; without clusters the last CTA of a row merges
    Zero rows, heads or candidates give zero splits, no launch. Where nothing fits at once, the row is not split.
    Blind to: L2 state, the number of valid entries, what else runs. Ours, from the occupancy that the driver counts.
    """
    if min(tiles, rows, kv_heads, group, sms) <= 0:
        return DigitSplits(ALL_HEADS, 0, 0)
    if not clusters:
        parts = ceil_div(group, ALL_HEADS)
        return DigitSplits(ALL_HEADS, max(1, min(tiles, MAX_SPLITS, sms // (rows * kv_heads * parts))), parts)
    for heads in (FEW_HEADS, ALL_HEADS):
        parts = ceil_div(group, heads)
        for size in FEW_HEADS_CLUSTERS if heads == FEW_HEADS else CLUSTERS:
            if size <= tiles and rows * kv_heads * parts <= clusters.get(size, 0):
                return DigitSplits(heads, size, parts)
    return DigitSplits(ALL_HEADS, 1, ceil_div(group, ALL_HEADS))


def row_ctas(splits: int, *, clustered: bool) -> int:
    """CTAs that take so many splits of a row and KV head, or of a part of its heads."""
    return max(splits, SMALLEST_CLUSTER) if splits and clustered else splits


def asked_digit_splits(
    tiles: int, rows: int, kv_heads: int, group: int, target: int, clusters: Mapping[int, int] = NO_CLUSTERS
) -> DigitSplits:
    """What a target of tiles per split becomes: the largest cluster of up to ceil(tiles / target) CTAs of which the
    device holds any; few heads where it holds all of these at once, else all heads, in as many waves as that takes.

    Arguments and no launch as in digit_splits. Without clusters ceil(tiles / target) splits, at most 32.
    """
    if min(tiles, rows, kv_heads, group) <= 0:
        return DigitSplits(ALL_HEADS, 0, 0)
    splits = asked_cluster(tiles, target, clusters)
    fits = rows * kv_heads * ceil_div(group, FEW_HEADS) <= clusters.get(splits, 0)
    heads = FEW_HEADS if fits and splits in FEW_HEADS_CLUSTERS else ALL_HEADS
    return DigitSplits(heads, splits, ceil_div(group, heads))


def asked_cluster(tiles: int, target: int, clusters: Mapping[int, int]) -> int:
    """The splits alone of asked_digit_splits, which do not depend on the rows."""
    splits = capped_splits(tiles, target)
    return (
        max((size for size in CLUSTERS if size <= splits and clusters.get(size, 0)), default=1) if clusters else splits
    )


def smallest_digit_target(tiles: int, splits: int, clusters: Mapping[int, int]) -> int | None:
    """The smallest tiles per split that becomes so many splits; None where none does."""
    for asked in range(min(MAX_SPLITS, tiles), 0, -1):  # a larger target asks for fewer
        target = smallest_target(tiles, asked)
        if target is not None and asked_cluster(tiles, target, clusters) == splits:
            return target
    return None


def cluster_counts(recorded: Mapping[str, int] | None) -> Mapping[int, int]:
    """Clusters as rules take them, of those that a record or a map holds."""
    return NO_CLUSTERS if recorded is None else {int(size): count for size, count in recorded.items()}
