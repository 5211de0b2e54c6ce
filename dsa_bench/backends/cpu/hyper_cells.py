# SPDX-License-Identifier: MIT
"""Cells of the hyper-connection operators on the CPU: slices of rows on a thread pool, one BLAS thread each."""

import functools
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from dsa_bench.backends.base import ReadyCall
from dsa_bench.backends.cpu import hyper
from dsa_bench.backends.cpu.backend import cpu_device
from dsa_bench.backends.hyper import HyperBuffers
from dsa_bench.data.hyper import sampled_patterns
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.hyper import HyperOp, LaunchMode
from dsa_bench.model.hyper_inputs import GateInputs, MixInputs, Tensor
from dsa_bench.model.hyper_request import CopyVariant, GateVariant, HyperVariant, MixVariant
from dsa_bench.model.inputs import BF16
from dsa_bench.model.shape import ceil_div

SLICE_ROWS = 256
"""Most rows of a task: its FP32 copies then stay within some ten megabytes each."""


@functools.cache
def _hash(variant: str) -> str:
    source = Path(hyper.__file__).read_bytes() + Path(__file__).read_bytes()
    return hashlib.sha256(f"{variant}\0{np.__version__}\0".encode() + source).hexdigest()[:16]


class CpuHyper:
    """`mix` or `gate` in NumPy. Every launch mode is the same sequence of calls."""

    def __init__(self, op: HyperOp) -> None:
        self.device = cpu_device()
        self.stream = None
        self.note = "on the CPU every launch mode is the same two calls" if op == "gate" else None
        self._blas = threadpool_limits(limits=1)
        self._pool = ThreadPoolExecutor(self.device.sm_count, thread_name_prefix="dsa-bench")

    def kernel_hash(self, variant: HyperVariant) -> str:
        return _hash(variant.name)

    def down_chain(self, inputs: GateInputs) -> int:
        return inputs.shape.width

    def load(self, inputs: MixInputs | GateInputs, l2: str) -> HyperBuffers:
        return CpuMix(inputs, self) if isinstance(inputs, MixInputs) else CpuGate(inputs, self)

    def sigmoid_differences(self) -> tuple[int, int, float | None]:
        """Over a dense sample: all patterns would take minutes."""
        return hyper.sigmoid_differences(sampled_patterns())

    def chain(self, sets: tuple[GateInputs, GateInputs], mode: LaunchMode, launches: int) -> Tensor:
        buffers = [CpuGate(inputs, self) for inputs in sets]
        buffers[1].share_x(buffers[0])
        variant = GateVariant(mode)
        calls = [one.call(variant).launch for one in buffers]
        outs: list[Tensor] = []
        for launch in range(launches):
            calls[launch % 2](0)
            outs.append(buffers[launch % 2].outputs(variant, 0)["out"])
        return np.stack(outs)

    def slices(self, rows: int) -> list[slice]:
        """Of equal length, one for each worker or more."""
        step = ceil_div(rows, min(max(self.device.sm_count, ceil_div(rows, SLICE_ROWS)), rows))
        return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]

    def run(self, task: Callable[[slice], None], rows: int) -> None:
        """Run a task over all rows."""
        for _ in self._pool.map(task, self.slices(rows)):
            pass

    def synchronize(self) -> None:
        """A launch returns when its work is done."""

    def close(self) -> None:
        self._pool.shutdown()
        self._blas.restore_original_limits()


class CpuMix:
    """A cell of `mix`; see HyperBuffers."""

    def __init__(self, inputs: MixInputs, backend: CpuHyper) -> None:
        self._inputs = inputs
        self._backend = backend
        shape = inputs.shape
        self._mixed = np.zeros((shape.rows, shape.hidden), BF16)
        self._activated = np.zeros((shape.rows, shape.rank), BF16)

    def call(self, variant: HyperVariant) -> ReadyCall:
        if not isinstance(variant, MixVariant):
            raise VariantRefused(f"{variant.name}: the CPU backend has no such kernel")
        function, out = (
            (hyper.pre_mix, self._mixed) if variant.kernel == "pre-mix" else (hyper.scaled_silu, self._activated)
        )

        def some_rows(rows: slice) -> None:
            function(self._inputs, variant.form, rows, out)

        rows = self._inputs.shape.rows
        return ReadyCall(lambda _: self._backend.run(some_rows, rows), len(self._backend.slices(rows)))

    def poison(self, variant: HyperVariant, copy: int, value: float) -> None:
        for out in self._written(variant).values():
            out[:] = value

    def outputs(self, variant: HyperVariant, copy: int) -> Mapping[str, Tensor]:
        return {name: out.copy() for name, out in self._written(variant).items()}

    def close(self) -> None:
        pass

    def _written(self, variant: HyperVariant) -> dict[str, Tensor]:
        assert isinstance(variant, MixVariant | CopyVariant)
        return {"mixed": self._mixed} if variant.kernel == "pre-mix" else {"activated": self._activated}


class CpuGate:
    """A cell of `gate`; see HyperBuffers."""

    def __init__(self, inputs: GateInputs, backend: CpuHyper) -> None:
        self._inputs = inputs
        self._backend = backend
        shape = inputs.shape
        self._weight = inputs.weight.astype(np.float32)
        self._x = np.zeros((shape.rows, shape.width), BF16)
        self._x[:, shape.gated :] = inputs.ready
        self._out = np.zeros((shape.rows, shape.rank), BF16)

    def share_x(self, other: "CpuGate") -> None:
        """Write and read the other's x from now on."""
        self._x = other._x

    def call(self, variant: HyperVariant) -> ReadyCall:
        rows = self._inputs.shape.rows

        def launch(_: int) -> None:
            self._backend.run(lambda part: hyper.gate_mul(self._inputs, part, self._x), rows)
            self._backend.run(lambda part: hyper.hyper_down(self._weight, self._x, part, self._out), rows)

        return ReadyCall(launch, 2 * len(self._backend.slices(rows)))

    def poison(self, variant: HyperVariant, copy: int, value: float) -> None:
        self._x[:, : self._inputs.shape.gated] = value
        self._out[:] = value

    def outputs(self, variant: HyperVariant, copy: int) -> Mapping[str, Tensor]:
        return {"x": self._x.copy(), "out": self._out.copy()}

    def close(self) -> None:
        pass
