# SPDX-License-Identifier: MIT
"""Every kernel on every numerics case, against FP64."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dsa_bench.backends.base import Backend, SparseBuffers, TellsPaths
from dsa_bench.bench.check import run_poisoned, unwritten_elements
from dsa_bench.model.errors import BadInput, CompileFailed, VariantRefused
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.outcome import CaseResult, Outcome
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import CHECKED_KERNELS, EMULATIONS
from dsa_bench.model.shape import Op
from dsa_bench.oracle.attention import Reference, reference
from dsa_bench.oracle.cases.case import Case, Tolerance
from dsa_bench.oracle.cases.catalog import CASES
from dsa_bench.oracle.tolerance import SMALLEST_BF16, largest_output
from dsa_bench.oracle.verdict import Error, measure, pooled_share
from dsa_bench.splits.geometry import effective_variants


def chosen_cases(names: Sequence[str], op: Op = "decode") -> list[Case]:
    """Cases by name, all without one. Raises BadInput for a name that no case has, listing those that there are."""
    known = CASES[op]
    for name in names:
        if name in known:
            continue
        for other, cases in CASES.items():
            if name in cases:
                raise BadInput(f"--case {name}: is a case of {other} and not of {op}; add --op {other}")
        raise BadInput(f"--case {name}: is none of {', '.join(known)}")
    return [known[name] for name in names or known]


def chosen_kernels(names: Sequence[str] | None, backend: str, op: Op = "decode") -> list[str]:
    """Kernels to check, by default all that the backend has for the operator.

    Raises BadInput for an emulation on a GPU, or of a kernel that the operator does not have.
    """
    for name in names or ():
        if name in EMULATIONS and backend != "cpu":
            raise BadInput(f"--kernels {name}: runs on the CPU; add --backend cpu")
        if name not in CHECKED_KERNELS[op]:
            raise BadInput(f"--kernels {name}: is no kernel of {op}; choose from {', '.join(CHECKED_KERNELS[op])}")
    known = CHECKED_KERNELS[op]
    return list(names or (known if backend == "cpu" else [name for name in known if name not in EMULATIONS]))


def check_cases(
    cases: Sequence[Case], kernels: Sequence[str], backend: Backend, begin: Callable[[str], None] = lambda _: None
) -> Iterator[CaseResult]:
    """One result for each case and kernel, in that order; `begin` is told each case before it runs."""
    for case in cases:
        begin(case.name)
        tallies = {kernel: _Tally(case, kernel, backend) for kernel in kernels}
        for setting in case.settings:
            inputs = setting.build()
            oracle = reference(inputs)
            buffers = backend.load(inputs, "warm")
            try:
                for tally in tallies.values():
                    tally.run(setting.label, inputs, oracle, buffers)
            finally:
                buffers.close()
        yield from (tally.result() for tally in tallies.values())


class _Tally:
    """What one kernel showed on one case so far."""

    def __init__(self, case: Case, kernel: str, backend: Backend) -> None:
        self._case = case
        self._kernel = kernel
        self._backend = backend
        self._errors: list[tuple[str, Error]] = []
        self._paths: Counter[str] | None = None
        self._refusal: str | None = None
        self._defect: str | None = None
        self._blind: str | None = None

    def run(self, label: str, inputs: SparseInputs, oracle: Reference, buffers: SparseBuffers) -> None:
        """Launch every distinct geometry once."""
        bound = self._bound(inputs, oracle)
        plans = effective_variants(self._backend.geometry, inputs.shape, [self._kernel], self._case.tiles_per_split)
        for plan in plans:
            try:
                out = run_poisoned(buffers.launcher(plan), buffers)
            except (VariantRefused, CompileFailed, BadInput) as refusal:
                self._refusal = str(refusal)
                return
            unwritten = len(unwritten_elements(out))
            if unwritten:
                self._defect = f"{unwritten} output elements were never written"
            setting = f"{label}, {plan.split.splits} splits"
            self._errors.append((setting, measure(out, oracle, self._case.tolerance, bound)))
            self._count_paths(plan, buffers)

    def _bound(self, inputs: SparseInputs, oracle: Reference) -> np.ndarray:
        if self._case.tolerance.rule != "bound":
            return np.zeros(1)
        bound = self._backend.bound(self._kernel, inputs, oracle.rows, oracle.out)
        largest = float(largest_output(inputs).max()) + SMALLEST_BF16
        if not bound.max() <= largest:
            self._blind = f"the bound of {bound.max():.3g} sees nothing: no output is larger than {largest:.3g}"
        return bound

    def _count_paths(self, plan: VariantPlan, buffers: SparseBuffers) -> None:
        taken = buffers.paths(plan) if isinstance(buffers, TellsPaths) else None
        if taken is not None:
            self._paths = self._paths or Counter(dict.fromkeys(taken, 0))
            self._paths.update(taken)

    def result(self) -> CaseResult:
        tolerance = self._case.tolerance
        if not self._errors:
            return CaseResult(self._case.name, self._kernel, "refused", self._refusal, _in_words(tolerance))
        setting, worst = max(self._errors, key=lambda one: one[1].used)
        used = worst.used
        if tolerance.rule == "rms over floor":
            used = pooled_share([error for _, error in self._errors], tolerance)
        status, reason = self._status(used)
        return CaseResult(
            case=self._case.name,
            kernel=self._kernel,
            status=status,
            reason=reason,
            tolerance=_in_words(tolerance),
            setting=setting,
            place=worst.place,
            expected=worst.expected,
            found=worst.found,
            error_ulps=worst.ulps,
            used=used,
            runs=len(self._errors),
            paths=None if self._paths is None else dict(self._paths),
        )

    def _status(self, used: float) -> tuple[Outcome, str | None]:
        if self._defect is not None:
            return "WRONG", self._defect
        if self._blind is not None or not used <= 1:
            limit = self._case.limit(self._kernel, self._backend.device.backend)
            if limit is not None and used <= limit.times and (limit.blind or self._blind is None):
                return "limit", limit.reason
            return "WRONG", self._blind or f"{used:.3g} times the tolerance ({_in_words(self._case.tolerance)})"
        paths = self._paths or {}
        taken = [path for path, ctas in paths.items() if ctas]
        if self._case.path in paths and taken[-1] != self._case.path:
            return "WRONG", f"its slowest path was {taken[-1]}, not {self._case.path}"
        return "ok", None


def _in_words(tolerance: Tolerance) -> str:
    return tolerance.rule if tolerance.rule == "bound" else f"{tolerance.rule} {tolerance.limit:g}"
