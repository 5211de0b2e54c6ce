# SPDX-License-Identifier: MIT
"""One dense call on the device, checked against FP64; and every kernel at its edges for compute-sanitizer."""

import itertools
from dataclasses import fields
from typing import Any

import ml_dtypes
import numpy as np

from dsa_bench.backends.cuda.dense import (
    DenseDeviceInputs,
    DenseLauncher,
    DenseWorkspace,
    allocate_output,
    download,
)
from dsa_bench.backends.cuda.memory import allocate
from dsa_bench.data.dense import dense_inputs
from dsa_bench.jit.target import device_target
from dsa_bench.model.dense import DenseDtype, DenseKernel, DensePlan, DenseShape
from dsa_bench.model.dense_inputs import DTYPES, DenseInputs
from dsa_bench.oracle.dense import DenseReference, dense_reference
from dsa_bench.splits.dense import live


def poison_of(dtype: DenseDtype) -> Any:
    """The type's largest finite number, which no answer over normal values is."""
    return ml_dtypes.finfo(DTYPES[dtype]).max


class DenseRun:
    """A call whose buffers stay, so that it can be repeated, captured and given another length."""

    def __init__(
        self,
        backend: Any,
        launcher: DenseLauncher,
        kernel: DenseKernel,
        plan: DensePlan,
        inputs: DenseInputs,
        *,
        device: DenseDeviceInputs | None = None,
        shifted: bool = False,
    ) -> None:
        self._backend = backend
        self._shape = inputs.shape
        self._name = f"{kernel}, {plan.name}, {inputs.shape.key}"
        self._device = device or DenseDeviceInputs.upload(inputs)
        if shifted:
            self._device = DenseDeviceInputs(
                *(one_element_in(getattr(self._device, field.name)) for field in fields(DenseDeviceInputs))
            )
        self._out = allocate_output(self._shape)
        self.workspace = DenseWorkspace.allocate(kernel, self._shape, plan)
        self._launches = launcher.launches(kernel, plan, inputs, self._device, self.workspace, self._out)

    def enqueue(self) -> None:
        for launch in self._launches:
            launch.enqueue()

    def set_length(self, length: int) -> None:
        with self._backend.stream:
            self._device.length.fill(length)
        self._backend.synchronize()

    def poison(self) -> None:
        value = poison_of(self._shape.dtype)
        with self._backend.stream:
            self._out.fill(int(np.array(value).view(np.uint16)) if self._shape.dtype == "bf16" else value)
        self._backend.synchronize()

    def output(self) -> np.ndarray:
        self._backend.synchronize()
        return download(self._out, self._shape)

    def counters_are_zero(self) -> bool:
        """As `fast` with several splits leaves them."""
        self._backend.synchronize()
        return not self.workspace.arrived.get().any()

    def check(self, answer: DenseReference) -> np.ndarray:
        """Run once over a poisoned output, which must be gone; fails beyond the derived bound."""
        self.poison()
        self.enqueue()
        out = self.output()
        assert not (out == poison_of(self._shape.dtype)).any(), f"{self._name}: elements were never written"
        excess = np.abs(out[answer.rows].astype(np.float64) - answer.out) / answer.bound
        worst = float(np.nan_to_num(excess, nan=np.inf).max())
        assert worst <= 1, (
            f"{self._name}: {worst:.3g} of the bound at {np.unravel_index(excess.argmax(), excess.shape)}"
        )
        return out


def one_element_in(device: Any) -> Any:
    """A copy that starts one element behind an aligned address; a null pointer stays one."""
    if not hasattr(device, "get"):
        return device
    view = allocate((device.size + 1,), device.dtype)[1:].reshape(device.shape)
    view.set(device.get())
    return view


def launch_dense(backend: Any) -> int:
    """Every dense kernel at each of its edges, on exact allocations; the number of calls whose result was checked."""
    launcher = DenseLauncher(device_target(backend.device.compute_capability), backend.stream)
    checked = 0
    sizes = ((192, 128), (8, 8), (256, 256), (7, 3))
    for dtype, (head_size, value_head_size), length in itertools.product(DTYPES, sizes, (0, 1, 129, 300)):
        shape = DenseShape(300, length, 4, 2, head_size, value_head_size, batch=2, query_len=2, dtype=dtype)
        plain = dense_inputs(shape, seed=length)
        mask = np.random.default_rng(length).normal(size=(2, 2, 300)).astype(np.float32)
        masked = DenseInputs(
            plain.query, plain.key, plain.value, length, softcap=2.0, causal=True, mask=mask,
            pad_limit=np.array([200, -1], np.int32),
        )  # fmt: skip
        for inputs in (plain, masked):
            answer = dense_reference(inputs)
            kernels: tuple[DenseKernel, ...] = ("previous", "fast") if head_size != 7 else ("previous",)
            for kernel, plan in itertools.product(kernels, (DensePlan(1, 300), DensePlan(3, 100), live(300, 16))):
                DenseRun(backend, launcher, kernel, plan, inputs).check(answer)
                checked += 1
    assert checked == 3 * 4 * 2 * 3 * (3 * 2 + 1)
    return checked
