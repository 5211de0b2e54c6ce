# SPDX-License-Identifier: MIT
"""Measure a grid of cells and record every visit."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dsa_bench.backends.base import Backend, Dense, SparseBuffers, TellsPaths
from dsa_bench.bench.check import refuse_reachable_poison
from dsa_bench.bench.rounds import Clocks, Stop, pilot, round_slots, take_rounds
from dsa_bench.bench.timers import Timer
from dsa_bench.bench.variant import Checked, Sample, Variant
from dsa_bench.data.files import cell_inputs
from dsa_bench.model.errors import BadInput, CannotMeasure, CompileFailed, VariantRefused
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.record import Check, Header, Visit
from dsa_bench.model.request import DENSE, SparseRequest
from dsa_bench.model.run import Run, RunWriter, complete_rounds, read_run
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.attention import reference
from dsa_bench.oracle.tolerance import largest_output
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.sweep.check import Checker
from dsa_bench.sweep.cpu_time import refuse_long_launches
from dsa_bench.sweep.dense_line import dense_line
from dsa_bench.sweep.header import run_header
from dsa_bench.sweep.memory import refuse_beyond_memory
from dsa_bench.sweep.precision import Precision
from dsa_bench.sweep.variants import Place, cell_variants

DENSE_PLAN = VariantPlan(DENSE, (), SplitPlan(0, 0), 0)
"""Dense attention has no geometry of ours."""


class Listener(Protocol):
    """Is told how a run goes on."""

    def begin_cell(self, cell: str, number: int, cells: int) -> None: ...

    def took_paths(self, variant: str, ctas: Mapping[str, int]) -> None: ...

    def said(self, text: str) -> None: ...

    def begin_rounds(self, visits: int | None) -> None: ...

    def visited(self) -> None: ...


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


@dataclass(frozen=True, slots=True)
class Measured:
    """A run, and what ended it before its plan was done, if anything did."""

    run: Run
    failure: CannotMeasure | None = None


def run_cells(
    request: SparseRequest,
    bench: Bench,
    listener: Listener,
    *,
    argv: Sequence[str] = (),
    record: Path | None = None,
    resume: bool = False,
) -> Measured:
    """Measure every cell of the request; with `record`, each line is on disk before the next visit.

    A cell in which no variant is right has checks and no visits. A device or a timer that fails on the way comes back
    beside the lines that there are. Raises BadInput for a record that cannot be written or gone on with and for data
    that cannot be checked, CannotMeasure for a cell beyond this machine's memory or the CPU backend's patience.
    """
    for shape in request.shapes if request.data.source is None else ():
        refuse_beyond_memory(shape)
    for shape in request.shapes if bench.backend.device.backend == "cpu" else ():
        refuse_long_launches(shape, bench.backend.device.sm_count)
    kernels = [*request.measured_kernels, *([DENSE] if bench.dense else [])]
    hashes = {kernel: bench.kernel_hash(kernel) for kernel in kernels}
    header = run_header(request, bench.backend.device, hashes, argv)
    before = _resumed(record, header, bench) if record is not None and resume and record.exists() else None
    run = before or Run(header)
    with nullcontext() if record is None else RunWriter(record, before) as writer:
        if writer is not None and before is None:
            writer.append(header)
        try:
            for line in _measure_cells(request, bench, listener, run):
                if writer is not None:
                    writer.append(line)
                run.add(line)
        except CannotMeasure as failure:
            return Measured(run, failure)
    return Measured(run)


def _resumed(record: Path, header: Header, bench: Bench) -> Run:
    """The recorded run, if this one is its continuation. Raises BadInput naming what differs."""
    before = read_run(record)
    was, now = (_identity(run_header) for run_header in (before.header, header))
    taken = {(visit.timer, visit.l2) for visit in before.visits}
    if taken - {(bench.timer.name, bench.l2)}:
        (was["timer"], was["l2"]), now["timer"], now["l2"] = min(taken), bench.timer.name, bench.l2
    if was != now:
        raise BadInput(
            f"--resume {record}: was measured differently ({_first_difference(was, now)}); name another --record"
        )
    return before


def _identity(header: Header) -> dict[str, Any]:
    """What must be the same for two runs to be one."""
    return {name: getattr(header, name) for name in ("version", "device", "kernel_hashes", "plan")}


def is_run_of(run: Run, request: SparseRequest, backend: Backend) -> bool:
    """Whether a recorded run is one of this request, on this device with these kernels; dense attention aside, which
    may depend on what is installed."""
    hashes = {kernel: backend.kernel_hash(kernel) for kernel in request.measured_kernels}
    header = run_header(request, backend.device, hashes, ())
    was, now = (_identity(one) for one in (run.header, header))
    for identity in (was, now):
        identity["plan"] = {name: value for name, value in identity["plan"].items() if name != DENSE}
        identity["kernel_hashes"] = {name: value for name, value in identity["kernel_hashes"].items() if name != DENSE}
    return was == now


def _first_difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            if isinstance(before.get(key), dict) and isinstance(now.get(key), dict):
                return f"{key}.{_first_difference(before[key], now[key])}"
            return f"{key} was {_short(before.get(key))}, now {_short(now.get(key))}"
    return "the same"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _measure_cells(request: SparseRequest, bench: Bench, listener: Listener, run: Run) -> Iterator[Check | Visit]:
    deadline_s = None if request.policy.budget_s is None else time.monotonic() + request.policy.budget_s
    for number, shape in enumerate(request.shapes):
        cell = _Cell(request, bench, shape, run)
        if cell.complete:
            continue
        listener.begin_cell(shape.key, number, len(request.shapes))
        stop_s = None
        if deadline_s is not None:
            now_s = time.monotonic()
            stop_s = now_s + (deadline_s - now_s) / (len(request.shapes) - number)
        yield from cell.measure(listener, stop_s)


class _Cell:
    """One cell: its data, its checked variants, and what an earlier run already has of it."""

    def __init__(self, request: SparseRequest, bench: Bench, shape: SparseShape, run: Run) -> None:
        self._request = request
        self._bench = bench
        self._shape = shape
        self._plans = cell_variants(request, Place.of(request, bench.backend), shape)
        self._checks = {check.variant: check for check in run.checks if check.cell == shape.key}
        earlier = {index: visits for cell, index, visits in complete_rounds(run) if cell == shape.key}
        self._done = {
            index: min(visit.clocks.get("sm_mhz", math.inf) for visit in visits) for index, visits in earlier.items()
        }
        self._earlier = [visit for visits in earlier.values() for visit in visits]
        self._attempts = {visit.round: visit.attempt + 1 for visit in run.visits if visit.cell == shape.key}

    @property
    def complete(self) -> bool:
        """Whether an earlier run took every round that is asked for."""
        rounds = self._request.policy.rounds
        if rounds is not None and self._done.keys() >= set(range(rounds)):
            return True
        names = [check.variant for check in self._checks.values() if check.status == "ok"]
        precision = self._precision(names, self._control(names)) if names else None
        return precision is not None and precision.reached()

    def measure(self, listener: Listener, deadline_s: float | None) -> Iterator[Check | Visit]:
        refuse_beyond_memory(self._shape)
        inputs = cell_inputs(self._shape, self._request.data)
        refuse_reachable_poison(float(largest_output(inputs).max()))
        data_hash = inputs.digest()
        if any(check.data_hash != data_hash for check in self._checks.values()):
            raise BadInput(f"--resume: the inputs of {self._shape.key} differ from the record's; name another --record")
        buffers = self._bench.backend.load(inputs, self._bench.l2)
        try:
            yield from self._measure(inputs, data_hash, buffers, listener, deadline_s)
        finally:
            buffers.close()

    def _measure(
        self, inputs: SparseInputs, data_hash: str, buffers: SparseBuffers, listener: Listener, deadline_s: float | None
    ) -> Iterator[Check | Visit]:
        oracle = reference(inputs)
        floor = oracle.rounding_floor
        checker = Checker(self._bench.backend, inputs, buffers, oracle)
        plans = {plan.name: plan for plan in self._plans}
        right: list[Variant] = []
        for plan in self._plans:
            try:
                variant = self._variant(plan, buffers, checker)
                outcome = variant.check()
            except CompileFailed as failure:
                outcome = Checked("compile_failed", str(failure))
            except VariantRefused as refusal:
                outcome = Checked("launch_refused", str(refusal))
            else:
                if outcome.status == "ok":
                    right.append(variant)
                if self._bench.tell_paths and isinstance(buffers, TellsPaths):
                    listener.took_paths(plan.name, buffers.paths(plan) or {})
            yield self._check_line(plan.name, plan, outcome, data_hash, floor, inputs.gathered_bytes)
        with ExitStack() as stack:
            if self._bench.dense is not None:
                recorded = [name for name, check in self._checks.items() if check.status == "ok"]
                line = stack.enter_context(dense_line(inputs, self._bench.dense, self._bench.timer, recorded))
                for note in line.notes:
                    listener.said(note)
                plans[line.name] = DENSE_PLAN
                if line.launch is not None:
                    right.append(Variant(line.name, line.launch, lambda: line.outcome, kernels=None))
                yield self._check_line(line.name, DENSE_PLAN, line.outcome, data_hash, line.floor, None)
            yield from self._take_rounds(right, plans, listener, deadline_s)

    def _take_rounds(
        self, right: list[Variant], plans: dict[str, VariantPlan], listener: Listener, deadline_s: float | None
    ) -> Iterator[Visit]:
        if not right:
            return
        try:
            names = [variant.name for variant in right]
            control = self._control(names)
            slots = round_slots(right, control, pilot(right, self._bench.timer))
            rounds = self._request.policy.rounds
            precision = self._precision(names, control)
            stop = Stop(rounds, deadline_s, enough=None if precision is None else precision.reached)
            listener.begin_rounds(None if rounds is None else (rounds - len(self._done)) * len(slots))
            for sample in take_rounds(slots, self._bench.timer, stop, self._bench.clocks, self._done, self._attempts):
                visit = self._visit_line(plans[sample.variant], sample)
                if precision is not None:
                    precision.add(visit.variant, visit.round, visit.control, visit.attention_us)
                yield visit
                listener.visited()
        finally:
            self._bench.timer.forget()

    def _variant(self, plan: VariantPlan, buffers: SparseBuffers, checker: Checker) -> Variant:
        launch = buffers.launcher(plan)
        kernels = self._bench.backend.device_kernels(plan.kernel)
        return Variant(plan.name, launch, partial(checker.check, plan, launch), kernels, buffers.copies)

    def _precision(self, names: list[str], control: str) -> Precision | None:
        """What ends the cell early, with the complete rounds of an earlier run in it; None where nothing does."""
        if self._request.policy.precision is None:
            return None
        precision = Precision(self._request.policy.precision, control, names)
        for visit in self._earlier:
            precision.add(visit.variant, visit.round, visit.control, visit.attention_us)
        return precision

    def _control(self, names: list[str]) -> str:
        """The automatic rule's variant, else `previous`, else the first: visited twice a round."""
        automatic = (plan.name for plan in self._plans if AUTOMATIC in plan.requested and plan.name in names)
        return next(automatic, "previous" if "previous" in names else names[0])

    def _check_line(
        self,
        variant: str,
        plan: VariantPlan,
        outcome: Checked,
        data_hash: str,
        floor: float,
        gathered_bytes: int | None,
    ) -> Check:
        return Check(
            cell=self._shape.key,
            variant=variant,
            kernel=plan.kernel,
            kernel_hash=self._bench.kernel_hash(plan.kernel),
            requested=plan.requested,
            tiles_per_split=plan.split.tiles_per_split,
            splits=plan.split.splits,
            ctas=plan.ctas,
            data_hash=data_hash,
            status=outcome.status,
            reason=outcome.reason,
            rms_error=outcome.rms_error,
            rounding_floor=floor,
            rules=plan.rules,
            gathered_bytes=gathered_bytes,
        )

    def _visit_line(self, plan: VariantPlan, sample: Sample) -> Visit:
        return Visit(
            cell=self._shape.key,
            variant=sample.variant,
            kernel_hash=self._bench.kernel_hash(plan.kernel),
            requested=plan.requested,
            splits=plan.split.splits,
            round=sample.round,
            attempt=sample.attempt,
            place=sample.place,
            control=sample.control,
            timer=self._bench.timer.name,
            l2=self._bench.l2,
            launches=sample.launches,
            attention_us=None if sample.timing is None else sample.timing.attention_us,
            call_us=None if sample.timing is None else sample.timing.call_us,
            status=sample.status,
            reason=sample.reason,
            clocks=sample.clocks,
        )
