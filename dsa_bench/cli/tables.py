# SPDX-License-Identifier: MIT
"""A run's table on stdout, in the format asked for."""

import sys
from typing import TYPE_CHECKING

from dsa_bench.cli.console import emit, note, terminal_width, wants_color

if TYPE_CHECKING:
    from pathlib import Path

    from dsa_bench.model.run import Run
    from dsa_bench.report.cells import CellTable


def print_tables(run: "Run", format: str, output: "Path | None" = None) -> "list[CellTable]":
    """Print the tables of a run, or write them to a file, and return them; cells that cannot be trusted are also named
    on stderr."""
    from dsa_bench.model.files import write_whole
    from dsa_bench.report.cells import cell_tables, untrusted_cells
    from dsa_bench.report.render import MACHINE_WRITERS, to_text

    tables = cell_tables(run)
    writer = MACHINE_WRITERS.get(format)
    if writer is not None:
        text = writer(tables)
    elif output is not None:
        text = to_text(tables, color=False, width=None)
    else:
        text = to_text(tables, color=wants_color(sys.stdout), width=terminal_width(sys.stdout))
    if output is None:
        emit(text)
    else:
        write_whole(output, text.rstrip("\n") + "\n")
    for table in untrusted_cells(tables):
        note(f"warning: {table.label}: one variant differs from itself beyond the margin; measure again")
    return tables
