# SPDX-License-Identifier: MIT
"""`dsa-bench report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note
from dsa_bench.cli.tables import print_tables
from dsa_bench.cli.values import one_of
from dsa_bench.model.errors import BadInput
from dsa_bench.report.formats import FORMATS

if TYPE_CHECKING:
    from dsa_bench.report.joined import Section
    from dsa_bench.report.recorded import Recorded

TITLE = "Results"


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Runs that --record wrote, or a folder of them.", metavar="RUN...")
    ],
    full: Annotated[
        bool, typer.Option("--full", help="A Markdown report of one run, too: host, method, limits.")
    ] = False,
    output: opt.OutputFile = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            parser=one_of(FORMATS),
            metavar="|".join(FORMATS),
            help="Of one run's table. [default: table] Several runs, a folder and --full give Markdown.",
        ),
    ] = None,
) -> None:
    """Print the table of a recorded run, or a report of several. A report is Markdown
    (docs/commands/report.md)."""
    from dsa_bench.model.run import read_run

    if not full and len(runs) == 1 and not runs[0].is_dir():
        if not print_tables(read_run(runs[0]), format or "table", output):
            note(f"{runs[0]}: no cell was measured yet")
        return
    if format not in (None, "markdown"):
        raise BadInput(
            f"--format {format}: several runs, a folder and --full give Markdown; leave it out, or name one run"
        )
    text = _joined(runs, output)
    if output is None:
        emit(text)
    else:
        from dsa_bench.model.files import write_whole

        write_whole(output, text.rstrip("\n") + "\n")


def _joined(paths: list[Path], output: Path | None) -> str:
    from dsa_bench.report.joined import Section, joined_report

    folders = [path for path in paths if path.is_dir()]
    if folders and len(paths) > 1:
        raise BadInput(f"{folders[0]}: is a folder, and stands alone; name runs, or one folder")
    sections = (
        _sections_of(folders[0], output) if folders else [Section(None, [_read(path, output) for path in _once(paths)])]
    )
    if not any(section.runs for section in sections):
        raise BadInput(f"{paths[0]}: holds no record (.jsonl); name a folder that `run` or --record wrote to")
    for one in (run for section in sections for run in section.runs if not run.is_measured):
        note(f"{one.link}: no cell was measured yet")
    return joined_report(TITLE, sections, whole_tables=not folders)


def _once(paths: list[Path]) -> list[Path]:
    """Each file once, in the order of the command line."""
    once: dict[Path, Path] = {}
    for path in paths:
        once.setdefault(path.resolve(), path)
    return list(once.values())


def _sections_of(folder: Path, output: Path | None) -> "list[Section]":
    from dsa_bench.cli.results_folder import link_from, results_folders
    from dsa_bench.report.joined import Section

    return [
        Section(
            None if found.path == folder else found.path.relative_to(folder).as_posix(),
            [_read(path, output) for path in found.records],
            found.about,
            [(path.name, link_from(output, path)) for path in found.others],
        )
        for found in results_folders(folder, output)
    ]


def _read(path: Path, output: Path | None) -> "Recorded":
    """A run with the links to what stands beside it: of each picture the SVG, else the PNG."""
    from dataclasses import replace

    from dsa_bench.cli.results_folder import link_from, plots_of, table_of
    from dsa_bench.model.run import read_run
    from dsa_bench.report.recorded import recorded

    plots: dict[str, str] = {}
    for kind, picture in plots_of(path):
        if picture.is_file():
            plots.setdefault(kind, link_from(output, picture))
    table = table_of(path)
    return replace(
        recorded(path.stem, link_from(output, path), read_run(path)),
        table=link_from(output, table) if table.is_file() else None,
        plots=tuple(plots.items()),
    )
