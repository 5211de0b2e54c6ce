# SPDX-License-Identifier: MIT
"""The cells of sparse attention, decode and prefill: data, checked variants, and dense attention beside them."""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dsa_bench.backends.base import Backend, Dense, SparseBuffers, TellsPaths
from dsa_bench.bench.check import refuse_reachable_poison
from dsa_bench.bench.rounds import Clocks
from dsa_bench.bench.timers import Timer, known_tick_us
from dsa_bench.bench.variant import Checked, Variant, not_launched
from dsa_bench.data.files import cell_inputs
from dsa_bench.model.errors import CompileFailed, VariantRefused
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.record import Check
from dsa_bench.model.request import DENSE, SparseRequest
from dsa_bench.model.run import Run
from dsa_bench.oracle.attention import reference
from dsa_bench.oracle.tolerance import largest_output
from dsa_bench.sweep.check import Checker
from dsa_bench.sweep.cpu_time import refuse_long_launches
from dsa_bench.sweep.dense_line import dense_line
from dsa_bench.sweep.header import run_header
from dsa_bench.sweep.identity import identity
from dsa_bench.sweep.memory import refuse_beyond_memory
from dsa_bench.sweep.runs import Instruments, Listener, Measured, Prepared, run_operator
from dsa_bench.sweep.variants import Place, cell_variants

DENSE_PLAN = VariantPlan(DENSE, (), SplitPlan(0, 0), 0)
"""Dense attention has no geometry of ours."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A backend with the timer, the L2 mode and the clocks that it is measured with.

    tell_paths  whether the listener is told how each variant's CTAs computed, for a kernel that can tell
    dense       what measures dense attention in the same rounds, where that is asked for
    """

    backend: Backend
    timer: Timer
    l2: str
    clocks: Clocks | None = None
    tell_paths: bool = False
    dense: Dense | None = None

    def kernel_hash(self, kernel: str) -> str:
        """The backend's hash of a kernel; for dense attention the library's version."""
        return self.dense.version if kernel == DENSE and self.dense else self.backend.kernel_hash(kernel)


def run_cells(
    request: SparseRequest,
    bench: Bench,
    listener: Listener,
    *,
    argv: Sequence[str] = (),
    record: Path | None = None,
    resume: bool = False,
) -> Measured:
    """Measure every cell of the request. Raises as run_operator does."""
    tick_us = known_tick_us(bench.timer.name, bench.backend.device.name)
    instruments = Instruments(bench.timer, bench.l2, bench.clocks, tick_us)
    operator = SparseOperator(request, bench)
    return run_operator(operator, instruments, listener, argv=argv, record=record, resume=resume)


def is_run_of(run: Run, request: SparseRequest, backend: Backend) -> bool:
    """Whether a recorded run is one of this request, on this device with these kernels; dense attention aside, which
    may depend on what is installed."""
    hashes = {kernel: backend.kernel_hash(kernel) for kernel in request.measured_kernels}
    header = run_header(recorded_plan(request), request.data.seed, backend.device, hashes, ())
    was, now = identity(run.header), identity(header)
    for one in (was, now):
        one["plan"] = {name: value for name, value in one["plan"].items() if name != DENSE}
        one["kernel_hashes"] = {name: value for name, value in one["kernel_hashes"].items() if name != DENSE}
    return was == now


def recorded_plan(request: SparseRequest) -> dict[str, Any]:
    """The request as a record's header holds it."""
    return {"op": request.op, **json.loads(json.dumps(asdict(request)))}


