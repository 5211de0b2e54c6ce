# SPDX-License-Identifier: MIT
"""`dsa-bench run`."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note, only_the_result_on_stdout
from dsa_bench.cli.entry import open_entry, planned_entry
from dsa_bench.cli.measure import judge
from dsa_bench.cli.part import Part
from dsa_bench.cli.sweep_file import Entry, Sweep, load_sweep
from dsa_bench.cli.values import file_name, one_of
from dsa_bench.model.errors import BadInput, DsaBenchError
from dsa_bench.model.request import BACKENDS

if TYPE_CHECKING:
    from dsa_bench.model.run import Run

SWEEP_PLAN_SCHEMA = "dsa-bench/sweep-plan"


def run_sweep(
    sweep: Annotated[Path, typer.Argument(help="A sweep file (docs/commands/run.md).", metavar="SWEEP.toml")],
    results: Annotated[
        Path, typer.Option("--results", parser=file_name, metavar="DIR", help="Where records are kept.")
    ] = Path("results"),
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            parser=one_of(BACKENDS),
            metavar="|".join(BACKENDS),
            help="In place of the file's. [default: its]",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with this sweep's records; what is complete stays.")
    ] = False,
    plan: opt.Plan = False,
) -> None:
    """Measure a whole sweep file, one record for each entry. Prints the records' names, one a line."""
    loaded = load_sweep(sweep)
    if plan:
        if resume:
            raise BadInput("--plan: measures nothing, so --resume has no use beside it")
        emit(_plan(loaded, backend))
        return
    note(_announcement(loaded, backend))
    records: list[Path] = []
    failures: list[DsaBenchError] = []
    before = 0
    try:
        for entry in loaded.entries:
            records.append(Path())
            part = Part(before, loaded.cells)
            run, failure = _measure(entry, backend, results, loaded.name, resume, records, part)
            before += len(entry.request.cell_keys)
            if failure is not None:
                raise failure
            failures += _judged(run)
    finally:
        for path in records:
            if os.path.isfile(path) and not path.stat().st_size:  # the name of a run that did not begin
                path.unlink()
        emit("\n".join(str(path) for path in records if os.path.isfile(path)))
    for failure in failures[1:]:
        note(f"error: {failure}")
    if failures:
        raise failures[0]


def _measure(
    entry: Entry, backend_name: str | None, results: Path, name: str, resume: bool, records: list[Path], part: Part
) -> "tuple[Run, DsaBenchError | KeyboardInterrupt | None]":
    """Measure one entry, its record's name in the last place of `records`."""
    from dsa_bench.model.run import read_run
    from dsa_bench.sweep.records import new_record, record_to_resume

    with only_the_result_on_stdout():
        opened = open_entry(entry.request, backend_name or entry.backend)
    for line in opened.said:
        note(line)
    folder = results / opened.device.slug / name
    found = record_to_resume(folder, entry.request, opened.is_run, records, note) if resume else None
    records[-1] = found[0] if found else new_record(folder)
    if found and found[1]:
        opened.close()
        note(f"{entry.place}: complete in {records[-1]}")
        return read_run(records[-1]), None
    measured = opened.measure(records[-1], found is not None, part)
    return measured.run, measured.failure


def _judged(run: "Run") -> list[DsaBenchError]:
    """What a record is judged for, as its own command would."""
    from dsa_bench.report.cells import cell_tables, untrusted_cells

    tables = cell_tables(run)
    for table in untrusted_cells(tables):
        note(f"warning: {table.label}: one variant differs from itself beyond the margin; measure again")
    try:
        judge(tables)
    except DsaBenchError as failure:
        return [failure]
    return []


def _plan(sweep: Sweep, backend: str | None) -> str:
    entries = [_planned(entry, backend) for entry in sweep.entries]
    document = {
        "schema": SWEEP_PLAN_SCHEMA,
        "schema_version": 1,
        "sweep": sweep.name,
        "estimate_s": round(sum(entry["estimate_s"] for entry in entries), 1),
        "entries": entries,
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _planned(entry: Entry, backend: str | None) -> dict[str, Any]:
    try:
        return json.loads(planned_entry(entry.request, backend or entry.backend))
    except BadInput as error:
        raise BadInput(f"{entry.place}: {error}") from error


def _announcement(sweep: Sweep, backend: str | None) -> str:
    """What is about to be measured and how long it takes, where `auto` is what it will take here."""
    from dsa_bench.backends.cuda.probe import missing_gpu

    here = "cpu" if missing_gpu() is not None else "cuda"
    backends = [backend or entry.backend for entry in sweep.entries]
    chosen = [here if name == "auto" else name for name in backends]
    estimate_s = sum(_planned(*pair)["estimate_s"] for pair in zip(sweep.entries, chosen, strict=True))
    entries = _count(len(sweep.entries), "entry", "entries")
    return f"{sweep.name}: {entries}, {_count(sweep.cells, 'cell', 'cells')}, {_duration(estimate_s)} in all"


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(round(seconds), 1)} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
