# SPDX-License-Identifier: MIT
"""What a numerics case is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dsa_bench.model.inputs import SparseInputs

Rule = Literal["ulp", "bound", "rms", "tail rms", "rms over floor"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What an output may be off by. An element that FP64 attention makes NaN or infinite must be just that.

    ulp             each element: |found - FP64| in units of BF16's spacing at the FP64 value
    bound           each element: the kernel's derived bound (oracle/tolerance.py)
    rms             relative RMS error of the BF16 output
    tail rms        the same of the worst row before rounding: less what rounding to BF16 alone gives, in squares
    rms over floor  relative RMS error over that of the rounded FP64 result, pooled over the case's settings
    """

    rule: Rule
    limit: float = 1.0


ONE_ULP = Tolerance("ulp")
BOUND = Tolerance("bound")


class Setting(NamedTuple):
    """One set of inputs of a case."""

    label: str
    build: Callable[[], SparseInputs]


@dataclass(frozen=True, slots=True)
class Limit:
    """A kernel's design cannot meet a case: it shows an error of up to `times` the tolerance. A reported row, no miss.

    backend  where that is so; None: wherever the kernel runs
    blind    the kernel's bound says nothing here: any output would be within it
    """

    kernel: str
    reason: str
    times: float = float("inf")
    backend: str | None = None
    blind: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One corner: run in every setting with every value of tiles per split.

    shows     what goes wrong without care
    expected  the analytic value of every output element that is finite, where there is one
    path      the slowest path of `int8-tc` that a run of the case takes, where the case is at a condition's edge; and
              of any other kernel that has a path of that name
    """

    name: str
    shows: str
    settings: tuple[Setting, ...]
    tiles_per_split: tuple[int, ...] = (0, 1, 64)
    tolerance: Tolerance = ONE_ULP
    expected: float | None = None
    path: str | None = None
    limits: tuple[Limit, ...] = ()

    def limit(self, kernel: str, backend: str) -> Limit | None:
        """What the kernel declares for this case on that backend."""
        return next((one for one in self.limits if one.kernel == kernel and one.backend in (None, backend)), None)