class SparseOperator:
    """A request for decode or prefill, as runs.Operator."""

    def __init__(self, request: SparseRequest, bench: Bench) -> None:
        self._request = request
        self._bench = bench
        self._place = Place.of(request, bench.backend)  # once: a tuned map that changes meanwhile is not read again
        self.device = bench.backend.device
        self.policy = request.policy
        self.seed = request.data.seed
        self.plan: Mapping[str, Any] = recorded_plan(request)
        self.cells: Sequence[str] = request.cell_keys

    def kernel_hashes(self) -> dict[str, str]:
        kernels = [*self._request.measured_kernels, *([DENSE] if self._bench.dense else [])]
        return {kernel: self._bench.kernel_hash(kernel) for kernel in kernels}

    def refuse_beyond_limits(self) -> None:
        for shape in self._request.shapes if self._request.data.source is None else ():
            refuse_beyond_memory(shape)
        for shape in self._request.shapes if self.device.backend == "cpu" else ():
            refuse_long_launches(shape, self.device.sm_count)

    @contextmanager
    def load(self, number: int) -> "Generator[_SparseCell]":
        cell = self._request.cells[number]
        refuse_beyond_memory(cell.shape)
        inputs = cell_inputs(cell.shape, cell.data)
        refuse_reachable_poison(float(largest_output(inputs).max()))
        with ExitStack() as held:
            buffers = self._bench.backend.load(inputs, self._bench.l2)
            held.callback(buffers.close)
            plans = cell_variants(self._request, self._place, cell.shape)
            yield _SparseCell(plans, self._bench, cell.key, inputs, buffers, held)


class _SparseCell:
    """One cell, as runs.LoadedCell. `held` is what is let go of when the cell is done."""

    def __init__(
        self,
        plans: Sequence[VariantPlan],
        bench: Bench,
        key: str,
        inputs: SparseInputs,
        buffers: SparseBuffers,
        held: ExitStack,
    ) -> None:
        self._plans = plans
        self._bench = bench
        self._key = key
        self._inputs = inputs
        self._buffers = buffers
        self._held = held
        self.data_hash = inputs.digest()

    def variants(self, listener: Listener, recorded: Sequence[str]) -> Iterator[Prepared]:
        oracle = reference(self._inputs)
        checker = Checker(self._bench.backend, self._inputs, self._buffers, oracle)
        for plan in self._plans:
            right: Variant | None = None
            try:
                variant = self._variant(plan, checker)
                outcome = variant.check()
            except (CompileFailed, VariantRefused) as error:
                outcome = not_launched(error)
            else:
                if outcome.status == "ok":
                    right = variant
                if self._bench.tell_paths and isinstance(self._buffers, TellsPaths):
                    listener.took_paths(plan.name, self._buffers.paths(plan) or {})
            line = self._check_line(plan.name, plan, outcome, oracle.rounding_floor, self._inputs.gathered_bytes)
            yield Prepared(line, right)
        if self._bench.dense is not None:
            yield self._dense(self._bench.dense, listener, recorded)

    def _dense(self, dense: Dense, listener: Listener, recorded: Sequence[str]) -> Prepared:
        line = self._held.enter_context(dense_line(self._inputs, dense, self._bench.timer, recorded))
        for note in line.notes:
            listener.said(note)
        check = self._check_line(line.name, DENSE_PLAN, line.outcome, line.floor, None)
        if line.launch is None:
            return Prepared(check, None)
        return Prepared(check, Variant(line.name, line.launch, lambda: line.outcome, kernels=None))

    def _variant(self, plan: VariantPlan, checker: Checker) -> Variant:
        launch = self._buffers.launcher(plan)
        kernels = self._bench.backend.device_kernels(plan)
        return Variant(plan.name, launch, partial(checker.check, plan, launch), kernels, self._buffers.copies)

    def _check_line(
        self, variant: str, plan: VariantPlan, outcome: Checked, floor: float, gathered_bytes: int | None
    ) -> Check:
        return Check(
            cell=self._key,
            variant=variant,
            kernel=plan.kernel,
            kernel_hash=self._bench.kernel_hash(plan.kernel),
            requested=plan.requested,
            tiles_per_split=plan.split.tiles_per_split,
            splits=plan.split.splits,
            ctas=plan.ctas,
            data_hash=self.data_hash,
            status=outcome.status,
            reason=outcome.reason,
            rms_error=outcome.rms_error,
            rounding_floor=floor,
            rules=plan.rules,
            gathered_bytes=gathered_bytes,
        )
