# SPDX-License-Identifier: MIT
"""`dsa-bench plot`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note
from dsa_bench.cli.values import file_name, name_list
from dsa_bench.model.errors import BadInput
from dsa_bench.report.plots.names import FORMATS, KINDS

if TYPE_CHECKING:
    from dsa_bench.report.plots.subject import Subject

Runs = Annotated[list[Path], typer.Argument(help="Runs that --record wrote.", metavar="RUN...")]


def plot(
    runs: Runs,
    output: Annotated[
        Path, typer.Option("-o", "--output", parser=file_name, metavar="DIR", help="Folder for the pictures.")
    ],
    kind: Annotated[
        list[str] | None,
        opt.list_option(
            "--kind", name_list(KINDS), f"From {', '.join(KINDS)}. [default: all that a run has]", "NAME..."
        ),
    ] = None,
    picture: Annotated[
        list[str] | None,
        opt.list_option("--picture", name_list(FORMATS), f"From {', '.join(FORMATS)}. [default: both]", "NAME..."),
    ] = None,
    splits: Annotated[
        Path | None,
        typer.Option("--splits", parser=file_name, metavar="FILE", help="Draw this tuned map's choices, too."),
    ] = None,
    resident: opt.RecordedResident = None,
) -> None:
    """Draw recorded runs as DIR/RUN-KIND.svg and .png. Prints the names of what it wrote (docs/reading-plots.md)."""
    from dsa_bench.report.plots.canvas import drawing
    from dsa_bench.report.plots.gallery import pictures

    stems = [run.stem for run in runs]
    for stem in stems:
        if stems.count(stem) > 1:
            raise BadInput(
                f"{stem}: {stems.count(stem)} runs have this name, which their pictures would share; draw them apart"
            )
    subjects = [_subject(run, resident, splits) for run in runs]
    made: dict[str, bytes] = {}
    with drawing():
        for run, subject in zip(runs, subjects, strict=True):
            drawn, lacking = pictures(subject, kind or KINDS, picture or FORMATS)
            made |= {f"{run.stem}-{name}": data for name, data in drawn.items()}
            _say_lacking(run, lacking if kind else {}, drawn)
            if splits is not None:
                _say_unused(run, subject)
    _write(output, made)


def _subject(path: Path, resident: int | None, splits: Path | None) -> "Subject":
    """Raises BadInput naming the run, or the map."""
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.model.run import read_run
    from dsa_bench.report.plots.subject import subject_of

    run = read_run(path)
    try:
        return subject_of(run, resident, None if splits is None else read_map(splits))
    except BadInput as error:
        raise BadInput(
            str(error) if splits is not None and str(splits) in str(error) else f"{path}: {error}"
        ) from error


def _say_lacking(run: Path, asked: dict[str, str], drawn: dict[str, bytes]) -> None:
    """Raises BadInput if a run has nothing of what was asked for by name."""
    for kind, reason in asked.items():
        if not drawn:
            raise BadInput(f"{run}: --kind {kind}: {reason}")
        note(f"warning: {run}: --kind {kind}: {reason}")


def _say_unused(run: Path, subject: "Subject") -> None:
    from dsa_bench.report.plots.split_choices import split_choices
    from dsa_bench.report.plots.subject import NothingToDraw

    try:
        unused = split_choices(subject)[1]
    except NothingToDraw as reason:
        unused = [f"--splits: {reason}"]
    for reason in unused:
        note(f"warning: {run}: {reason}")


def _write(folder: Path, made: dict[str, bytes]) -> None:
    from dsa_bench.model.files import write_whole

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"-o {folder}: is no folder that can be made ({error.strerror}); name another") from error
    for name, data in made.items():
        write_whole(folder / name, data)
    emit("\n".join(str(folder / name) for name in made))
