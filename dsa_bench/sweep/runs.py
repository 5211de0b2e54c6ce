# SPDX-License-Identifier: MIT
"""Measure the cells of any operator in paired rounds and record every visit."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dsa_bench.backends.base import ReadyCall
from dsa_bench.bench.rounds import Clocks, Stop, pilot, round_slots, take_rounds
from dsa_bench.bench.timers import Timer
from dsa_bench.bench.variant import Checked, Sample, Variant
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import BadInput, CannotMeasure
from dsa_bench.model.record import Check, Header, Visit
from dsa_bench.model.request import Policy
from dsa_bench.model.run import Run, RunWriter, complete_rounds
from dsa_bench.model.text import quoted
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.sweep.header import run_header
from dsa_bench.sweep.identity import identity, resumed
from dsa_bench.sweep.precision import Precision


class Listener(Protocol):
    """Is told how a run goes on."""

    def begin_cell(self, cell: str, number: int, cells: int) -> None: ...

    def took_paths(self, variant: str, ctas: Mapping[str, int]) -> None: ...

    def said(self, text: str) -> None: ...

    def begin_rounds(self, visits: int | None) -> None: ...

    def visited(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """One variant of a cell after its correctness run: the line that records it, and what to time if it is right."""

    check: Check
    variant: Variant | None


def timed_call(name: str, call: ReadyCall | None, outcome: Checked) -> Variant | None:
    """The call of a variant as what is timed; None unless the variant is right."""
    if call is None or outcome.status != "ok":
        return None
    return Variant(name, call.launch, lambda: outcome, call.kernels, call.copies)


class LoadedCell(Protocol):
    """One cell with its data where the kernels see them."""

    data_hash: str

    def variants(self, listener: Listener, recorded: Sequence[str]) -> Iterator[Prepared]:
        """Every variant, checked. `recorded` names those that an earlier part of the run found right."""
        ...


class Operator(Protocol):
    """What a request asks of one operator.

    plan   the request as the record holds it; `resume` compares it
    cells  their keys, in the order in which they are measured
    """

    device: DeviceFacts
    policy: Policy
    seed: int
    plan: Mapping[str, Any]
    cells: Sequence[str]

    def kernel_hashes(self) -> Mapping[str, str]: ...

    def refuse_beyond_limits(self) -> None:
        """Raises CannotMeasure before anything is measured if a cell is beyond this machine."""
        ...

    def load(self, number: int) -> AbstractContextManager[LoadedCell]:
        """Draw or read the data of a cell and put them where its kernels see them."""
        ...


@dataclass(frozen=True, slots=True)
class Instruments:
    """What a run is measured with. tick_us: what the timer cannot tell apart, None where that is not known."""

    timer: Timer
    l2: str
    clocks: Clocks | None = None
    tick_us: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A run, and what ended it before its plan was done, if anything did: after an interrupt, its finished cells."""

    run: Run
    failure: CannotMeasure | KeyboardInterrupt | None = None


def run_operator(
    operator: Operator,
    instruments: Instruments,
    listener: Listener,
    *,
    argv: Sequence[str] = (),
    record: Path | None = None,
    resume: bool = False,
) -> Measured:
    """Measure every cell; with `record`, each line is on disk before the next visit.

    A cell in which no variant is right has checks and no visits. A device or a timer that fails on the way, or a later
    cell whose data cannot be checked, comes back beside the lines that there are, an interrupt beside the finished
    cells; the listener is told of the record. Raises BadInput for a record that cannot be written or gone on with and
    for data that cannot be checked, CannotMeasure for a cell beyond this machine.
    """
    operator.refuse_beyond_limits()
    header = header_of(operator, argv)
    before = None
    if record is not None and resume and record.exists():
        before = resumed(record, header, instruments.timer.name, instruments.l2)
    run = before or Run(header)
    with nullcontext() if record is None else RunWriter(record, before) as writer:
        if writer is not None and before is None:
            writer.append(header)
        taken = False
        finished: set[str] = set()
        try:
            for line in _measure_cells(operator, instruments, listener, run, finished):
                if writer is not None:
                    writer.append(line)
                run.add(line)
                taken = True
        except CannotMeasure as failure:
            return Measured(run, failure)
        except BadInput as refusal:
            if not taken:
                raise
            return Measured(run, CannotMeasure(f"a later cell cannot be measured: {refusal}"))
        except KeyboardInterrupt as interrupt:
            if record is not None:
                listener.said(f"what was measured is in {record}; the same command with --resume goes on")
            return Measured(run.of_cells(finished), interrupt)
    return Measured(run)


def header_of(operator: Operator, argv: Sequence[str]) -> Header:
    """The header of a run of this operator that starts now."""
    return run_header(operator.plan, operator.seed, operator.device, operator.kernel_hashes(), argv)


def is_run_of(run: Run, operator: Operator) -> bool:
    """Whether a recorded run is one of this operator's request, on its device with its kernels."""
    return identity(run.header) == identity(header_of(operator, ()))


def _measure_cells(
    operator: Operator, instruments: Instruments, listener: Listener, run: Run, finished: set[str]
) -> Iterator[Check | Visit]:
    """Every line of the cells that are missing; `finished` is given each cell that is done."""
    budget_s = operator.policy.budget_s
    deadline_s = None if budget_s is None else time.monotonic() + budget_s
    for number, key in enumerate(operator.cells):
        cell = _Cell(key, operator.policy, instruments, run)
        if cell.complete:
            finished.add(key)
            continue
        listener.begin_cell(key, number, len(operator.cells))
        stop_s = None
        if deadline_s is not None:
            now_s = time.monotonic()
            stop_s = now_s + (deadline_s - now_s) / (len(operator.cells) - number)
        with operator.load(number) as loaded:
            yield from cell.measure(loaded, listener, stop_s)
        finished.add(key)


