# SPDX-License-Identifier: MIT
"""How far an output is from FP64, measured by a case's rule."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import BF16
from dsa_bench.oracle.attention import F64, Reference, relative_rms
from dsa_bench.oracle.cases.case import Tolerance
from dsa_bench.oracle.tolerance import SMALLEST_BF16

SMALLEST_NORMAL = 2.0**-126
BITS = 8


@dataclass(frozen=True, slots=True)
class Error:
    """One run against FP64.

    used         share of the tolerance; above 1 is a miss
    place        row, head, channel of the worst element: the one that used most, or is farthest off; of the worst row
                 where rows are judged
    squares      sum of squared errors of the output, and of the FP64 result rounded to BF16; for pooling
    """

    used: float
    place: tuple[int, ...]
    expected: float
    found: float
    ulps: float
    squares: tuple[float, float]


def spacing(x: F64) -> F64:
    """Distance of neighbouring BF16 numbers at x."""
    _, exponent = np.frexp(np.maximum(np.abs(np.where(np.isfinite(x), x, 1.0)), SMALLEST_NORMAL))
    return np.ldexp(1.0, exponent - BITS)


def measure(out: NDArray[np.generic], oracle: Reference, tolerance: Tolerance, bound: F64) -> Error:
    """Compare the output's rows with the oracle's. An element of another class than FP64's is infinitely far off."""
    found, expected = out[oracle.rows].astype(np.float64), oracle.out
    with np.errstate(over="ignore", invalid="ignore"):
        stored = expected.astype(BF16).astype(np.float64)
        off = np.where(np.isfinite(found) & np.isfinite(expected), np.abs(found - expected), np.inf)
        off[(found == stored) & ~np.isfinite(found) | (np.isnan(found) & np.isnan(expected))] = 0.0
        ulps = off / spacing(expected)
        share = {"ulp": ulps / tolerance.limit, "bound": off / (bound + SMALLEST_BF16)}.get(tolerance.rule, off)
        rounding = np.where(np.isfinite(stored), stored - expected, 0.0)
    used: float | None = None
    if tolerance.rule not in ("ulp", "bound"):
        used, judged = _rms_share(found, oracle, tolerance)
        share = np.where(judged[:, None, None], share, -1.0)
    at = np.unravel_index(int(share.argmax()), share.shape)
    return Error(
        used=float(share[at]) if used is None else used,
        place=(int(oracle.rows[at[0]]), *map(int, at[1:])),
        expected=float(expected[at]),
        found=float(found[at]),
        ulps=float(ulps[at]),
        squares=(float(np.square(off).sum()), float(np.square(rounding).sum())),
    )


def pooled_share(errors: list[Error], tolerance: Tolerance) -> float:
    """For "rms over floor": the RMS error of several runs over that of their rounded FP64 results, by its limit."""
    found, floor = np.sum([error.squares for error in errors], axis=0)
    return float(np.sqrt(found / floor)) / tolerance.limit if floor else (np.inf if found else 0.0)


def _rms_share(found: F64, oracle: Reference, tolerance: Tolerance) -> tuple[float, NDArray[np.bool_]]:
    """And the rows that it is of: all, or of tails the worst, as larger outputs, of rows without a sink, would hide the
    others' errors."""
    judged = np.ones(len(found), bool)
    if tolerance.rule == "tail rms":
        by_row = np.nan_to_num([_tail_rms(*row) for row in zip(found, oracle.out, strict=True)], nan=np.inf)
        judged = np.arange(len(found)) == by_row.argmax()
        rms = float(by_row.max())
    else:
        rms = relative_rms(found, oracle.out)
        if tolerance.rule == "rms over floor":
            rms /= oracle.rounding_floor
    return rms / tolerance.limit if np.isfinite(rms) else np.inf, judged


def _tail_rms(found: F64, expected: F64) -> float:
    """Of one row."""
    rms, floor = relative_rms(found, expected), relative_rms(expected.astype(BF16).astype(np.float64), expected)
    return float(np.sqrt(max(rms**2 - floor**2, 0.0)))
