# SPDX-License-Identifier: MIT
"""The correctness run of a decode variant, on the inputs that are timed afterwards."""

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.base import Backend, DecodeBuffers, Launch
from dsa_bench.bench.check import compare, refuse_blind_bound, run_poisoned
from dsa_bench.bench.variant import Checked
from dsa_bench.model.inputs import DecodeInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import CEILINGS
from dsa_bench.oracle.attention import Reference
from dsa_bench.oracle.tolerance import CODE_MAX


class Checker:
    """Compares a variant with the oracle's rows, and all rows with `previous` where the oracle left some out."""

    def __init__(self, backend: Backend, inputs: DecodeInputs, buffers: DecodeBuffers, oracle: Reference) -> None:
        self._backend = backend
        self._inputs = inputs
        self._buffers = buffers
        self._oracle = oracle
        self._previous: NDArray[np.generic] | None = None

    def check(self, plan: VariantPlan, launch: Launch) -> Checked:
        if plan.kernel in CEILINGS:
            launch(0)
            self._backend.synchronize()
            return Checked("ok")
        rows, expected = self._oracle.rows, self._oracle.out
        with np.errstate(over="ignore"):  # an infinite bound is refused
            bound = self._backend.bound(plan.kernel, self._inputs, rows, expected)
        refuse_blind_bound(bound, CODE_MAX * float(np.abs(self._inputs.value_scale).max()))
        out = run_poisoned(launch, self._buffers)
        outcome = compare(out, expected, bound, rows)
        if plan.kernel == "previous" and outcome.status == "ok":
            self._previous = out
        elif outcome.status == "ok" and self._previous is not None and len(rows) < self._inputs.shape.rows:
            return self._compare_with_previous(plan, out, self._previous.astype(np.float64), outcome)
        return outcome

    def _compare_with_previous(
        self, plan: VariantPlan, out: NDArray[np.generic], previous: NDArray[np.float64], outcome: Checked
    ) -> Checked:
        rows = np.arange(self._inputs.shape.rows)
        bound = sum(
            (self._backend.bound(kernel, self._inputs, rows, previous) for kernel in ("previous", plan.kernel)),
            np.zeros_like(previous),
        )
        against_previous = compare(out, previous, bound, rows)
        if against_previous.status == "ok":
            return outcome
        reason = (against_previous.reason or "").replace("the FP64 reference", "`previous`")
        return Checked("wrong_result", reason, outcome.rms_error)
