# SPDX-License-Identifier: MIT
"""Oracle: trying every target."""

from dsa_bench.splits.rules import capped_splits
from dsa_bench.splits.targets import smallest_target


def test_the_target_is_the_smallest_that_gives_the_launch() -> None:
    for tiles in range(1, 140):
        for splits in range(34):
            tried = (target for target in range(1, tiles + 1) if capped_splits(tiles, target) == splits)
            assert smallest_target(tiles, splits) == next(tried, None), (tiles, splits)
