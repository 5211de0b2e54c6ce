# SPDX-License-Identifier: MIT
"""`dsa-bench map ...`: read, explain, compare, join, re-measure and export tuned maps."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note, only_the_result_on_stdout
from dsa_bench.cli.lists import ListCommand
from dsa_bench.cli.sources import given
from dsa_bench.cli.values import one_integer, one_of
from dsa_bench.model.dense import ITEM_BYTES
from dsa_bench.model.errors import BadInput, GateFailed
from dsa_bench.model.text import printable

if TYPE_CHECKING:
    from dsa_bench.dispatch.explain_map import Explained
    from dsa_bench.model.dense import DenseDtype
    from dsa_bench.model.splits_map import AnyTable, SplitsMap
    from dsa_bench.report.map_verify import Verified
    from dsa_bench.sweep.runs import Measured

MapFile = Annotated[Path, typer.Argument(help="A map that `tune` wrote.", metavar="FILE")]
TextFormat = Annotated[
    str, typer.Option("--format", parser=one_of(("table", "json")), metavar="table|json", help="Of the result.")
]


def show(file: MapFile, format: TextFormat = "table") -> None:
    """Print a map: its device, its rules, and what they are worth. Each rule stands with what was measured."""
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


OF_DENSE = ("head_size", "value_head_size", "dtype")
"""Options of explain that mean something beside --capacity alone."""


def explain(
    ctx: typer.Context,
    file: MapFile,
    rows: Annotated[
        int, typer.Option("--rows", parser=one_integer(1), help="Query tokens in the launch.", metavar="N")
    ],
    candidates: Annotated[
        int | None,
        typer.Option("--candidates", parser=one_integer(1), help="Positions selected for each row.", metavar="N"),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            "--capacity", parser=one_integer(1), help="Of dense decode, in place of --candidates.", metavar="N"
        ),
    ] = None,
    query_heads: Annotated[
        int | None,
        typer.Option(
            "--query-heads", parser=one_integer(1), metavar="N", help="Query heads. [default: 24, of dense decode 16]"
        ),
    ] = None,
    kv_heads: Annotated[
        int | None,
        typer.Option(
            "--kv-heads", parser=one_integer(1), metavar="N", help="KV heads. [default: 2, of dense decode 16]"
        ),
    ] = None,
    head_size: Annotated[
        int,
        typer.Option(
            "--head-size", parser=one_integer(1), metavar="N", help="Of dense decode: channels of queries and keys."
        ),
    ] = 192,
    value_head_size: Annotated[
        int,
        typer.Option(
            "--value-head-size", parser=one_integer(1), metavar="N", help="Of dense decode: channels of values."
        ),
    ] = 128,
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype", parser=one_of((*ITEM_BYTES,)), metavar="|".join(ITEM_BYTES), help="Of dense decode: type."
        ),
    ] = "f16",
    backend: opt.BackendName = "auto",
    l2: opt.L2 = "cold",
    format: TextFormat = "table",
) -> None:
    """Say which splits a launch gets on this machine, and why. Hit, miss, or a map for another device.

    With --candidates of sparse decode; with --capacity of dense decode, where --rows is batch x query heads.
    """
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.report.maps import explained_content, explained_text

    splits_map = read_map(file)
    if (candidates is None) == (capacity is None):
        raise BadInput("--candidates, --capacity: name one; --candidates asks of sparse decode, --capacity of dense")
    if candidates is not None:
        for name in given(ctx, OF_DENSE, ("COMMANDLINE",)):
            raise BadInput(
                f"--{name.replace('_', '-')}: has no use with --candidates, but with --capacity; leave it out"
            )
        heads = query_heads or 24, kv_heads or 2
        explained = _explained_sparse(file, splits_map, rows, candidates, heads, backend, l2)
    else:
        sizes = (query_heads or 16, kv_heads or 16, head_size, value_head_size)
        explained = _explained_dense(file, splits_map, rows, capacity or 0, sizes, dtype, backend, l2)
    emit(json.dumps(explained_content(explained), indent=1) if format == "json" else explained_text(explained))


def _explained_sparse(
    file: Path, splits_map: "SplitsMap", rows: int, candidates: int, heads: tuple[int, int], backend: str, l2: str
) -> "Explained":
    from dsa_bench.backends.select import open_backend
    from dsa_bench.dispatch.explain_map import explain_launch
    from dsa_bench.model.shape import INT32_MAX, SparseShape

    if rows > INT32_MAX:
        raise BadInput(f"--rows {rows}: must be at most {INT32_MAX}, because rows stand at positions, which are INT32")
    shape = SparseShape(rows, rows, candidates, *heads)  # the least context: none of it decides
    with only_the_result_on_stdout():
        opened, said = open_backend(backend)
        try:
            if said:
                note(said.replace("measuring", "looking from"))
            return explain_launch(str(file), splits_map, opened, shape, l2)
        finally:
            opened.close()


def _explained_dense(
    file: Path,
    splits_map: "SplitsMap",
    rows: int,
    capacity: int,
    sizes: tuple[int, int, int, int],
    dtype: str,
    backend: str,
    l2: str,
) -> "Explained":
    """sizes: query heads, KV heads, head size, value head size. The environment may pin the chunk."""
    from dsa_bench.backends.dense import open_dense_decode
    from dsa_bench.dispatch.explain_map import explain_dense_launch
    from dsa_bench.model.dense import DenseShape
    from dsa_bench.splits.dense import pinned_name, requested_chunk

    if rows % sizes[0]:
        raise BadInput(f"--rows {rows}: must be a multiple of --query-heads {sizes[0]}, because rows are batch x heads")
    shape = DenseShape(capacity, capacity, *sizes, rows // sizes[0], dtype=cast("DenseDtype", dtype))
    pinned = pinned_name(os.environ)
    with only_the_result_on_stdout():
        opened, said = open_dense_decode(backend)
        try:
            if said:
                note(said.replace("measuring", "looking from"))
            chunk = None if pinned is None else requested_chunk(pinned)
            return explain_dense_launch(str(file), splits_map, opened, shape, l2, chunk)
        finally:
            opened.close()


def diff(
    before: Annotated[Path, typer.Argument(help="A map.", metavar="BEFORE")],
    after: Annotated[Path, typer.Argument(help="Another one.", metavar="AFTER")],
    format: TextFormat = "table",
) -> None:
    """Say where two maps differ. Device and table facts, and each shape whose tiles per split or chunk changed."""
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
    """Print the one value that serves a map's shapes best. It is that of least mean regret over the map's cells.

    `ort`: the tiles per split, as session options of ONNX Runtime. `env`: the same as its variables, and the chunk of
    dense decode as that of onnx-genai.
    """
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.report.map_export import (
        environment_lines,
        exported_ops,
        session_options,
        single_value,
        unexported,
    )

    splits_map = read_map(file)
    ops = exported_ops(splits_map)
    if kind == "ort" and "decode" not in ops:
        raise BadInput(f"{file}: holds dense decode alone, whose chunk is a variable of onnx-genai; use map export env")
    chosen = [single_value(splits_map, op) for op in (["decode"] if kind == "ort" else ops)]
    for line in filter(None, (*(one.said for one in chosen), unexported(splits_map))):
        note(line)
    lines = "\n".join(environment_lines(one, splits_map.device.name) for one in chosen)
    emit(session_options(chosen[0]) if kind == "ort" else lines)


def verify(
    file: MapFile,
    backend: opt.BackendName = "auto",
    timer: opt.TimerName = "auto",
    rounds: opt.PairedRounds = 16,
    seed: opt.Seed = 0,
    format: TextFormat = "table",
) -> None:
    """Measure every rule against the automatic rule again. On this device; exit 1 if a gain is gone."""
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.report.map_verify import Gain, verified_cells, verified_json, verified_text

    splits_map = read_map(file)
    for table in splits_map.tables:  # every one before any is measured, those without a rule too
        _refuse_elsewhere(file, splits_map, table, backend)
    cells: list[Verified] = []
    for table in splits_map.tables:
        measured = _measured_again(splits_map, table, backend, timer, rounds, seed)
        if measured is None:
            note(f"{table.name}: no rule, so nothing to verify")
            continue
        if measured.failure is not None:
            raise measured.failure
        cells += verified_cells(measured.run)
    emit(verified_json(cells) if format == "json" else verified_text(cells))
    lost = [cell for cell in cells if cell.gain in (Gain.GONE, Gain.INVALID)]
    if lost:
        said = ", ".join(f"{cell.label} ({cell.gain.value})" for cell in lost)
        raise GateFailed(f"{file}: the gain is gone: {said}; tune again")


def _refuse_elsewhere(file: Path, splits_map: "SplitsMap", table: "AnyTable", backend: str) -> None:
    """Raises CannotMeasure where the table does not hold for this device, kernel or L2 mode."""
    from dsa_bench.backends.dense import open_dense_decode
    from dsa_bench.backends.select import open_backend
    from dsa_bench.model.dense_map import DenseTable
    from dsa_bench.sweep.tuned import refuse_dense_elsewhere, refuse_elsewhere

    with only_the_result_on_stdout():
        if isinstance(table, DenseTable):
            opened, _ = open_dense_decode(backend)
            try:
                refuse_dense_elsewhere(str(file), splits_map, table, opened)
            finally:
                opened.close()
        else:
            opened, _ = open_backend(backend)
            try:
                refuse_elsewhere(str(file), splits_map, table, opened)
            finally:
                opened.close()


def _measured_again(
    splits_map: "SplitsMap", table: "AnyTable", backend: str, timer: str, rounds: int, seed: int
) -> "Measured | None":
    """The table's rules beside the automatic rule; None for a table without a rule."""
    from dsa_bench.cli.dense import measure_dense
    from dsa_bench.cli.measure import measure
    from dsa_bench.model.dense_map import DenseTable
    from dsa_bench.model.request import DataSpec
    from dsa_bench.sweep.tuned import verify_dense_request, verify_request

    if isinstance(table, DenseTable):
        of_dense = verify_dense_request(table, rounds, timer, seed)
        return None if of_dense is None else measure_dense(of_dense, backend, None, False)
    request = verify_request(table, splits_map.device.compute_capability, rounds, timer, DataSpec(seed))
    return None if request is None else measure(request, backend, None, False, False)


map_app = typer.Typer(rich_markup_mode=None, help="Read, explain, compare, join, verify and export tuned maps.")
for command in (show, validate, explain, diff, merge, verify, export):
    map_app.command(cls=ListCommand)(command)
