# SPDX-License-Identifier: MIT
"""How far a kernel's output may lie from the FP64 oracle: first-order bounds whose terms can be argued."""

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import DecodeInputs
from dsa_bench.oracle.attention import F64

U_BF16 = 2.0**-9
"""Unit roundoff of BF16 (8 significant bits, to nearest)."""
U_FP32 = 2.0**-24
SMALLEST_BF16 = 2.0**-133
CODE_MAX = 128
"""Largest magnitude of an INT8 code."""


def logit_magnitude(inputs: DecodeInputs, rows: NDArray[np.int64]) -> F64:
    """[rows, query_heads]: scale * 128 * sum_d |query * key_scale|, above the size of any partial sum of a logit."""
    shape = inputs.shape
    folded = inputs.query[rows].astype(np.float64).reshape(len(rows), shape.kv_heads, shape.group, shape.head_size)
    folded *= inputs.key_scale[None, :, None, :]
    return inputs.scale * CODE_MAX * np.abs(folded).sum(axis=-1).reshape(len(rows), shape.query_heads)


def fp32_bound(inputs: DecodeInputs, rows: NDArray[np.int64], out: F64) -> F64:
    """Bound on |kernel - oracle| for FP32 arithmetic and a BF16 store, [rows, query_heads, head_size].

    store   the result is rounded to BF16 once: U_BF16 * |out|, or half the smallest subnormal
    logit   folding, product, head_size additions, scaling, subtraction of the maximum and exp each round once:
            delta = (head_size + 6) * U_FP32 * logit_magnitude. A weight is then off by the factor exp(+-delta), and
            sum p_c (v_c - out) * delta <= 2 * delta * v_max
    sums    numerator and denominator add `candidates` terms each: 2 * candidates * U_FP32 * v_max
    """
    shape = inputs.shape
    v_max = CODE_MAX * np.abs(inputs.value_scale.astype(np.float64)).repeat(shape.group, axis=0)
    delta = (shape.head_size + 6) * U_FP32 * logit_magnitude(inputs, rows)
    arithmetic = (2 * np.expm1(delta) + 2 * shape.candidates * U_FP32)[:, :, None] * v_max
    return U_BF16 * np.abs(out) + SMALLEST_BF16 + arithmetic
