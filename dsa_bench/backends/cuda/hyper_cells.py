# SPDX-License-Identifier: MIT
"""Cells of the hyper-connection operators on the GPU: tensors, as often as cold launches need them, and calls."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dsa_bench.backends.base import ReadyCall
from dsa_bench.backends.cuda.cold import bytes_between_reads, cold_copies
from dsa_bench.backends.cuda.device import cuda_device
from dsa_bench.backends.cuda.hyper import CEILING, MODULES, DeviceGate, DeviceMix, HyperLauncher, open_launcher
from dsa_bench.backends.cuda.launch import KernelLaunch, ready_call, wait_for
from dsa_bench.backends.cuda.memory import Device, allocate, download_bf16, overwrite, upload, uploaded
from dsa_bench.backends.hyper import HyperBuffers
from dsa_bench.jit.modules import module_hash
from dsa_bench.model.errors import CannotMeasure, OutOfDeviceMemory, VariantRefused
from dsa_bench.model.hyper import HyperOp, LaunchMode
from dsa_bench.model.hyper_inputs import GateInputs, MixInputs, Tensor
from dsa_bench.model.hyper_request import CopyVariant, GateVariant, HyperVariant, MixKernel, MixVariant
from dsa_bench.model.inputs import BF16
from dsa_bench.oracle.hyper import FEW_CHAIN

ALL_PATTERNS = 2**32


class CudaHyper:
    """Device 0 and the kernels of one operator. `kernels` is another folder of them than this installation's."""

    def __init__(self, op: HyperOp, kernels: Path | None = None) -> None:
        self.device = cuda_device()
        self.launcher = open_launcher(op, kernels)
        self.stream: Any = self.launcher.stream
        self.note = _note(op, self.launcher, self.device.compute_capability)
        self._hashes = {module: module_hash(module, root=kernels) for module in (*MODULES[op], *CEILING[op])}

    def kernel_hash(self, variant: HyperVariant) -> str:
        """The hashes of the modules, joined."""
        of_copy = isinstance(variant, CopyVariant)
        return "+".join(digest for module, digest in self._hashes.items() if (module in CEILING["mix"]) == of_copy)

    def down_chain(self, inputs: GateInputs) -> int:
        shape = inputs.shape
        return FEW_CHAIN if self.launcher.down_kernel(shape) == "hyper_down_few" else shape.width

    def load(self, inputs: MixInputs | GateInputs, l2: str) -> HyperBuffers:
        cold_bytes = bytes_between_reads(self.device) if l2 == "cold" else 0
        if isinstance(inputs, MixInputs):
            return CudaMix(self, inputs, cold_bytes)
        return CudaGate(self, inputs, cold_bytes)

    def sigmoid_differences(self) -> tuple[int, int, float | None]:
        """Over all bit patterns."""
        count, lowest = upload(np.zeros(1, np.uint64)), upload(np.full(1, ALL_PATTERNS - 1, np.uint32))
        self.launcher.sigmoid_differences(0, ALL_PATTERNS, count, lowest).enqueue()
        self.synchronize()
        differ = int(count.get()[0])
        return ALL_PATTERNS, differ, float(lowest.get().view(np.float32)[0]) if differ else None

    def chain(self, sets: tuple[GateInputs, GateInputs], mode: LaunchMode, launches: int) -> Tensor:
        shape = sets[0].shape
        first, second = (DeviceGate.upload(inputs) for inputs in sets)
        outs = allocate((launches, shape.rows, shape.rank), BF16)
        pairs: list[KernelLaunch] = []
        for number in range(launches):
            one = (first, second)[number % 2]
            shared = DeviceGate(one.attention, one.gate, first.weight, first.x, outs[number])
            pairs += self.launcher.pair(mode, shape, shared)
        for launch in pairs:  # all are built, so that nothing comes between two
            launch.enqueue()
        self.synchronize()
        return download_bf16(outs)

    def fill(self, tensor: Device, value: float) -> None:
        """Overwrite a BF16 tensor and wait until that is done."""
        with self.stream:
            tensor.fill(int(np.array(value, np.float32).astype(BF16).view(np.uint16)))
        self.synchronize()

    def synchronize(self) -> None:
        """Raises CannotMeasure if a kernel failed: nothing on the device can be used after that."""
        wait_for(self.stream)

    def close(self) -> None:
        with suppress(CannotMeasure):
            self.synchronize()