_LAUNCH = ("requested", "tiles_per_split", "splits", "ctas")
"""Fields of a check that say which launch its variant is, and what asked for it."""


class _Cell:
    """One cell's rounds, and what an earlier run already has of them."""

    def __init__(self, key: str, policy: Policy, instruments: Instruments, run: Run) -> None:
        self._key = key
        self._policy = policy
        self._instruments = instruments
        self._checks = {check.variant: check for check in run.checks if check.cell == key}
        earlier = {index: visits for cell, index, visits in complete_rounds(run) if cell == key}
        self._done = {
            index: min(visit.clocks.get("sm_mhz", math.inf) for visit in visits) for index, visits in earlier.items()
        }
        self._earlier = [visit for visits in earlier.values() for visit in visits]
        self._attempts = {visit.round: visit.attempt + 1 for visit in run.visits if visit.cell == key}

    @property
    def complete(self) -> bool:
        """Whether an earlier run took every round that is asked for."""
        rounds = self._policy.rounds
        if rounds is not None and self._done.keys() >= set(range(rounds)):
            return True
        right = [check for check in self._checks.values() if check.status == "ok"]
        precision = self._precision(right) if right else None
        return precision is not None and precision.reached()

    def measure(self, loaded: LoadedCell, listener: Listener, deadline_s: float | None) -> Iterator[Check | Visit]:
        if any(check.data_hash != loaded.data_hash for check in self._checks.values()):
            raise BadInput(f"--resume: the inputs of {self._key} differ from the record's; name another --record")
        recorded = {name: check for name, check in self._checks.items() if check.status == "ok"}
        right: list[Variant] = []
        checks: dict[str, Check] = {}
        variants = loaded.variants(listener, [*recorded])
        if recorded:
            variants = [*variants]
            self._refuse_other_launches(recorded, variants)
        for prepared in variants:
            yield prepared.check
            if prepared.variant is not None:
                right.append(prepared.variant)
                checks[prepared.variant.name] = prepared.check
        if checks.keys() != recorded.keys():  # a round is complete with a visit of each that is right now
            self._done, self._earlier = {}, []
        if right:
            yield from self._take_rounds(right, checks, listener, deadline_s)

    def _refuse_other_launches(self, recorded: Mapping[str, Check], variants: Sequence[Prepared]) -> None:
        """Raises BadInput where one that was right is not among the variants or is another launch, as of other code:
        its rounds and those to come could not be paired."""
        now = {one.check.variant: one.check for one in variants}
        for name, was in recorded.items():
            differs = "absent now"
            if name in now:
                differs = "; ".join(
                    f"{field} was {quoted(getattr(was, field))}, now {quoted(getattr(now[name], field))}"
                    for field in _LAUNCH
                    if getattr(was, field) != getattr(now[name], field)
                )
            if differs:
                raise BadInput(
                    f"--resume: {self._key} was measured with other launches ({quoted(name)}: {differs}); begin "
                    "another record"
                )

    def _take_rounds(
        self, right: list[Variant], checks: Mapping[str, Check], listener: Listener, deadline_s: float | None
    ) -> Iterator[Visit]:
        timer = self._instruments.timer
        try:
            slots = round_slots(right, _control(list(checks.values())), pilot(right, timer))
            rounds = self._policy.rounds
            precision = self._precision(list(checks.values()))
            stop = Stop(rounds, deadline_s, enough=None if precision is None else precision.reached)
            listener.begin_rounds(None if rounds is None else (rounds - len(self._done)) * len(slots))
            for sample in take_rounds(slots, timer, stop, self._instruments.clocks, self._done, self._attempts):
                visit = self._visit_line(checks[sample.variant], sample)
                if precision is not None:
                    precision.add(visit.variant, visit.round, visit.control, visit.attention_us)
                yield visit
                listener.visited()
        finally:
            timer.forget()

    def _precision(self, right: Sequence[Check]) -> Precision | None:
        """What ends the cell early, with the complete rounds of an earlier run in it; None where nothing does."""
        if self._policy.precision is None:
            return None
        variants, tick_us = [check.variant for check in right], self._instruments.tick_us
        precision = Precision(self._policy.precision, _control(right), variants, tick_us)
        for visit in self._earlier:
            precision.add(visit.variant, visit.round, visit.control, visit.attention_us)
        return precision

    def _visit_line(self, check: Check, sample: Sample) -> Visit:
        return Visit(
            cell=self._key,
            variant=sample.variant,
            kernel_hash=check.kernel_hash,
            requested=check.requested,
            splits=check.splits,
            round=sample.round,
            attempt=sample.attempt,
            place=sample.place,
            control=sample.control,
            timer=self._instruments.timer.name,
            l2=self._instruments.l2,
            launches=sample.launches,
            attention_us=None if sample.timing is None else sample.timing.attention_us,
            call_us=None if sample.timing is None else sample.timing.call_us,
            status=sample.status,
            reason=sample.reason,
            clocks=sample.clocks,
        )


def _control(right: Sequence[Check]) -> str:
    """The automatic rule's variant, else that of `previous`, else the first: visited twice a round."""
    automatic = (check.variant for check in right if AUTOMATIC in check.requested)
    previous = (check.variant for check in right if check.kernel == "previous")
    return next(automatic, None) or next(previous, None) or right[0].variant
