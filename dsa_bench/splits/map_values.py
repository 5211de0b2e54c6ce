# SPDX-License-Identifier: MIT
"""What the value of a tuned map launches: tiles per split, or of dense decode a chunk."""

from collections.abc import Mapping

from dsa_bench.model.cell_key import AttentionShape
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.dense_map import DenseTable
from dsa_bench.model.map_parts import Target
from dsa_bench.model.request import DIGITS
from dsa_bench.model.splits_map import AnyTable
from dsa_bench.splits.dense import chunk_of, fixed
from dsa_bench.splits.digits import asked_splits, cluster_counts, smallest_digit_target
from dsa_bench.splits.rules import MAX_SPLITS, capped_splits
from dsa_bench.splits.targets import smallest_target


def launched_splits(table: AnyTable, size: int, value: int) -> int:
    """Splits of a launch of that size (tiles, or capacity); two values that give as many are one launch."""
    if isinstance(table, DenseTable):
        return fixed(size, 1, value).splits
    return _decode_splits(table.kernel, size, value, cluster_counts(table.clusters), table.max_splits)


def size_of(shape: AttentionShape) -> int:
    """What rules look a launch up by, beside its rows: tiles, or capacity."""
    return shape.capacity if isinstance(shape, DenseShape) else shape.tiles


def splits_of(shape: AttentionShape, target: Target, clusters: Mapping[int, int]) -> int:
    """Splits of a shape's launch of a target. clusters: those that the device holds."""
    if isinstance(shape, DenseShape):
        return fixed(shape.capacity, shape.rows, target.value).splits
    return _decode_splits(target.kernel, shape.tiles, target.value, clusters, MAX_SPLITS)


def _decode_splits(kernel: str, tiles: int, value: int, clusters: Mapping[int, int], most: int) -> int:
    return asked_splits(tiles, value, clusters) if kernel == DIGITS else capped_splits(tiles, value, most)


def target_of(shape: AttentionShape, kernel: str, splits: int, clusters: Mapping[int, int]) -> Target | None:
    """The target that stands for all that launch so many splits of a shape; None where none does."""
    if isinstance(shape, DenseShape):
        value = chunk_of(shape.capacity, splits)
    elif kernel == DIGITS:
        value = smallest_digit_target(shape.tiles, splits, clusters)
    else:
        value = smallest_target(shape.tiles, splits)
    return None if value is None else Target(kernel, value)
