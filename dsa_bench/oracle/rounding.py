# SPDX-License-Identifier: MIT
"""Roundings that NumPy does not have."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import BF16
from dsa_bench.oracle.attention import F64

F32 = NDArray[np.float32]
BEYOND_FP32 = ~np.int64((1 << 29) - 1)
"""Keeps what FP32 has of an FP64 number: 52 - 29 = 23 bits of its mantissa."""
SMALLEST_NORMAL = np.float32(2.0**-126)


def toward_zero(x: F64) -> F32:
    """FP32, truncated (if it is a normal number): what tensor cores do at worst."""
    return (x.view(np.int64) & BEYOND_FP32).view(np.float64).astype(np.float32)


def exp2(x: F32, *, subnormal: bool = False) -> F32:
    """2^x rounded to FP32; below 2^-126 zero, unless `subnormal` keeps it (ex2.approx with and without ftz)."""
    y = np.exp2(x.astype(np.float64)).astype(np.float32)
    return y if subnormal else np.where(y < SMALLEST_NORMAL, np.float32(0), y)


def significant(x: F64, bits: int) -> NDArray[Any]:
    """x rounded to so many significant bits, of any exponent."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)


def dequantised(codes: NDArray[np.int8], scale: F32) -> NDArray[np.generic]:
    """BF16: fp32(code * scale), rounded to nearest. scale has the codes' last axis."""
    return (codes.astype(np.float32) * scale).astype(BF16)
