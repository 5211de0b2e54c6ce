# SPDX-License-Identifier: MIT
"""The arithmetic of `int8-digits` in NumPy: what kernels/dsa/digits.cuh does to numbers, step by step.

Not emulated: the errors of the hardware's ex2 (2^-22) and reciprocal (2^-23); the order of the FP32 row sums; that the
kernel scales scores after it has subtracted the maximum; which splits have one tile more than others; shorter steps, of
which it rounds the upper and lower 16 bits of a sum one after the other.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import SplitPlan
from dsa_bench.oracle.attention import F64, folded_query
from dsa_bench.oracle.digits import digit_scores
from dsa_bench.oracle.emulation import LOG2E, WIDE_EXPONENT
from dsa_bench.oracle.rounding import F32, exp2

STEP = 384
"""Entries of a list that share a maximum: of decode_digits_long; the other kernels have 128 or 256."""
PROBABILITY_BITS = 32
MAX_VALUE_SCALE = np.float32(2.0**8)
"""|value_scale| up to which probabilities are integers."""
NONE = np.float32(-3e38)
"""The score of no candidate."""


class Partial(NamedTuple):
    """m, l [group] and acc [group, head_size] of one split, without value_scale, in units of the path."""

    m: F32
    l: F32  # noqa: E741 - the maths
    acc: F32


@np.errstate(all="ignore")
def attend_row_digits(inputs: SparseInputs, row: int, kv_head: int, plan: SplitPlan) -> F32:
    """All splits of one row and KV head, merged: [group, head_size] before it is rounded to BF16."""
    wide = not bool((np.abs(inputs.value_scale[kv_head]) <= MAX_VALUE_SCALE).all())
    folded = folded_query(inputs, row, kv_head)
    parts = [plan.candidate_slice(split, inputs.shape.candidates) for split in range(plan.splits)]
    partials = [_attend_split(inputs, row, kv_head, folded, part, wide) for part in parts]
    return _merge(partials, inputs.value_scale[kv_head], wide)


def _attend_split(inputs: SparseInputs, row: int, kv_head: int, folded: F64, part: slice, wide: bool) -> Partial:
    group, head_size = folded.shape
    m, l = np.full(group, NONE), np.zeros(group, np.float32)  # noqa: E741
    acc = np.zeros((group, head_size), np.float32)
    for first in range(part.start, part.stop, STEP):
        listed = inputs.selected[row, first : min(first + STEP, part.stop)]
        positions = listed[(listed >= 0) & (listed < inputs.shape.context)]
        if not positions.size:
            continue
        x = digit_scores(folded, inputs.key[kv_head, positions].astype(np.float64), np.float32(inputs.scale))
        values = inputs.value[kv_head, positions].astype(np.float64)
        top = np.fmax(m, np.fmax.reduce(x, axis=1))
        below = (x - top[:, None]) * LOG2E
        risen = (m - top) * LOG2E
        m = top
        if wide:
            root = exp2(np.float32(0.5) * risen)
            p = _wide_probability(below)
            l = l * root * root + p.sum(axis=1, dtype=np.float32)  # noqa: E741
            acc = (acc * root[:, None] * root[:, None] + p.astype(np.float64) @ values).astype(np.float32)
        else:
            rescale = exp2(risen)
            p = exp2(below) * np.float32(2.0**PROBABILITY_BITS)
            l = l * rescale + p.sum(axis=1, dtype=np.float32)  # noqa: E741
            acc = acc * rescale[:, None] + _integer_product(p, values)
    return Partial(m, l, acc)


def _integer_product(p: F32, values: F64) -> F32:
    """P as integers times codes: an exact sum, below 2^48, rounded to FP32 without its last 8 bits, then with them."""
    whole = np.minimum(np.rint(np.nan_to_num(p.astype(np.float64))), 2.0**PROBABILITY_BITS - 1)
    exact = whole @ values
    last = np.mod(exact, 256)
    return (((exact - last) / 256).astype(np.float32) * 256.0 + last).astype(np.float32)


def _wide_probability(t: F32) -> F32:
    """2^t times 2^WIDE_EXPONENT, as small as FP32 has it."""
    near = t >= -WIDE_EXPONENT
    shifted = np.where(near, t, t + np.float32(WIDE_EXPONENT))
    return exp2(shifted, subnormal=True) * np.where(near, np.float32(2.0**WIDE_EXPONENT), np.float32(1))


def _merge(partials: list[Partial], value_scale: F32, wide: bool) -> F32:
    """In the order of the splits; zeros for a row without a candidate."""
    m, l, acc = (np.stack([getattr(partial, name) for partial in partials]) for name in ("m", "l", "acc"))  # noqa: E741
    below = (m - np.fmax.reduce(m, axis=0)) * LOG2E
    root = exp2(np.float32(0.5) * below)
    weight = root * root if wide else exp2(below)
    total = (weight * l).sum(axis=0, dtype=np.float32)[:, None]
    if not wide:
        share = np.where(total == 0, np.float32(0), np.float32(1) / total)
        return (weight[:, :, None] * acc).sum(axis=0, dtype=np.float32) * share * value_scale
    mixed = (acc * root[:, :, None] * root[:, :, None]).sum(axis=0, dtype=np.float32)
    small: NDArray[np.bool_] = np.abs(value_scale) < 1
    out: F32 = np.where(small, mixed, value_scale) / total * np.where(small, value_scale, mixed)
    return np.where(total == 0, np.float32(0), out)
