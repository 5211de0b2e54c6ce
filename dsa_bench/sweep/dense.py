# SPDX-License-Identifier: MIT
"""The cells of `dense`: data, checked variants, and a copy of the same bytes beside them."""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.base import ReadyCall
from dsa_bench.backends.dense import DenseBackend, DenseCellBuffers
from dsa_bench.bench.check import compare_rows
from dsa_bench.bench.variant import Checked, beyond_rms, not_launched
from dsa_bench.data.dense import dense_inputs
from dsa_bench.dispatch.facts import DENSE_KERNEL
from dsa_bench.model.dense import LARGEST, DensePlan, DenseShape
from dsa_bench.model.dense_inputs import DenseInputs
from dsa_bench.model.dense_request import COPY, DenseRequest, DenseVariant
from dsa_bench.model.errors import CompileFailed, VariantRefused
from dsa_bench.model.record import Check
from dsa_bench.oracle.dense import DenseReference, dense_reference, rms_limit, rounding_floor
from dsa_bench.splits.dense import dense_variants
from dsa_bench.sweep.memory import refuse_beyond
from dsa_bench.sweep.runs import Listener, Prepared, timed_call

DRAWN_SHARE = 3
"""Memory that a cell takes at most, in sizes of its cache: drawing holds 16-bit numbers and one head's more beside."""

POISON = LARGEST
"""What an output holds before a launch: no mean of normal values is so large."""


class DenseOperator:
    """A request for `dense`, as runs.Operator. The request has decided what it left to the device."""

    def __init__(self, request: DenseRequest, backend: DenseBackend, l2: str) -> None:
        self._request = request
        self._backend = backend
        self._l2 = l2
        self._drawn: DenseInputs | None = None
        self.device = replace(backend.device, resident_ctas=_resident(request, backend))
        self.policy = request.policy
        self.seed = request.seed
        self.plan: Mapping[str, Any] = recorded_plan(request)
        self.cells: Sequence[str] = request.cell_keys

    def kernel_hashes(self) -> dict[str, str]:
        """Of the first shape that a kernel takes; empty where it takes none. Shapes of a request give the same."""
        measured = (*self._request.kernels, *([COPY] if self._request.ceiling else []))
        return {
            kernel: next(filter(None, (hash_of(self._backend, kernel, shape) for shape in self._request.shapes)), "")
            for kernel in measured
        }

    def refuse_beyond_limits(self) -> None:
        for shape in self._request.shapes:
            refuse_beyond(shape.key, DRAWN_SHARE * shape.cache_bytes, "ask for less --capacity, --batch or --kv-heads")

    @contextmanager
    def load(self, number: int) -> "Generator[DenseCell]":
        shape = self._request.shapes[number]
        inputs = self._inputs(shape)
        tuned = self._request.tuned_value(shape)
        variants = dense_variants(self._request.kernels, self._request.rules, shape, tuned)
        buffers = self._backend.load(inputs, self._l2)
        try:
            yield DenseCell(variants, self._request.ceiling is True, self._backend, inputs, buffers)
        finally:
            buffers.close()

    def _inputs(self, shape: DenseShape) -> DenseInputs:
        """Drawn, or the last cell's with another length: such cells share every byte."""
        last = self._drawn
        if last is None or replace(last.shape, length=0) != replace(shape, length=0):
            last = None  # first, so that two caches are never held at once
            self._drawn = last = dense_inputs(shape, self._request.seed, self._request.query_std)
        return replace(last, length=shape.length)


def recorded_plan(request: DenseRequest) -> dict[str, Any]:
    """The request as a record's header holds it."""
    return {"op": request.op, **json.loads(json.dumps(asdict(request)))}


def hash_of(backend: DenseBackend, kernel: str, shape: DenseShape) -> str:
    """A kernel's hash; empty for one that does not take the shape."""
    try:
        return backend.kernel_hash(kernel, shape)
    except VariantRefused:
        return ""


def _resident(request: DenseRequest, backend: DenseBackend) -> int | None:
    """CTAs of the tuned kernel's split launch on one SM, the same for every shape of a request of one type; None where
    types differ, or the kernel is not measured or cannot run."""
    if DENSE_KERNEL not in request.kernels or len({shape.dtype for shape in request.shapes}) > 1:
        return None
    try:
        return backend.resident_ctas(DENSE_KERNEL, request.shapes[0])
    except (VariantRefused, CompileFailed):
        return None


