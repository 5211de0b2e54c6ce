# SPDX-License-Identifier: MIT
"""Which split kernel a decode launch gets, with which tiles per split: by the map's rule, else the automatic kernel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsa_bench.dispatch.facts import Host, launch_facts
from dsa_bench.dispatch.look_up import LaunchFacts
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


def find_target(host: Host, look_up: LookUp, shape: SparseShape, l2: str, kernels: Sequence[str]) -> FoundTarget:
    """What a launch gets of these kernels. A map's rules do not meet, so the order of its tables does not matter."""
    said: list[str] = []
    for kernel in kernels:
        value, found = look_up(launch_facts(host, kernel, shape, l2), shape.rows, shape.tiles)
        if value is not None:
            return FoundTarget(Target(kernel, value), True, found)
        said.append(found)
    kernel = automatic_among(shape, kernels, host.device.compute_capability)
    return FoundTarget(Target(kernel, AUTOMATIC), False, "; ".join(dict.fromkeys(said)))
