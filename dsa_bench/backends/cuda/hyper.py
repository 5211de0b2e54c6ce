# SPDX-License-Identifier: MIT
"""Launches of the hyper-connection kernels: each checks the limits, then builds what a call enqueues.

The parameter lists and grids are the contracts at the head of kernels/hyper/*.cu.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsa_bench.backends.cuda.device import cuda_device
from dsa_bench.backends.cuda.launch import Kernel, KernelLaunch
from dsa_bench.backends.cuda.memory import Device, allocate, upload
from dsa_bench.jit.load import load_module
from dsa_bench.jit.modules import compile_modules
from dsa_bench.jit.optional import load
from dsa_bench.jit.target import Target, device_target
from dsa_bench.model.errors import CannotMeasure, VariantRefused
from dsa_bench.model.hyper import WIDE, GateShape, HyperOp, LaunchMode, MixShape, Sigmoid
from dsa_bench.model.hyper_inputs import GateInputs, MixInputs
from dsa_bench.model.inputs import BF16
from dsa_bench.model.shape import ceil_div

MODULES: dict[HyperOp, tuple[str, ...]] = {
    "mix": ("hyper/pre_mix",),
    "gate": ("hyper/gate_mul", "hyper/down"),
}
CEILING: dict[HyperOp, tuple[str, ...]] = {"mix": ("hyper/copy",), "gate": ()}
"""Modules of what is measured beside them."""
MINIMUM_SM = 80
PROGRAMMATIC_SM = 90
GRID_LIMIT_Y = 65535
CHECK_CTAS_PER_SM = 8
WHOLE_CARVEOUT = 100
"""Percent of an SM's on-chip memory that is shared memory."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMix:
    """One copy of a cell's tensors on the device, and its outputs: mixed [rows, hidden], activated [rows, rank]."""

    normed: Device
    up: Device
    low_rank: Device
    mixed: Device
    activated: Device

    @classmethod
    def upload(cls, inputs: MixInputs) -> "DeviceMix":
        shape = inputs.shape
        return cls(
            upload(inputs.normed),
            upload(inputs.up),
            upload(inputs.low_rank),
            allocate((shape.rows, shape.hidden), BF16),
            allocate((shape.rows, shape.rank), BF16),
        )


@dataclass(frozen=True, slots=True, eq=False)
class DeviceGate:
    """One copy of a cell's tensors on the device; x [rows, width] has its ready columns, and NaN in those that gate-mul
    writes; out [rows, rank]."""

    attention: Device
    gate: Device
    weight: Device
    x: Device
    out: Device

    @classmethod
    def upload(cls, inputs: GateInputs) -> "DeviceGate":
        shape = inputs.shape
        x = np.full((shape.rows, shape.width), np.nan, BF16)
        x[:, shape.gated :] = inputs.ready
        return cls(
            upload(inputs.attention),
            upload(inputs.gate),
            upload(inputs.weight),
            upload(x),
            allocate((shape.rows, shape.rank), BF16),
        )


