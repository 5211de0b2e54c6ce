# SPDX-License-Identifier: MIT
"""The split rule `model`: the geometry whose predicted time is least."""

from dataclasses import dataclass

from dsa_bench.model.costs import SplitCosts
from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.shape import ceil_div
from dsa_bench.splits.published import nothing_to_launch


@dataclass(frozen=True, slots=True)
class Load:
    """What the predicted time of one launch depends on.

    longest  [tiles] of the longest split      crowd  [CTAs/SM] that the fullest multiprocessor gets, at once or in turn
    splits   of each row and KV head           ctas   of the launch
    waves    fillings of the device's CTA slots
    """

    longest: int
    crowd: int
    splits: int
    ctas: int
    waves: int


def launch_load(tiles: int, row_heads: int, slots: DeviceSlots, splits: int) -> Load:
    """The load of a launch of row_heads * splits CTAs, none of whose arguments is zero."""
    ctas = row_heads * splits
    crowd = ceil_div(ctas, slots.sms)
    return Load(ceil_div(tiles, splits), crowd, splits, ctas, ceil_div(ctas, slots.ctas))


def predicted_us(costs: SplitCosts, load: Load) -> float:
    """[us] T = fixed + tile * longest * g(crowd) + merge * splits + cta * ctas + wave * (waves - 1)."""
    work_us = costs.tile_us * load.longest * _slowdown(costs.slowdown, load.crowd)
    ends_us = costs.merge_us * load.splits + costs.cta_us * load.ctas + costs.wave_us * (load.waves - 1)
    return costs.fixed_us + work_us + ends_us


def _slowdown(known: tuple[float, ...], crowd: int) -> float:
    """g(crowd); beyond what is known a multiprocessor is taken to be full, and time to grow with its CTAs."""
    return known[crowd - 1] if crowd <= len(known) else known[-1] * crowd / len(known)


@dataclass(frozen=True, slots=True)
class ModelRule:
    """Splits, 1 to min(max_splits, tiles), with the least predicted time; the fewest of equals. 0 for no launch.

    Blind to what the fit did not see: another kernel, L2 mode, clock, live length, more CTAs on a
    multiprocessor. Source: ours; dsa_bench/report/fit.py fits the constants.
    """

    costs: SplitCosts

    def __call__(self, tiles: int, rows: int, kv_heads: int, slots: DeviceSlots, max_splits: int) -> int:
        if nothing_to_launch(tiles, rows, kv_heads, slots, max_splits):
            return 0
        return self.best(tiles, rows * kv_heads, slots, range(1, min(max_splits, tiles) + 1))

    def best(self, tiles: int, row_heads: int, slots: DeviceSlots, allowed: range | list[int]) -> int:
        """The same, among the splits that are allowed."""
        return min(
            allowed, key=lambda splits: (predicted_us(self.costs, launch_load(tiles, row_heads, slots, splits)), splits)
        )
