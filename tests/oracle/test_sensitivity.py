# SPDX-License-Identifier: MIT
"""Random inputs over all that the types hold: every kernel is inside its derived bound, or the bound says nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dsa_bench.backends.cpu.backend import CpuBackend
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import CHECKED_KERNELS
from dsa_bench.oracle.attention import Reference, reference
from dsa_bench.oracle.cases.case import BOUND
from dsa_bench.oracle.survey import Norms
from dsa_bench.oracle.tolerance import CODE_MAX
from dsa_bench.oracle.verdict import measure
from dsa_bench.splits.geometry import unsplit_plan

INVALID = np.array([-1, -(2**31), 2**31 - 1, 10**6])


@pytest.fixture(scope="module")
def backend() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()


@dataclass(frozen=True)
class Draw:
    """Sizes as powers of two; a spread draws each element's exponent from that many below its size."""

    seed: int
    rows: int
    candidates: int
    kv_heads: int
    group: int
    head_size: int
    query_size: float
    key_scale_size: float
    value_scale_size: float
    query_spread: int
    scale_spread: int
    softmax_scale: float
    key_std: float
    invalid: float
    distinct: int

    def inputs(self) -> SparseInputs:
        rng = np.random.default_rng(self.seed)
        context = 200
        query = self._sized(rng, (self.rows, self.kv_heads * self.group, self.head_size), self.query_size,
                            self.query_spread)  # fmt: skip
        scales = (self.kv_heads, self.head_size)
        key_scale = self._sized(rng, scales, self.key_scale_size, self.scale_spread).astype(np.float32)
        value_scale = self._sized(rng, scales, self.value_scale_size, self.scale_spread).astype(np.float32)
        cache = (self.kv_heads, context, self.head_size)
        key = np.clip(np.rint(rng.standard_normal(cache) * self.key_std), -128, 127).astype(np.int8)
        value = rng.integers(-128, 128, cache).astype(np.int8)
        selected = rng.integers(0, self.distinct, (self.rows, self.candidates))
        selected[rng.random(selected.shape) < self.invalid] = rng.choice(INVALID)
        return SparseInputs(
            query.astype(BF16), key, value, key_scale, value_scale, selected.astype(np.int32), self.softmax_scale
        )

    @staticmethod
    def _sized(rng: np.random.Generator, shape: tuple[int, ...], size: float, spread: int) -> np.ndarray:
        """Finite as BF16 and as FP32."""
        exponent = size - rng.integers(0, spread + 1, shape)
        return rng.uniform(-1, 1, shape) * 2.0**exponent


def draws() -> st.SearchStrategy[Draw]:
    """Ordinary sizes, and any; the key scales undo the queries' size, so that logits are not all huge or all zero."""
    query_size = st.one_of(st.sampled_from([1.0, 3.0]), st.floats(-133, 127))
    relative = st.one_of(st.floats(-12, 4), st.floats(-20, 40))
    value_size = st.one_of(st.sampled_from([-5.0, 15.5, 16.5, 17.0]), st.floats(-149, 120))

    def build(query: float, logit: float, **rest: float) -> Draw:
        return Draw(query_size=query, key_scale_size=min(max(logit - query, -149.0), 127.0), **rest)  # pyright: ignore[reportArgumentType]

    return st.builds(
        build,
        query=query_size,
        logit=relative,
        seed=st.integers(0, 2**32 - 1),
        rows=st.integers(1, 2),
        candidates=st.sampled_from([1, 2, 63, 64, 65, 130, 200]),
        kv_heads=st.integers(1, 2),
        group=st.sampled_from([1, 3]),
        head_size=st.sampled_from([16, 64, 256]),
        value_scale_size=value_size,
        query_spread=st.sampled_from([0, 6, 30]),
        scale_spread=st.sampled_from([0, 4, 20]),
        softmax_scale=st.sampled_from([0.0, 2.0**-10, 1 / 16, 0.3, 1.0]),
        key_std=st.sampled_from([0.3, 5.0, 40.0, 100.0]),
        invalid=st.sampled_from([0.0, 0.3, 0.98, 1.0]),
        distinct=st.sampled_from([1, 2, 50, 200]),
    )


