# SPDX-License-Identifier: MIT
"""A tuned map as the one setting that ONNX Runtime or onnx-genai takes: the value of least mean regret over cells."""

import json
from dataclasses import dataclass

from dsa_bench.model.errors import BadInput
from dsa_bench.model.map_parts import WORDS
from dsa_bench.model.request import DIGITS
from dsa_bench.model.splits_map import AnyCell, AnyTable, SplitsMap
from dsa_bench.model.text import printable
from dsa_bench.splits.dense import CHUNK_VARIABLE
from dsa_bench.splits.kernels import INT8_TC
from dsa_bench.splits.map_values import launched_splits

SWITCH = ("ep.cuda.dsa_decode_int8_tc", "ORT_DSA_DECODE_INT8_TC")
KNOB = ("ep.cuda.dsa_decode_int8_tc_tiles_per_split", "ORT_DSA_DECODE_INT8_TC_TILES_PER_SPLIT")
"""(session option, environment variable)"""


@dataclass(frozen=True, slots=True)
class OneValue:
    """A value for every launch of an operator, 0 for the automatic rule; its regret over `cells` cells of the map."""

    op: str
    value: int
    mean: float
    max: float
    cells: int
    automatic_mean: float

    @property
    def said(self) -> str:
        """What the value is, and what it is not."""
        name = f"{self.value} {WORDS[self.op].of_value}" if self.value else "0 (the automatic rule)"
        return (
            f"{name}: the single value of least mean regret over the map's {self.cells} cells: {self.mean:.2%} mean, "
            f"{self.max:.2%} max, of median times against each cell's best (the automatic rule: "
            f"{self.automatic_mean:.2%} mean); it is not the map, which has a value for each shape"
        )


def exported_ops(splits_map: SplitsMap) -> list[str]:
    """The operators that the map has cells of. Raises BadInput if there is none."""
    ops = [op for op in WORDS if any(table.cells for table in _exported(splits_map, op))]
    if not ops:
        raise BadInput("the map holds no cell, so no value can be chosen; tune again")
    return ops


def unexported(splits_map: SplitsMap) -> str | None:
    """What a single value of int8-tc leaves out of a map that chose among kernels; None where that is nothing."""
    rules = sum(len(table.rules) for table in splits_map.tables if table.kernel == DIGITS)
    if not any(table.kernel == DIGITS for table in splits_map.tables):
        return None
    counted = f"{rules} rule{'' if rules == 1 else 's'} for {DIGITS}"
    return f"the map also chose among kernels, and no option there takes another: {counted} left out"


def _exported(splits_map: SplitsMap, op: str) -> list[AnyTable]:
    """The tables whose values the options hold: of decode those of int8-tc."""
    return [table for table in splits_map.tables if table.op == op and (op != "decode" or table.kernel == INT8_TC)]


def single_value(splits_map: SplitsMap, op: str = "decode") -> OneValue:
    """Among 0 and every value that all cells measured, the one with the least mean regret, the smallest of equals.

    Regret of median times against each cell's least. Raises BadInput for a map without cells.
    """
    cells = [(table, cell) for table in _exported(splits_map, op) for cell in table.cells]
    if not cells:
        raise BadInput("the map holds no cell, so no value can be chosen; tune again")
    values = {0} | {int(value) for _, cell in cells for value in cell.us}
    scored: dict[int, list[float]] = {}
    for value in sorted(values):
        times = [_time_us(*one, value) for one in cells]
        known = [us for us in times if us is not None]
        if len(known) == len(cells):
            scored[value] = [us / min(cell.us.values()) - 1 for us, (_, cell) in zip(known, cells, strict=True)]
    best = min(scored, key=lambda value: (sum(scored[value]), value))
    mean = {value: sum(of_value) / len(cells) for value, of_value in scored.items()}
    return OneValue(op, best, mean[best], max(scored[best]), len(cells), mean[0])


def _time_us(table: AnyTable, cell: AnyCell, value: int) -> float | None:
    if value == 0:
        return cell.auto_us
    asked = launched_splits(table, cell.size, value)
    return next((us for key, us in cell.us.items() if launched_splits(table, cell.size, int(key)) == asked), None)


def session_options(chosen: OneValue) -> str:
    """The session options as a JSON object, as ONNX Runtime's add_session_config_entry takes them."""
    return json.dumps({SWITCH[0]: "1", KNOB[0]: str(chosen.value)}, indent=1)


def environment_lines(chosen: OneValue, device: str) -> str:
    """Lines that a shell sources; the comments say what the value is. Nothing of the device's name ends a comment."""
    return "\n".join(
        [
            f"# {chosen.said}",
            f"# tuned on {printable(' '.join(device.split()))}",
            *_settings(chosen),
        ]
    )


def _settings(chosen: OneValue) -> list[str]:
    """onnx-genai's variable has no value that means its own rule, so it must not be set for that."""
    if chosen.op == "dense":
        return [f"export {CHUNK_VARIABLE}={chosen.value}" if chosen.value else f"unset {CHUNK_VARIABLE}"]
    return [f"export {SWITCH[1]}=1", f"export {KNOB[1]}={chosen.value}"]