class CudaMix:
    """A cell of `mix`; see HyperBuffers. Each kernel's tensors are there when it is first asked for."""

    def __init__(self, backend: CudaHyper, inputs: MixInputs, cold_bytes: int) -> None:
        self._backend = backend
        self._inputs = inputs
        self._cold_bytes = cold_bytes
        self._copies: dict[MixKernel, list[DeviceMix]] = {}

    def call(self, variant: HyperVariant) -> ReadyCall:
        assert isinstance(variant, MixVariant | CopyVariant)
        try:
            if isinstance(variant, CopyVariant):
                return _call([[launch] for launch in self._copy_launches(variant)])
            build = (
                self._backend.launcher.pre_mix if variant.kernel == "pre-mix" else self._backend.launcher.scaled_silu
            )
            tensors = self._tensors(variant.kernel, variant.name)
            return _call([[build(variant.form, self._inputs.shape, one)] for one in tensors])
        except OutOfDeviceMemory as error:
            raise VariantRefused(f"{variant.name}: {error}") from error

    def poison(self, variant: HyperVariant, copy: int, value: float) -> None:
        for tensor in self._written(variant, copy).values():
            self._backend.fill(tensor, value)

    def outputs(self, variant: HyperVariant, copy: int) -> Mapping[str, Tensor]:
        self._backend.synchronize()
        return {name: download_bf16(tensor) for name, tensor in self._written(variant, copy).items()}

    def close(self) -> None:
        self._copies.clear()

    def _written(self, variant: HyperVariant, copy: int) -> dict[str, Device]:
        if not isinstance(variant, MixVariant):
            return {}
        one = self._tensors(variant.kernel, variant.name)[copy]
        return {"mixed": one.mixed} if variant.kernel == "pre-mix" else {"activated": one.activated}

    def _tensors(self, kernel: MixKernel, name: str) -> list[DeviceMix]:
        if kernel not in self._copies:
            inputs, shape = self._inputs, self._inputs.shape
            if kernel == "pre-mix":
                count = cold_copies(self._cold_bytes, inputs.normed.nbytes + inputs.up.nbytes, name)
                mixed = allocate((count, shape.rows, shape.hidden), BF16)
                normed, up = uploaded(inputs.normed, count), uploaded(inputs.up, count)
                copies = [DeviceMix(normed[n], up[n], None, mixed[n], None) for n in range(count)]
            else:
                count = cold_copies(self._cold_bytes, inputs.low_rank.nbytes, name)
                activated = allocate((count, shape.rows, shape.rank), BF16)
                low_rank = uploaded(inputs.low_rank, count)
                copies = [DeviceMix(None, None, low_rank[n], None, activated[n]) for n in range(count)]
            self._copies[kernel] = copies
        return self._copies[kernel]

    def _copy_launches(self, variant: CopyVariant) -> list[KernelLaunch]:
        """The kernel's bytes in the variant's ratio of reads to writes, in whole accesses."""
        shape = self._inputs.shape
        moved = shape.mix_bytes if variant.kernel == "pre-mix" else shape.silu_bytes
        written = max(moved // (16 * (variant.reads + 1)), 1) * 16
        read = variant.reads * written
        count = cold_copies(self._cold_bytes, read, variant.name)
        source = uploaded(np.frombuffer(np.random.default_rng(0).bytes(read), np.uint8), count)
        target = allocate((count, written), np.uint8)
        return [self._backend.launcher.copy(source[n], target[n]) for n in range(count)]


class CudaGate:
    """A cell of `gate`; see HyperBuffers. Every mode has the same tensors."""

    def __init__(self, backend: CudaHyper, inputs: GateInputs, cold_bytes: int) -> None:
        self._backend = backend
        self._inputs = inputs
        count = cold_copies(cold_bytes, inputs.nbytes, inputs.shape.key)
        shape = inputs.shape
        self._x = np.zeros((shape.rows, shape.width), BF16)
        self._x[:, shape.gated :] = inputs.ready
        attention, gate, weight, x = (
            uploaded(tensor, count) for tensor in (inputs.attention, inputs.gate, inputs.weight, self._x)
        )
        out = allocate((count, shape.rows, shape.rank), BF16)
        self._copies = [DeviceGate(attention[n], gate[n], weight[n], x[n], out[n]) for n in range(count)]

    def call(self, variant: HyperVariant) -> ReadyCall:
        assert isinstance(variant, GateVariant)
        shape, build = self._inputs.shape, self._backend.launcher
        return _call([build.pair(variant.mode, shape, copy) for copy in self._copies])

    def poison(self, variant: HyperVariant, copy: int, value: float) -> None:
        self._x[:, : self._inputs.shape.gated] = value
        overwrite(self._copies[copy].x, self._x)
        self._backend.fill(self._copies[copy].out, value)

    def outputs(self, variant: HyperVariant, copy: int) -> Mapping[str, Tensor]:
        self._backend.synchronize()
        one = self._copies[copy]
        return {"x": download_bf16(one.x), "out": download_bf16(one.out)}

    def close(self) -> None:
        self._copies.clear()


def _call(copies: Sequence[Sequence[KernelLaunch]]) -> ReadyCall:
    """A call that rotates through copies of its tensors."""
    return ready_call(copies, sum(kernel.ctas for kernel in copies[0]))


def _note(op: HyperOp, launcher: HyperLauncher, compute_capability: str | None) -> str | None:
    if op == "mix" or launcher.launched_as("pdl") == "pdl":
        return None
    return (
        f"SM {compute_capability} has no programmatic dependent launch, which needs 9.0: every mode is launched plainly"
    )
