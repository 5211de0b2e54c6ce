# SPDX-License-Identifier: MIT
"""Two backends as one, so that their kernels are measured in the same rounds. A kernel's name says whose it is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.base import Backend, Launch, SparseBuffers
from dsa_bench.model.call import LaunchSite
from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.sides import SIDES, Side, plain_kernel, side_of
from dsa_bench.oracle.attention import F64
from dsa_bench.oracle.survey import Look, survey
from dsa_bench.splits.geometry import SparseGeometry


def _owner(kernel: str) -> Side:
    """A kernel without a side, as the check of many rows asks for `previous`, is A's."""
    return side_of(kernel) or "A"


@dataclass(frozen=True, slots=True)
class SidesGeometry:
    """Each side's launches by its own rules: their kernels may differ in what is resident."""

    sides: Mapping[Side, SparseGeometry]

    @property
    def slots(self) -> DeviceSlots:
        return self.sides["A"].slots

    def plan(self, kernel: str, shape: SparseShape, requested: int | None) -> VariantPlan:
        plan = self.sides[_owner(kernel)].plan(plain_kernel(kernel), shape, requested)
        return replace(plan, kernel=kernel)

    def why(self, kernel: str, shape: SparseShape, requested: int | None) -> str:
        return self.sides["A"].why(plain_kernel(kernel), shape, requested)


class SidesBackend:
    """Two backends on one stream of one device. Closing it closes both."""

    def __init__(self, a: Backend, b: Backend) -> None:
        self._sides: dict[Side, Backend] = dict(zip(SIDES, (a, b), strict=True))
        self.device = a.device
        self.stream = a.stream
        self.geometry: SparseGeometry = SidesGeometry({side: one.geometry for side, one in self._sides.items()})

    def site(self) -> LaunchSite | None:
        return self._sides["A"].site()

    def kernel_hash(self, kernel: str) -> str:
        return self._of(kernel).kernel_hash(plain_kernel(kernel))

    def bound(self, kernel: str, inputs: SparseInputs, rows: NDArray[np.int64], out: F64, look: Look = survey) -> F64:
        return self._of(kernel).bound(plain_kernel(kernel), inputs, rows, out, look)

    def rounds_keys(self, kernel: str) -> bool:
        return self._of(kernel).rounds_keys(plain_kernel(kernel))

    def device_kernels(self, variant: VariantPlan) -> tuple[str, ...]:
        return self._of(variant.kernel).device_kernels(replace(variant, kernel=plain_kernel(variant.kernel)))

    def load(self, inputs: SparseInputs, l2: str) -> "SidesBuffers":
        return SidesBuffers({side: one.load(inputs, l2) for side, one in self._sides.items()})

    def synchronize(self) -> None:
        for one in self._sides.values():
            one.synchronize()

    def close(self) -> None:
        for one in self._sides.values():
            one.close()

    def _of(self, kernel: str) -> Backend:
        return self._sides[_owner(kernel)]


class SidesBuffers:
    """One cell's tensors, once for each side. The output is that of the side which was launched last."""

    def __init__(self, sides: Mapping[Side, SparseBuffers]) -> None:
        self._sides = sides
        self._last: Side = "A"
        self.copies = sides["A"].copies

    def launcher(self, variant: VariantPlan) -> Launch:
        side = _owner(variant.kernel)
        launch_there = self._sides[side].launcher(replace(variant, kernel=plain_kernel(variant.kernel)))

        def launch(call: int) -> None:
            self._last = side
            launch_there(call)

        return launch

    def fill_output(self, value: float) -> None:
        for one in self._sides.values():
            one.fill_output(value)

    def output(self) -> NDArray[np.generic]:
        return self._sides[self._last].output()

    def close(self) -> None:
        for one in self._sides.values():
            one.close()
