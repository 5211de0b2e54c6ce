# SPDX-License-Identifier: MIT
"""From a recorded run and named rules to their scores."""

from pathlib import Path
from typing import TYPE_CHECKING

from dsa_bench.cli.console import note
from dsa_bench.model.errors import BadInput
from dsa_bench.splits.dense import RULES
from dsa_bench.splits.model_file import SplitModel, read_model
from dsa_bench.splits.registry import AUTO, RULE_NAMES

if TYPE_CHECKING:
    from dsa_bench.model.device import DeviceSlots
    from dsa_bench.model.run import Run
    from dsa_bench.report.regret import Scores


def scores_of(
    path: Path, rules: list[str] | None, model_file: Path | None, resident: int | None, *, every: bool
) -> "Scores":
    """Score rules on a run. Says on stderr where the model was fitted to something else than the run.

    every  whether no named rule means every rule of the run's operator, or the automatic one alone
    Raises BadInput for a model or --resident beside a run of dense decode, whose rules know no device.
    """
    from dsa_bench.model.run import read_run
    from dsa_bench.report.regret import score
    from dsa_bench.report.swept import ruled, swept_cells

    model = None if model_file is None else read_model(model_file)
    run = read_run(path)
    of_dense = run.header.plan.get("op") == "dense"
    if of_dense and (model_file is not None or resident is not None):
        unused = "--resident" if model_file is None else "--model"
        raise BadInput(f"{unused}: has no use beside {path}, a record of dense decode; leave it out")
    slots = slots_of(run, path, resident)
    names = rules or ((RULES if of_dense else RULE_NAMES) if every else (AUTO,))
    try:
        cells = swept_cells(run, "dense" if of_dense else "decode")
        cells = cells if AUTO in names else ruled(cells)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    if model is not None:
        _note_differences(model, run, cells[0].l2, slots)
    return score(cells, names, slots, None if model is None else model.costs)


def slots_of(run: "Run", path: Path, resident: int | None) -> "DeviceSlots | None":
    """The run's slots. Raises BadInput if --resident says something else than the record."""
    from dsa_bench.report.swept import run_slots

    try:
        slots = run_slots(run, resident)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    if resident is not None and slots is not None and slots.resident != resident:
        raise BadInput(f"--resident {resident}: {path} was recorded with {slots.resident}; leave --resident out")
    return slots


def _note_differences(model: SplitModel, run: "Run", l2: str, slots: "DeviceSlots | None") -> None:
    here = {
        "device": run.header.device.get("name"),
        "kernel_hash": run.header.kernel_hashes.get(model.kernel),
        "l2": l2,
        "resident_ctas": None if slots is None else slots.resident,
    }
    differing = [
        f"{name} {getattr(model, name)}, here {value}" for name, value in here.items() if getattr(model, name) != value
    ]
    if differing:
        note(f"warning: the model was fitted to something else: {'; '.join(differing)}")
