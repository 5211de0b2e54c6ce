# SPDX-License-Identifier: MIT
"""Dense causal attention over the dequantised cache in BF16: what the dense line must compute, and how nearly.

It shares no output with the sparse kernels: a row attends to every position up to its own, selected or not.
"""

import numpy as np

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.oracle.attention import F64, Reference
from dsa_bench.oracle.rounding import dequantised
from dsa_bench.oracle.tolerance import SMALLEST_BF16, U_BF16, U_FP32

CHECKED_ROWS = 16
"""Each of them reads the whole cache in FP64: a second or two at 32768 positions."""


def dense_reference(inputs: SparseInputs, max_rows: int = CHECKED_ROWS) -> Reference:
    """FP64 over BF16 queries, keys and values, for evenly spaced rows; row r sees positions 0 to context - rows + r."""
    shape = inputs.shape
    rows = np.unique(np.linspace(0, shape.rows - 1, min(max_rows, shape.rows)).round().astype(np.int64))
    out = np.zeros((len(rows), shape.query_heads, shape.head_size))
    for kv_head in range(shape.kv_heads):
        heads = slice(kv_head * shape.group, (kv_head + 1) * shape.group)
        keys = dequantised(inputs.key[kv_head], inputs.key_scale[kv_head]).astype(np.float64)
        values = dequantised(inputs.value[kv_head], inputs.value_scale[kv_head]).astype(np.float64)
        for at, row in enumerate(rows):
            past = int(shape.context - shape.rows + row + 1)
            x = inputs.scale * (inputs.query[row, heads].astype(np.float64) @ keys[:past].T)
            weights = np.exp(x - x.max(axis=1, keepdims=True))
            out[at, heads] = weights @ values[:past] / weights.sum(axis=1, keepdims=True)
    return Reference(rows, out)


def dense_bound(inputs: SparseInputs, reference: Reference) -> F64:
    """Bound on |kernel - FP64|, [len(rows), query_heads, head_size], for any fused attention kernel in BF16.

    logit        the products of BF16 numbers are exact in FP32; head_size sums, scaling, the subtraction of a maximum
                 and the exponential's argument round once each, by twice FP32's unit where tensor cores truncate:
                 delta = (head_size + 8) * 2 U_FP32 * scale * sum_d |query| * max |key|, and the weights move by
                 2 * tanh(delta / 2) (oracle/tolerance.py)
    probability  rounded to BF16 before it meets the values: U_BF16, as in bf16_bound
    sums         numerator and denominator over the context, and the exponential: (2 context + 8) * 2 U_FP32
    store        U_BF16 * |out|, or half the smallest subnormal; once more for a kernel that merges parts in BF16
    """
    shape = inputs.shape
    largest_key, largest_value = np.zeros((2, shape.kv_heads, shape.head_size))
    for kv_head in range(shape.kv_heads):
        for largest, codes, scale in (
            (largest_key, inputs.key, inputs.key_scale),
            (largest_value, inputs.value, inputs.value_scale),
        ):
            top = np.abs(codes[kv_head].astype(np.int16)).max(axis=0).astype(np.float64)
            largest[kv_head] = top * np.abs(scale[kv_head]) * (1 + 2 * U_BF16)
    query = np.abs(inputs.query[reference.rows].astype(np.float64))
    magnitude = inputs.scale * (query * largest_key.repeat(shape.group, axis=0)).sum(axis=-1)
    moved = 2 * np.tanh((shape.head_size + 8) * U_FP32 * magnitude)
    relative = moved + U_BF16 * (1 + U_BF16) + (2 * shape.context + 8) * 2 * U_FP32
    largest = largest_value.repeat(shape.group, axis=0)
    return 2 * U_BF16 * np.abs(reference.out) + 2 * SMALLEST_BF16 + relative[:, :, None] * largest
