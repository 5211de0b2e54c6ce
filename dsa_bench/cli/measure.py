# SPDX-License-Identifier: MIT
"""From a request to a run: open what measures, follow it, and judge what came of it."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsa_bench.cli.console import lines_to_user, note, only_the_result_on_stdout
from dsa_bench.cli.part import WHOLE, Part
from dsa_bench.cli.tables import print_tables
from dsa_bench.model.errors import CannotMeasure, GateFailed
from dsa_bench.model.request import SparseRequest
from dsa_bench.model.shape import SparseShape

if TYPE_CHECKING:
    from dsa_bench.backends.base import Backend
    from dsa_bench.report.cells import CellTable
    from dsa_bench.sweep.runs import Measured
    from dsa_bench.sweep.variants import Place


def measure(
    request: SparseRequest,
    backend_name: str,
    record: Path | None,
    resume: bool,
    explain: bool,
    adapt: "Callable[[SparseRequest, Backend], SparseRequest] | None" = None,
    opener: "Callable[[], Backend] | None" = None,
    part: Part = WHOLE,
) -> "Measured":
    """Measure the request on the backend asked for.

    adapt   what the request becomes on the backend that was opened
    opener  opens another backend than `backend_name` says
    part    the request's place in a larger run
    """
    from dsa_bench.backends.select import open_backend, open_dense
    from dsa_bench.bench.clocks import open_clocks
    from dsa_bench.bench.select import open_timer
    from dsa_bench.cli.progress import RunProgress
    from dsa_bench.sweep.cells import Bench, run_cells
    from dsa_bench.sweep.variants import Place, same_launches

    with only_the_result_on_stdout():
        backend, *said = (opener(), None) if opener else open_backend(backend_name, request.op, request.pad_smem)
        try:
            request = request if adapt is None else adapt(request, backend)
            on_gpu = backend.device.backend == "cuda"
            gpu_options = {"--ceiling": request.ceiling, "--dense": request.dense, "--pad-smem": request.pad_smem}
            for flag, asked in gpu_options.items():
                if asked and not on_gpu:
                    raise CannotMeasure(f"{flag}: measures GPU kernels, and no GPU is used here; leave it out")
            asked_for_dense, request = request.dense, request.on(backend.device.backend)
            timer, said_of_timer = open_timer(request.policy.timer, backend, backend_name)
            place = Place.of(request, backend, lambda line: note(f"warning: {line}"))
            if explain:
                for shape in request.shapes:
                    lines_to_user(_explain(request, backend, place, shape))
            for shape in request.shapes if request.sides else ():
                said += same_launches(request, place, shape)
            clocks = open_clocks() if on_gpu else None
            if on_gpu and clocks is None:
                said.append("SM clocks are not watched: NVML cannot be used; see dsa-bench env")
            dense, said_of_dense = open_dense(asked_for_dense, request.policy.l2, backend)
            request = replace(request, dense=dense is not None)
            l2 = request.policy.l2 if on_gpu else "none"
            bench = Bench(backend, timer, l2, clocks, tell_paths=explain, dense=dense)
            with RunProgress([line for line in (*said, said_of_timer, said_of_dense) if line], part) as progress:
                return run_cells(request, bench, progress, argv=sys.argv[1:], record=record, resume=resume)
        finally:
            backend.close()


def _explain(request: SparseRequest, backend: "Backend", place: "Place", shape: SparseShape) -> list[str]:
    from dsa_bench.splits.explain import explain_cell
    from dsa_bench.splits.registry import named_rules
    from dsa_bench.sweep.variants import explain_choices

    if request.sides:
        return explain_choices(request, place, shape)
    rules = named_rules(request.rules, request.costs)
    asked = (request.measured_kernels, request.tiles_per_split)
    return explain_cell(backend.geometry, shape, *asked, rules, request.tuned_target(shape))


def print_measured(measured: "Measured", format: str) -> None:
    """Print the tables of what was measured and judge them. Raises what ended the run early: after them, or in their
    place where there is nothing in them."""
    if measured.failure is not None and not measured.run.visits:
        raise measured.failure
    tables = print_tables(measured.run, format)
    if measured.failure is not None:
        raise measured.failure
    judge(tables)


def judge(tables: "list[CellTable]") -> None:
    """Warn of variants without a time; raise if one was wrong, or if a cell has none with a time."""
    for table in tables:
        for row in table.rows:
            if row.status not in ("ok", "wrong_result"):
                note(f"warning: {row.check.variant} has no time in {table.label}: {row.reason}")
    wrong = [f"{row.check.variant} ({table.label})" for table in tables for row in table.wrong]
    if wrong:
        raise GateFailed(f"wrong result: {'; '.join(wrong)}; see the table for the element and its bound")
    empty = [table.label for table in tables if table.fastest is None]
    if empty:
        raise CannotMeasure(f"no variant could be timed for {'; '.join(empty)}")
