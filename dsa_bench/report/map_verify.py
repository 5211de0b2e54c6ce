# SPDX-License-Identifier: MIT
"""Whether a tuned map still gains what it promised, from a run that measured it beside the automatic rule."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from dsa_bench.model.cell_key import AttentionShape, attention_shape_of_key
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.map_parts import WORDS
from dsa_bench.model.record import Check
from dsa_bench.model.request import DIGITS
from dsa_bench.model.run import Run
from dsa_bench.model.text import printable
from dsa_bench.report.swept import SweptCell, place_of, swept_cells
from dsa_bench.splits.geometry import AUTOMATIC, TUNED
from dsa_bench.stats.location import paired_ratio
from dsa_bench.stats.verdict import MARGIN


class Gain(StrEnum):
    """Of one cell's rule: its interval lies below 1; above 1 / (1 + margin); or the rounds do not say."""

    HOLDS = "holds"
    GONE = "gone"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Verified:
    """One cell: the map's value against the automatic rule's.

    sizes             of the shape, by name: rows, context and candidates, or rows, capacity and length
    kernel, value     the map's, the value under the name that maps have for it
    ratio, low, high  time of the map's choice / time of the automatic rule's, with an interval for all cells together;
                      None where one of the two has no times
    """

    sizes: Mapping[str, int]
    kernel: str
    value_name: str
    value: int
    rounds: int
    ratio: float | None
    low: float | None
    high: float | None
    gain: Gain
    reason: str | None = None

    @property
    def rows(self) -> int:
        return self.sizes["rows"]

    @property
    def label(self) -> str:
        """The launch as rules are looked up by."""
        sizes = (f"{name} {size}" for name, size in self.sizes.items() if name not in ("context", "length"))
        return ", ".join([*sizes, *([self.kernel] if self.kernel == DIGITS else [])])


def verified_cells(run: Run, margin: float = MARGIN) -> list[Verified]:
    """Every cell of a run that measured a map; one in which nothing could be timed is INVALID."""
    op = "dense" if run.header.plan.get("op") == "dense" else "decode"
    cells = swept_cells(run, op, together=op == "decode") if run.visits else []
    timed = {cell.shape.key for cell in cells}
    lost = {check.cell: check for check in run.checks if check.cell not in timed and TUNED in check.rules}
    return [*(_verified(cell, 1 - 0.05 / len(cells), margin) for cell in cells), *map(_untimed, lost.values())]


def _untimed(check: Check) -> Verified:
    asked = _asked(attention_shape_of_key(check.cell), check.kernel, max(check.requested, default=AUTOMATIC), 0)
    return Verified(*asked, None, None, None, Gain.INVALID, f"{check.variant}: {check.status}: {check.reason}")


def _asked(shape: AttentionShape, kernel: str, value: int, rounds: int) -> tuple[Mapping[str, int], str, str, int, int]:
    """The first fields of Verified."""
    return place_of(shape), kernel, WORDS["dense" if isinstance(shape, DenseShape) else "decode"].value, value, rounds


def _verified(cell: SweptCell, confidence: float, margin: float) -> Verified:
    tuned = next((check for check in cell.checks.values() if TUNED in check.rules), None)
    automatic = next(
        (one for one in cell.checks.values() if one.kernel == cell.kernel and AUTOMATIC in one.requested), None
    )
    value = AUTOMATIC if tuned is None else max(tuned.requested, default=AUTOMATIC)
    asked = _asked(cell.shape, cell.kernel if tuned is None else tuned.kernel, value, len(cell.rounds))
    if tuned is None or automatic is None:
        lacking = "the map's choice" if tuned is None else "the automatic rule"
        return Verified(*asked, None, None, None, Gain.INVALID, f"{lacking} was not measured here")
    missing = [name for name in (tuned.variant, automatic.variant) if name not in cell.times]
    if missing:
        why = f"{missing[0]}: {cell.left_out.get(missing[0], 'no times')}"
        return Verified(*asked, None, None, None, Gain.INVALID, why)
    ratio = paired_ratio(cell.times[tuned.variant], cell.times[automatic.variant], confidence)
    gain = Gain.INCONCLUSIVE
    if ratio.low is not None and ratio.high is not None:
        if ratio.low > 1 / (1 + margin):
            gain = Gain.GONE
        elif ratio.high < 1:
            gain = Gain.HOLDS
    return Verified(*asked, ratio.centre, ratio.low, ratio.high, gain)


def verified_text(cells: Sequence[Verified]) -> str:
    """A line for each cell, a table for each operator, then the count of each outcome."""
    if not cells:
        return "nothing to verify"
    text: list[str] = []
    for words in WORDS.values():
        of_op = [cell for cell in cells if cell.value_name == words.value]
        if of_op:
            text += _table(of_op, words.heading)
    text += [printable(f"{cell.label}: {cell.reason}") for cell in cells if cell.reason]
    counts = [f"{sum(cell.gain is gain for cell in cells)} {gain.value}" for gain in Gain]
    return "\n".join([*text, ", ".join(part for part in counts if not part.startswith("0 "))])


def _table(cells: Sequence[Verified], heading: str) -> list[str]:
    several = ("kernel",) if len({cell.kernel for cell in cells}) > 1 else ()
    lines: list[tuple[str, ...]] = [(*cells[0].sizes, *several, heading, "map / auto", "interval", "gain")]
    for cell in cells:
        ratio = "-" if cell.ratio is None else f"{cell.ratio:.3f}"
        interval = "-" if cell.low is None or cell.high is None else f"{cell.low:.3f}-{cell.high:.3f}"
        kernel = (cell.kernel,) if several else ()
        lines.append((*map(str, (*cell.sizes.values(), *kernel, cell.value)), ratio, interval, cell.gain.value))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.rjust, line, widths)) for line in lines]


def verified_json(cells: Sequence[Verified]) -> str:
    content = {"schema": "dsa-bench/map-verify", "schema_version": 1, "cells": [*map(_flat, cells)]}
    return json.dumps(content, indent=1, allow_nan=False)


def _flat(cell: Verified) -> dict[str, Any]:
    rest = {name: value for name, value in asdict(cell).items() if name not in ("sizes", "value_name", "value")}
    return {**cell.sizes, cell.value_name: cell.value, **rest}
