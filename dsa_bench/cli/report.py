# SPDX-License-Identifier: MIT
"""`dsa-bench report`."""

from pathlib import Path
from typing import Annotated

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import note
from dsa_bench.cli.tables import print_tables


def report(
    run: Annotated[Path, typer.Argument(help="A run that --record wrote.", metavar="RUN")], format: opt.Format = "table"
) -> None:
    """Print the table of a recorded run."""
    from dsa_bench.model.run import read_run

    if not print_tables(read_run(run), format):
        note(f"{run}: no cell was measured yet")
