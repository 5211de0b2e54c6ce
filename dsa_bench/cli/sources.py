# SPDX-License-Identifier: MIT
"""Where the tensors of the asked cells come from: drawn, or files that `--inputs` and `--scales-from` name."""

from dataclasses import replace

import typer

from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import Op, SparseShape

SHAPE_OPTIONS = ("rows", "context", "candidates", "query_heads", "kv_heads")
DATA_OPTIONS = (
    "seed",
    "query_std",
    "key_scale_multiplier",
    "value_scale_multiplier",
    "invalid_fraction",
    "selection",
    "scales_from",
)


def cells_of_inputs(ctx: typer.Context, file: str, op: Op) -> tuple[tuple[SparseShape, ...], DataSpec]:
    """The one cell that a file of inputs holds. Raises BadInput for an option beside it that says something else."""
    from dsa_bench.data.files import inputs_source

    for name in given(ctx, DATA_OPTIONS):
        raise BadInput(f"{_flag(name)}: is no option beside --inputs, whose file holds every tensor; leave one out")
    source, shape = inputs_source(file)
    for name in given(ctx, SHAPE_OPTIONS):
        asked, held = ctx.params[name], getattr(shape, name)
        if asked not in (held, [held]):
            values = asked if isinstance(asked, int) else " ".join(map(str, asked))
            raise BadInput(f"{_flag(name)} {values}: --inputs {file} holds {held}; leave {_flag(name)} out")
    return (replace(shape, op=op),), DataSpec(source=source)


def with_scales(data: DataSpec, file: str, shape: SparseShape) -> DataSpec:
    """The same data with the scales of a file, which fit the heads of `shape`."""
    from dsa_bench.data.files import scales_source

    return replace(data, source=scales_source(file, shape))


def given(
    ctx: typer.Context, names: tuple[str, ...], by: tuple[str, ...] = ("COMMANDLINE", "ENVIRONMENT")
) -> list[str]:
    """Those options that the command line or the environment sets."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    return [name for name, source in sources.items() if source and source.name in by]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
