# SPDX-License-Identifier: MIT
"""The hyper-connection kernels in NumPy and FP32. Each takes a slice of rows and writes those of its output."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.hyper import Sigmoid
from dsa_bench.model.hyper_inputs import GateInputs, MixInputs, Tensor

F32 = NDArray[np.float32]
ONE = np.float32(1)
QUARTER = np.float32(0.25)


def sigmoid_branchy(v: F32) -> F32:
    """1 / (1 + exp(-v)) for v >= 0 and exp(v) / (1 + exp(v)) for the others, each computed for its own numbers."""
    out = np.empty_like(v)
    positive = v >= 0
    out[positive] = ONE / (ONE + np.exp(-v[positive]))
    e = np.exp(v[~positive])
    out[~positive] = e / (ONE + e)
    return out


def sigmoid_branch_free(v: F32) -> F32:
    """(v >= 0 ? 1 : e) / (1 + e) with e = exp(-|v|), for all numbers alike."""
    e = np.exp(-np.abs(v))
    numerator: F32 = np.where(v >= 0, ONE, e)
    return numerator / (e + ONE)


SIGMOID: dict[Sigmoid, Callable[[F32], F32]] = {"branchy": sigmoid_branchy, "branch-free": sigmoid_branch_free}


@np.errstate(all="ignore")
def pre_mix(inputs: MixInputs, form: Sigmoid, rows: slice, out: Tensor) -> None:
    """out[r, h] = mean over branches b of sigmoid(up[r, b, h]) * normed[r, b, h]; out [rows, hidden] bf16."""
    total = np.zeros(out[rows].shape, np.float32)
    for branch in range(inputs.shape.branches):
        gates = SIGMOID[form](_f32(inputs.up[rows, branch]))
        total += gates * _f32(inputs.normed[rows, branch])
    out[rows] = total * QUARTER


@np.errstate(all="ignore")
def scaled_silu(inputs: MixInputs, form: Sigmoid, rows: slice, out: Tensor) -> None:
    """out = silu(low_rank / 4); out [rows, rank] bf16."""
    out[rows] = _silu(_f32(inputs.low_rank[rows]) * QUARTER, form)


@np.errstate(all="ignore")
def gate_mul(inputs: GateInputs, rows: slice, x: Tensor) -> None:
    """x[:, :gated] = attention * sigmoid(gate); x [rows, width] bf16, its other columns as they were."""
    gates = sigmoid_branch_free(_f32(inputs.gate[rows]))
    x[rows, : inputs.shape.gated] = _f32(inputs.attention[rows]) * gates


@np.errstate(all="ignore")
def hyper_down(weight: F32, x: Tensor, rows: slice, out: Tensor) -> None:
    """out = silu(weight . x / 4); weight [rank, width] in FP32, x [rows, width] bf16, out [rows, rank] bf16."""
    out[rows] = _silu(_f32(x[rows]) @ weight.T * QUARTER, "branch-free")


def sigmoid_differences(chunks: Iterable[F32]) -> tuple[int, int, float | None]:
    """Numbers tried, how many give different bits in the two forms, and the first of those.

    Two NaN are the same, as NumPy hands on the sign of the NaN that it is given, and the forms give exp another one.
    """
    tried, differ, first = 0, 0, None
    for v in chunks:
        with np.errstate(all="ignore"):
            one, two = (SIGMOID[form](v) for form in SIGMOID)
        other = np.flatnonzero((one.view(np.uint32) != two.view(np.uint32)) & ~(np.isnan(one) & np.isnan(two)))
        tried, differ = tried + v.size, differ + other.size
        if first is None and other.size:
            first = float(v[other[0]])
    return tried, differ, first


def _silu(y: F32, form: Sigmoid) -> F32:
    return y * SIGMOID[form](y)


def _f32(tensor: Tensor) -> F32:
    return tensor.astype(np.float32)
