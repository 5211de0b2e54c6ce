# SPDX-License-Identifier: MIT
"""The cells of `mix` and `gate`: data, checked variants, and copies of the same bytes beside them."""

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np

from dsa_bench.backends.base import ReadyCall
from dsa_bench.backends.hyper import HyperBackend, HyperBuffers
from dsa_bench.bench.check import POISON, compare
from dsa_bench.bench.variant import Checked, beyond_rms, not_launched
from dsa_bench.data.hyper import gate_inputs, mix_inputs
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.hyper import MixShape
from dsa_bench.model.hyper_inputs import GateInputs, MixInputs, Tensor
from dsa_bench.model.hyper_request import CopyVariant, HyperRequest, HyperShape, HyperVariant
from dsa_bench.model.record import Check
from dsa_bench.oracle import hyper as oracle
from dsa_bench.oracle.attention import F64, Reference
from dsa_bench.oracle.tolerance import U_BF16
from dsa_bench.sweep.memory import refuse_beyond
from dsa_bench.sweep.runs import Listener, Prepared, timed_call

RMS_LIMIT = 2 * U_BF16
"""Relative RMS error that no right kernel reaches: one rounding to BF16 is at most U_BF16. The worst-case bound of a
sum of 10240 products sees less: one lost step of 32 channels is an RMS error of some 5 %."""
DRAWN_SHARE = 3
"""Memory that a cell takes at most, in sizes of its tensors: drawing holds 16-bit numbers beside them, and outputs."""


Judge = Callable[[], tuple[Reference, F64]]


class HyperOperator:
    """A request for `mix` or `gate`, as runs.Operator. The request has decided what it left to the device."""

    def __init__(self, request: HyperRequest, backend: HyperBackend, l2: str) -> None:
        self._request = request
        self._backend = backend
        self._l2 = l2
        self.device = backend.device
        self.policy = request.policy
        self.seed = request.seed
        self.plan: Mapping[str, Any] = recorded_plan(request)
        self.cells: Sequence[str] = request.cell_keys

    def kernel_hashes(self) -> dict[str, str]:
        return {variant.name: self._backend.kernel_hash(variant) for variant in self._request.variants}

    def refuse_beyond_limits(self) -> None:
        for shape in self._request.shapes:
            refuse_beyond(shape.key, DRAWN_SHARE * _bytes(shape), "ask for fewer --rows")

    @contextmanager
    def load(self, number: int) -> "Generator[HyperCell]":
        shape = self._request.shapes[number]
        inputs = drawn(shape, self._request.seed)
        buffers = self._backend.load(inputs, self._l2)
        try:
            yield HyperCell(self._request.variants, self._backend, inputs, buffers)
        finally:
            buffers.close()


def recorded_plan(request: HyperRequest) -> dict[str, Any]:
    """The request as a record's header holds it."""
    variants = [variant.name for variant in request.variants]
    return {"op": request.op, **json.loads(json.dumps(asdict(request))), "variants": variants}


def drawn(shape: HyperShape, seed: int) -> MixInputs | GateInputs:
    """A cell's synthetic tensors."""
    return mix_inputs(shape, seed) if isinstance(shape, MixShape) else gate_inputs(shape, seed)


def _bytes(shape: HyperShape) -> int:
    if isinstance(shape, MixShape):
        return shape.mix_bytes + shape.silu_bytes
    return shape.gate_bytes + shape.down_bytes


class HyperCell:
    """One cell, as runs.LoadedCell."""

    def __init__(
        self,
        variants: Sequence[HyperVariant],
        backend: HyperBackend,
        inputs: MixInputs | GateInputs,
        buffers: HyperBuffers,
    ) -> None:
        self._variants = variants
        self._backend = backend
        self._inputs = inputs
        self._buffers = buffers
        self._checker = Checker(backend, inputs, buffers)
        self.data_hash = inputs.digest()

    def variants(self, listener: Listener, recorded: Sequence[str]) -> Iterator[Prepared]:
        for variant in self._variants:
            call: ReadyCall | None = None
            try:
                call = self._buffers.call(variant)
                outcome = self._checker.check(variant, call)
            except VariantRefused as refusal:
                outcome = not_launched(refusal)
            yield Prepared(self._line(variant, call, outcome), timed_call(variant.name, call, outcome))

    def _line(self, variant: HyperVariant, call: ReadyCall | None, outcome: Checked) -> Check:
        return Check(
            cell=self._inputs.shape.key,
            variant=variant.name,
            kernel=variant.name,
            kernel_hash=self._backend.kernel_hash(variant),
            requested=(),
            tiles_per_split=0,
            splits=0,
            ctas=0 if call is None else call.ctas,
            data_hash=self.data_hash,
            status=outcome.status,
            reason=outcome.reason,
            rms_error=outcome.rms_error,
            rounding_floor=self._checker.floors.get(variant.name),
        )


