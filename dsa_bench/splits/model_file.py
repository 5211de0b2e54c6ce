# SPDX-License-Identifier: MIT
"""The fitted constants of the rule `model` as a JSON file, kept with what they were fitted to."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from dsa_bench.model.costs import SplitCosts
from dsa_bench.model.documents import Misfit, given_twice, parse_json
from dsa_bench.model.errors import BadInput
from dsa_bench.model.schema import misfitting_field
from dsa_bench.model.text import quoted

MODEL_SCHEMA = "dsa-bench/split-model"
MODEL_SCHEMA_VERSION = 2
FIT_DIGITS = 9
"""Significant digits of a written number: more than a timer has, and fewer than linear algebra libraries agree in."""


@dataclass(frozen=True, slots=True)
class SplitModel:
    """Constants of model.costs.SplitCosts, and the fit that they come from.

    created                    when the sweep was recorded; kernel, kernel_hash, device, sm_count, resident_ctas, l2,
                               timer: of that sweep
    cells, points              shapes, and launches of them, that were fitted
    rms_error                  relative, predicted against measured, weighted as the points were fitted
    largest_error              the largest of those launches that are near the best of their shape (report/fit.py)
    held_out                   what `rule fit --held-out` found; empty without
    """

    created: str
    kernel: str
    kernel_hash: str
    device: str
    sm_count: int
    resident_ctas: int
    l2: str
    timer: str
    fixed_us: float
    tile_us: float
    slowdown: tuple[float, ...]
    merge_us: float
    cta_us: float
    wave_us: float
    cells: int
    points: int
    rms_error: float
    largest_error: float
    held_out: dict[str, Any]
    schema: str = MODEL_SCHEMA
    schema_version: int = MODEL_SCHEMA_VERSION

    @property
    def costs(self) -> SplitCosts:
        """Raises BadInput if the constants cannot be used."""
        return SplitCosts(self.fixed_us, self.tile_us, self.slowdown, self.merge_us, self.cta_us, self.wave_us)

    def to_json(self) -> str:
        """The fit to FIT_DIGITS, so that every machine writes the same bytes."""
        return json.dumps(_rounded(asdict(self)), indent=1, allow_nan=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{FIT_DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in cast("list[Any]", value)]
    return value


def read_model(path: Path) -> SplitModel:
    """Read what `rule fit` wrote. Raises BadInput naming the file and what is wrong."""
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"--model {path}: cannot be read ({error.strerror}); name a file of `rule fit`") from error
    except Misfit as misfit:
        raise BadInput(f"--model {path}: {misfit.place} {misfit}; name a file of `rule fit`") from misfit
    if not isinstance(content, dict):
        raise BadInput(f"--model {path}: must be a JSON object; name a file of `rule fit`")
    fields = cast("dict[str, Any]", content)
    for name, expected in (("schema", MODEL_SCHEMA), ("schema_version", MODEL_SCHEMA_VERSION)):
        if fields.get(name) != expected:
            said = (
                f"has {name} {quoted(fields.get(name))}; this dsa-bench reads {expected!r}: fit again with `rule fit`"
            )
            raise BadInput(f"--model {path}: {said}")
    if (twice := given_twice(content)) is not None:
        raise BadInput(f"--model {path}: {twice} is given twice; name a file of `rule fit`")
    misfit = misfitting_field(SplitModel, fields)
    if misfit is not None:
        raise BadInput(f"--model {path}: {misfit:.200}; name a file of `rule fit`")
    fields["slowdown"] = tuple(fields["slowdown"])
    model = SplitModel(**fields)
    try:
        _ = model.costs
    except BadInput as error:
        raise BadInput(f"--model {path}: {error}") from error
    return model
