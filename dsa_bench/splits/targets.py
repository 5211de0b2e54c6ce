# SPDX-License-Identifier: MIT
"""Which tiles-per-split target stands for a launch, among all that lead to it."""

from dsa_bench.model.shape import ceil_div
from dsa_bench.splits.rules import MAX_SPLITS, capped_splits


def smallest_target(tiles: int, splits: int, max_splits: int = MAX_SPLITS) -> int | None:
    """The smallest tiles per split that shares `tiles` into `splits`; None where no target does.

    At the cap every small target gives the same launch and 1 is the smallest; below it, ceil(tiles / splits) is.
    """
    if splits < 1:
        return None
    for target in (1, ceil_div(tiles, splits)):
        if capped_splits(tiles, target, max_splits) == splits:
            return target
    return None
