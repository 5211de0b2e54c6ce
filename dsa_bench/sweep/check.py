# SPDX-License-Identifier: MIT
"""The correctness run of a decode variant, on the inputs that are timed afterwards."""

import math

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.base import Backend, Launch, SparseBuffers
from dsa_bench.bench.check import compare, refuse_blind_bound, run_poisoned
from dsa_bench.bench.variant import Checked
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import CEILINGS
from dsa_bench.oracle.attention import F64, Reference, relative_rms, rms
from dsa_bench.oracle.tolerance import SMALLEST_BF16, U_BF16, U_FP32, largest_output

FEW_ROUNDINGS = 4
"""How many BF16 roundings the RMS error of a right kernel stays within; a lost tile of 32 is some 90."""


class Checker:
    """Compares a variant with the oracle's rows, and all rows with `previous` where the oracle left some out."""

    def __init__(self, backend: Backend, inputs: SparseInputs, buffers: SparseBuffers, oracle: Reference) -> None:
        self._backend = backend
        self._inputs = inputs
        self._buffers = buffers
        self._oracle = oracle

    def check(self, plan: VariantPlan, launch: Launch) -> Checked:
        if plan.kernel in CEILINGS:
            launch(0)
            self._backend.synchronize()
            return Checked("ok")
        out = run_poisoned(launch, self._buffers)
        outcome = self._compare_with_oracle(plan.kernel, out)
        if outcome.status == "ok" and len(self._oracle.rows) < self._inputs.shape.rows and plan.kernel != "previous":
            outcome = self._compare_with_previous(plan.kernel, out, outcome)
        if outcome.status == "ok" and self._buffers.copies > 1:
            outcome = self._compare_with_last_copy(launch, out, outcome)
        return outcome

    def _compare_with_oracle(self, kernel: str, out: NDArray[np.generic]) -> Checked:
        rows, expected = self._oracle.rows, self._oracle.out
        with np.errstate(over="ignore"):  # an infinite bound is refused
            bound = self._backend.bound(kernel, self._inputs, rows, expected)
        refuse_blind_bound(bound, largest_output(self._inputs))
        outcome = compare(out, expected, bound, rows)
        return outcome if outcome.status != "ok" else self._compare_rms(out, outcome)

    def _compare_rms(self, out: NDArray[np.generic], outcome: Checked) -> Checked:
        """Each KV head by itself, so that one with small values does not hide behind another."""
        group = self._inputs.shape.group
        got = out[self._oracle.rows].astype(np.float64)
        for kv_head in range(self._inputs.shape.kv_heads):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            error = relative_rms(got[:, heads], self._oracle.out[:, heads])
            limit = rms_limit(self._inputs, self._oracle.out[:, heads], kv_head)
            if error > limit:
                reason = f"relative RMS error {error:.2g} in KV head {kv_head}; a right kernel stays below {limit:.2g}"
                return Checked("wrong_result", reason, outcome.rms_error)
        return outcome

    def _compare_with_previous(self, kernel: str, out: NDArray[np.generic], outcome: Checked) -> Checked:
        """All rows, within the sum of both bounds. `previous` runs for it whether it is measured or not."""
        shape = self._inputs.shape
        plan = self._backend.geometry.plan("previous", shape, None)
        previous = run_poisoned(self._buffers.launcher(plan), self._buffers)
        if self._compare_with_oracle("previous", previous).status != "ok":
            return Checked(
                "wrong_result", "`previous` is wrong here, so not every row can be checked", outcome.rms_error
            )
        rows, expected = np.arange(shape.rows), previous.astype(np.float64)
        bound = self._backend.bound("previous", self._inputs, rows, expected)
        bound += self._backend.bound(kernel, self._inputs, rows, expected)
        against_previous = compare(out, expected, bound, rows)
        if against_previous.status == "ok":
            return outcome
        reason = (against_previous.reason or "").replace("the FP64 reference", "`previous`")
        return Checked("wrong_result", reason, outcome.rms_error)

    def _compare_with_last_copy(self, launch: Launch, out: NDArray[np.generic], outcome: Checked) -> Checked:
        """Cold launches rotate through copies of the inputs: the first and the last must give the same bits."""
        last = self._buffers.copies - 1
        again = run_poisoned(lambda _: launch(last), self._buffers)
        if np.array_equal(out.view(np.uint16), again.view(np.uint16)):
            return outcome
        return Checked("wrong_result", f"copy {last} of the inputs gives another output than copy 0", outcome.rms_error)


def rms_limit(inputs: SparseInputs, expected: F64, kv_head: int) -> float:
    """A relative RMS error that no right kernel reaches, where a bound for the worst case sees little.

    expected  the oracle's output of the query heads of `kv_head`
    FEW_ROUNDINGS roundings of the output to BF16, and as many times what FP32 sums of `candidates` random terms leave:
    sqrt(candidates) * 2^-24 * RMS(dequantised values) / RMS(output).
    """
    size = rms(expected)
    if not size:
        return 0.0
    sampled = inputs.value[kv_head, :4096].astype(np.float64) * inputs.value_scale[kv_head].astype(np.float64)
    values = rms(sampled)
    subnormal = SMALLEST_BF16 / size
    return FEW_ROUNDINGS * (U_BF16 / 2 + subnormal + math.sqrt(inputs.shape.candidates) * U_FP32 * values / size)
