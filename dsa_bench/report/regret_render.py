# SPDX-License-Identifier: MIT
"""Regret and the rules' league as text: for people, or as JSON, JSON lines, CSV and Markdown."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from dsa_bench.model.dense import DenseShape
from dsa_bench.model.text import printable
from dsa_bench.report.columns import aligned, csv_text, interval, markdown, percent
from dsa_bench.report.regret import ScoredChoice, Scores, Standing, choices_of, league, shapes, standing, too_few
from dsa_bench.report.render import time_text
from dsa_bench.report.swept import SweptCell, place_of

REGRET_SCHEMA = "dsa-bench/regret"
LEAGUE_SCHEMA = "dsa-bench/rule-league"
COLUMNS = (
    "rule",
    "splits",
    "time",
    "best",
    "its time",
    "regret",
    "95% interval",
    "naive",
)
LEAGUE_COLUMNS = ("rule", "mean", "95% interval", "95th pct.", "max", "at", "naive mean", "naive max")
LEFT = ("rule", "95% interval", "at")
_Places = dict[tuple[str, str], list[str]]
"""(rule or variant, reason) -> cells."""


def regret_text(scores: Scores) -> str:
    """A line for each rule and cell, then one for each rule."""
    table = aligned(_columns(scores), [_cells(one, scores) for one in scores.scored], LEFT)
    return "\n".join([table, *_sentences(scores)])


def regret_markdown(scores: Scores) -> str:
    table = markdown(_columns(scores), [_cells(one, scores) for one in scores.scored], LEFT)
    return "\n".join([table, "", *(f"- {line}" for line in _sentences(scores))])


def regret_json(scores: Scores) -> str:
    standings = [standing(name, scored) for name, scored in choices_of(scores).items()]
    return _document(REGRET_SCHEMA, rows=_flat_rows(scores), overall=[_flat(one) for one in standings], scores=scores)


def league_text(scores: Scores) -> str:
    """A line for each rule, then what it rests on and what could not be scored."""
    table, shared = league(scores)
    return "\n".join(
        [aligned(LEAGUE_COLUMNS, [_league_cells(one, scores.cells) for one in table], LEFT), *_basis(scores, shared)]
    )


def league_markdown(scores: Scores) -> str:
    table, shared = league(scores)
    lines = markdown(LEAGUE_COLUMNS, [_league_cells(one, scores.cells) for one in table], LEFT)
    return "\n".join([lines, "", *(f"- {line}" for line in _basis(scores, shared))])


def league_json(scores: Scores) -> str:
    table, _ = league(scores)
    return _document(LEAGUE_SCHEMA, rows=[_flat(one) for one in table], scores=scores)


ROWS_ONLY = ("jsonl", "csv")
"""Formats that have no place for `missing_lines`."""
REGRET_WRITERS: dict[str, Callable[[Scores], str]] = {
    "table": regret_text,
    "json": regret_json,
    "jsonl": lambda scores: "\n".join(json.dumps(row, allow_nan=False) for row in _flat_rows(scores)),
    "csv": lambda scores: csv_text(_flat_rows(scores)),
    "markdown": regret_markdown,
}
LEAGUE_WRITERS: dict[str, Callable[[Scores], str]] = {
    "table": league_text,
    "json": league_json,
    "jsonl": lambda scores: "\n".join(json.dumps(_flat(one), allow_nan=False) for one in league(scores)[0]),
    "csv": lambda scores: csv_text([_flat(one) for one in league(scores)[0]]),
    "markdown": league_markdown,
}


def _document(schema: str, *, scores: Scores, **parts: Any) -> str:
    unscored = [{**one.cell.shape.sizes, "rule": one.rule, "reason": one.reason} for one in scores.unscored]
    left_out = [{**one.cell.shape.sizes, "variant": one.variant, "reason": one.reason} for one in scores.left_out]
    untrusted = [{**cell.shape.sizes, "kernel": cell.kernel} for cell in scores.cells if not cell.trusted]
    document = {
        "schema": schema, "schema_version": 1, **parts,
        "unscored": unscored, "left_out": left_out, "untrusted": untrusted,
    }  # fmt: skip
    return json.dumps(document, indent=1, allow_nan=False)


def _flat_rows(scores: Scores) -> list[dict[str, Any]]:
    return [
        {
            **one.cell.shape.sizes,
            "kernel": one.cell.kernel,
            "timer": one.cell.timer,
            "l2": one.cell.l2,
            "rule": one.rule,
            "splits": one.splits,
            "time_us": one.median_us(one.variant),
            "best_splits": one.best_splits,
            "best_us": one.median_us(one.regret.best),
            "regret": one.regret.cross_fitted,
            "regret_low": one.regret.low,
            "regret_high": one.regret.high,
            "regret_naive": one.regret.naive,
            "below_tick": one.is_below_tick,
            "rounds": one.regret.rounds,
        }
        for one in scores.scored
    ]


def _flat(one: Standing) -> dict[str, Any]:
    total, worst = one.total, one.worst
    row: dict[str, Any] = {"rule": one.rule, "cells": total and total.cells}
    names = ("mean", "low", "high", "percentile_95", "maximum", "naive_mean", "naive_maximum")
    row |= {name: None if total is None else getattr(total, name) for name in names}
    size = "candidates" if worst is None or not isinstance(worst.shape, DenseShape) else "capacity"
    return {**row, "maximum_rows": worst and worst.shape.rows, f"maximum_{size}": worst and place_of(worst.shape)[size]}


def _columns(scores: Scores) -> tuple[str, ...]:
    """Headings of what `_cells` gives."""
    return (*_place_columns(scores), *COLUMNS)


def _place_columns(scores: Scores) -> list[str]:
    """What tells cells apart: also the kernel, where several were swept."""
    kernels = {cell.kernel for cell in scores.cells}
    return [*place_of(scores.cells[0].shape), *(["kernel"] if len(kernels) > 1 else [])]


def _cells(one: ScoredChoice, scores: Scores) -> list[str]:
    found = one.regret
    place = {**{name: str(size) for name, size in place_of(one.cell.shape).items()}, "kernel": one.cell.kernel}
    return [
        *(place[name] for name in _place_columns(scores)),
        one.rule,
        str(one.splits),
        time_text(one.median_us(one.variant)),
        str(one.best_splits),
        time_text(one.median_us(found.best)),
        percent(found.cross_fitted),
        interval(found.low, found.high),
        percent(found.naive),
    ]


def _league_cells(one: Standing, cells: Sequence[SweptCell]) -> list[str]:
    total = one.total
    if total is None:
        return [one.rule, *["-"] * (len(LEAGUE_COLUMNS) - 1)]
    where = "-" if one.worst is None else _place(one.worst, cells)
    shares = (total.percentile_95, total.maximum)
    naive = (total.naive_mean, total.naive_maximum)
    crossed = (percent(total.mean), interval(total.low, total.high), *map(percent, shares))
    return [one.rule, *crossed, where, *map(percent, naive)]


def _sentences(scores: Scores) -> list[str]:
    lines = [_sentence(standing(name, scored), scored) for name, scored in choices_of(scores).items()]
    return [*map(printable, [*lines, *_below_tick(scores)]), *missing_lines(scores)]


def _below_tick(scores: Scores) -> list[str]:
    """For each rule the shapes whose regret the timer does not resolve."""
    where = _place_words(scores.cells[0])
    lines: list[str] = []
    for name, scored in choices_of(scores).items():
        found = [one.cell for one in scored if one.is_below_tick]
        if found:
            places, tick = ", ".join(_place(cell, scores.cells) for cell in found), 1e3 * (found[0].tick_us or 0)
            lines.append(
                f"{name}: the regret of {shapes(len(found))} ({where} {places}) is less than a tick of "
                f"{found[0].timer}, {tick:g} ns, and so not resolved"
            )
    return lines


def _sentence(one: Standing, scored: Sequence[ScoredChoice]) -> str:
    total, worst = one.total, one.worst
    if total is None or worst is None:
        return f"{one.rule}: {too_few(scored)}" if scored else f"{one.rule}: no cell can be scored"
    sure = "" if total.low is None else f" [{interval(total.low, total.high)}]"
    tail = "" if total.percentile_95 is None else f", 95th percentile {percent(total.percentile_95)}"
    return (
        f"{one.rule}: mean regret {percent(total.mean)}{sure} over {shapes(total.cells)}{tail}, maximum "
        f"{percent(total.maximum)} ({worst.label}); naive, which is biased upwards: mean {percent(total.naive_mean)}, "
        f"maximum {percent(total.naive_maximum)}"
    )


def _basis(scores: Scores, shared: int) -> list[str]:
    """What the league rests on."""
    first = scores.cells[0]
    basis = f"cross-fitted regret over the {shapes(shared)} that every rule has a time in, of {len(scores.cells)}"
    return [printable(f"{basis}; {first.timer}, L2 {first.l2}; at = {_place_words(first)}"), *missing_lines(scores)]


def _place_words(cell: SweptCell) -> str:
    return "rows x capacity" if isinstance(cell.shape, DenseShape) else "rows x candidates"


def _place(cell: SweptCell, among: Sequence[SweptCell]) -> str:
    """A cell as rows x candidates, with its context and kernel where several were swept; of dense decode as rows x
    capacity, with its length and kernel likewise."""
    place = place_of(cell.shape)
    shown, of = ("capacity", "length") if isinstance(cell.shape, DenseShape) else ("candidates", "context")
    text = f"{place['rows']} x {place[shown]}"
    if len({place_of(other.shape)[of] for other in among}) > 1:
        text += f" {'at' if of == 'length' else 'of'} {place[of]}"
    if len({other.kernel for other in among}) > 1:
        text += f", {cell.kernel}"
    return text


def missing_lines(scores: Scores) -> list[str]:
    """What could not be scored, what does not compete and what is not to be trusted: a line for each reason."""
    unscored: _Places = {}
    for one in scores.unscored:
        unscored.setdefault((one.rule, one.reason), []).append(_place(one.cell, scores.cells))
    left_out: _Places = {}
    for one in scores.left_out:
        left_out.setdefault((one.variant, one.reason), []).append(_place(one.cell, scores.cells))
    said = (("is not scored", unscored), ("does not compete", left_out))
    where = _place_words(scores.cells[0])
    lines = [
        f"{name} {what} in {shapes(len(cells))} ({where} {', '.join(cells)}): {reason}"
        for what, places in said
        for (name, reason), cells in places.items()
    ]
    if untrusted := [_place(cell, scores.cells) for cell in scores.cells if not cell.trusted]:
        lines.append(
            f"one variant differs from itself beyond the margin in {shapes(len(untrusted))} "
            f"({where} {', '.join(untrusted)}); measure again before you trust what is said of it"
        )
    return [printable(line) for line in lines]
