# SPDX-License-Identifier: MIT
"""The dense line of a cell: the fastest implementation of dense causal attention that is right."""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.base import Dense, DenseBuffers, Launch
from dsa_bench.bench.check import compare_rows
from dsa_bench.bench.timers import Timer
from dsa_bench.bench.variant import Checked, Variant, beyond_rms, not_launched
from dsa_bench.model.errors import NothingRecorded, VariantRefused
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.request import DENSE
from dsa_bench.oracle.attention import F64, Reference, relative_rms, rms
from dsa_bench.oracle.sdpa import dense_bound, dense_reference
from dsa_bench.oracle.tolerance import SMALLEST_BF16, U_BF16, U_FP32
from dsa_bench.sweep.check import FEW_ROUNDINGS, value_rms


@dataclass(frozen=True, slots=True)
class DenseLine:
    """What became of the dense line.

    name    as recorded: "dense/cudnn", or "dense" where no implementation is right
    launch  None unless one is
    floor   the RMS error of the dense FP64 result rounded to BF16
    notes   implementations that ran and are not measured, in words
    """

    name: str
    outcome: Checked
    floor: float
    launch: Launch | None = None
    notes: tuple[str, ...] = ()


def dense_name(implementation: str) -> str:
    return f"{DENSE}/{implementation}"


def choose_dense(
    inputs: SparseInputs, buffers: DenseBuffers, timer: Timer | None = None, only: str | None = None
) -> DenseLine:
    """Run every implementation, compare each with FP64, and keep the fastest that is right and that the timer sees.

    only  the name of the one that an earlier part of the run chose
    """
    oracle = dense_reference(inputs)
    bound = dense_bound(inputs, oracle)
    right: list[tuple[float, str, Checked, Launch]] = []
    reasons: list[str] = []
    notes: list[str] = []
    for implementation in buffers.implementations:
        if only not in (None, dense_name(implementation)) or (right and implementation == buffers.last_resort):
            continue
        try:
            launch = buffers.launcher(implementation)
        except VariantRefused as refusal:
            reasons.append(str(refusal))
            continue
        launch(0)
        outcome = _compare(inputs, buffers.output(), oracle, bound)
        if outcome.status != "ok":
            reasons.append(f"{implementation} is wrong: {outcome.reason}")
            notes.append(f"dense attention by {implementation} is wrong and not measured: {outcome.reason}")
        elif timer is not None and not _seen(timer, implementation, launch):
            reasons.append(f"{implementation}: {timer.name} records none of its kernels")
            notes.append(f"dense attention by {implementation} is not measured: {reasons[-1]}; --timer events does")
        else:
            right.append((buffers.time_us(launch), dense_name(implementation), outcome, launch))
    if not right:
        return DenseLine(
            DENSE, Checked("launch_refused", "; ".join(reasons)), oracle.rounding_floor, None, tuple(notes)
        )
    _, name, outcome, launch = min(right, key=lambda one: one[0])
    return DenseLine(name, outcome, oracle.rounding_floor, launch, tuple(notes))


def _seen(timer: Timer, implementation: str, launch: Launch) -> bool:
    """Whether the timer sees a call: of cuDNN's attention on Hopper, for one, CUPTI 13.0 records no kernel."""
    try:
        timer.time(Variant(implementation, launch, lambda: Checked("ok"), kernels=None), 1)
    except NothingRecorded:
        return False
    finally:
        timer.forget()
    return True


@contextmanager
def dense_line(inputs: SparseInputs, dense: Dense, timer: Timer, recorded: Sequence[str]) -> Generator[DenseLine]:
    """The line of a cell, and its memory while it is measured.

    recorded  variants that an earlier part of the run found right: it goes on with the implementation chosen then
    """
    try:
        buffers = dense.load(inputs)
    except VariantRefused as refusal:
        yield DenseLine(DENSE, not_launched(refusal), 0.0)
        return
    try:
        chosen = next((name for name in recorded if name.startswith(f"{DENSE}/")), None)
        yield choose_dense(inputs, buffers, timer, chosen)
    finally:
        buffers.close()


def _compare(inputs: SparseInputs, out: NDArray[np.generic], oracle: Reference, bound: F64) -> Checked:
    unfinished = int(np.count_nonzero(~np.isfinite(out.astype(np.float32))))
    if unfinished:
        return Checked("wrong_result", f"{unfinished} output elements are not finite")
    outcome = compare_rows(out, oracle.out, bound, oracle.rows)
    if outcome.status != "ok":
        return outcome
    got, group = out[oracle.rows].astype(np.float64), inputs.shape.group
    for kv_head in range(inputs.shape.kv_heads):
        heads = slice(kv_head * group, (kv_head + 1) * group)
        error = relative_rms(got[:, heads], oracle.out[:, heads])
        limit = _rms_limit(inputs, oracle.out[:, heads], kv_head)
        if reason := beyond_rms(error, limit, f" in KV head {kv_head}"):
            return Checked("wrong_result", reason, outcome.rms_error)
    return outcome


def _rms_limit(inputs: SparseInputs, expected: F64, kv_head: int) -> float:
    """As rms_limit in sweep/check.py: a few roundings to BF16, and what FP32 sums over the context leave."""
    size = rms(expected)
    if not size:
        return 0.0
    sums = math.sqrt(inputs.shape.context) * U_FP32 * value_rms(inputs, kv_head)
    return FEW_ROUNDINGS * (U_BF16 / 2 + (SMALLEST_BF16 + sums) / size)
