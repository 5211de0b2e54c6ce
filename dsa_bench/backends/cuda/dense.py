# SPDX-License-Identifier: MIT
"""Launches of the dense decode kernels over one cell: each checks the limits, then builds what a call enqueues.

The parameter lists and grids are the contracts at the head of kernels/dense/*.cu.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.cuda.launch import Kernel, KernelLaunch
from dsa_bench.backends.cuda.memory import Device, allocate, upload
from dsa_bench.jit.load import load_module
from dsa_bench.jit.modules import compile_modules, module_hash
from dsa_bench.jit.target import Target
from dsa_bench.model.dense import DenseKernel, DensePlan, DenseShape
from dsa_bench.model.dense_inputs import DTYPES, DenseInputs
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.inputs import BF16
from dsa_bench.model.shape import ceil_div

MODULES: dict[DenseKernel, str] = {"previous": "dense/attention_row", "fast": "dense/attention_fast"}
PREFIX: dict[DenseKernel, str] = {"previous": "attention", "fast": "fast"}
SPLIT_PARTS: dict[DenseKernel, tuple[str, ...]] = {"previous": ("split", "combine"), "fast": ("split",)}
CHANNELS_PER_VECTOR = 64
"""Channels that one vector of every lane of a group holds, whatever the type (kernels/dense/attention_fast.cu)."""
MAX_VECTORS = 4
VECTOR_BYTES = 16
PROGRAMMATIC_SM = 90
NULL = np.uint64(0)


def device_kernels(kernel: DenseKernel, shape: DenseShape, plan: DensePlan) -> tuple[str, ...]:
    """Names under which a profiler sees the kernels of one call."""
    parts = ("row",) if plan.splits == 1 else SPLIT_PARTS[kernel]
    return tuple(f"{PREFIX[kernel]}_{part}_{shape.dtype}" for part in parts)


def defines(kernel: DenseKernel, shape: DenseShape) -> dict[str, int]:
    """What a kernel is built for. Raises VariantRefused for head sizes that `fast` does not take."""
    if kernel == "previous":
        return {}
    itemsize = DTYPES[shape.dtype].itemsize
    for name, size in (("head size", shape.head_size), ("value head size", shape.value_head_size)):
        if size * itemsize % VECTOR_BYTES or size > CHANNELS_PER_VECTOR * MAX_VECTORS:
            raise VariantRefused(
                f"fast takes a {name} of whole {VECTOR_BYTES}-byte vectors up to {CHANNELS_PER_VECTOR * MAX_VECTORS}, "
                f"not {size} in {shape.dtype}; `previous` remains"
            )
    return {
        "KEY_VECTORS": ceil_div(shape.head_size, CHANNELS_PER_VECTOR),
        "VALUE_VECTORS": ceil_div(shape.value_head_size, CHANNELS_PER_VECTOR),
    }


@dataclass(frozen=True, slots=True, eq=False)
class DenseDeviceInputs:
    """One copy of a cell's tensors on the device, shaped as DenseInputs says.

    length  int32 [1]; may be rewritten between launches, up to the capacity
    """

    query: Device
    key: Device
    value: Device
    mask: Any
    pad_limit: Any
    length: Device

    @classmethod
    def upload(cls, inputs: DenseInputs) -> "DenseDeviceInputs":
        return cls(
            upload(inputs.query),
            upload(inputs.key),
            upload(inputs.value),
            NULL if inputs.mask is None else upload(inputs.mask),
            NULL if inputs.pad_limit is None else upload(inputs.pad_limit),
            upload(np.array([inputs.length], np.int32)),
        )

    @property
    def pointers(self) -> tuple[Any, ...]:
        """In the order of every attention kernel's parameters."""
        return self.query, self.key, self.value, self.mask, self.pad_limit, self.length


@dataclass(frozen=True, slots=True, eq=False)
class DenseWorkspace:
    """Scratch of one stream's calls, one at a time; null pointers for what the kernel and the plan do not need.

    acc, m, l  FP32 [rows, splits, value_head_size], [rows, splits] twice: partials of a plan with several splits
    scores     FP32 [rows, capacity], of `previous`
    arrived    uint32 [rows], of `fast` with several splits: CTAs that are done with a row, 0 between calls
    """

    acc: Any
    m: Any
    l: Any  # noqa: E741 - the maths
    scores: Any
    arrived: Any

    @classmethod
    def allocate(cls, kernel: DenseKernel, shape: DenseShape, plan: DensePlan) -> "DenseWorkspace":
        partials = (shape.rows, plan.splits)
        split = plan.splits > 1
        return cls(
            allocate((*partials, shape.value_head_size), np.float32) if split else NULL,
            allocate(partials, np.float32) if split else NULL,
            allocate(partials, np.float32) if split else NULL,
            allocate((shape.rows, shape.capacity), np.float32) if kernel == "previous" else NULL,
            upload(np.zeros(shape.rows, np.uint32)) if kernel == "fast" and split else NULL,
        )