def output(backend: CpuBackend, inputs: SparseInputs, kernel: str, splits: int) -> np.ndarray:
    shape = inputs.shape
    plan = VariantPlan(kernel, () if kernel == "previous" else (0,), SplitPlan(shape.tiles, splits), shape.row_heads)
    buffers = backend.load(inputs, "none")
    buffers.launcher(plan)(0)
    return buffers.output()


def seeing(backend: CpuBackend, kernel: str, inputs: SparseInputs, oracle: Reference) -> np.ndarray:
    """The kernel's bound, infinite for the heads of which it says nothing: any value could be their output."""
    bound = backend.bound(kernel, inputs, oracle.rows, oracle.out)
    v_max = CODE_MAX * np.abs(inputs.value_scale.astype(np.float64)).repeat(inputs.shape.group, axis=0)
    blind = ~(bound <= v_max + 2.0**-133)
    return np.where(blind.any(axis=-1, keepdims=True), np.inf, bound)


@settings(max_examples=250, deadline=None)
@given(draw=draws(), splits=st.sampled_from([1, 2, 4]))
def test_every_kernel_is_inside_its_bound(backend: CpuBackend, draw: Draw, splits: int) -> None:
    inputs = draw.inputs()
    oracle = reference(inputs)
    for kernel in CHECKED_KERNELS["decode"]:
        bound = seeing(backend, kernel, inputs, oracle)
        out = output(backend, inputs, kernel, splits)
        judged = np.isfinite(bound)
        found = np.where(judged, out[oracle.rows].astype(np.float64), oracle.out)
        error = measure(found, oracle, BOUND, bound)
        assert error.used <= 1, (kernel, error)


def test_bounds_of_ordinary_draws_see_something(backend: CpuBackend) -> None:
    """Else the test above would show nothing: with queries and scales like a model's no head is left out."""
    ordinary = Draw(7, 2, 200, 2, 3, 256, 1.0, -5.0, -5.0, 0, 0, 1 / 16, 40.0, 0.3, 200)
    for shift in (0.0, 6.0, 60.0, -60.0):
        inputs = replace(ordinary, query_size=1.0 + shift, key_scale_size=-5.0 - shift).inputs()
        oracle = reference(inputs)
        for kernel in CHECKED_KERNELS["decode"]:
            assert np.isfinite(seeing(backend, kernel, inputs, oracle)).all(), (kernel, shift)


@settings(max_examples=150, deadline=None)
@example(Draw(0, 1, 63, 1, 1, 16, 1.0, -5.0, 120.0, 0, 0, 0.0, 40.0, 0.0, 1))  # 63 equal values: their sum overflows
@given(draw=draws())
def test_every_prefill_kernel_is_inside_its_bound(backend: CpuBackend, draw: Draw) -> None:
    """Closely looked at, and as the check of all rows looks; the second bound is never the smaller one."""
    inputs = replace(draw.inputs(), op="prefill")
    oracle = reference(inputs)
    for kernel in CHECKED_KERNELS["prefill"]:
        bound = seeing(backend, kernel, inputs, oracle)
        found = np.where(np.isfinite(bound), prefill_output(backend, inputs, kernel).astype(np.float64), oracle.out)
        error = measure(found, oracle, BOUND, bound)
        assert error.used <= 1, (kernel, error)
        wide = backend.bound(kernel, inputs, oracle.rows, oracle.out, Norms(inputs).survey)
        narrow = backend.bound(kernel, inputs, oracle.rows, oracle.out)
        assert not (wide < narrow).any(), kernel


def prefill_output(backend: CpuBackend, inputs: SparseInputs, kernel: str) -> np.ndarray:
    buffers = backend.load(inputs, "none")
    buffers.launcher(unsplit_plan(kernel, inputs.shape))(0)
    return buffers.output()


@settings(max_examples=25, deadline=None)
@given(draw=draws(), splits=st.sampled_from([1, 3]))
def test_same_bits_again_and_whatever_the_other_rows_hold(backend: CpuBackend, draw: Draw, splits: int) -> None:
    inputs = replace(draw, rows=2).inputs()
    other = replace(inputs, query=inputs.query.copy(), selected=inputs.selected.copy())
    other.query[1] = np.nan
    other.selected[1] = 3
    for kernel in CHECKED_KERNELS["decode"]:
        first = output(backend, inputs, kernel, splits).view(np.uint16)
        assert (output(backend, inputs, kernel, splits).view(np.uint16) == first).all()
        assert (output(backend, other, kernel, splits).view(np.uint16)[0] == first[0]).all()
