# SPDX-License-Identifier: MIT
"""Cells of dense decode on the GPU: tensors, as often as cold launches need them, and calls."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.base import ReadyCall
from dsa_bench.backends.cuda.cold import bytes_between_reads, cold_copies
from dsa_bench.backends.cuda.dense import (
    DenseDeviceInputs,
    DenseLauncher,
    DenseWorkspace,
    allocate_output,
    download,
)
from dsa_bench.backends.cuda.device import cuda_device, warps_per_sm
from dsa_bench.backends.cuda.launch import Kernel, KernelLaunch, ready_call, wait_for
from dsa_bench.backends.cuda.memory import Device, allocate, free_bytes, uploaded
from dsa_bench.jit.load import load_module
from dsa_bench.jit.modules import compile_modules, module_hash
from dsa_bench.jit.optional import load
from dsa_bench.jit.target import device_target
from dsa_bench.model.dense import DenseKernel, DensePlan, DenseShape
from dsa_bench.model.dense_inputs import DTYPES, DenseInputs
from dsa_bench.model.dense_request import COPY, DenseVariant
from dsa_bench.model.errors import CannotMeasure, OutOfDeviceMemory, VariantRefused
from dsa_bench.model.shape import ceil_div

CEILING = "ceiling"
"""The module of the copy."""
WARP = 32


class CudaDense:
    """Device 0 and the kernels of dense decode. `kernels` is another folder of them than this installation's."""

    def __init__(self, kernels: Path | None = None) -> None:
        self.device = cuda_device()
        self.stream: Any = load("cupy").cuda.Stream(non_blocking=True)
        self._root = kernels
        self._target = device_target(self.device.compute_capability or "")
        self.launcher = DenseLauncher(self._target, self.stream, kernels)
        self._warps_per_sm = warps_per_sm()
        self._copy: Kernel | None = None

    def kernel_hash(self, kernel: str, shape: DenseShape) -> str:
        if kernel == COPY:
            return module_hash(CEILING, root=self._root)
        return self.launcher.kernel_hash(cast("DenseKernel", kernel), shape)

    def resident_ctas(self, kernel: DenseKernel, shape: DenseShape) -> int:
        return self.launcher.resident_ctas(kernel, shape, DensePlan(2, shape.capacity))

    def load(self, inputs: DenseInputs, l2: str) -> "CudaDenseCell":
        return CudaDenseCell(self, inputs, bytes_between_reads(self.device) if l2 == "cold" else 0)

    def copy_kernel(self) -> Kernel:
        """The copy, compiled when it is first asked for."""
        if self._copy is None:
            (compiled,) = compile_modules([CEILING], self._target, root=self._root)
            self._copy = Kernel(load_module(compiled), "copy_only")
        return self._copy

    def facts(
        self, kernel: DenseKernel, shape: DenseShape, plan: DensePlan, attention: KernelLaunch
    ) -> dict[str, float]:
        """What ReadyCall.facts holds of an attention launch."""
        resident, sms = self.launcher.resident_ctas(kernel, shape, plan), self.device.sm_count
        warps = min(attention.ctas, resident * sms) * ceil_div(attention.threads, WARP)
        return {
            "resident": resident,
            "waves": attention.ctas / (resident * sms),
            "occupancy": warps / (self._warps_per_sm * sms),
        }

    def synchronize(self) -> None:
        """Raises CannotMeasure if a kernel failed: nothing on the device can be used after that."""
        wait_for(self.stream)

    def close(self) -> None:
        with suppress(CannotMeasure):
            self.synchronize()


class CudaDenseCell:
    """One cell; see DenseCellBuffers. Each variant has a workspace and an output; the tensors are all variants'."""

    def __init__(self, backend: CudaDense, inputs: DenseInputs, cold_bytes: int) -> None:
        self._backend = backend
        self._inputs = inputs
        self._cold_bytes = cold_bytes
        self._copies: list[DenseDeviceInputs] = []
        self._outputs: dict[str, Device] = {}

    def call(self, variant: DenseVariant) -> ReadyCall:
        backend, shape = self._backend, self._inputs.shape
        try:
            backend.launcher.kernels(variant.kernel, shape)  # before memory is taken for one that does not compile
            copies = self._uploaded(variant.name)
            out = self._outputs[variant.name] = allocate_output(shape)
            workspace = DenseWorkspace.allocate(variant.kernel, shape, variant.plan)
            build = backend.launcher.launches
            calls = [build(variant.kernel, variant.plan, self._inputs, copy, workspace, out) for copy in copies]
        except OutOfDeviceMemory as error:
            raise VariantRefused(f"{variant.name}: {error}") from error
        facts = backend.facts(variant.kernel, shape, variant.plan, calls[0][0])
        return ready_call(calls, calls[0][0].ctas, facts)

    def copy_call(self) -> ReadyCall:
        """Half of the bytes are read and half are written, in whole accesses."""
        half = max(self._inputs.shape.live_bytes // 32, 1) * 16
        count = cold_copies(self._cold_bytes, half, COPY, "--length")
        kernel = self._backend.copy_kernel()
        grid = (ceil_div(half // 16, kernel.facts.constants["tile"]), 1, 1)
        try:
            source = uploaded(np.frombuffer(np.random.default_rng(0).bytes(half), np.uint8), count)
            target = allocate((count, half), np.uint8)
        except OutOfDeviceMemory as error:
            raise VariantRefused(f"{COPY}: {error}") from error
        stream, vectors = self._backend.stream, np.int64(half // 16)
        calls = [[KernelLaunch(kernel, grid, (source[n], target[n], vectors), stream)] for n in range(count)]
        return ready_call(calls, calls[0][0].ctas)

    def poison(self, variant: DenseVariant, value: float) -> None:
        out = self._outputs[variant.name]
        host = np.array(value).astype(DTYPES[self._inputs.shape.dtype])
        with self._backend.stream:
            out.fill(int(host.view(np.uint16)) if self._inputs.shape.dtype == "bf16" else host)
        self._backend.synchronize()

    def output(self, variant: DenseVariant) -> NDArray[np.generic]:
        self._backend.synchronize()
        return download(self._outputs[variant.name], self._inputs.shape)

    def close(self) -> None:
        self._copies.clear()
        self._outputs.clear()

    def _uploaded(self, name: str) -> Sequence[DenseDeviceInputs]:
        if not self._copies:
            read_bytes = max(self._inputs.shape.live_bytes, 1)
            count = cold_copies(self._cold_bytes, read_bytes, name, "--length")
            needed = count * sum(tensor.nbytes for tensor in self._inputs.tensors.values())
            if count > 1 and needed > (free := free_bytes()):
                raise VariantRefused(
                    f"{name}: a cold L2 takes {count} copies of the cache, {needed / 2**30:.1f} GiB, and "
                    f"{free / 2**30:.1f} GiB are free; use --l2 warm, more --length or less --capacity"
                )
            self._copies = [DenseDeviceInputs.upload(self._inputs) for _ in range(count)]
        return self._copies
