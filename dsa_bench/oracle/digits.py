# SPDX-License-Identifier: MIT
"""The folded query as INT8 digits: kernels/dsa/int8_query.cuh in NumPy."""

import numpy as np

from dsa_bench.oracle.attention import F64
from dsa_bench.oracle.rounding import F32, significant

BITS = 30
"""A head's largest channel is about 2^30 units."""
DIGITS = 4
SMALLEST_EXPONENT = -96
LARGEST_UNIT = 2.0**80
"""nats. Above it scores that differ do so beyond exp's range either way, and FP32 holds them."""


def fixed_point(folded: F64, digits: int = DIGITS) -> tuple[F64, F64]:
    """Each head's channels in whole units, and the exponent of the head's unit, for folded [group, head_size].

    0.99 * 2^30 <= max |units| <= 1.985 * 2^30, so that four balanced digits hold them; fewer keep the leading ones.
    """
    product = significant(folded, 24)
    largest: F64 = np.abs(product).max(axis=1)
    mantissa, exponent = np.frexp(np.maximum(largest, 2.0**SMALLEST_EXPONENT))
    exponent = exponent - 1 + (2 * mantissa >= 1.984375) - BITS
    down = -exponent[:, None]
    units = np.rint(np.ldexp(product, down)) + np.rint(np.ldexp(folded - product, down))
    dropped = 256.0 ** (DIGITS - digits)
    return np.rint(units / dropped) * dropped, exponent


def digit_scores(folded: F64, keys: F64, scale: np.float32, digits: int = DIGITS) -> F32:
    """[group, candidates] nats. Sums of digits are exact; two halves of them are rounded to FP32 and put together.

    A head with an infinite or NaN channel has no digits: all its scores are NaN.
    """
    total: F64 = np.abs(folded).sum(axis=1)
    finite = np.isfinite(total)
    units, exponent = fixed_point(np.where(finite[:, None], folded, 0.0), digits)
    low = np.mod(units + 32896, 65536) - 32896  # 128 * 257: the two low digits together, each in [-128, 127]
    high = ((units - low) / 65536) @ keys.T
    sums = (high.astype(np.float32) * 65536.0 + (low @ keys.T).astype(np.float32).astype(np.float64)).astype(np.float32)
    unit = np.minimum(np.ldexp(np.float64(scale), exponent), LARGEST_UNIT).astype(np.float32)
    return sums * np.where(finite, unit, np.float32(np.nan))[:, None]
