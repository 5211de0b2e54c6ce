# SPDX-License-Identifier: MIT
"""One side of a comparison: a run's cells with their checks, times and null controls."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dsa_bench.model.record import Check, Visit
from dsa_bench.model.run import Run, complete_rounds
from dsa_bench.report.cells import cell_shape, drawn_cell
from dsa_bench.stats.paired_times import is_usable
from dsa_bench.stats.verdict import NoiseFloor, null_control

Metric = Literal["attention", "call"]
METRICS: tuple[Metric, ...] = ("attention", "call")
Mode = tuple[str, str]
"""Timer and L2 mode of a visit."""


@dataclass(frozen=True, slots=True)
class SideCell:
    """A cell of one run, measured with one timer in one L2 mode.

    cell      its key as records of today have it
    mode      None where no round is complete
    times     variant -> round -> microseconds, of the visits that have a time
    failures  variant -> why a visit of it has none
    rounds    complete rounds, ascending
    noise     the null control: the same variant's second visits against its first
    clocks    median SM and memory clock of the rounds that have them, in MHz
    """

    cell: str
    mode: Mode | None
    checks: dict[str, Check]
    times: dict[str, dict[int, float]]
    failures: dict[str, str]
    rounds: list[int]
    noise: NoiseFloor | None
    clocks: dict[str, float]

    def failure(self, variant: str) -> str | None:
        """Why the variant has no usable time; None if it has: right, and timed in enough of the rounds."""
        check = self.checks[variant]
        if check.status != "ok":
            return f"{check.status.replace('_', ' ')}: {check.reason}"
        timed, rounds = len(self.times.get(variant, {})), len(self.rounds)
        if is_usable(timed, rounds):
            return None
        failure = self.failures.get(variant, "no complete round")
        return f"times in {timed} of {rounds} rounds ({failure})" if timed else failure


def side_cells(run: Run, metric: Metric) -> dict[str, list[SideCell]]:
    """The cells of a run in numeric order of their shapes, each once for every timer and L2 mode that it has."""
    checks: dict[str, dict[str, Check]] = {}
    for check in run.checks:
        checks.setdefault(drawn_cell(run.header, check.cell), {})[check.variant] = check
    rounds: dict[str, dict[Mode, dict[int, list[Visit]]]] = {}
    for cell, index, visits in complete_rounds(run):
        of_cell = rounds.setdefault(drawn_cell(run.header, cell), {})
        of_cell.setdefault((visits[0].timer, visits[0].l2), {})[index] = visits
    return {
        cell: [
            _side_cell(cell, mode, checks[cell], of_mode, metric)
            for mode, of_mode in sorted(rounds.get(cell, {}).items())
        ]
        or [_side_cell(cell, None, checks[cell], {}, metric)]
        for cell in sorted(checks, key=cell_order)
    }


def cell_order(cell: str) -> tuple[tuple[str, int], ...]:
    """Sorts cells by their shapes as numbers: rows 16 before 128."""
    return tuple((value, 0) if not value.isdecimal() else ("", int(value)) for value in cell_shape(cell).values())


def _side_cell(
    cell: str, mode: Mode | None, checks: dict[str, Check], rounds: Mapping[int, list[Visit]], metric: Metric
) -> SideCell:
    times: dict[tuple[str, bool], dict[int, float]] = {}
    failures: dict[str, str] = {}
    clocks: dict[str, list[float]] = {}
    for index, visits in sorted(rounds.items()):
        for visit in visits:
            time_us = visit.attention_us if metric == "attention" else visit.call_us
            if time_us is not None:
                times.setdefault((visit.variant, visit.control), {})[index] = time_us
            else:
                failures.setdefault(visit.variant, f"{visit.status.replace('_', ' ')}: {visit.reason}")
            for name in ("sm_mhz", "memory_mhz"):
                if name in visit.clocks:
                    clocks.setdefault(name, []).append(visit.clocks[name])
    return SideCell(
        cell=cell,
        mode=mode,
        checks=dict(sorted(checks.items())),
        times={variant: of for (variant, control), of in times.items() if not control},
        failures=failures,
        rounds=sorted(rounds),
        noise=_noise(times),
        clocks={name: statistics.median(values) for name, values in clocks.items()},
    )


def _noise(times: Mapping[tuple[str, bool], dict[int, float]]) -> NoiseFloor | None:
    for variant, control in times:
        first, second = times.get((variant, False), {}), times[variant, control]
        common = sorted(first.keys() & second.keys())
        if control and common:
            return null_control(np.array([second[i] for i in common]), np.array([first[i] for i in common]))
    return None
