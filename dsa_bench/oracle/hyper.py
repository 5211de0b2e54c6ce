# SPDX-License-Identifier: MIT
"""FP64 results of the hyper-connection kernels over the same BF16 tensors, and how far a kernel may lie from them.

A bound is first order. Its terms:

store     one rounding to BF16: U_BF16 * |out|, or half the smallest subnormal
sigmoid   e = exp(-|v|) is good to EXP_ERROR; 1 + e and the quotient round once: (EXP_ERROR + 2 U_FP32) * sigmoid, and
          where e is subnormal 2^-148
products  each rounds once, U_FP32, and so does each of the n additions of a sum: n * U_FP32 * sum |terms|. Tensor cores
          may truncate instead, which is twice the unit; n is then the longest chain that a product goes through
silu      its slope is at most 1.1, so an error of the sum comes through at most 1.1 times as large
"""

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.hyper_inputs import GateInputs, MixInputs, Tensor
from dsa_bench.oracle.attention import F64, Reference
from dsa_bench.oracle.tolerance import FP32_MAX, SMALLEST_BF16, U_BF16, U_FP32

EXP_ERROR = 8 * U_FP32
"""Relative: 4 ulp. CUDA's expf is good to 2 ulp (CUDA C++ Programming Guide, Mathematical Functions), NumPy's FP32 exp
to 2.52."""
SIGMOID_ERROR = EXP_ERROR + 2 * U_FP32
SMALLEST_FP32 = 2.0**-149
SILU_SLOPE = 1.1
"""Above the largest slope of silu, 1.0998 at 2.4."""
FEW_CHAIN = 160 + 2 + 16
"""Additions behind a product in hyper_down_few: one of 4 accumulators of one of 16 warps (kernels/hyper/down.cu)."""

Rows = NDArray[np.int64]


def checked_rows(rows: int, max_rows: int = 64) -> Rows:
    """Up to `max_rows` evenly spaced rows; the first and the last are always among them."""
    return np.unique(np.linspace(0, rows - 1, min(max_rows, rows)).round().astype(np.int64))


def sigmoid(v: F64) -> F64:
    """1 / (1 + exp(-v)) without overflow."""
    e = np.exp(-np.abs(v))
    return np.where(v >= 0, 1.0, e) / (1.0 + e)


def silu(y: F64) -> F64:
    """y * sigmoid(y)."""
    with np.errstate(invalid="ignore"):  # -inf * 0
        return y * sigmoid(y)


def mixed(inputs: MixInputs, rows: Rows) -> tuple[Reference, F64]:
    """PreMix of some rows, and its bound; both [len(rows), hidden].

    out[h] = mean over branches b of sigmoid(up[b, h]) * normed[b, h]. A sum of 4 may be beyond FP32 where its mean is
    not: there the bound is infinite.
    """
    values, gates = _f64(inputs.normed[rows]), sigmoid(_f64(inputs.up[rows]))
    branches = inputs.shape.branches
    with np.errstate(invalid="ignore"):
        out = (gates * values).mean(axis=1)
        size = np.abs(gates * values).mean(axis=1)
    error = (SIGMOID_ERROR + (branches + 1) * U_FP32) * size + np.abs(values).mean(axis=1) * 2 * SMALLEST_FP32
    error = np.where(size * branches < FP32_MAX, error, np.inf)
    return Reference(rows, out), _stored(out, error)


def activated(inputs: MixInputs, rows: Rows) -> tuple[Reference, F64]:
    """ScaledSilu of some rows, silu(low_rank / 4), and its bound; both [len(rows), rank]."""
    quarter = _f64(inputs.low_rank[rows]) / 4.0
    out = silu(quarter)
    error = (SIGMOID_ERROR + U_FP32) * np.abs(out) + np.abs(quarter) * 2 * SMALLEST_FP32
    return Reference(rows, out), _stored(out, error)


def gated(inputs: GateInputs, rows: Rows) -> tuple[Reference, F64]:
    """Gate-mul of some rows, attention * sigmoid(gate), and its bound; both [len(rows), gated]."""
    values = _f64(inputs.attention[rows])
    with np.errstate(invalid="ignore"):
        out = values * sigmoid(_f64(inputs.gate[rows]))
    error = (SIGMOID_ERROR + U_FP32) * np.abs(out) + np.abs(values) * 2 * SMALLEST_FP32
    return Reference(rows, out), _stored(out, error)


def projected(x: Tensor, weight: Tensor, rows: Rows, chain: int | None = None) -> tuple[Reference, F64]:
    """silu(weight . x / 4) of some rows of x [rows, width], and its bound; both [len(rows), rank].

    x is what the kernel read, rounding of gate-mul included, so that its error is not counted twice.
    chain  additions that a product goes through, FEW_CHAIN for hyper_down_few; by default one for each channel
    """
    wide, weights = _f64(x[rows]), _f64(weight)
    with np.errstate(invalid="ignore", over="ignore"):
        quarter = wide @ weights.T / 4.0
        size = np.abs(wide) @ np.abs(weights).T / 4.0
    out = silu(quarter)
    sums = 2 * U_FP32 * (chain or x.shape[1]) * size
    error = SILU_SLOPE * sums + (SIGMOID_ERROR + U_FP32) * np.abs(out) + np.abs(quarter) * 2 * SMALLEST_FP32
    return Reference(rows, out), _stored(out, np.where(4 * size < FP32_MAX, error, np.inf))


def _f64(tensor: Tensor) -> F64:
    return tensor.astype(np.float64)


def _stored(out: F64, error: F64) -> F64:
    with np.errstate(invalid="ignore"):
        return U_BF16 * (np.abs(out) + error) + error + SMALLEST_BF16
