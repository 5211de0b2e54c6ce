# SPDX-License-Identifier: MIT
"""Which split kernel a decode launch gets, with which tiles per split: by the map's rule, else the automatic kernel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dsa_bench.dispatch.look_up import LaunchFacts, MapTable
from dsa_bench.model.map_parts import Target
from dsa_bench.model.shape import SparseShape
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.splits.kernels import automatic_among

LookUp = Callable[[LaunchFacts, int, int], tuple[int | None, str]]
"""(facts, rows, tiles) -> (tiles per split or None, what was found, in words): TunedMap.tiles_per_split."""


@dataclass(frozen=True, slots=True)
class FoundTarget:
    """A target, whether a rule of the map gives it, and what the map said of each kernel."""

    target: Target
    by_map: bool
    found: str


def find_target(
    of_map: Callable[[str], tuple[int | None, str]], shape: SparseShape, kernels: Sequence[str], capability: object
) -> FoundTarget:
    """What a launch gets of these kernels. A map's rules do not meet, so the order of its tables does not matter.

    of_map      kernel -> (the value of the map's rule for this launch or None, what was found, in words)
    capability  of the device, on which the automatic kernel depends
    """
    said: list[str] = []
    for kernel in kernels:
        value, found = of_map(kernel)
        if value is not None:
            return FoundTarget(Target(kernel, value), True, found)
        said.append(found)
    target = Target(automatic_among(shape, kernels, capability), AUTOMATIC)
    return FoundTarget(target, False, "; ".join(dict.fromkeys(said)))


def find_in_tables(
    tables: Mapping[str, MapTable], shape: SparseShape, kernels: Sequence[str], capability: object
) -> FoundTarget:
    """find_target by the tables that hold for the launch, each under its kernel."""

    def of_map(kernel: str) -> tuple[int | None, str]:
        return (tables[kernel].value(shape.rows, shape.tiles) if kernel in tables else None), ""

    return find_target(of_map, shape, kernels, capability)