class DenseLauncher:
    """Compiles the dense kernels for one device as shapes ask for them, and builds the launches of a call."""

    def __init__(self, target: Target, stream: Any, root: Path | None = None) -> None:
        self._target = target
        self._stream = stream
        self._root = root
        self._loaded: dict[tuple[DenseKernel, tuple[tuple[str, int], ...]], Mapping[str, Kernel]] = {}

    def kernel_hash(self, kernel: DenseKernel, shape: DenseShape) -> str:
        """The hash of the kernel's module as it is built for the shape."""
        return module_hash(MODULES[kernel], defines(kernel, shape), self._root)

    def kernels(self, kernel: DenseKernel, shape: DenseShape) -> Mapping[str, Kernel]:
        """The kernels of a module built for the shape, by name. CompileFailed if it does not compile."""
        built_for = defines(kernel, shape)
        key = (kernel, tuple(sorted(built_for.items())))
        if key not in self._loaded:
            (compiled,) = compile_modules([MODULES[kernel]], self._target, built_for, self._root)
            module = load_module(compiled)
            self._loaded[key] = {name: Kernel(module, name) for name in compiled.kernels}
        return self._loaded[key]

    def resident_ctas(self, kernel: DenseKernel, shape: DenseShape, plan: DensePlan) -> int:
        """CTAs of the attention kernel that one multiprocessor holds at once."""
        return self.kernels(kernel, shape)[device_kernels(kernel, shape, plan)[0]].resident_ctas()

    def launches(
        self,
        kernel: DenseKernel,
        plan: DensePlan,
        inputs: DenseInputs,
        device: DenseDeviceInputs,
        workspace: DenseWorkspace,
        out: Device,
    ) -> list[KernelLaunch]:
        """The kernels of one call in order. `out` [batch, query_heads, query_len, value_head_size].

        The launch depends on `inputs` through shape, scale, soft cap and causality; the live length is the device's.
        Raises VariantRefused if the kernel does not take the shape, ValueError for a plan that covers less than it or
        has more splits than the kernel merges.
        """
        shape = inputs.shape
        if not plan.covers(shape.capacity):
            raise ValueError(f"{plan.name} does not cover {shape.key}")
        kernels = self.kernels(kernel, shape)
        first, *rest = (kernels[name] for name in device_kernels(kernel, shape, plan))
        limit = first.facts.constants["max_head_size"]
        if shape.head_size > limit:
            raise VariantRefused(f"{first.name} takes head sizes up to {limit}, not {shape.key}")
        if plan.splits > (most := first.facts.constants.get("max_splits", plan.splits)):
            raise ValueError(f"{first.name} merges up to {most} splits, not those of {plan.name}")
        scratch = [workspace.scores] if kernel == "previous" else []
        arguments = [*device.pointers, *_sizes(inputs), *scratch]
        if plan.splits == 1:
            return [KernelLaunch(first, (shape.rows, 1, 1), [*arguments, out], self._stream)]
        partials = (workspace.acc, workspace.m, workspace.l)
        arguments += [*partials, np.int32(plan.chunk), np.int32(plan.live)]
        grid = (shape.rows, plan.splits, 1)
        if kernel == "fast":
            return [KernelLaunch(first, grid, [*arguments, workspace.arrived, out], self._stream)]
        (combine,) = rest
        merging = [*partials, out, np.int32(plan.splits), np.int32(shape.value_head_size)]
        dependent = self._target.number >= PROGRAMMATIC_SM
        return [
            KernelLaunch(first, grid, arguments, self._stream),
            KernelLaunch(combine, (shape.rows, 1, 1), merging, self._stream, dependent=dependent),
        ]


def _sizes(inputs: DenseInputs) -> list[Any]:
    shape = inputs.shape
    integers = (
        shape.query_heads, shape.group, shape.query_len, shape.capacity, shape.head_size, shape.value_head_size,
        inputs.causal,
    )  # fmt: skip
    return [*map(np.int32, integers), np.float32(inputs.softmax_scale), np.float32(inputs.softcap)]


def download(device: Device, shape: DenseShape) -> NDArray[np.generic]:
    """A host copy of an output, one row after the other: [rows, value_head_size]."""
    host = device.get()
    return (host.view(BF16) if shape.dtype == "bf16" else host).reshape(shape.rows, shape.value_head_size)


def allocate_output(shape: DenseShape) -> Device:
    """An output: [batch, query_heads, query_len, value_head_size]."""
    return allocate((shape.batch, shape.query_heads, shape.query_len, shape.value_head_size), DTYPES[shape.dtype])
