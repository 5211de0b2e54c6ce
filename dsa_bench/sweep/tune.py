# SPDX-License-Identifier: MIT
"""What `tune` measures, and what it says of the map that comes of it."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dsa_bench.dispatch.facts import DENSE_KERNEL
from dsa_bench.model.cell_key import AttentionShape
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.dense_request import AUTO_RULE, DenseRequest
from dsa_bench.model.errors import BadInput, CannotMeasure, GateFailed
from dsa_bench.model.request import MIN_TUNED_ROUNDS, DataSpec, Policy, SparseRequest
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.splits_map import AnyRegret
from dsa_bench.splits.geometry import AUTOMATIC
from dsa_bench.splits.kernels import INT8_TC, TUNED_KERNELS
from dsa_bench.sweep.tuned_map import Tuned

GPU_ROWS, GPU_CANDIDATES, GPU_TILES = (1, 2, 4, 8), (512, 1024, 2048, 4096, 8192), (1, 2, 3, 4, 6, 8, 16)
CPU_ROWS, CPU_CANDIDATES, CPU_TILES = (1, 4), (512, 2048), (1, 2, 4, 8)
"""Fewer, because a CPU's visit takes 60 ms and a GPU's 2 ms."""
GPU_BATCH, GPU_CAPACITY = (1, 2, 4, 8), (512, 1024, 2048, 4096, 8192, 16384, 32768)
GPU_CHUNKS = (64, 128, 192, 256, 384, 512, 768, 1024, 2048)
CPU_BATCH, CPU_CAPACITY, CPU_CHUNKS = (1,), (512, 1024), (128, 256, 512, 1024)
"""Of dense decode."""


def tune_request(
    on_gpu: bool,
    clusters: bool,
    kernels: Sequence[str] | None,
    rows: Sequence[int] | None,
    candidates: Sequence[int] | None,
    tiles_per_split: Sequence[int] | None,
    context: int,
    heads: tuple[int, int],
    data: DataSpec,
    policy: Policy,
) -> SparseRequest:
    """The grid, with what is not given taken from the device's default; the automatic rule is always measured.

    heads  query heads, KV heads      clusters  whether the device has any
    """
    rows = rows or (GPU_ROWS if on_gpu else CPU_ROWS)
    candidates = candidates or (GPU_CANDIDATES if on_gpu else CPU_CANDIDATES)
    values = tiles_per_split or (GPU_TILES if on_gpu else CPU_TILES)
    return SparseRequest(
        shapes=tuple(SparseShape(r, context, n, *heads) for r, n in itertools.product(rows, candidates)),
        kernels=tuple(kernels or (TUNED_KERNELS if on_gpu and clusters else (INT8_TC,))),
        tiles_per_split=(AUTOMATIC, *(value for value in values if value != AUTOMATIC)),
        data=data,
        policy=policy,
    )


def tune_dense_request(
    on_gpu: bool,
    batch: Sequence[int] | None,
    capacity: Sequence[int] | None,
    length: int | None,
    chunks: Sequence[int] | None,
    heads: DenseShape,
    seed: int,
    query_std: float,
    policy: Policy,
) -> DenseRequest:
    """The grid of dense decode, with what is not given taken from the device's default; the automatic rule is always
    measured.

    length  live keys in every capacity; None fills each      heads  a shape with the heads, their sizes and the type
    """
    batch = batch or (GPU_BATCH if on_gpu else CPU_BATCH)
    capacity = capacity or (GPU_CAPACITY if on_gpu else CPU_CAPACITY)
    chunks = chunks or (GPU_CHUNKS if on_gpu else CPU_CHUNKS)
    return DenseRequest(
        shapes=tuple(
            replace(heads, batch=entries, capacity=keys, length=keys if length is None else length)
            for entries, keys in itertools.product(batch, capacity)
        ),
        kernels=(DENSE_KERNEL,),
        rules=(AUTO_RULE, *(f"fixed:{chunk}" for chunk in chunks)),
        seed=seed,
        query_std=query_std,
        policy=policy,
        ceiling=False,
    )


def tune_policy(rounds: int | None, budget_s: float | None, precision: float | None, timer: str, l2: str) -> Policy:
    """Raises BadInput for fewer rounds than a map needs."""
    if rounds is not None and rounds < MIN_TUNED_ROUNDS:
        raise BadInput(
            f"--rounds {rounds}: a map needs at least {MIN_TUNED_ROUNDS}, to choose on one half and score on the other"
        )
    if rounds is None and budget_s is None:
        rounds = MIN_TUNED_ROUNDS if precision is None else 4 * MIN_TUNED_ROUNDS
    return Policy(rounds, budget_s, timer, l2, precision)


def refuse_unmeasured(tuned: Tuned) -> None:
    """Raises CannotMeasure if a cell has no launch with a time: then there is no map."""
    untimed = [lost for lost in tuned.lost if not lost.timed]
    if untimed or not tuned.cells:
        lost = (untimed or tuned.lost)[0]
        why = "; ".join(f"{variant}: {reason}" for variant, reason in lost.failed) or lost.reason
        what = lost.reason if lost.timed else "no launch could be timed"
        raise CannotMeasure(f"{_label(lost.shape)}: {what} ({why}); no map is written")


def warnings_of(tuned: Tuned) -> Iterator[str]:
    """What a user should know before trusting the map."""
    planned = tuned.planned
    found = len(tuned.cells) + len(tuned.lost)
    if planned is not None and found < planned:
        yield f"the run holds {found} of the {planned} cells that were planned; finish it with --resume"
    for lost in tuned.lost:
        yield f"{_label(lost.shape)} is not in the map: {lost.reason}"
    for cell in (*tuned.cells, *tuned.lost):
        for variant, reason in cell.failed:
            yield f"{variant} does not compete at {_label(cell.shape)}: {reason}"
    for cell in tuned.untrusted:
        yield f"{_label(cell.shape)}: the automatic rule differs from itself beyond the margin; measure again"


def summary_of(tuned: Tuned) -> Iterator[str]:
    """One line for each table: rules, and the regret that they leave."""
    for table in tuned.splits_map.tables:
        validation = table.validation
        parts = [
            f"{name} {_regret(regret)}"
            for name, regret in (
                ("automatic", validation.regret_auto),
                ("map", validation.regret_map),
                ("held out", validation.held_out),
            )
            if regret is not None
        ]
        regrets = f"; mean (max) regret: {', '.join(parts)}" if parts else ""
        yield f"{table.name}: {_count(len(table.cells), 'cell')}, {_count(len(table.rules), 'rule')}{regrets}"


def refuse_wrong(tuned: Tuned) -> None:
    """Raises GateFailed if a launch gave a wrong result, after the outputs are written."""
    wrong = [
        f"{variant} ({_label(cell.shape)})"
        for cell in (*tuned.cells, *tuned.lost)
        for variant, reason in cell.failed
        if reason.startswith("wrong_result")
    ]
    if wrong:
        raise GateFailed(f"wrong result: {'; '.join(wrong)}; it is not in the map")


def _regret(summary: AnyRegret) -> str:
    return f"{summary.mean:.2%} ({summary.max:.2%})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _label(shape: AttentionShape) -> str:
    if isinstance(shape, DenseShape):
        return f"rows {shape.rows}, capacity {shape.capacity}, length {shape.length}"
    return f"rows {shape.rows}, context {shape.context}, candidates {shape.candidates}"
