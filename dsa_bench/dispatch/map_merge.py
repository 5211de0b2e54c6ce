# SPDX-License-Identifier: MIT
"""The union of maps of one device."""

from collections.abc import Sequence
from dataclasses import fields

from dsa_bench import __version__
from dsa_bench.dispatch.map_file import check_map
from dsa_bench.model.documents import Misfit
from dsa_bench.model.errors import BadInput
from dsa_bench.model.splits_map import AnyTable, SplitsMap
from dsa_bench.model.text import short


def merge_maps(named: Sequence[tuple[str, SplitsMap]]) -> SplitsMap:
    """Every table of the maps once, in an order that does not depend on theirs; identical tables are one.

    named  (file, map), for errors
    Raises BadInput for maps of different devices, whose entries would be re-labelled, and for tables of the same
    launches that are not identical or whose rules take different kernels.
    """
    (first_name, first), *others = named
    for name, other in others:
        for field in fields(first.device):
            was, now = getattr(first.device, field.name), getattr(other.device, field.name)
            if was != now:
                raise BadInput(
                    f"{name}: its device's {field.name} is {short(now)} and that of {first_name} is {short(was)}; "
                    "a file holds one device, so keep them apart"
                )
    tables: dict[object, tuple[str, AnyTable]] = {}
    for name, one in named:
        for table in one.tables:
            before, known = tables.setdefault(table.identity, (name, table))
            if known != table:
                raise BadInput(
                    f"{name}: contradicts {before} about {table.name}; a map holds one table of these launches, so "
                    "leave one file out"
                )
    generators = {one.generator for _, one in named}
    merged = SplitsMap(
        created=max(one.created for _, one in named),
        generator=generators.pop() if len(generators) == 1 else f"dsa-bench {__version__}",
        device=first.device,
        tables=tuple(table for _, (_, table) in sorted(tables.items(), key=lambda pair: repr(pair[0]))),
    )
    try:
        check_map(merged)
    except Misfit as misfit:
        raise BadInput(f"{misfit.place} of the maps' union {misfit}; leave one of the files out") from misfit
    return merged