class Checker:
    """Compares a variant with FP64 over up to 64 rows, and with the bits of the first right variant over all of them.

    floors  variant -> the RMS error of FP64 results rounded to BF16, of those that were compared
    """

    def __init__(self, backend: HyperBackend, inputs: MixInputs | GateInputs, buffers: HyperBuffers) -> None:
        self._backend = backend
        self._inputs = inputs
        self._buffers = buffers
        self._rows = oracle.checked_rows(inputs.shape.rows)
        self._first: dict[tuple[str, ...], tuple[str, Mapping[str, Tensor]]] = {}
        self.floors: dict[str, float] = {}

    def check(self, variant: HyperVariant, call: ReadyCall) -> Checked:
        """One poisoned launch; for rotating copies one of the last as well. VariantRefused by the driver."""
        if isinstance(variant, CopyVariant):
            call.launch(0)
            self._backend.synchronize()
            return Checked("ok")
        found = self._launched(variant, call, 0)
        outcome = self._against_fp64(variant, found)
        if outcome.status != "ok":
            return outcome
        first_name, first = self._first.setdefault(tuple(found), (variant.name, found))
        said = differing(found, first, f"{first_name}, which gives the same bits")
        if said is None and call.copies > 1:
            said = differing(self._launched(variant, call, call.copies - 1), found, "copy 0 of the same tensors")
        return outcome if said is None else Checked("wrong_result", said, outcome.rms_error)

    def _launched(self, variant: HyperVariant, call: ReadyCall, copy: int) -> Mapping[str, Tensor]:
        self._buffers.poison(variant, copy, POISON)
        call.launch(copy)
        return self._buffers.outputs(variant, copy)

    def _against_fp64(self, variant: HyperVariant, found: Mapping[str, Tensor]) -> Checked:
        """Each output in turn; the last one's RMS error is the variant's."""
        outcome = self._ready_columns(found) or Checked("ok")
        if outcome.status != "ok":
            return outcome
        for name, out, judge in self._judged(found):
            reference, bound = judge()
            outcome = compare(out, reference.out, bound, reference.rows)
            self.floors[variant.name] = reference.rounding_floor
            if outcome.status == "ok" and (reason := beyond_rms(outcome.rms_error, RMS_LIMIT)):
                outcome = Checked("wrong_result", reason, outcome.rms_error)
            if outcome.status != "ok":
                return Checked(outcome.status, f"{name}: {outcome.reason}", outcome.rms_error)
        return outcome

    def _judged(self, found: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Judge]]:
        inputs, rows = self._inputs, self._rows
        if isinstance(inputs, MixInputs):
            if "mixed" in found:
                yield "mixed", found["mixed"], lambda: oracle.mixed(inputs, rows)
            if "activated" in found:
                yield "activated", found["activated"], lambda: oracle.activated(inputs, rows)
            return
        x, chain = found["x"], self._backend.down_chain(inputs)
        yield "x", x[:, : inputs.shape.gated], lambda: oracle.gated(inputs, rows)
        yield "out", found["out"], lambda: oracle.projected(x, inputs.weight, rows, chain)

    def _ready_columns(self, found: Mapping[str, Tensor]) -> Checked | None:
        """The columns of x that gate-mul must leave alone; None if it did."""
        if isinstance(self._inputs, MixInputs):
            return None
        left = found["x"][:, self._inputs.shape.gated :]
        said = differing(
            {"x's ready columns": left}, {"x's ready columns": self._inputs.ready}, "what was there before"
        )
        return None if said is None else Checked("wrong_result", said)


def differing(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> str | None:
    """The first element whose bits are others than expected, in words; None if all are the same."""
    for name, out in found.items():
        other = np.argwhere(bits(out) != bits(expected[name]))
        if len(other):
            at = tuple(int(index) for index in other[0])
            values = (float(tensor[at].astype(np.float64)) for tensor in (out, expected[name]))
            return "{}{} is {:.6g}, not the {:.6g} of {}; {} elements differ".format(
                name, list(at), *values, what, len(other)
            )
    return None


def bits(tensor: Tensor) -> Tensor:
    """A BF16 tensor's bits."""
    return np.ascontiguousarray(tensor).view(np.uint16)
