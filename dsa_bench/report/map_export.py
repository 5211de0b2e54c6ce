# SPDX-License-Identifier: MIT
"""A tuned map as the one setting that ONNX Runtime takes: the value of least mean regret over the map's cells."""

import json
from dataclasses import dataclass

from dsa_bench.model.errors import BadInput
from dsa_bench.model.splits_map import MapCell, SplitsMap
from dsa_bench.model.text import printable
from dsa_bench.splits.rules import capped_splits

SWITCH = ("ep.cuda.dsa_decode_int8_tc", "ORT_DSA_DECODE_INT8_TC")
KNOB = ("ep.cuda.dsa_decode_int8_tc_tiles_per_split", "ORT_DSA_DECODE_INT8_TC_TILES_PER_SPLIT")
"""(session option, environment variable)"""


@dataclass(frozen=True, slots=True)
class OneValue:
    """A tiles per split for every launch, 0 for the automatic rule; its regret over `cells` cells of the map."""

    value: int
    mean: float
    max: float
    cells: int
    automatic_mean: float

    @property
    def said(self) -> str:
        """What the value is, and what it is not."""
        name = f"{self.value} tiles per split" if self.value else "0 (the automatic rule)"
        return (
            f"{name}: the single value of least mean regret over the map's {self.cells} cells: {self.mean:.2%} mean, "
            f"{self.max:.2%} max, of median times against each cell's best (the automatic rule: "
            f"{self.automatic_mean:.2%} mean); it is not the map, which has a value for each shape"
        )


def single_value(splits_map: SplitsMap) -> OneValue:
    """Among 0 and every value that all cells measured, the one with the least mean regret, the smallest of equals.

    Regret of median times against each cell's least. Raises BadInput for a map without cells.
    """
    cells = [(cell, table.max_splits) for table in splits_map.tables for cell in table.cells]
    if not cells:
        raise BadInput("the map holds no cell, so no value can be chosen; tune again")
    values = {0} | {int(value) for cell, _ in cells for value in cell.us}
    scored: dict[int, list[float]] = {}
    for value in sorted(values):
        times = [_time_us(cell, value, max_splits) for cell, max_splits in cells]
        known = [us for us in times if us is not None]
        if len(known) == len(cells):
            scored[value] = [us / min(cell.us.values()) - 1 for us, (cell, _) in zip(known, cells, strict=True)]
    best = min(scored, key=lambda value: (sum(scored[value]), value))
    mean = {value: sum(of_value) / len(cells) for value, of_value in scored.items()}
    return OneValue(best, mean[best], max(scored[best]), len(cells), mean[0])


def _time_us(cell: MapCell, value: int, max_splits: int) -> float | None:
    if value == 0:
        return cell.auto_us
    asked = capped_splits(cell.tiles, value, max_splits)
    return next((us for key, us in cell.us.items() if capped_splits(cell.tiles, int(key), max_splits) == asked), None)


def session_options(chosen: OneValue) -> str:
    """The session options as a JSON object, as ONNX Runtime's add_session_config_entry takes them."""
    return json.dumps({SWITCH[0]: "1", KNOB[0]: str(chosen.value)}, indent=1)


def environment_lines(chosen: OneValue, device: str) -> str:
    """Lines that a shell sources; the comments say what the value is. Nothing of the device's name ends a comment."""
    return "\n".join(
        [
            f"# {chosen.said}",
            f"# tuned on {printable(' '.join(device.split()))}",
            f"export {SWITCH[1]}=1",
            f"export {KNOB[1]}={chosen.value}",
        ]
    )
