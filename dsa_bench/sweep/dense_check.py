# SPDX-License-Identifier: MIT
"""`check --op dense`: every kernel and rule against FP64, on shapes and masks at the edges."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dsa_bench.backends.dense import DenseBackend
from dsa_bench.data.dense import dense_inputs
from dsa_bench.model.dense import DENSE_KERNELS, ITEM_BYTES, DenseShape
from dsa_bench.model.dense_inputs import DenseInputs
from dsa_bench.model.dense_request import DEFAULT_RULES
from dsa_bench.model.errors import CompileFailed, VariantRefused
from dsa_bench.model.operator_result import OperatorResult
from dsa_bench.splits.dense import dense_variants
from dsa_bench.sweep.dense import DenseChecker

RULES = (*DEFAULT_RULES, "fixed:1", "fixed:100")
"""fixed:1 gives 64 splits of a few keys, fixed:100 a last one that is shorter."""


@dataclass(frozen=True, slots=True)
class DenseCase:
    """A name, a shape, and what of DenseInputs is not synthetic: soft cap, causality, a mask and pad limits."""

    name: str
    shape: DenseShape
    masked: bool = False

    def inputs(self) -> DenseInputs:
        plain = dense_inputs(self.shape, seed=self.shape.length)
        if not self.masked:
            return plain
        shape = (self.shape.batch, self.shape.query_len, self.shape.capacity)
        mask = np.random.default_rng(self.shape.length).normal(size=shape).astype(np.float32)
        mask[..., ::7] = -np.inf
        limits = np.array([self.shape.length * 2 // 3, -1] * self.shape.batch, np.int32)[: self.shape.batch]
        return replace(plain, softcap=2.0, causal=True, mask=mask, pad_limit=limits)


def dense_cases() -> list[DenseCase]:
    """The document's shape in every type; lengths around a split; grouped heads with several queries, masked."""
    cases = [DenseCase(f"document {dtype}", DenseShape(1024, 520, dtype=dtype)) for dtype in ITEM_BYTES]
    small = DenseShape(700, 0, 4, 2, 64, 32, batch=2, query_len=2)
    cases += [DenseCase(f"length {keys}", replace(small, length=keys)) for keys in (0, 1, 127, 128, 129, 699, 700)]
    cases += [
        DenseCase(f"masked {dtype}", replace(small, length=500, dtype=dtype), masked=True) for dtype in ITEM_BYTES
    ]
    cases.append(DenseCase("odd head sizes", DenseShape(300, 257, 3, 1, 7, 5)))
    cases.append(DenseCase("600 rows", DenseShape(300, 300, 8, 4, 32, 32, batch=75)))
    return cases


def check_dense(backend: DenseBackend, begin: Callable[[str], None]) -> Iterator[OperatorResult]:
    """Every kernel and launch on every case. `begin` is told each case's name."""
    for case in dense_cases():
        begin(case.name)
        inputs = case.inputs()
        buffers = backend.load(inputs, "warm")
        try:
            checker = DenseChecker(inputs, buffers)
            for variant in dense_variants(DENSE_KERNELS, RULES, case.shape):
                try:
                    outcome = checker.check(variant, buffers.call(variant))
                except (VariantRefused, CompileFailed) as refusal:
                    yield OperatorResult(case.name, variant.name, "rows", 0, 0, "refused", str(refusal))
                    continue
                wrong = outcome.status != "ok"
                status, rows = "WRONG" if wrong else "ok", checker.rows
                yield OperatorResult(case.name, variant.name, "rows", rows, int(wrong), status, outcome.reason)
        finally:
            buffers.close()
