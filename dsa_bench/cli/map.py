# SPDX-License-Identifier: MIT
"""`dsa-bench map ...`: read, explain, compare, join, re-measure and export tuned maps."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note, only_the_result_on_stdout
from dsa_bench.cli.lists import ListCommand
from dsa_bench.cli.values import one_integer, one_of
from dsa_bench.model.errors import BadInput, GateFailed
from dsa_bench.model.text import printable

if TYPE_CHECKING:
    from dsa_bench.report.map_verify import Verified

MapFile = Annotated[Path, typer.Argument(help="A map that `tune` wrote.", metavar="FILE")]
TextFormat = Annotated[
    str, typer.Option("--format", parser=one_of(("table", "json")), metavar="table|json", help="Of the result.")
]


def show(file: MapFile, format: TextFormat = "table") -> None:
    """Print a map: its device, its rules with what was measured, and what they are worth."""
    from dsa_bench.dispatch.map_file import map_text, read_map
    from dsa_bench.report.maps import show_text

    splits_map = read_map(file)
    emit(map_text(splits_map) if format == "json" else show_text(splits_map))


def validate(file: MapFile) -> None:
    """Check a map against its schema and itself. A bad one is exit 2, naming the file and the place in it."""
    from dsa_bench.dispatch.map_file import read_map

    tables = read_map(file).tables
    cells, rules = sum(len(table.cells) for table in tables), sum(len(table.rules) for table in tables)
    emit(f"{printable(str(file))}: valid, tables {len(tables)}, cells {cells}, rules {rules}")


def explain(
    file: MapFile,
    rows: Annotated[
        int, typer.Option("--rows", parser=one_integer(1), help="Query tokens in the launch.", metavar="N")
    ],
    candidates: Annotated[
        int, typer.Option("--candidates", parser=one_integer(1), help="Positions selected for each row.", metavar="N")
    ],
    query_heads: opt.QueryHeads = 24,
    kv_heads: opt.KvHeads = 2,
    backend: opt.BackendName = "auto",
    l2: opt.L2 = "cold",
    format: TextFormat = "table",
) -> None:
    """Say which tiles per split a launch gets on this machine, and why: hit, miss, or a map for another device."""
    from dsa_bench.backends.select import open_backend
    from dsa_bench.dispatch.explain_map import explain_launch
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.model.shape import INT32_MAX, SparseShape
    from dsa_bench.report.maps import explained_content, explained_text

    splits_map = read_map(file)
    if rows > INT32_MAX:
        raise BadInput(f"--rows {rows}: must be at most {INT32_MAX}, because rows stand at positions, which are INT32")
    shape = SparseShape(rows, rows, candidates, query_heads, kv_heads)  # the least context: none of it decides
    with only_the_result_on_stdout():
        opened, said = open_backend(backend)
        try:
            if said:
                note(said.replace("measuring", "looking from"))
            explained = explain_launch(str(file), splits_map, opened, shape, l2)
        finally:
            opened.close()
    emit(json.dumps(explained_content(explained), indent=1) if format == "json" else explained_text(explained))


def diff(
    before: Annotated[Path, typer.Argument(help="A map.", metavar="BEFORE")],
    after: Annotated[Path, typer.Argument(help="Another one.", metavar="AFTER")],
    format: TextFormat = "table",
) -> None:
    """Say where two maps differ: device and table facts, and each shape whose tiles per split changed."""
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.report.maps import differences

    lines = differences((str(before), read_map(before)), (str(after), read_map(after)))
    if format == "json":
        content = {"schema": "dsa-bench/map-diff", "schema_version": 1, "differences": lines}
        emit(json.dumps(content, indent=1))
    else:
        emit("\n".join(lines) or "no difference")


def merge(
    files: Annotated[list[Path], typer.Argument(help="Maps of one device.", metavar="FILE...")],
    output: opt.OutputFile = None,
) -> None:
    """Print the union of maps of one device. Other devices are refused, and tables that contradict each other."""
    from dsa_bench.dispatch.map_file import map_text, read_map, write_map
    from dsa_bench.dispatch.map_merge import merge_maps

    merged = merge_maps([(str(file), read_map(file)) for file in files])
    if output is None:
        emit(map_text(merged))
    else:
        write_map(output, merged)


def export(
    kind: Annotated[
        str,
        typer.Argument(
            parser=one_of(("ort", "env")), metavar="ort|env", help="ONNX Runtime session options, or variables."
        ),
    ],
    file: MapFile,
) -> None:
    """Print the settings of ONNX Runtime with the single tiles per split of least mean regret over the map's cells."""
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.report.map_export import environment_lines, session_options, single_value

    splits_map = read_map(file)
    chosen = single_value(splits_map)
    note(chosen.said)
    emit(session_options(chosen) if kind == "ort" else environment_lines(chosen, splits_map.device.name))


def verify(
    file: MapFile,
    backend: opt.BackendName = "auto",
    timer: opt.TimerName = "auto",
    rounds: opt.Rounds = 16,
    seed: opt.Seed = 0,
    format: TextFormat = "table",
) -> None:
    """Measure every rule against the automatic rule on this device again. Exit 1 if a gain is gone."""
    from dsa_bench.backends.select import open_backend
    from dsa_bench.cli.measure import measure
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.model.request import DataSpec
    from dsa_bench.report.map_verify import Gain, verified_cells, verified_json, verified_text
    from dsa_bench.sweep.tuned import refuse_elsewhere, verify_request

    splits_map = read_map(file)
    with only_the_result_on_stdout():
        opened, _ = open_backend(backend)
        try:
            for table in splits_map.tables:  # every one before any is measured, those without a rule too
                refuse_elsewhere(str(file), splits_map, table, opened)
        finally:
            opened.close()
    requests = [(table, verify_request(table, rounds or 16, timer, DataSpec(seed))) for table in splits_map.tables]
    cells: list[Verified] = []
    for table, request in requests:
        if request is None:
            note(f"{table.name}: no rule, so nothing to verify")
            continue
        measured = measure(request, backend, None, False, False)
        if measured.failure is not None:
            raise measured.failure
        cells += verified_cells(measured.run)
    emit(verified_json(cells) if format == "json" else verified_text(cells))
    lost = [cell for cell in cells if cell.gain in (Gain.GONE, Gain.INVALID)]
    if lost:
        said = ", ".join(f"rows {cell.rows}, candidates {cell.candidates} ({cell.gain.value})" for cell in lost)
        raise GateFailed(f"{file}: the gain is gone: {said}; tune again")


map_app = typer.Typer(rich_markup_mode=None, help="Read, explain, compare, join, verify and export tuned maps.")
for command in (show, validate, explain, diff, merge, verify, export):
    map_app.command(cls=ListCommand)(command)
