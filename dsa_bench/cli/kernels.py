# SPDX-License-Identifier: MIT
"""`dsa-bench kernels`."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, only_the_result_on_stdout
from dsa_bench.cli.values import names, one_of
from dsa_bench.jit.target import TARGETS, parse_target
from dsa_bench.model.errors import CompileFailed, GateFailed

if TYPE_CHECKING:
    from dsa_bench.jit.modules import ResourceRow

ALL_TARGETS = [str(target) for target in TARGETS]
COLUMNS = ("kernel", "target", "registers", "threads", "static", "dynamic", "stack", "spilled")


def _memory_of_a_thread(row: "ResourceRow") -> int:
    return (row.stack_bytes or 0) + (row.spill_store_bytes or 0) + (row.spill_load_bytes or 0)


def _text(rows: "list[ResourceRow]") -> str:
    lines: list[tuple[str, ...]] = [COLUMNS]
    for row in rows:
        spilled = None if row.reason else (row.spill_store_bytes or 0) + (row.spill_load_bytes or 0)
        numbers = (row.registers, row.threads, row.static_smem_bytes, row.dynamic_smem_bytes, row.stack_bytes, spilled)
        name = row.kernel or row.module
        lines.append((name, row.target, *("-" if number is None else str(number) for number in numbers)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
    return "\n".join([*text, "shared memory, stack and spills in bytes"])


def _json(rows: "list[ResourceRow]") -> str:
    return json.dumps([asdict(row) for row in rows], indent=1)


def _csv(rows: "list[ResourceRow]") -> str:
    from dsa_bench.jit.modules import ResourceRow

    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(ResourceRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()


WRITERS: "dict[str, Callable[[list[ResourceRow]], str]]" = {"table": _text, "json": _json, "csv": _csv}


def kernels(
    target: Annotated[
        list[str], opt.list_option("--target", names, "Architectures, such as 80, 90a or sm_120f.", "NAME...")
    ] = ALL_TARGETS,
    format: Annotated[
        str,
        typer.Option("--format", parser=one_of(tuple(WRITERS)), metavar="|".join(WRITERS), help="Of the result."),
    ] = "table",
) -> None:
    """Compile every kernel for every target, without a GPU. Prints what each needs; a spill or a stack frame is
    exit 1."""
    from dsa_bench.jit.compiler import refuse_unknown_targets
    from dsa_bench.jit.modules import resource_table

    targets = [parse_target(name) for name in target]
    refuse_unknown_targets(targets)
    with only_the_result_on_stdout():
        rows = resource_table(targets)
    emit(WRITERS[format](rows))
    failed = [row for row in rows if row.reason is not None]
    if failed:
        raise CompileFailed(f"{failed[0].module} for {failed[0].target}: {failed[0].reason}")
    spilling = sorted({f"{row.kernel} ({row.target})" for row in rows if _memory_of_a_thread(row)})
    if spilling:
        raise GateFailed(f"spills or a stack frame in {', '.join(spilling)}")
