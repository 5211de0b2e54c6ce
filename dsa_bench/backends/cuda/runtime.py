# SPDX-License-Identifier: MIT
"""Calls on other people's arrays and streams: the kernels of both operators, on raw pointers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dsa_bench.backends.base import Enqueue
from dsa_bench.backends.cuda.backend import CudaBackend
from dsa_bench.backends.cuda.launch import KernelLaunch
from dsa_bench.backends.cuda.memory import Device, allocate
from dsa_bench.backends.cuda.sparse import DeviceInputs, SparseLauncher
from dsa_bench.backends.cuda.workspaces import Mailboxes, Unions, Workspace, empty_mailboxes, mailbox_bytes
from dsa_bench.jit.optional import load
from dsa_bench.model.call import LaunchSite, SparseCall, TensorView
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import DIGITS
from dsa_bench.model.shape import Op, SparseShape


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address where a launch expects CuPy's memory pointer or stream."""

    ptr: int


@dataclass(frozen=True, slots=True, eq=False)
class Foreign:
    """Memory of another library where a launch expects a CuPy array; `owner` keeps it alive as long as the launch."""

    data: Pointer
    owner: Any

    @classmethod
    def of(cls, view: TensorView, offset: int = 0) -> "Foreign":
        return cls(Pointer(view.address + offset), view.owner)


class CudaRuntime:
    """Device 0. Made by a dispatcher's first call; the kernels of both operators are then compiled, or taken from the
    cache."""

    def __init__(self) -> None:
        decode = CudaBackend("decode")
        self._backends: dict[Op, CudaBackend] = {
            "decode": decode,
            "prefill": CudaBackend("prefill", stream=decode.stream),
        }
        self._mailboxes: dict[int, Device] = {}
        self.device = decode.device
        self.geometry = decode.geometry

    def site(self) -> LaunchSite:
        return self._site

    @cached_property
    def _site(self) -> LaunchSite:
        sites = [backend.site() for backend in self._backends.values()]
        kernels = {name: kernel for site in sites for name, kernel in site.kernels.items()}
        return LaunchSite(sites[0].sm, sites[0].smem_opt_in_bytes, kernels)

    def kernel_hash(self, kernel: str) -> str:
        return self._backends["decode"].kernel_hash(kernel)

    def allocate(self, nbytes: int) -> TensorView:
        memory = allocate((nbytes,), np.uint8)
        return TensorView("workspace", (nbytes,), "uint8", int(memory.data.ptr), nbytes, "cuda", 0, memory)

    def launches(
        self, variant: VariantPlan, shape: SparseShape, call: SparseCall, workspace: TensorView | None, stream: int
    ) -> list[Enqueue]:
        launcher = self._backends[shape.op].launcher(Pointer(stream))
        mailboxes = self._mailboxes_of(variant, shape, stream)
        return [launch.enqueue for launch in sparse_launches(launcher, variant, shape, call, workspace, mailboxes)]

    def _mailboxes_of(self, variant: VariantPlan, shape: SparseShape, stream: int) -> Mailboxes:
        """Of the stream, grown if they are too few; calls that were prepared before keep those they have. Not in a
        caller's workspace, which other kernels write to between two launches."""
        needed = mailbox_bytes(variant, shape) if variant.kernel == DIGITS else 0
        if not needed:
            return Mailboxes()
        if stream not in self._mailboxes or self._mailboxes[stream].nbytes < needed:
            self._mailboxes[stream] = empty_mailboxes(needed)
        return Mailboxes.of(self._mailboxes[stream], variant, shape)

    def union_bytes(self, variant: VariantPlan, shape: SparseShape) -> int:
        shapes = self._backends["prefill"].launcher(Pointer(0)).union_shapes(variant, shape)
        return 0 if shapes is None else shapes.nbytes

    def zero(self, out: TensorView, stream: int) -> list[Enqueue]:
        driver = load("cuda.bindings.driver")

        def clear() -> None:
            (status,) = driver.cuMemsetD8Async(out.address, 0, out.nbytes, stream)
            if status != driver.CUresult.CUDA_SUCCESS:
                raise VariantRefused(f"out: the driver refused to clear it ({status.name})")

        return [clear]

    def close(self) -> None:
        self._mailboxes.clear()
        for backend in self._backends.values():
            backend.close()


def sparse_launches(
    launcher: SparseLauncher,
    variant: VariantPlan,
    shape: SparseShape,
    call: SparseCall,
    workspace: TensorView | None,
    mailboxes: Mailboxes,
) -> list[KernelLaunch]:
    """The launches of one call over a caller's memory."""
    inputs = DeviceInputs(
        query=Foreign.of(call.query),
        key=Foreign.of(call.key),
        value=Foreign.of(call.value),
        key_scale=Foreign.of(call.key_scale),
        value_scale=Foreign.of(call.value_scale),
        selected=Foreign.of(call.selected),
        scale=call.scale,
    )
    out = Foreign.of(call.out)
    if shape.op == "prefill":
        return launcher.prefill(variant, shape, inputs, out, unions=_unions(launcher, variant, shape, workspace))
    if variant.kernel == DIGITS:
        return launcher.digits(variant, shape, inputs, mailboxes, out)
    assert workspace is not None  # the others leave partials
    return launcher.launches(variant, shape, inputs, _partials(workspace, shape, variant.split), out)


def _unions(
    launcher: SparseLauncher, variant: VariantPlan, shape: SparseShape, workspace: TensorView | None
) -> Unions | None:
    if (shapes := launcher.union_shapes(variant, shape)) is None:
        return None
    assert workspace is not None
    return Unions(Foreign.of(workspace), Foreign.of(workspace, shapes.list_bytes))


def _partials(workspace: TensorView, shape: SparseShape, plan: SplitPlan) -> Workspace:
    """Every split's partial in one piece of memory, the vectors first, so that they are aligned as it is."""
    sums = shape.rows * shape.query_heads * plan.splits * 4
    vectors = sums * shape.head_size
    return Workspace(*(Foreign.of(workspace, offset) for offset in (0, vectors, vectors + sums)))
