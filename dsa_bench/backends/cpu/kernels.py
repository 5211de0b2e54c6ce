# SPDX-License-Identifier: MIT
"""Split-KV attention of one row over its gathered INT8 candidates, in NumPy and FP32.

A partial is (m, l, acc) in the natural-log domain: m = max x, l = sum exp(x - m), acc[d] = sum exp(x - m) * v8[d], not
divided by l. A split without a candidate gives -inf, 0 and 0. value_scale comes last, so that it can be any number.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import SparseInputs

F32 = NDArray[np.float32]


class Partial(NamedTuple):
    """m, l [group] and acc [group, head_size]."""

    m: F32
    l: F32  # noqa: E741 - the maths
    acc: F32


@np.errstate(over="ignore", invalid="ignore")
def attend(inputs: SparseInputs, row: int, kv_head: int, part: slice) -> Partial:
    """The partial of one row and KV head over the entries `part` of the row's list."""
    shape = inputs.shape
    heads = slice(kv_head * shape.group, (kv_head + 1) * shape.group)
    listed = inputs.selected[row, part]
    positions = listed[(listed >= 0) & (listed < shape.context)]
    if not positions.size:
        return empty_partial(shape.group, shape.head_size)
    folded = inputs.query[row, heads].astype(np.float32) * inputs.key_scale[kv_head]
    x = folded @ np.take(inputs.key[kv_head], positions, axis=0).astype(np.float32).T
    x *= np.float32(inputs.scale)
    m = x.max(axis=1)
    p = np.exp(x - m[:, None])
    acc = p @ np.take(inputs.value[kv_head], positions, axis=0).astype(np.float32)
    return Partial(m, p.sum(axis=1), acc)


def empty_partial(group: int, head_size: int) -> Partial:
    """What a split without a candidate publishes."""
    return Partial(
        np.full(group, -np.inf, np.float32), np.zeros(group, np.float32), np.zeros((group, head_size), np.float32)
    )


@np.errstate(over="ignore", invalid="ignore")
def merge(partials: list[Partial], value_scale: F32) -> F32:
    """[group, head_size]: the splits' weighted mean, times value_scale [head_size].

    A partial whose l is 0 adds nothing, whatever its acc holds; a row without a candidate gives zeros. Never computes
    inf - inf, but what is NaN in a partial with weight stays NaN.
    """
    m = np.stack([np.where(partial.l == 0, -np.inf, partial.m) for partial in partials])
    top = m.max(axis=0)
    weight = np.exp(m - np.where(top == -np.inf, np.float32(0), top))
    total = np.zeros_like(top)
    acc = np.zeros_like(partials[0].acc)
    for factor, partial in zip(weight, partials, strict=True):
        live = partial.l != 0
        total[live] += factor[live] * partial.l[live]
        acc[live] += factor[live, None] * partial.acc[live]
    some = total[:, None] != 0
    mean = np.divide(acc, total[:, None], out=np.zeros_like(acc), where=some)
    return np.multiply(mean, value_scale, out=mean, where=some)
