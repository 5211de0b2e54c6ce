# SPDX-License-Identifier: MIT
"""Dense decode attention in NumPy and FP32, split and combined as the kernels of kernels/dense/ do it.

`previous` adds keys in ascending order, one at a time, and a row that fits one split has the bits of attention_row.
`fast` leaves the order to BLAS; its split 0 has the bits of its monolithic row in the same way.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.dense import DenseKernel, DensePlan
from dsa_bench.model.dense_inputs import DTYPES, DenseInputs

F32 = NDArray[np.float32]


class Partial(NamedTuple):
    """m and l of a slice, and acc [value_head_size], not divided by l; with m = 0 and l = 1, a finished vector.

    A slice that holds no key has m = -inf and l = 0.
    """

    m: np.float32
    l: np.float32  # noqa: E741 - the maths
    acc: F32


def attend(inputs: DenseInputs, row: int, plan: DensePlan, kernel: DenseKernel = "previous") -> NDArray[np.generic]:
    """[value_head_size]: one row's output in the type of the inputs, by the launches that the plan stands for."""
    if plan.splits == 1:
        out = attention_row(inputs, row, kernel)
    else:
        out = attention_combine([attention_split(inputs, row, plan, split, kernel) for split in range(plan.splits)])
    with np.errstate(over="ignore"):
        return out.astype(DTYPES[inputs.shape.dtype])


def attention_row(inputs: DenseInputs, row: int, kernel: DenseKernel = "previous") -> F32:
    """All keys of a row in one pass, before the output is rounded."""
    return _mean(_slice(inputs, row, range(inputs.stop(row)), kernel))


def attention_split(inputs: DenseInputs, row: int, plan: DensePlan, split: int, kernel: DenseKernel) -> Partial:
    """One split's partial. Split 0 of a row whose live keys fit one split leaves the finished vector."""
    owned = plan.slice(split, inputs.length)
    if not owned:
        return Partial(np.float32(-np.inf), np.float32(0), np.zeros(inputs.shape.value_head_size, np.float32))
    partial = _slice(inputs, row, range(owned.start, min(owned.stop, inputs.stop(row))), kernel)
    if inputs.length <= plan.keys_per_split(inputs.length):
        return Partial(np.float32(0), np.float32(1), _mean(partial))
    return partial


def attention_combine(partials: list[Partial]) -> F32:
    """The merged vector, splits ascending; one without keys adds nothing. Never computes inf - inf."""
    used = [partial for partial in partials if partial.l != 0]
    if not used:
        return np.zeros_like(partials[0].acc)
    top = max(partial.m for partial in used)
    weights = [np.exp(partial.m - top, dtype=np.float32) for partial in used]
    acc, total = weights[0] * used[0].acc, weights[0] * used[0].l  # not added to 0: a finished vector may hold -0
    for weight, partial in zip(weights[1:], used[1:], strict=True):
        acc = acc + weight * partial.acc
        total = total + weight * partial.l
    return acc / total


@np.errstate(over="ignore", invalid="ignore")
def _slice(inputs: DenseInputs, row: int, keys: range, kernel: DenseKernel) -> Partial:
    batch, head, query, kv_head = inputs.place(row)
    part = slice(keys.start, max(keys.start, keys.stop))
    q = inputs.query[batch, head, query].astype(np.float32)
    k = inputs.key[batch, kv_head, part].astype(np.float32)
    v = inputs.value[batch, kv_head, part].astype(np.float32)
    if kernel == "previous":
        root = np.sqrt(np.float32(inputs.softmax_scale))
        x = (k * root) @ (q * root)
    else:
        x = k @ (q * np.float32(inputs.softmax_scale))
    if inputs.softcap:
        x = np.float32(inputs.softcap) * np.tanh(x / np.float32(inputs.softcap))
    if inputs.mask is not None:
        x = x + inputs.mask[batch, query, part]
    m = x.max(initial=np.float32(-np.inf))
    p = np.exp(x - (m if m > -np.inf else np.float32(0)))
    if kernel == "fast":
        return Partial(m, p.sum(dtype=np.float32), p @ v)
    total = np.add.accumulate(p)[-1] if len(p) else np.float32(0)
    return Partial(m, total, np.add.reduce(p[:, None] * v, axis=0))  # NumPy adds rows of an outer axis in their order


def _mean(partial: Partial) -> F32:
    return partial.acc / partial.l if partial.l != 0 else np.zeros_like(partial.acc)
