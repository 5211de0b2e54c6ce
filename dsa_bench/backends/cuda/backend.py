# SPDX-License-Identifier: MIT
"""The GPU backend: compile what this device runs, load it, and launch it on a stream of its own."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.base import Launch
from dsa_bench.backends.cuda.cold import bytes_between_reads
from dsa_bench.backends.cuda.device import cuda_device, smem_opt_in_bytes
from dsa_bench.backends.cuda.launch import Kernel, KernelLaunch, rotating, wait_for
from dsa_bench.backends.cuda.memory import Device, allocate, download_bf16, free_bytes, upload
from dsa_bench.backends.cuda.sparse import AUTOMATIC_PATHS, DeviceInputs, Paths, SparseLauncher
from dsa_bench.backends.cuda.workspaces import Mailboxes, Unions, Workspace, empty_mailboxes, mailbox_bytes
from dsa_bench.jit.load import load_module
from dsa_bench.jit.modules import compile_each, module_hash
from dsa_bench.jit.optional import load
from dsa_bench.jit.target import device_target
from dsa_bench.model.call import LaunchSite, LoadedKernel
from dsa_bench.model.errors import CannotMeasure, CompileFailed, OutOfDeviceMemory, VariantRefused
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import DIGITS, UNION, WS
from dsa_bench.model.shape import Op, ceil_div
from dsa_bench.oracle.attention import F64
from dsa_bench.oracle.survey import Look, survey
from dsa_bench.oracle.tolerance import bf16_bound, digits_bound, fp16_bound, fp32_bound, union_bound, ws_bound
from dsa_bench.splits.digits import CLUSTERS, NO_CLUSTERS
from dsa_bench.splits.geometry import CudaSparse, SparseGeometry

CEILING = {"gather": ("ceiling",), "copy": ("ceiling",)}
MODULES: dict[Op, dict[str, tuple[str, ...]]] = {
    "decode": {
        "previous": ("dsa/decode_grouped", "dsa/merge"),
        "int8-tc": ("dsa/decode_int8_tc", "dsa/merge"),
        DIGITS: ("dsa/decode_digits",),
        **CEILING,
    },
    "prefill": {
        "previous": ("dsa/prefill_bf16",),
        "int8-tc": ("dsa/prefill_int8_tc",),
        WS: ("dsa/prefill_int8_ws",),
        UNION: ("dsa/prefill_int8_union", "dsa/prefill_int8_ws"),
        **CEILING,
    },
}
CEILING_KERNELS = {"gather": ("gather_only",), "copy": ("copy_only",)}
DEVICE_KERNELS: dict[Op, dict[str, tuple[str, ...]]] = {
    "decode": {
        "previous": ("decode_grouped", "merge_partials"),
        "int8-tc": ("decode_int8_tc", "merge_partials"),
        DIGITS: ("decode_digits_resident",),  # or one of its four with clusters
        **CEILING_KERNELS,
    },
    "prefill": {
        "previous": ("prefill_bf16",),
        "int8-tc": ("prefill_int8_tc",),
        WS: ("prefill_int8_ws_few", "prefill_int8_ws"),  # one of them; the first gives the name
        UNION: ("prefill_int8_union", "prefill_unite", "prefill_int8_ws_few", "prefill_int8_ws"),  # one of the last
        **CEILING_KERNELS,
    },
}
SPLIT_KERNEL = "decode_int8_tc"
CLUSTER_KERNEL = "decode_digits"
CLUSTER_KERNELS = tuple(f"{CLUSTER_KERNEL}{heads}{step}" for heads in ("", "_few") for step in ("", "_long"))
PORTABLE = ("dsa/decode_grouped", "dsa/merge")
"""Modules that need no tensor cores and no cp.async."""
TENSOR_CORE_SM = 80
PROGRAMMATIC_SM = 90


class CudaBackend:
    """Device 0, the kernels of one operator and one non-blocking stream.

    kernels   another folder of kernels than this installation's; stream  another backend's, to be measured with it
    pad_smem  bytes of shared memory added to each launch of the split kernel, so that fewer of its CTAs are resident
    clusters  size -> clusters of `int8-digits` of that size that the device holds at once; empty where it has none
    Raises BadInput if a block has no room for the padding.
    """

    def __init__(self, op: Op = "decode", kernels: Path | None = None, stream: Any = None, pad_smem: int = 0) -> None:
        self.op: Op = op
        self.device = cuda_device()
        self._pad_smem = pad_smem
        self.stream: Any = stream or load("cupy").cuda.Stream(non_blocking=True)
        self._root = kernels
        self._target = device_target(self.device.compute_capability or "")
        self._hashes = {
            kernel: "+".join(module_hash(module, root=kernels) for module in modules)
            for kernel, modules in MODULES[op].items()
        }
        self._failures: dict[str, CompileFailed] = {}
        self._kernels = self._load_kernels()
        tensor_core = self._kernels.get(SPLIT_KERNEL)
        resident = tensor_core.resident_ctas() if tensor_core is not None else 1  # it is refused, but by its name
        clustered = self._kernels.get(CLUSTER_KERNEL)
        self.clusters: Mapping[int, int] = NO_CLUSTERS
        if clustered is not None:
            self.clusters = {size: clustered.active_clusters(size) for size in CLUSTERS}
        self.geometry: SparseGeometry = CudaSparse(self.device.sm_count * resident, resident, self.clusters)
        counted = {str(size): count for size, count in self.clusters.items()} or None
        self.device = replace(self.device, resident_ctas=None if tensor_core is None else resident, clusters=counted)
        self._launcher = self.launcher(self.stream)

    def site(self) -> LaunchSite:
        """What the gates may know: the device's limits, and each attention kernel as it loaded or why it did not."""
        kernels: dict[str, LoadedKernel | str] = {}
        for kernel, modules in MODULES[self.op].items():
            function, *_ = DEVICE_KERNELS[self.op][kernel]
            failed = [str(self._failures[module]) for module in modules if module in self._failures]
            loaded = [self._kernels[name] for name in DEVICE_KERNELS[self.op][kernel] if name in self._kernels]
            if failed:
                kernels[function] = failed[0]
            elif loaded:
                kernels[function] = _as_one(loaded)
            if kernel == DIGITS:  # which of those in clusters a call takes depends on its geometry
                clustered = [self._kernels[name] for name in CLUSTER_KERNELS if name in self._kernels]
                if failed:
                    kernels[CLUSTER_KERNEL] = failed[0]
                elif clustered:
                    kernels[CLUSTER_KERNEL] = _as_one(clustered)
        return LaunchSite(self._target.number, smem_opt_in_bytes(), kernels)

    def launcher(self, stream: Any) -> SparseLauncher:
        """Launches of this backend's kernels on another stream; of the stream its `ptr` is used."""
        programmatic = self._target.number >= PROGRAMMATIC_SM
        return SparseLauncher(self._kernels, stream, programmatic=programmatic, sms=self.device.sm_count)

    def kernel_hash(self, kernel: str) -> str:
        """The hashes of the kernel's modules, joined."""
        return self._hashes[kernel]

    def device_kernels(self, variant: VariantPlan) -> tuple[str, ...]:
        if variant.kernel == DIGITS:
            return (self._launcher.digits_kernel(variant).name,)
        if variant.kernel in (WS, UNION):
            return tuple(kernel.name for kernel in self._launcher.prefill_kernels(variant))
        return DEVICE_KERNELS[self.op][variant.kernel]

    def bound(self, kernel: str, inputs: SparseInputs, rows: NDArray[np.int64], out: F64, look: Look = survey) -> F64:
        previous = fp32_bound if inputs.op == "decode" else bf16_bound
        bound = {"int8-tc": fp16_bound, DIGITS: digits_bound, WS: ws_bound, UNION: union_bound}.get(kernel, previous)
        return bound(inputs, rows, out, look)

    def rounds_keys(self, kernel: str) -> bool:
        return self.op == "prefill" and kernel == "previous"

    def load(self, inputs: SparseInputs, l2: str) -> "CudaSparseBuffers":
        copies = self._cold_copies(inputs) if l2 == "cold" else 1
        return CudaSparseBuffers(self, inputs, copies)

    def calls(
        self,
        variant: VariantPlan,
        inputs: SparseInputs,
        copies: list[DeviceInputs],
        out: Device,
        paths: Paths = AUTOMATIC_PATHS,
    ) -> list[list[KernelLaunch]]:
        """The launches of one call, over each copy of the inputs.

        Raises VariantRefused if the kernel cannot run here or does not take the shape.
        """
        self._require(variant.kernel)
        shape, build = inputs.shape, self._launcher
        if variant.kernel == "gather":
            return [[build.gather(shape, variant.split, copy)] for copy in copies]
        if variant.kernel == "copy":
            source = np.random.default_rng(0).bytes(max(inputs.gathered_bytes // 32, 1) * 16)
            host = np.frombuffer(source, np.uint8)
            return [[build.copy(upload(host), allocate(host.shape, np.uint8))] for _ in copies]
        if self.op == "prefill":
            shapes = build.union_shapes(variant, shape)
            unions = None if shapes is None else Unions.allocate(shapes)
            return [build.prefill(variant, shape, copy, out, paths, unions) for copy in copies]
        if variant.kernel == DIGITS:
            mailboxes = Mailboxes()
            if needed := mailbox_bytes(variant, shape):
                mailboxes = Mailboxes.of(empty_mailboxes(needed), variant, shape)
            return [build.digits(variant, shape, copy, mailboxes, out, paths) for copy in copies]
        workspace = Workspace.allocate(shape, variant.split)
        return [build.launches(variant, shape, copy, workspace, out, paths) for copy in copies]

    def path_names(self, kernel: str) -> list[str]:
        """The paths of a kernel in the order of their numbers, as its module publishes them; none if it has one way."""
        function, *_ = DEVICE_KERNELS[self.op][kernel]
        if (loaded := self._kernels.get(function)) is None:
            return []
        constants = loaded.facts.constants
        numbers = {name.removeprefix("path_"): at for name, at in constants.items() if name.startswith("path_")}
        return sorted(numbers, key=lambda name: numbers[name])

    def synchronize(self) -> None:
        """Raises CannotMeasure if a kernel failed: nothing on the device can be used after that."""
        wait_for(self.stream)

    def close(self) -> None:
        with suppress(CannotMeasure):
            self.synchronize()

    def _load_kernels(self) -> dict[str, Kernel]:
        """Every kernel that compiles for this device; one that does not is refused when it is asked for."""
        wanted = dict.fromkeys(chain.from_iterable(MODULES[self.op].values()))
        if self._target.number < TENSOR_CORE_SM:
            wanted = {name: None for name in wanted if name in PORTABLE}
        kernels: dict[str, Kernel] = {}
        for name, outcome in compile_each(list(wanted), self._target, root=self._root).items():
            if isinstance(outcome, CompileFailed):
                self._failures[name] = outcome
                continue
            module = load_module(outcome)
            kernels.update({name: Kernel(module, name, self._padding(name)) for name in outcome.kernels})
        return kernels

    def _padding(self, kernel: str) -> int:
        return self._pad_smem if kernel == SPLIT_KERNEL else 0

    def _require(self, kernel: str) -> None:
        for module in MODULES[self.op][kernel]:
            if module in self._failures:
                raise self._failures[module]
        if any(name not in self._kernels for name in DEVICE_KERNELS[self.op][kernel]):
            raise VariantRefused(
                f"{kernel} needs a device of SM {TENSOR_CORE_SM / 10:.1f} or newer and this is SM "
                f"{self.device.compute_capability}; `previous` remains"
            )

    def _cold_copies(self, inputs: SparseInputs) -> int:
        """Copies of the inputs whose gathered rows together are what a cold launch needs.

        Raises CannotMeasure if the cell gathers nothing, or the copies do not fit the device's free memory.
        """
        distinct = _distinct_bytes(inputs)
        if not distinct:
            raise CannotMeasure(f"--l2 cold: {inputs.shape.key} gathers nothing that could be cold; use --l2 warm")
        copies = ceil_div(bytes_between_reads(self.device), distinct)
        needed, free = copies * inputs.nbytes, free_bytes()
        if needed > free:
            raise CannotMeasure(
                f"--l2 cold: {inputs.shape.key} needs {copies} copies of its inputs, {needed / 2**30:.1f} GiB, and "
                f"{free / 2**30:.1f} GiB are free; use --l2 warm or a shorter --context"
            )
        return copies


class CudaSparseBuffers:
    """One cell on the device: its inputs, `copies` times for cold launches, and one output."""

    def __init__(self, backend: CudaBackend, inputs: SparseInputs, copies: int) -> None:
        self.copies = copies
        self._backend = backend
        self._inputs = inputs
        self._out = allocate(inputs.query.shape, BF16)
        self._device = [DeviceInputs.upload(inputs) for _ in range(copies)]

    def launcher(self, variant: VariantPlan) -> Launch:
        try:
            calls = self._backend.calls(variant, self._inputs, self._device, self._out)
        except OutOfDeviceMemory as error:
            raise VariantRefused(f"{variant.name}: {error}") from error
        return rotating(calls)

    def paths(self, variant: VariantPlan, forced: int = -1) -> dict[str, int] | None:
        """Launch once and count: {path: CTAs that ended on it}. None for a kernel with one path.

        forced  -1, or the number of the path that every CTA takes, whatever the inputs
        """
        names = self._backend.path_names(variant.kernel)
        if not names:
            return None
        counts = upload(np.zeros(len(names), np.uint32))
        (call,) = self._backend.calls(variant, self._inputs, self._device[:1], self._out, Paths(forced, counts))
        for launch in call:
            launch.enqueue()
        self._backend.synchronize()
        return dict(zip(names, map(int, counts.get()), strict=True))

    def fill_output(self, value: float) -> None:
        pattern = int(np.array(value, np.float32).astype(BF16).view(np.uint16))
        with self._backend.stream:
            self._out.fill(pattern)
        self._backend.synchronize()

    def output(self) -> NDArray[np.generic]:
        self._backend.synchronize()
        return download_bf16(self._out)

    def close(self) -> None:
        self._device.clear()


def _as_one(kernels: Sequence[Kernel]) -> LoadedKernel:
    """What the gates may know of kernels that a call takes together, or of which it takes one: the shared memory of the
    block, static and dynamic, that needs most."""
    smem_bytes = max(kernel.facts.static_smem_bytes + kernel.dynamic_smem_bytes for kernel in kernels)
    return LoadedKernel(kernels[0].ptx_target(), smem_bytes)


def _distinct_bytes(inputs: SparseInputs) -> int:
    """K and V bytes of the union of the gathered rows."""
    shape = inputs.shape
    valid = (inputs.selected >= 0) & (inputs.selected < shape.context)
    return np.unique(inputs.selected[valid]).size * shape.kv_heads * shape.head_size * 2
