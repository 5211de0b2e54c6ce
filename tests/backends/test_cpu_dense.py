# SPDX-License-Identifier: MIT
"""Dense decode in NumPy against FP64, and what its splits promise: bits, zeros, needles, keys that are not live."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsa_bench.backends.cpu import dense
from dsa_bench.data.dense import dense_inputs
from dsa_bench.model.dense import DENSE_KERNELS, DenseDtype, DenseKernel, DensePlan, DenseShape
from dsa_bench.model.dense_inputs import DTYPES, DenseInputs
from dsa_bench.oracle.dense import dense_reference
from dsa_bench.splits.dense import RULES, live, parse_rule

SHAPE = DenseShape(1024, 700, 6, 2, 40, 24)
PLANS = (DensePlan(1, 1024), DensePlan(2, 512), DensePlan(8, 128), DensePlan(8, 64, live=True), DensePlan(64, 16))


def attend(inputs: DenseInputs, plan: DensePlan, kernel: DenseKernel) -> np.ndarray:
    return np.stack([dense.attend(inputs, row, plan, kernel) for row in range(inputs.shape.rows)])


def check(inputs: DenseInputs, plan: DensePlan, kernel: DenseKernel) -> np.ndarray:
    """The output; fails beyond the derived bound."""
    out, answer = attend(inputs, plan, kernel), dense_reference(inputs)
    excess = np.abs(out[answer.rows].astype(np.float64) - answer.out) / answer.bound
    assert excess.max() <= 1, f"{kernel}, {plan.name}: {excess.max():.3g} of the bound"
    return out


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_split_is_inside_the_bound(dtype: DenseDtype, kernel: DenseKernel) -> None:
    for length in (1, 127, 128, 129, 700, 1024):
        inputs = dense_inputs(replace(SHAPE, dtype=dtype, length=length), seed=length)
        for plan in PLANS:
            check(inputs, plan, kernel)


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule(rule: str, kernel: DenseKernel) -> None:
    for length in (24, 520):
        inputs = dense_inputs(replace(SHAPE, length=length))
        check(inputs, parse_rule(rule)(SHAPE.capacity, SHAPE.rows), kernel)


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
def test_masks_caps_and_limits(kernel: DenseKernel) -> None:
    shape = DenseShape(300, 200, 4, 2, 16, 8, batch=2, query_len=3)
    plain = dense_inputs(shape)
    mask = np.random.default_rng(0).normal(size=(2, 3, 300)).astype(np.float32)
    mask[:, :, ::3] = -np.inf
    mask[1, 2] = -np.inf
    for changes in (
        {"causal": True},
        {"softcap": 2.0},
        {"pad_limit": np.array([150, -1], np.int32)},
        {"pad_limit": np.array([0, 7], np.int32), "causal": True},
        {"mask": mask},
        {"mask": mask, "causal": True, "softcap": 0.7, "pad_limit": np.array([131, 64], np.int32)},
    ):
        for plan in (DensePlan(1, 300), DensePlan(3, 100), DensePlan(8, 32, live=True)):
            check(replace(plain, **changes), plan, kernel)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_row_with_nothing_live_gives_zeros(kernel: DenseKernel, plan: DensePlan) -> None:
    inputs = dense_inputs(replace(SHAPE, length=0))
    masked = replace(dense_inputs(SHAPE), mask=np.full((1, 1, 1024), -np.inf, np.float32))
    padded = replace(dense_inputs(SHAPE), pad_limit=np.zeros(1, np.int32))
    for nothing in (inputs, masked, padded):
        assert not attend(nothing, plan, kernel).view(np.uint16).any()


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 24, 127, 128])
def test_a_row_that_fits_one_split_has_the_bits_of_attention_row(
    length: int, dtype: DenseDtype, kernel: DenseKernel
) -> None:
    inputs = dense_inputs(replace(SHAPE, length=length, dtype=dtype))
    whole = attend(inputs, DensePlan(1, 1024), kernel)
    for plan in (DensePlan(8, 128), live(1024, 6)):
        assert np.array_equal(attend(inputs, plan, kernel).view(np.uint8), whole.view(np.uint8))


def test_a_finished_vector_keeps_its_minus_zero() -> None:
    vector = np.array([-0.0, 1.0], np.float32)
    empty = dense.Partial(np.float32(-np.inf), np.float32(0), np.full(2, np.nan, np.float32))
    merged = dense.attention_combine([dense.Partial(np.float32(0), np.float32(1), vector), empty])
    assert np.array_equal(merged.view(np.uint32), vector.view(np.uint32))
    assert not dense.attention_combine([empty, empty]).any()


def test_previous_adds_keys_one_at_a_time_in_ascending_order() -> None:
    """FP32 keeps 2^24 + 1 as 2^24: only the order decides what 2^24 + 1 - 2^24 + 1 is, and BLAS may choose another."""
    inputs = DenseInputs(*(np.zeros((1, 1, n, 1), np.float32) for n in (1, 4, 4)), length=4)
    inputs.value[0, 0, :, 0] = 2.0**24, 1.0, -(2.0**24), 1.0
    assert dense.attend(inputs, 0, DensePlan(1, 4))[0] == 0.25


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
def test_keys_beyond_the_live_length_are_not_read(kernel: DenseKernel) -> None:
    inputs = dense_inputs(SHAPE)
    clean = {plan: attend(inputs, plan, kernel) for plan in PLANS}
    inputs.key[:, :, SHAPE.length :] = np.nan
    inputs.value[:, :, SHAPE.length :] = np.nan
    for plan, expected in clean.items():
        assert np.array_equal(attend(inputs, plan, kernel), expected)


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@settings(deadline=None)
@given(place=st.integers(0, 699), plan=st.sampled_from(PLANS))
def test_a_needle_anywhere_is_found(kernel: DenseKernel, place: int, plan: DensePlan) -> None:
    """All weight on one key: losing any single one of 700 would show."""
    inputs = dense_inputs(DenseShape(1024, 700, 1, 1, 8, 4, dtype="f32"))
    inputs.query[..., 0], inputs.key[..., 0], inputs.key[:, :, place, 0] = 64.0, -1.0, 1.0
    np.testing.assert_allclose(attend(inputs, plan, kernel)[0], inputs.value[0, 0, place], rtol=1e-6)


@settings(deadline=None)
@given(
    capacity=st.integers(1, 300),
    share=st.floats(0, 1),
    heads=st.sampled_from([(1, 1), (4, 1), (6, 2)]),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    rule=st.sampled_from([*RULES, "fixed:1", "fixed:7"]),
    kernel=st.sampled_from(DENSE_KERNELS),
    dtype=st.sampled_from(list(DTYPES)),
    std=st.sampled_from([0.0, 1.4, 40.0]),
)
def test_any_shape_is_inside_the_bound(
    capacity: int,
    share: float,
    heads: tuple[int, int],
    sizes: tuple[int, int],
    rule: str,
    kernel: DenseKernel,
    dtype: DenseDtype,
    std: float,
) -> None:
    shape = DenseShape(capacity, math.floor(share * capacity), *heads, *sizes, dtype=dtype)
    check(dense_inputs(shape, query_std=std), parse_rule(rule)(capacity, shape.rows), kernel)