class HyperLauncher:
    """Builds the launches of one call, on one stream, for the kernels of an operator.

    programmatic  whether the device has programmatic dependent launch; without it every mode is launched plainly
    """

    def __init__(self, kernels: Mapping[str, Kernel], stream: Any, *, sm_count: int, programmatic: bool) -> None:
        self._kernels = kernels
        self._sm_count = sm_count
        self._programmatic = programmatic
        self.stream = stream

    def pre_mix(self, form: Sigmoid, shape: MixShape, tensors: DeviceMix) -> KernelLaunch:
        """mixed, from normed and up."""
        kernel = self._kernels[f"pre_mix_{form.replace('-', '_')}"]
        row_vectors = shape.hidden // WIDE
        vectors = shape.rows * row_vectors
        arguments = (tensors.normed, tensors.up, tensors.mixed, np.uint32(vectors), np.uint32(row_vectors))
        return KernelLaunch(kernel, (ceil_div(vectors, kernel.threads), 1, 1), arguments, self.stream)

    def scaled_silu(self, form: Sigmoid, shape: MixShape, tensors: DeviceMix) -> KernelLaunch:
        """activated, from low_rank."""
        kernel = self._kernels[f"scaled_silu_{form.replace('-', '_')}"]
        vectors = shape.rows * shape.rank // WIDE
        grid = (ceil_div(vectors, kernel.facts.constants["tile"]), 1, 1)
        return KernelLaunch(kernel, grid, (tensors.low_rank, tensors.activated, np.uint32(vectors)), self.stream)

    def sigmoid_differences(self, first: int, patterns: int, count: Device, lowest: Device) -> KernelLaunch:
        """Compare the two sigmoids over FP32 bit patterns: `count` uint64 grows, `lowest` uint32 falls."""
        kernel = self._kernels["sigmoid_differences"]
        grid = (min(CHECK_CTAS_PER_SM * self._sm_count, ceil_div(patterns, kernel.threads)), 1, 1)
        return KernelLaunch(kernel, grid, (np.uint32(first), np.uint64(patterns), count, lowest), self.stream)

    def copy(self, source: Device, target: Device) -> KernelLaunch:
        """A copy ceiling: target is a multiple of 16 bytes, source 1 or 8 times as long."""
        kernel = self._kernels[f"copy_{source.nbytes // target.nbytes}_to_1"]
        vectors = target.nbytes // 16
        grid = (ceil_div(vectors, kernel.facts.constants["tile"]), 1, 1)
        return KernelLaunch(kernel, grid, (source, target, np.uint32(vectors)), self.stream)

    def pair(self, mode: LaunchMode, shape: GateShape, tensors: DeviceGate) -> list[KernelLaunch]:
        """gate-mul and the down projection behind it. VariantRefused for more rows than a grid takes."""
        gate = self._kernels["gate_mul_early" if mode == "pdl-early" else "gate_mul"]
        gated_vectors, width_vectors = shape.gated // WIDE, shape.width // WIDE
        vectors = shape.rows * gated_vectors
        arguments = (tensors.attention, tensors.gate, tensors.x)
        sizes = map(np.uint32, (vectors, gated_vectors, width_vectors))
        first = KernelLaunch(gate, (ceil_div(vectors, gate.threads), 1, 1), (*arguments, *sizes), self.stream)
        return [first, self._down(shape, tensors, dependent=self._programmatic and mode != "plain")]

    def launched_as(self, mode: LaunchMode) -> LaunchMode:
        """What a mode comes to on this device: `plain` where there is no programmatic dependent launch."""
        return mode if self._programmatic else "plain"

    def down_kernel(self, shape: GateShape) -> str:
        """Which down projection a shape gets."""
        limits = self._kernels["hyper_down_few"].facts.constants
        few = shape.rows <= limits["max_rows"] and shape.width == limits["width"]
        return "hyper_down_few" if few else "hyper_down_many"

    def _down(self, shape: GateShape, tensors: DeviceGate, *, dependent: bool) -> KernelLaunch:
        kernel = self._kernels[self.down_kernel(shape)]
        constants = kernel.facts.constants
        arguments = [tensors.weight, tensors.x, tensors.out, np.int32(shape.rows), np.int32(shape.rank)]
        grid_y = 1
        if kernel.name == "hyper_down_many":
            arguments.append(np.int32(shape.width))
            grid_y = ceil_div(shape.rows, constants["tile_rows"])
            if grid_y > GRID_LIMIT_Y:
                limit = GRID_LIMIT_Y * constants["tile_rows"]
                raise VariantRefused(f"{kernel.name} takes up to {limit} rows, not {shape.key}")
        grid = (ceil_div(shape.rank, constants["tile"]), grid_y, 1)
        return KernelLaunch(kernel, grid, arguments, self.stream, dependent=dependent)


def open_launcher(op: HyperOp, kernels: Path | None = None, stream: Any = None) -> HyperLauncher:
    """Compile and load an operator's kernels on device 0.

    kernels  another folder of kernels than this installation's; stream  another backend's, else one of its own
    Raises CannotMeasure for a device that is too old, CompileFailed.
    """
    device = cuda_device()
    target = device_target(device.compute_capability or "")
    refuse_old_device(target)
    stream = stream or load("cupy").cuda.Stream(non_blocking=True)
    loaded: dict[str, Kernel] = {}
    for compiled in compile_modules((*MODULES[op], *CEILING[op]), target, root=kernels):
        module = load_module(compiled)
        loaded.update({name: Kernel(module, name) for name in compiled.kernels})
    if op == "gate":
        _share_one_carveout(loaded.values())
    return HyperLauncher(
        loaded,
        stream,
        sm_count=device.sm_count,
        programmatic=target.number >= PROGRAMMATIC_SM,
    )


def refuse_old_device(target: Target) -> None:
    """Raises CannotMeasure for a device without cp.async and BF16 tensor cores."""
    if target.number < MINIMUM_SM:
        raise CannotMeasure(
            f"the hyper-connection kernels need a device of SM {MINIMUM_SM / 10:.1f} or newer and this is SM "
            f"{target.number / 10:.1f}; --backend cpu remains"
        )


def _share_one_carveout(kernels: Any) -> None:
    """Have all kernels ask for the same division of an SM's memory: one that is set for gate-mul, which needs no shared
    memory, would have to drain before a CTA of its successor could start there, and the prefetch with it."""
    driver = load("cuda.bindings.driver")
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    for kernel in kernels:
        kernel.check(driver.cuFuncSetAttribute(kernel.function, attribute, WHOLE_CARVEOUT))
