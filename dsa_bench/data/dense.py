# SPDX-License-Identifier: MIT
"""Synthetic inputs of dense decode: same shape and seed, same bytes."""

import zlib
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.dense import DenseDtype, DenseShape
from dsa_bench.model.dense_inputs import DTYPES, DenseInputs

QUERY_STD = 1.4
"""Standard deviation of the queries, and so of the logits, as keys have 1 and the scale is 1 / sqrt(head_size)."""


def dense_inputs(shape: DenseShape, seed: int = 0, query_std: float = QUERY_STD) -> DenseInputs:
    """Draw one cell's tensors: normal, standard deviation `query_std` for queries and 1 for keys and values.

    The whole capacity is filled, so cells that differ in their length alone share every byte. Each tensor has a stream
    of its own, so one knob changes one tensor.
    """
    cache_rows = (shape.batch, shape.kv_heads, shape.capacity)
    query = _normal(seed, "query", (shape.batch, shape.query_heads, shape.query_len, shape.head_size), "f32")
    return DenseInputs(
        query=(query.astype(np.float32) * np.float32(query_std)).astype(DTYPES[shape.dtype]),
        key=_normal(seed, "key", (*cache_rows, shape.head_size), shape.dtype),
        value=_normal(seed, "value", (*cache_rows, shape.value_head_size), shape.dtype),
        length=shape.length,
    )


def _normal(seed: int, tensor: str, shape: tuple[int, ...], dtype: DenseDtype) -> NDArray[np.generic]:
    """Normal values by 16 random bits through a table of quantiles (decision 0004), one head at a time."""
    rng = np.random.default_rng([seed, zlib.crc32(f"dense {tensor}".encode())])
    table = _quantiles().astype(DTYPES[dtype])
    out = np.empty(shape, DTYPES[dtype])
    for head in np.ndindex(shape[:2]):
        out[head] = table[rng.integers(0, 1 << 16, shape[2:], np.uint16)]
    return out


@cache
def _quantiles() -> NDArray[np.float64]:
    """The middle of each of 2^16 equal steps of the cumulative distribution; within +-4.33."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((step + 0.5) / (1 << 16)) for step in range(1 << 16)])
