# SPDX-License-Identifier: MIT
"""Student's t where a normal quantile is known: how much farther out it lies."""

from functools import cache
from statistics import NormalDist

import numpy as np

from dsa_bench.stats.several import FloatArray


def student_quantile(share: float, free: int) -> float:
    """The value that a t variable of `free` degrees of freedom does not exceed with probability `share`.

    For shares of 0.0005 to 0.9995 within 1.5 % from 4 degrees of freedom, and within 0.1 % from 10.
    Raises ValueError for fewer than 4. Source: the expansion of Abramowitz and Stegun 26.7.5.
    """
    z = NormalDist().inv_cdf(share)
    return z * float(_stretch(np.array(z), free))


@cache
def tail_stretch(count: int, free: int) -> FloatArray:
    """[2 count + 1] t quantile / normal quantile at the shares 0, 1 / (2 count), ..., 1, which are twice as many as the
    ranks of `count` values, so that equal values share the one between theirs. The two ends, infinite, are their
    neighbours."""
    inner = [NormalDist().inv_cdf(at / (2 * count)) for at in range(1, 2 * count)]
    stretch = _stretch(np.array([inner[0], *inner, inner[-1]]), free)
    stretch.setflags(write=False)
    return stretch


def _stretch(z: FloatArray, free: int) -> FloatArray:
    """t / z, with its limit at z = 0."""
    if free < 4:
        raise ValueError(f"{free} degrees of freedom; the expansion holds from 4")
    y = z * z
    return (
        1
        + (y + 1) / (4 * free)
        + (5 * y**2 + 16 * y + 3) / (96 * free**2)
        + (3 * y**3 + 19 * y**2 + 17 * y - 15) / (384 * free**3)
        + (79 * y**4 + 776 * y**3 + 1482 * y**2 - 1920 * y - 945) / (92160 * free**4)
    )
