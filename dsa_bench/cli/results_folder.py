# SPDX-License-Identifier: MIT
"""A folder of results: which of its files are records, which are made from one, and which are neither."""

import os
from dataclasses import dataclass
from pathlib import Path

from dsa_bench.report.plots.names import FORMATS, KINDS

ABOUT = "about.md"
"""What a folder says about itself, in Markdown."""
PAGE = "README.md"
"""Of the whole folder: the report itself, which lists no report."""


@dataclass(frozen=True, slots=True)
class ResultsFolder:
    """One folder that holds records, or other files that a reader should find."""

    path: Path
    records: tuple[Path, ...]
    others: tuple[Path, ...]
    about: str


def results_folders(root: Path, output: Path | None) -> list[ResultsFolder]:
    """`root` and the folders under it, sorted by name; empty ones and hidden files are left out, and so is `output`."""
    found: list[ResultsFolder] = []
    for folder in sorted((root, *(path for path in root.rglob("*") if path.is_dir()))):
        if any(part.startswith(".") for part in folder.relative_to(root).parts):
            continue
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        records = tuple(path for path in files if path.suffix == ".jsonl")
        made = {name for path in records for name in (table_of(path).name, *(one.name for _, one in plots_of(path)))}
        others = tuple(
            path
            for path in files
            if path not in records
            and path.name not in made
            and path.name != ABOUT
            and path != root / PAGE
            and (output is None or path.resolve() != output.resolve())
        )
        about = folder / ABOUT
        text = about.read_text(encoding="utf-8") if about.is_file() else ""
        if records or others or text:
            found.append(ResultsFolder(folder, records, others, text))
    return found


def table_of(record: Path) -> Path:
    """The page with the record's whole table."""
    return record.with_suffix(".md")


def plots_of(record: Path) -> list[tuple[str, Path]]:
    """(kind, file) of every picture that the record can have."""
    return [(kind, record.with_name(f"{record.stem}-{kind}.{format}")) for kind in KINDS for format in FORMATS]


def link_from(output: Path | None, target: Path) -> str:
    """A relative path from the folder of the report, or from here where it goes to stdout."""
    return Path(os.path.relpath(target, Path() if output is None else output.parent)).as_posix()
