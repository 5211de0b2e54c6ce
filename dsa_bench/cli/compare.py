# SPDX-License-Identifier: MIT
"""`dsa-bench compare`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsa_bench.cli.console import emit, terminal_width, wants_color
from dsa_bench.cli.values import one_of, share
from dsa_bench.model.errors import GateFailed

if TYPE_CHECKING:
    from dsa_bench.report.comparison import Comparison

FORMATS = ("table", "markdown", "json", "junit")
Threshold = Annotated[
    float,
    typer.Option("--threshold", parser=share, metavar="SHARE", help="Differences up to this are the same: 1% or 0.01."),
]
Metric = Annotated[
    str,
    typer.Option(
        "--metric", parser=one_of(("attention", "call")), metavar="attention|call", help="The time that is compared."
    ),
]
Format = Annotated[
    str, typer.Option("--format", parser=one_of(FORMATS), metavar="|".join(FORMATS), help="Of the result on stdout.")
]


def compare(
    base: Annotated[Path, typer.Argument(help="The run to compare with.", metavar="BASE")],
    head: Annotated[Path, typer.Argument(help="The run that is judged.", metavar="HEAD")],
    threshold: Threshold = "1%",  # pyright: ignore[reportArgumentType] - parsed
    metric: Metric = "attention",
    strict: Annotated[bool, typer.Option("--strict", help="INCONCLUSIVE lines fail, too.")] = False,
    allow_device_mismatch: Annotated[
        bool,
        typer.Option(
            "--allow-device-mismatch", help="Compare runs of other devices, timers, L2 modes, inputs or clocks."
        ),
    ] = False,
    format: Format = "table",
) -> None:
    """Compare two recorded runs. Exit 1 if a line of HEAD is slower, failed, missing or without a number."""
    from dsa_bench.model.run import read_run
    from dsa_bench.report.compare import Terms, compare_runs

    terms = Terms("call" if metric == "call" else "attention", threshold)
    runs = read_run(base), read_run(head)
    comparison = compare_runs(*runs, (str(base), str(head)), terms, allow_mismatch=allow_device_mismatch)
    print_comparison(comparison, format, strict)
    reasons = comparison.gate_reasons(strict)
    if reasons:
        raise GateFailed(f"{head} against {base}: {', '.join(reasons)}")


def print_comparison(comparison: "Comparison", format: str, strict: bool = False) -> None:
    """In the format asked for."""
    from dsa_bench.report.compare_machine import compare_json, compare_junit
    from dsa_bench.report.compare_render import compare_markdown, compare_text

    if format == "json":
        emit(compare_json(comparison, strict=strict))
    elif format == "junit":
        emit(compare_junit(comparison, strict=strict))
    elif format == "markdown":
        emit(compare_markdown(comparison))
    else:
        emit(compare_text(comparison, color=wants_color(sys.stdout), width=terminal_width(sys.stdout)))
