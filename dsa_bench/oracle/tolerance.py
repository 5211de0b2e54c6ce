# SPDX-License-Identifier: MIT
"""How far a kernel's output may lie from the FP64 oracle: first-order bounds whose terms can be argued."""

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import DecodeInputs
from dsa_bench.oracle.attention import F64, logit_shift

U_BF16 = 2.0**-8
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
    """Bound on |kernel - oracle| for FP32 arithmetic and a BF16 store, [len(rows), query_heads, head_size].

    store   the result is rounded to BF16 once: U_BF16 * |out|, or half the smallest subnormal
    logit   folding, product, head_size additions, scaling, subtraction of the maximum and exp each round once:
            delta = (head_size + 6) * U_FP32 * logit_magnitude. A weight is then off by the factor exp(+-delta), and
            sum p_c (v_c - out) * delta <= 2 * delta * v_max
    sums    numerator and denominator add `candidates` terms each: 2 * candidates * U_FP32 * v_max
    """
    return _store(out) + _arithmetic(inputs, rows, unit=U_FP32)


def fp16_bound(inputs: DecodeInputs, rows: NDArray[np.int64], out: F64) -> F64:
    """Bound for the tensor-core arithmetic: FP16 operands, FP32 accumulators, probabilities as high part + residual.

    accumulation  tensor cores may truncate where FP32 arithmetic rounds: the terms of fp32_bound with twice the unit
    query         Q' = fp16(query * key_scale) shifts logits by up to logit_shift: 2 * expm1(shift) * v_max
    probability   p * 2^15 in two FP16 parts keeps 22 bits, or an absolute 2^-25 where the residual is subnormal:
                  (2^-22 + candidates * 2^-40) * v_max; the row sum keeps the unrounded p, so the error does not cancel
    """
    probability = 2.0**-22 + inputs.shape.candidates * 2.0**-40
    rounding = 2 * np.expm1(logit_shift(inputs, rows)) + probability
    return _store(out) + _arithmetic(inputs, rows, unit=2 * U_FP32) + rounding[:, :, None] * _v_max(inputs)


def _store(out: F64) -> F64:
    return U_BF16 * np.abs(out) + SMALLEST_BF16


def _arithmetic(inputs: DecodeInputs, rows: NDArray[np.int64], unit: float) -> F64:
    delta = (inputs.shape.head_size + 6) * unit * logit_magnitude(inputs, rows)
    return (2 * np.expm1(delta) + 2 * inputs.shape.candidates * unit)[:, :, None] * _v_max(inputs)


def _v_max(inputs: DecodeInputs) -> F64:
    """[query_heads, head_size]: the largest magnitude of a dequantised value."""
    return CODE_MAX * np.abs(inputs.value_scale.astype(np.float64)).repeat(inputs.shape.group, axis=0)