class DenseCell:
    """One cell, as runs.LoadedCell. `ceiling` adds a copy of the live bytes."""

    def __init__(
        self,
        variants: Sequence[DenseVariant],
        ceiling: bool,
        backend: DenseBackend,
        inputs: DenseInputs,
        buffers: DenseCellBuffers,
    ) -> None:
        self._variants = variants
        self._ceiling = ceiling
        self._backend = backend
        self._inputs = inputs
        self._buffers = buffers
        self.data_hash = inputs.digest()

    def variants(self, listener: Listener, recorded: Sequence[str]) -> Iterator[Prepared]:
        checker = DenseChecker(self._inputs, self._buffers)
        for variant in self._variants:
            call: ReadyCall | None = None
            try:
                call = self._buffers.call(variant)
                outcome = checker.check(variant, call)
            except (CompileFailed, VariantRefused) as error:
                outcome = not_launched(error)
            line = self._line(variant.name, variant.kernel, variant, call, outcome, checker.floor)
            yield Prepared(line, timed_call(variant.name, call, outcome))
        if self._ceiling:
            yield self._copy()

    def _copy(self) -> Prepared:
        call: ReadyCall | None = None
        outcome = Checked("ok")
        try:
            call = self._buffers.copy_call()
            call.launch(0)
            self._backend.synchronize()
        except (CompileFailed, VariantRefused) as error:
            outcome = not_launched(error)
        return Prepared(self._line(COPY, COPY, None, call, outcome, None), timed_call(COPY, call, outcome))

    def _line(
        self,
        name: str,
        kernel: str,
        variant: DenseVariant | None,
        call: ReadyCall | None,
        outcome: Checked,
        floor: float | None,
    ) -> Check:
        shape = self._inputs.shape
        facts = {} if variant is None else plan_facts(variant.plan, shape)
        return Check(
            cell=shape.key,
            variant=name,
            kernel=kernel,
            kernel_hash=hash_of(self._backend, kernel, shape),
            requested=() if variant is None else variant.requested,
            tiles_per_split=0,
            splits=0 if variant is None else variant.plan.splits,
            ctas=0 if call is None else call.ctas,
            data_hash=self.data_hash,
            status=outcome.status,
            reason=outcome.reason,
            rms_error=outcome.rms_error,
            rounding_floor=floor,
            rules=() if variant is None else variant.rules,
            gathered_bytes=shape.live_bytes,
            facts=facts if call is None else {**facts, **call.facts},
        )


def plan_facts(plan: DensePlan, shape: DenseShape) -> dict[str, float]:
    """What a plan comes to at a cell's length: keys per split, and splits that hold any."""
    return {"chunk": plan.keys_per_split(shape.length), "alive": plan.alive(shape.length)}


class DenseChecker:
    """Compares a variant with FP64 over up to 64 rows, and in the others with the first right one; and bits among a
    kernel's launches whose live keys are in one split, of which the monolithic one always is.

    floor  RMS error of the FP64 result rounded to the output's type      rows  how many are compared
    """

    def __init__(self, inputs: DenseInputs, buffers: DenseCellBuffers) -> None:
        self._inputs = inputs
        self._buffers = buffers
        self._oracle: DenseReference = dense_reference(inputs)
        self._limit = rms_limit(inputs, self._oracle)
        self._poison: float = POISON[inputs.shape.dtype]
        self._undivided: dict[str, tuple[str, NDArray[np.generic]]] = {}
        self._right: tuple[str, NDArray[np.generic]] | None = None
        self.rows = len(self._oracle.rows)
        self.floor = rounding_floor(self._oracle, inputs.shape.dtype)

    def check(self, variant: DenseVariant, call: ReadyCall) -> Checked:
        """One poisoned launch; for rotating copies one of the last as well. VariantRefused by the driver."""
        out = self._launched(variant, call, 0)
        unwritten = np.argwhere(out == np.array(self._poison).astype(out.dtype))
        if len(unwritten):
            place = [int(unwritten[0, axis]) for axis in range(unwritten.shape[1])]
            return Checked("wrong_result", f"{len(unwritten)} output elements were never written, first {place}")
        outcome = compare_rows(out, self._oracle.out, self._oracle.bound, self._oracle.rows)
        if outcome.status != "ok":
            return outcome
        said = beyond_rms(outcome.rms_error, self._limit) or self._other_bits(variant, out) or self._other_rows(out)
        if said is None and call.copies > 1:
            last = self._launched(variant, call, call.copies - 1)
            said = None if _same_bits(last, out) else "the last copy of the inputs gives another output than the first"
        if said is not None:
            return Checked("wrong_result", said, outcome.rms_error)
        self._right = self._right or (variant.name, out)
        return outcome

    def _launched(self, variant: DenseVariant, call: ReadyCall, copy: int) -> NDArray[np.generic]:
        self._buffers.poison(variant, self._poison)
        call.launch(copy)
        return self._buffers.output(variant)

    def _other_rows(self, out: NDArray[np.generic]) -> str | None:
        """Whether a row, of those that are not compared with FP64, differs from the first right variant's by more than
        both may be off, in words. What they may be off by is taken from the rows that are compared."""
        if self._right is None or self.rows == len(out):
            return None
        name, right = self._right
        with np.errstate(invalid="ignore"):  # infinite in both
            apart = np.abs(out.astype(np.float64) - right.astype(np.float64))
        beyond = np.argwhere(~(apart <= 2 * self._oracle.bound.max()))
        if not len(beyond):
            return None
        return f"{len(beyond)} output elements are others than those of {name}, first {beyond[0].tolist()}"

    def _other_bits(self, variant: DenseVariant, out: NDArray[np.generic]) -> str | None:
        """Whether a launch with all live keys in one split misses the bits of its kernel's first such one, in words."""
        if variant.plan.alive(self._inputs.length) > 1:
            return None
        first, bits = self._undivided.setdefault(variant.kernel, (variant.name, out))
        if _same_bits(out, bits):
            return None
        return f"all live keys are in one split, and the bits are others than those of {first}"


def _same_bits(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    return np.array_equal(one.view(np.uint8), other.view(np.uint8))
