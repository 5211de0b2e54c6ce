# SPDX-License-Identifier: MIT
"""What the tables of every operator in a tuned map are made of: types, figures and words."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from dsa_bench.model.documents import Limits
from dsa_bench.model.run import LONGEST_US, SHORTEST_US

LARGEST_COUNT = 2**53 - 1
"""The largest integer that every reader of JSON keeps exactly."""
Count = Annotated[int, Limits(1, LARGEST_COUNT)]
Number = Annotated[float, Limits(-1e300, 1e300)]
Microseconds = Annotated[float, Limits(SHORTEST_US, LONGEST_US)]
Ratio = Annotated[float, Limits(1e-30, 1e30)]
Share = Annotated[float, Limits(0.0, 1.0)]
Interval = tuple[Count, Count]
"""A closed range of integers, both ends in it."""


@dataclass(frozen=True, slots=True)
class RegretFigures:
    """What a RegretSummary of either operator holds beside the size of the cell of the largest."""

    cells: Count
    mean: Number
    low: Number | None
    high: Number | None
    max: Number
    rows: Count


class Target(NamedTuple):
    """What a map chooses: a kernel, and its tiles per split or chunk. Of equal launches the smallest value stands."""

    kernel: str
    value: int

    def __str__(self) -> str:
        return f"{self.kernel}/{self.value}"


class MapWords(NamedTuple):
    """What a table calls its launches' size and the rules' value: as fields, in sentences, and as a heading."""

    size: str
    value: str
    of_value: str
    heading: str


WORDS = {
    "decode": MapWords("tiles", "tiles_per_split", "tiles per split", "tiles/split"),
    "dense": MapWords("capacity", "chunk", "keys per split", "chunk"),
}
"""By operator."""
