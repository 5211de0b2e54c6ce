# SPDX-License-Identifier: MIT
"""FP64 dense attention, and how far a kernel may lie from it.

Let the logit of key j be off by at most delta[j], and w = sum_j p[j] * (exp(delta[j]) - 1) with the exact weights p.
The un-normalised sums N = sum p v and D = sum p = 1 then move by at most sum_j p[j] * (exp(delta[j]) - 1) * |v[j]| =: A
and w, so for w < 1

    |N' / D' - N| = |N' - N + N * (1 - D')| / D' <= (A + |N| * w) / (1 - w).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.dense import DenseDtype
from dsa_bench.model.dense_inputs import DTYPES, DenseInputs
from dsa_bench.oracle.attention import F64
from dsa_bench.oracle.tolerance import FP32_MAX, U_FP32

UNIT: dict[DenseDtype, float] = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
"""Unit roundoff of the output's type."""
HALF_SMALLEST: dict[DenseDtype, float] = {"f32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134}
"""Half of the type's smallest subnormal: what a store may lose at zero."""
FLUSHED = 2.0**-125
"""What a probability that FP32's exponential flushes to zero had at most, and a little for rounding the sums."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseReference:
    """The oracle's answer. `rows` [checked], row numbers; `out`, `bound` [checked, value_head_size] FP64."""

    rows: NDArray[np.int64]
    out: F64
    bound: F64


def dense_reference(inputs: DenseInputs, max_rows: int = 64, splits: int = 64) -> DenseReference:
    """Evaluate up to `max_rows` evenly spaced rows; the first and the last are always among them.

    x[j] = cap(scale * sum_d query[d] * key[j, d]) + mask[j] over the keys that the row sees
    out[c] = sum_j softmax(x)[j] * value[j, c]; a row without a live key gives zeros
    splits  partials that a kernel may merge, for the bound
    """
    count = inputs.shape.rows
    rows = np.unique(np.linspace(0, count - 1, min(max_rows, count)).round().astype(np.int64))
    answers = [_row(inputs, int(row), splits) for row in rows]
    return DenseReference(rows, np.stack([out for out, _ in answers]), np.stack([bound for _, bound in answers]))


@np.errstate(over="ignore", invalid="ignore")
def _row(inputs: DenseInputs, row: int, splits: int) -> tuple[F64, F64]:
    """One row's output and the bound on |kernel - output|, both [value_head_size].

    logits   u = 2^-24. With the scale in one operand or its root in both: at most 3 roundings before the product, then
             head_size products and additions, in any order: (head_size + 6) * u * scale * sum |q||k|. A soft cap has a
             slope of at most 1, and rounds by 8 u of its result; the mask's addition by u * |x|; subtraction and the
             argument of exp by 4 u * (|x| + |max x|). Infinite where a partial sum may overflow FP32
    sums     numerator and denominator add the row's keys and up to `splits` partials, in any order; an online maximum
             rescales what is summed, at most every 16 keys and by 6 u; exp is good to 2^-22 and a partial's weight too:
             (2 * keys + splits + 24) * u of sum p |v|, and of |out| for the denominator
    flushed  probabilities below 2^-126 may be zero: keys * 2^-125 * max |v|
    store    the result is rounded once
    """
    shape = inputs.shape
    batch, head, query, kv_head = inputs.place(row)
    stop = inputs.stop(row)
    keys = inputs.key[batch, kv_head, :stop].astype(np.float64)
    values = inputs.value[batch, kv_head, :stop].astype(np.float64)
    q = inputs.query[batch, head, query].astype(np.float64)
    x = inputs.softmax_scale * (keys @ q)
    magnitude = inputs.softmax_scale * (np.abs(keys) @ np.abs(q))
    delta = (shape.head_size + 6) * U_FP32 * np.where(magnitude < FP32_MAX, magnitude, np.inf)
    if inputs.softcap:
        x = inputs.softcap * np.tanh(x / inputs.softcap)
        delta = delta + 8 * U_FP32 * np.abs(x)
    if inputs.mask is not None:
        x = x + inputs.mask[batch, query, :stop].astype(np.float64)
    store = HALF_SMALLEST[shape.dtype]
    counts = x > -np.inf
    if not counts.any():
        return np.zeros(shape.value_head_size), np.full(shape.value_head_size, store)
    x, delta, values = x[counts], delta[counts], values[counts]
    delta = delta + U_FP32 * (5 * np.abs(x) + 4 * np.abs(x.max()))
    p = np.exp(x - x.max())
    p /= p.sum()
    out = p @ values
    sizes = np.abs(values)
    # Where p is 0 in FP64 no delta brings it back, and 0 * inf is not an error.
    moved = np.where(p > 0, p * np.expm1(np.minimum(delta, 700.0)), 0.0)
    w = float(moved.sum())
    bound = (moved @ sizes + np.abs(out) * w) / (1 - w) if w < 1 else np.full_like(out, np.inf)
    bound = bound + (2 * len(x) + splits + 24) * U_FP32 * (p @ sizes + np.abs(out))
    bound = bound + len(x) * FLUSHED * sizes.max(axis=0)
    return out, bound + UNIT[shape.dtype] * (np.abs(out) + bound) + store


def rounding_floor(answer: DenseReference, dtype: DenseDtype) -> float:
    """RMS(rounded - out) / RMS(out): the error of a perfect kernel. 0 where the output is all zeros."""
    rounded = answer.out.astype(DTYPES[dtype]).astype(np.float64)
    size = float(np.sqrt(np.mean(np.square(answer.out))))
    return float(np.sqrt(np.mean(np.square(rounded - answer.out)))) / size if size else 0.0


FEW_ROUNDINGS = 4
"""How many roundings the RMS error of a right kernel stays within."""


def rms_limit(inputs: DenseInputs, answer: DenseReference) -> float:
    """A relative RMS error that no right kernel reaches, where a bound for the worst case sees little.

    Roundings are taken as independent: FEW_ROUNDINGS times those of the store, of sums of `length` values of their
    RMS, and of logits of `head_size` products, each of which moves its weight by that share.
    """
    shape = inputs.shape
    size = float(np.sqrt(np.mean(np.square(answer.out))))
    if not size:
        return np.inf
    values = float(np.sqrt(np.mean(np.square(inputs.value[0, 0, : shape.length].astype(np.float64)))))
    spread = inputs.softmax_scale * shape.head_size**0.5
    spread *= float(np.sqrt(np.mean(np.square(inputs.query.astype(np.float64)))))
    sums = U_FP32 * (shape.length**0.5 * values + shape.head_size**0.5 * spread * size)
    return FEW_ROUNDINGS * (UNIT[shape.dtype] * size + HALF_SMALLEST[shape.dtype] + sums) / size
