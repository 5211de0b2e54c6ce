# SPDX-License-Identifier: MIT
"""The correctness run of a variant, on the inputs that are timed afterwards."""

import math

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.base import Backend, Launch, SparseBuffers
from dsa_bench.bench.check import compare, compare_rows, refuse_blind_bound, run_poisoned
from dsa_bench.bench.variant import Checked, beyond_rms
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import CEILINGS
from dsa_bench.oracle.attention import F64, Reference, relative_rms, rms
from dsa_bench.oracle.survey import Norms
from dsa_bench.oracle.tolerance import SMALLEST_BF16, U_BF16, U_FP32, key_noise, largest_output

BLOCK_ROWS = 128
"""Rows that are compared with `previous` at once: FP64 copies of a whole prefill would be gigabytes."""
FEW_ROUNDINGS = 4
"""How many BF16 roundings the RMS error of a right kernel stays within; a lost tile of 32 is some 90."""


class Checker:
    """Compares a variant with the oracle's rows, and all rows with `previous` where the oracle left some out."""

    def __init__(self, backend: Backend, inputs: SparseInputs, buffers: SparseBuffers, oracle: Reference) -> None:
        self._backend = backend
        self._inputs = inputs
        self._buffers = buffers
        self._oracle = oracle
        self._norms = Norms(inputs)
        self._value_rms = [value_rms(inputs, kv_head) for kv_head in range(inputs.shape.kv_heads)]

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
        return outcome if outcome.status != "ok" else self._compare_rms(kernel, out, outcome)

    def _compare_rms(self, kernel: str, out: NDArray[np.generic], outcome: Checked) -> Checked:
        """Each KV head by itself, so that one with small values does not hide behind another."""
        group = self._inputs.shape.group
        got = out[self._oracle.rows].astype(np.float64)
        for kv_head in range(self._inputs.shape.kv_heads):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            error = relative_rms(got[:, heads], self._oracle.out[:, heads])
            limit = rms_limit(self._inputs, self._oracle.out[:, heads], kv_head)
            limit += FEW_ROUNDINGS * rms(self._key_noise(kernel, self._oracle.rows, kv_head))
            if reason := beyond_rms(error, limit, f" in KV head {kv_head}"):
                return Checked("wrong_result", reason, outcome.rms_error)
        return outcome

    def _key_noise(self, kernel: str, rows: NDArray[np.int64], kv_head: int) -> F64:
        """[rows] what keys in BF16 add to the RMS error of a kernel that has them.

        A logit that changes by so many nats changes its weight by that share of it.
        """
        if not self._backend.rounds_keys(kernel):
            return np.zeros(len(rows))
        return key_noise(self._inputs, rows, kv_head)

    def _compare_with_previous(self, kernel: str, out: NDArray[np.generic], outcome: Checked) -> Checked:
        """All rows, within the sum of both bounds. `previous` runs for it whether it is measured or not.

        The bounds are those of vectors' lengths, which take seconds for a whole prefill and see less than the oracle's;
        so each row's RMS error counts as well.
        """
        shape = self._inputs.shape
        plan = self._backend.geometry.plan("previous", shape, None)
        previous = run_poisoned(self._buffers.launcher(plan), self._buffers)
        if self._compare_with_oracle("previous", previous).status != "ok":
            return Checked(
                "wrong_result", "`previous` is wrong here, so not every row can be checked", outcome.rms_error
            )
        for first in range(0, shape.rows, BLOCK_ROWS):
            rows = np.arange(first, min(first + BLOCK_ROWS, shape.rows))
            expected = previous[rows].astype(np.float64)
            bound = self._backend.bound("previous", self._inputs, rows, expected, self._norms.survey)
            bound += self._backend.bound(kernel, self._inputs, rows, expected, self._norms.survey)
            against_previous = compare_rows(out, expected, bound, rows)
            reason = against_previous.reason and against_previous.reason.replace("the FP64 reference", "`previous`")
            reason = reason or self._row_beyond_rms(
                kernel, rows, out[rows].astype(np.float64) - expected, expected, bound
            )
            if reason is not None:
                return Checked("wrong_result", reason, outcome.rms_error)
        return outcome

    def _row_beyond_rms(self, kernel: str, rows: NDArray[np.int64], off: F64, expected: F64, bound: F64) -> str | None:
        """The first row whose RMS difference from `previous` is beyond both kernels' limits, in words.

        Heads of which the bound sees nothing are left out.
        """
        group = self._inputs.shape.group
        blind = np.any(bound > largest_output(self._inputs) + SMALLEST_BF16, axis=-1)
        for kv_head in range(self._inputs.shape.kv_heads):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            size = np.sqrt(np.square(expected[:, heads]).mean(axis=(1, 2)))
            error = np.sqrt(np.square(off[:, heads]).mean(axis=(1, 2)))
            limit = 2 * absolute_rms_limit(self._inputs, size, self._value_rms[kv_head])
            for one in ("previous", kernel):
                limit += FEW_ROUNDINGS * size * self._key_noise(one, rows, kv_head)
            seen = ~blind[:, heads].any(axis=1)
            beyond = np.flatnonzero(np.logical_and(error > limit, seen))
            if beyond.size:
                at = int(beyond[0])
                return (
                    f"row {rows[at]}, KV head {kv_head}: RMS difference from `previous` {error[at]:.2g}, whose RMS is "
                    f"{size[at]:.2g}; two right kernels stay below {limit[at]:.2g}"
                )
        return None

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
    """
    size = rms(expected)
    return float(absolute_rms_limit(inputs, np.array(size), value_rms(inputs, kv_head))) / size if size else 0.0


def absolute_rms_limit(inputs: SparseInputs, size: F64, values: float) -> F64:
    """The same as an RMS error, for outputs of RMS `size` and dequantised values of RMS `values`.

    FEW_ROUNDINGS roundings of the output to BF16, and as many times what FP32 sums of `candidates` random terms leave:
    sqrt(candidates) * 2^-24 * values.
    """
    sums = math.sqrt(inputs.shape.candidates) * U_FP32 * values
    return FEW_ROUNDINGS * (U_BF16 / 2 * size + SMALLEST_BF16 + sums)


def value_rms(inputs: SparseInputs, kv_head: int) -> float:
    """RMS of a KV head's dequantised values, over up to 4096 positions."""
    return rms(inputs.value[kv_head, :4096].astype(np.float64) * inputs.value_scale[kv_head].astype(np.float64))
