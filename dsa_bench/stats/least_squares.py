# SPDX-License-Identifier: MIT
"""Least squares whose coefficients cannot be negative."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def nonnegative_least_squares(features: FloatArray, targets: FloatArray) -> FloatArray:
    """x >= 0 with the least |features x - targets|. A column of zeros gets 0.

    features [points, coefficients] · targets [points], all finite. Raises ValueError if the shapes do not fit.
    Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    if features.ndim != 2 or targets.shape != features.shape[:1]:
        raise ValueError(f"features {features.shape} and targets {targets.shape} do not belong together")
    norms = np.linalg.norm(features, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    scaled = features / scale
    count = scaled.shape[1]
    tolerance = 1e-12 * max(float(np.abs(scaled.T @ targets).max(initial=0.0)), 1e-300)
    x, free = np.zeros(count), np.zeros(count, bool)
    for _ in range(10 * count + 10):
        gradient = scaled.T @ (targets - scaled @ x)
        blocked = free | (norms == 0)
        if blocked.all() or gradient[~blocked].max() <= tolerance:
            break
        free[np.argmax(np.where(blocked, -np.inf, gradient))] = True
        x = _solve_free(scaled, targets, x, free)
    return x / scale


def _solve_free(scaled: FloatArray, targets: FloatArray, x: FloatArray, free: NDArray[np.bool_]) -> FloatArray:
    """The least squares over the free coefficients, stepping back to where the first of them reaches 0."""
    while free.any():
        solved = np.zeros_like(x)
        solved[free] = np.linalg.lstsq(scaled[:, free], targets, rcond=None)[0]
        if solved[free].min() > 0:
            return solved
        falling = free & (solved <= 0)
        step = float((x[falling] / (x[falling] - solved[falling] + 1e-300)).min())
        x = x + step * (solved - x)
        free &= x > 1e-15
        x = np.where(free, x, 0.0)
    return np.zeros_like(x)
