# SPDX-License-Identifier: MIT
"""Synthetic tensors of dense decode: same seed, same bytes, and one pinned digest for each type."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from dsa_bench.data.dense import dense_inputs
from dsa_bench.model.dense import LARGEST, DenseDtype, DenseShape
from dsa_bench.model.dense_inputs import DTYPES
from dsa_bench.model.dense_request import REACH

SHAPE = DenseShape(96, 50, 4, 2, 40, 24, batch=2, query_len=3)
DIGESTS: dict[DenseDtype, str] = {"f32": "473793802dd2fa82", "f16": "0744e6d0bc52f4b5", "bf16": "9b94520a6563a7c2"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_seed_same_bytes_for_ever(dtype: DenseDtype) -> None:
    """A changed digest means that records from before cannot be resumed or compared: change it knowingly."""
    inputs = dense_inputs(replace(SHAPE, dtype=dtype))
    assert inputs.digest() == DIGESTS[dtype]
    assert dense_inputs(replace(SHAPE, dtype=dtype), seed=1).digest() != DIGESTS[dtype]
    assert {tensor.dtype for tensor in inputs.tensors.values()} == {DTYPES[dtype]}


def test_lengths_of_one_capacity_share_their_bytes() -> None:
    short, long = dense_inputs(SHAPE), dense_inputs(replace(SHAPE, length=96))
    assert all(np.array_equal(tensor, long.tensors[name]) for name, tensor in short.tensors.items())
    assert short.digest() != long.digest()


def test_the_query_deviation_changes_the_query_alone() -> None:
    plain, wide = dense_inputs(SHAPE), dense_inputs(SHAPE, query_std=2.8)
    same = [name for name, tensor in plain.tensors.items() if np.array_equal(tensor, wide.tensors[name])]
    assert same == ["key", "value"]


def test_the_values_are_normal() -> None:
    key = dense_inputs(DenseShape(4096, 1, 1, 1, 64, 8, dtype="f32")).key.astype(np.float64)
    assert abs(key.mean()) < 0.01
    assert abs(key.std() - 1) < 0.01
    assert 4 < np.abs(key).max() < 4.4


def test_queries_of_the_largest_deviation_are_finite() -> None:
    """What DenseRequest refuses rests on how far drawn numbers reach."""
    assert NormalDist().inv_cdf(1 - 2**-17) < REACH
    query = dense_inputs(SHAPE, query_std=LARGEST["f16"] / REACH).query
    assert np.isfinite(query.astype(np.float64)).all()
