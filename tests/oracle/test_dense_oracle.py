# SPDX-License-Identifier: MIT
"""The FP64 oracle of dense attention on answers worked by hand, and the terms of its bound."""

from dataclasses import replace

import numpy as np
import pytest

from dsa_bench.data.dense import dense_inputs
from dsa_bench.model.dense import DenseDtype, DenseShape
from dsa_bench.model.dense_inputs import DTYPES, DenseInputs
from dsa_bench.oracle.dense import UNIT, dense_reference, rounding_floor


def two_keys(dtype: DenseDtype = "f32", **changes: object) -> DenseInputs:
    """One row, two live keys with products 0 and 1 and values 10 and 20, then a key that is not live."""
    kind = DTYPES[dtype]
    query = np.array([[[[2.0, 0.0]]]]).astype(kind)
    key = np.array([[[[0.0, 5.0], [0.5, 7.0], [9.0, 9.0]]]]).astype(kind)
    value = np.array([[[[10.0], [20.0], [np.nan]]]]).astype(kind)
    return replace(DenseInputs(query, key, value, length=2, scale=1.0), **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (10 + 20 * np.e) / (1 + np.e)),
        ({"scale": 4.0}, (10 + 20 * np.e**4) / (1 + np.e**4)),
        ({"scale": 0.0}, 15.0),
        ({"softcap": 0.5}, (10 + 20 * np.exp(0.5 * np.tanh(2))) / (1 + np.exp(0.5 * np.tanh(2)))),
        ({"length": 1}, 10.0),
        ({"length": 0}, 0.0),
        ({"pad_limit": np.array([1], np.int32)}, 10.0),
        ({"pad_limit": np.array([0], np.int32)}, 0.0),
        ({"pad_limit": np.array([-1], np.int32)}, (10 + 20 * np.e) / (1 + np.e)),
        ({"mask": np.array([[[1.0, 0.0, 5.0]]], np.float32)}, 15.0),
        ({"mask": np.array([[[-np.inf, 0.0, 0.0]]], np.float32)}, 20.0),
        ({"mask": np.full((1, 1, 3), -np.inf, np.float32)}, 0.0),
        ({"mask": np.array([[[0.0, -np.inf, 0.0]]], np.float32), "softcap": 0.5}, 10.0),  # the cap keeps no key alive
    ],
)
def test_worked_rows(changes: dict[str, object], expected: float) -> None:
    answer = dense_reference(two_keys(**changes))
    np.testing.assert_allclose(answer.out, [[expected]], rtol=1e-14)
    assert (np.isfinite(answer.bound) & (answer.bound > 0)).all()


def test_a_causal_query_sees_no_later_key() -> None:
    inputs = replace(dense_inputs(DenseShape(32, 20, 2, 1, 8, 8, query_len=3, dtype="f32")), causal=True)
    answer = dense_reference(inputs)
    for query in range(3):
        alone = replace(inputs, query=inputs.query[:, :, query : query + 1], length=18 + query, causal=False)
        np.testing.assert_array_equal(answer.out[query::3], dense_reference(alone).out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_perfect_kernel_is_inside_and_the_store_is_most_of_the_bound_where_logits_are_zero(dtype: DenseDtype) -> None:
    inputs = dense_inputs(DenseShape(64, 50, 4, 2, 16, 16, dtype=dtype), query_std=0.0)
    answer = dense_reference(inputs)
    stored = answer.out.astype(DTYPES[dtype]).astype(np.float64)
    assert (np.abs(stored - answer.out) <= answer.bound).all()
    assert 0 < rounding_floor(answer, dtype) <= UNIT[dtype]
    if dtype != "f32":
        assert (answer.bound <= 2 * UNIT[dtype] * np.abs(answer.out) + 1e-3 * UNIT["f16"] + 3e-5).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_lost_key_is_beyond_the_bound_where_it_has_the_weight(dtype: DenseDtype) -> None:
    inputs = dense_inputs(DenseShape(64, 50, 4, 2, 16, 16, dtype=dtype))
    answer = dense_reference(inputs)
    lost = dense_reference(replace(inputs, length=49))
    assert (np.abs(lost.out - answer.out) > answer.bound).any(axis=1).all()


def test_products_beyond_fp32_have_no_bound() -> None:
    inputs = replace(dense_inputs(DenseShape(8, 8, 1, 1, 64, 8, dtype="f32"), query_std=5e37), scale=1.0)
    assert np.isinf(dense_reference(inputs).bound).all()


def test_a_subset_of_rows_holds_the_first_and_the_last() -> None:
    answer = dense_reference(dense_inputs(DenseShape(8, 8, 16, 16, 8, 8, batch=10)), max_rows=7)
    assert len(answer.rows) == 7
    assert answer.rows[[0, -1]].tolist() == [0, 159]
