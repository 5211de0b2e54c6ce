# SPDX-License-Identifier: MIT
"""`dsa-bench rule show | score | fit`."""

from pathlib import Path
from typing import Annotated

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note
from dsa_bench.cli.lists import ListCommand
from dsa_bench.cli.values import file_name, one_integer, one_of
from dsa_bench.model.errors import BadInput
from dsa_bench.splits.registry import MODEL, RULE_NAMES, RULES

rule = typer.Typer(rich_markup_mode=None, help="Show what split rules choose, score them, and fit the rule model.")
ALL = "all"


@rule.command(cls=ListCommand)
def show(
    name: Annotated[
        str,
        typer.Argument(
            parser=one_of((ALL, *RULE_NAMES)), metavar="NAME", help=f"From {', '.join(RULE_NAMES)}, or {ALL}."
        ),
    ],
    rows: opt.Rows,
    candidates: opt.Candidates,
    sms: Annotated[
        int, typer.Option("--sms", parser=one_integer(1), metavar="N", help="Multiprocessors of the device.")
    ],
    resident: Annotated[
        int,
        typer.Option("--resident", parser=one_integer(1), metavar="N", help="CTAs of the kernel resident on each."),
    ],
    kv_heads: opt.KvHeads = 2,
    model: opt.Model = None,
    format: opt.Format = "table",
) -> None:
    """Print the splits that a rule chooses on a device. Formula, source and blind spots go with them."""
    from dsa_bench.model.device import DeviceSlots
    from dsa_bench.report.rules import RULE_WRITERS, rule_choices
    from dsa_bench.splits.model_file import read_model
    from dsa_bench.splits.registry import named_rules

    if model is not None and name not in (MODEL, ALL):
        raise BadInput(f"--model: holds the constants of the rule model, and {name} was asked for; leave it out")
    costs = None if model is None else read_model(model).costs
    names = (*RULES, *([MODEL] if costs else [])) if name == ALL else (name,)
    table = rule_choices(named_rules(names, costs), rows, candidates, kv_heads, DeviceSlots(sms, resident))
    emit(RULE_WRITERS[format](table))


@rule.command(cls=ListCommand)
def score(
    run: opt.RunFile,
    rule: opt.ScoredRules = None,
    model: opt.Model = None,
    resident: opt.RecordedResident = None,
    format: opt.Format = "table",
) -> None:
    """Print the rules' league on a recorded sweep. It is of their regret over the shapes that all share."""
    from dsa_bench.cli.scores import scores_of
    from dsa_bench.report.regret_render import LEAGUE_WRITERS, ROWS_ONLY, missing_lines

    scores = scores_of(run, rule, model, resident, every=True)
    emit(LEAGUE_WRITERS[format](scores))
    for line in missing_lines(scores) if format in ROWS_ONLY else ():
        note(f"warning: {line}")


@rule.command(cls=ListCommand)
def fit(
    run: opt.RunFile,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", parser=file_name, metavar="FILE", help="In place of stdout.")
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Also fit on every other shape and score on the rest, both ways.")
    ] = False,
    resident: opt.RecordedResident = None,
) -> None:
    """Fit the constants of the rule model to a recorded sweep. Prints JSON for --model."""
    from dsa_bench.cli.scores import slots_of
    from dsa_bench.model.files import write_whole
    from dsa_bench.model.run import read_run
    from dsa_bench.report.fit import fitted_model, held_out_lines
    from dsa_bench.report.swept import ruled, swept_cells

    recorded = read_run(run)
    try:
        cells = ruled(swept_cells(recorded))
    except BadInput as error:
        raise BadInput(f"{run}: {error}") from error
    slots = slots_of(recorded, run, resident)
    if slots is None:
        raise BadInput(f"{run}: does not say how many CTAs were resident; say it with --resident N")
    try:
        fitted = fitted_model(recorded, cells, slots, held_out=held_out)
    except BadInput as error:
        raise BadInput(f"{run}: {error}") from error
    for cell in cells:
        for variant, reason in cell.left_out.items():
            note(f"warning: {variant} is not in the fit at {cell.label}: {reason}")
    if output is None:
        emit(fitted.to_json())
    else:
        write_whole(output, fitted.to_json().rstrip("\n") + "\n")
    note(
        f"fitted to {fitted.points} launches of {fitted.cells} shapes: relative error {fitted.rms_error:.1%} RMS, "
        f"{fitted.largest_error:.1%} at most near the best"
    )
    for line in held_out_lines(fitted.held_out):
        note(line)
