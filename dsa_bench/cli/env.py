# SPDX-License-Identifier: MIT
"""`dsa-bench env`."""

import json
from typing import Annotated

import typer

from dsa_bench.cli.console import emit
from dsa_bench.cli.values import one_of


def env(
    format: Annotated[
        str, typer.Option("--format", parser=one_of(("table", "json")), metavar="table|json", help="Of the result.")
    ] = "table",
) -> None:
    """Show what this machine can measure with and what is missing. Says how to get it, too."""
    from dsa_bench.sweep.environment import environment

    facts = environment()
    if format == "json":
        emit(json.dumps(facts, indent=1, allow_nan=False))
        return
    width = max(map(len, facts))
    emit("\n".join(f"{name:<{width}}  {'-' if value is None else value}" for name, value in facts.items()))
