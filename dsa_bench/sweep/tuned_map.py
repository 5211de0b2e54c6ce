# SPDX-License-Identifier: MIT
"""From a run to a map: which of its cells a map can hold, and in which table each belongs.

A pure function of the run: the same samples give the same map, in whatever order they were recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from dsa_bench.dispatch.facts import DENSE_KERNEL
from dsa_bench.dispatch.map_file import map_text, parse_map
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.documents import Misfit
from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import DIGITS, MIN_TUNED_ROUNDS
from dsa_bench.model.run import Run
from dsa_bench.model.splits_map import (
    MapDevice,
    SplitsMap,
)
from dsa_bench.splits.kernels import dispatched_kernels
from dsa_bench.splits.map_values import size_of
from dsa_bench.stats.verdict import MARGIN
from dsa_bench.sweep.cell_times import CellTimes, LostCell, cells_of_run
from dsa_bench.sweep.map_tables import KernelFacts, decode_tables, dense_tables, heads_of
from dsa_bench.sweep.scored_cell import score_cell


@dataclass(frozen=True, slots=True)
class Tuned:
    """A map and what a user should hear about it.

    planned    cells that the run set out to measure; None where a selection of them was asked for
    lost       cells that the map does not hold
    untrusted  cells whose null control was off: their gain has to exceed what it was off by as well
    """

    splits_map: SplitsMap
    planned: int | None
    cells: list[CellTimes]
    lost: list[LostCell]
    untrusted: list[CellTimes]


def tuned_map(run: Run, *, context: int | None = None, margin: float = MARGIN, where: str = "the run") -> Tuned:
    """The map of a run's cells of decode or dense decode: a table for each set of heads (and type), L2 mode and kernel.

    context  only cells with so many positions, or of dense decode with so many live keys
    where    how errors name the run
    Raises BadInput if no cell of the run can be in a map, if one has too few complete rounds, if two would be one
    entry, or if the record lacks what a map says of its device.
    """
    dense = run.header.plan.get("op") == "dense"
    device = run.header.device
    kernels = (DENSE_KERNEL,) if dense else dispatched_kernels(device.get("backend"), device.get("clusters"))
    try:
        found = cells_of_run(run, kernels, context, "dense" if dense else "decode")
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error
    cells = [cell for cell in found if isinstance(cell, CellTimes)]
    lost = [cell for cell in found if isinstance(cell, LostCell)]
    if not found:
        of_context = "" if context is None else f" with {'length' if dense else 'context'} {context}"
        op = "dense" if dense else "decode"
        raise BadInput(f"{where}: holds no {op} cell of {kernels[0]}{of_context}; measure some with tune --record FILE")
    complete = [(cell.shape, cell.complete) for cell in cells] + [(cell.shape, 0) for cell in lost if cell.unfinished]
    for shape, rounds in complete:
        if rounds < MIN_TUNED_ROUNDS:
            raise BadInput(
                f"{where}: {shape.key} has {rounds} complete rounds and a map needs {MIN_TUNED_ROUNDS}; "
                "finish it with --resume, or give it more --rounds or --budget"
            )
    _refuse_two_in_one(cells, where)
    groups: dict[tuple[Any, ...], list[CellTimes]] = {}
    make = dense_tables if dense else decode_tables
    for cell in cells:
        groups.setdefault((*heads_of(cell.shape), cell.l2), []).append(cell)
    scored = {key: [score_cell(cell, len(group), margin) for cell in group] for key, group in sorted(groups.items())}
    measured = {target.kernel for cell in cells for target in cell.times}
    facts = [_facts(run, kernel, where) for kernel in kernels if kernel in measured or kernel == kernels[0]]
    made = SplitsMap(
        created=run.header.created,
        generator=f"dsa-bench {run.header.version}",
        device=_device(run.header.device),
        tables=tuple(
            table for group in scored.values() for table in make(group, [one.shape for one in lost], facts, margin)
        ),
    )
    try:
        checked = parse_map(map_text(made).encode())
    except Misfit as misfit:
        raise BadInput(f"{where}: {misfit.place} of the map {misfit}; measure again") from misfit
    untrusted = [one.cell for group in scored.values() for one in group if not one.trusted]
    planned = run.header.plan.get("shapes")
    count = len(cast("list[Any]", planned)) if context is None and isinstance(planned, list) else None
    return Tuned(checked, count, cells, lost, untrusted)


def _refuse_two_in_one(cells: Sequence[CellTimes], where: str) -> None:
    """A map tells launches apart by rows, size, heads and L2 mode, and by nothing else."""
    seen: dict[tuple[Any, ...], CellTimes] = {}
    for cell in cells:
        shape = cell.shape
        one = seen.setdefault((shape.rows, size_of(shape), *heads_of(shape), cell.l2), cell)
        if one is not cell:
            if isinstance(one.shape, DenseShape) or isinstance(shape, DenseShape):
                raise BadInput(
                    f"{where}: {one.shape.key} and {shape.key} are one entry of a map; choose one length with --length"
                )
            if one.shape.context != shape.context:
                raise BadInput(
                    f"{where}: holds rows {shape.rows}, {shape.tiles} tiles at contexts {one.shape.context} and "
                    f"{shape.context}, which are one entry of a map; choose one with --context"
                )
            raise BadInput(
                f"{where}: {one.shape.key} and {shape.key} are both {shape.tiles} tiles; measure one of them"
            )
    contexts = {cell.shape.context for cell in cells if not isinstance(cell.shape, DenseShape)}
    for name, values in (("timers", {cell.timer for cell in cells}), ("contexts", contexts)):
        if len(values) > 1:
            said = " and ".join(map(str, sorted(values, key=str)))
            raise BadInput(
                f"{where}: its cells have {name} {said}; a map has one: choose with --context, or measure again"
            )


def _device(device: Mapping[str, Any]) -> MapDevice:
    """The record's device. What is missing or of another type is found when the whole map is checked."""
    names = ("name", "compute_capability", "sm_count", "l2_bytes", "driver", "runtime")
    return MapDevice(*(cast(Any, device.get(name)) for name in names))


def _facts(run: Run, kernel: str, where: str) -> KernelFacts:
    """The kernel's hash and what of it is resident on the whole device at once, as recorded."""
    device, kernel_hash = run.header.device, run.header.kernel_hashes.get(kernel, "")
    if kernel == DIGITS:  # one CTA fills a multiprocessor
        return KernelFacts(kernel, kernel_hash, cast(Any, device.get("sm_count")), device.get("clusters"))
    sms, resident = device.get("sm_count"), device.get("resident_ctas")
    if type(resident) is not int or type(sms) is not int:
        raise BadInput(
            f"{where}: its header does not say how many CTAs of {kernel} one SM holds (device.resident_ctas), which "
            "a map needs; record it again"
        )
    return KernelFacts(kernel, kernel_hash, sms * resident)
