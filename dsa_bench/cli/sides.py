# SPDX-License-Identifier: MIT
"""`--option NAME=VALUE` and `--splits FILE`: measure what the dispatcher takes."""

import hashlib
from pathlib import Path

import typer

from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import MapFile, Side

CHOSEN_BY_THE_DISPATCHER = ("kernels", "tiles_per_split", "rules")


def dispatcher_sides(
    ctx: typer.Context, options: list[str] | None, splits: Path | None
) -> tuple[tuple[Side, ...], MapFile | None]:
    """The dispatcher's options on each side, and the file of its map; nothing without `--option`.

    Raises BadInput for an option or map that is not one, and for options beside them that the dispatcher decides.
    """
    if not options:
        return (), None
    from dsa_bench.dispatch.map_file import read_map
    from dsa_bench.dispatch.options import resolve_splits
    from dsa_bench.sweep.variants import sides_of

    tuned_map = None
    if (path := resolve_splits(splits)) is not None:
        read_map(path)
        tuned_map = MapFile(str(path), hashlib.sha256(path.read_bytes()).hexdigest()[:16])
    for name in CHOSEN_BY_THE_DISPATCHER:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT"):
            flag = "--" + name.replace("_", "-")
            raise BadInput(f"{flag}: is the dispatcher's to choose beside --option; leave one of them out")
    pairs = [(name, value) for name, _, value in (option.partition("=") for option in options)]
    return sides_of(pairs), tuned_map
