# SPDX-License-Identifier: MIT
"""What the value of a tuned map launches: tiles per split, or of dense decode a chunk."""

from dsa_bench.model.cell_key import AttentionShape
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.dense_map import DenseTable
from dsa_bench.model.splits_map import AnyTable
from dsa_bench.splits.dense import chunk_of, fixed
from dsa_bench.splits.rules import capped_splits
from dsa_bench.splits.targets import smallest_target


def launched_splits(table: AnyTable, size: int, value: int) -> int:
    """Splits of a launch of that size (tiles, or capacity); two values that give as many are one launch."""
    if isinstance(table, DenseTable):
        return fixed(size, 1, value).splits
    return capped_splits(size, value, table.max_splits)


def size_of(shape: AttentionShape) -> int:
    """What rules look a launch up by, beside its rows: tiles, or capacity."""
    return shape.capacity if isinstance(shape, DenseShape) else shape.tiles


def splits_of(shape: AttentionShape, value: int) -> int:
    """Splits of a shape's launch at a value."""
    if isinstance(shape, DenseShape):
        return fixed(shape.capacity, shape.rows, value).splits
    return capped_splits(shape.tiles, value)


def value_of(shape: AttentionShape, splits: int) -> int | None:
    """The value that stands for all that launch so many splits of a shape; None where no value does."""
    if isinstance(shape, DenseShape):
        return chunk_of(shape.capacity, splits)
    return smallest_target(shape.tiles, splits)
