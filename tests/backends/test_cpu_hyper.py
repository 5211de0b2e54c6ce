# SPDX-License-Identifier: MIT
"""The two sigmoids, on the CPU and in the short division that the GPU's branch-free one makes."""

import numpy as np
import pytest

from dsa_bench.backends.cpu import hyper
from dsa_bench.data.hyper import sampled_patterns
from dsa_bench.oracle.hyper import SIGMOID_ERROR, SMALLEST_FP32, sigmoid

F32 = np.ndarray


def test_both_sigmoids_agree_over_a_dense_sample() -> None:
    tried, differ, first = hyper.sigmoid_differences(sampled_patterns())
    assert tried > 2**32 // 257
    assert (differ, first) == (0, None)


def test_a_difference_is_counted_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one(v: F32) -> F32:
        out = hyper.sigmoid_branchy(v)
        return np.where(v == np.float32(2.5), np.nextafter(out, np.float32(1)), out)

    monkeypatch.setitem(hyper.SIGMOID, "branch-free", off_by_one)
    numbers = np.array([1.0, 2.5, -3.0, np.nan, 2.5], np.float32)
    assert hyper.sigmoid_differences([numbers]) == (5, 2, 2.5)


@pytest.mark.parametrize("form", hyper.SIGMOID)
def test_a_sigmoid_at_its_ends_and_within_its_error(form: str) -> None:
    function = hyper.SIGMOID[form]
    ends = np.array([0.0, -0.0, np.inf, -np.inf, -200.0, 200.0], np.float32)
    with np.errstate(all="ignore"):
        assert function(ends).tolist() == [0.5, 0.5, 1.0, 0.0, 0.0, 1.0]
        assert np.isnan(function(np.array([np.nan], np.float32)))
        v = np.linspace(-110, 30, 400_001, dtype=np.float32)
        found = function(v).astype(np.float64)
    expected = sigmoid(v.astype(np.float64))
    assert (np.abs(found - expected) <= SIGMOID_ERROR * expected + 2 * SMALLEST_FP32).all()


def fused(a: F32, b: F32, c: F32) -> F32:
    """a * b + c in FP32, rounded once: the product is exact in FP64, and a tie of the FP64 sum is put right."""
    product = a.astype(np.float64) * b
    total = product + c
    low = total - product
    lost = (product - (total - low)) + (c - low)  # what FP64 rounded away (Knuth's two-sum)
    tie = (total.view(np.int64) & 0x1FFFFFFF) == 0x10000000
    nudged = np.where(tie & (lost != 0), np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)), total)
    return nudged.astype(np.float32)


def short_division(n: F32, d: F32, reciprocal: F32) -> F32:
    """As kernels/hyper/sigmoid.cuh divides."""
    quotient = n * reciprocal
    return fused(fused(-quotient, d, n), reciprocal, quotient)


def test_the_short_division_rounds_as_ieee_for_every_reciprocal_within_an_ulp() -> None:
    """Every 1021st e in [2^-25, 1], the first and last 2^16, and smaller ones; both reciprocals that enclose 1 / d.

    All of them, in C, gave one exception: d = 2 - 2^-23 with the reciprocal 0.5 (decision 0024).
    """
    top, low = (int(np.float32(x).view(np.uint32)) for x in (1.0, 2.0**-25))
    bits = np.concatenate(
        [
            np.arange(low, top, 1021),
            np.arange(low, low + 65536),
            np.arange(top - 65536, top + 1),
            np.arange(0, low, 65537),
        ]
    )
    e = bits.astype(np.uint32).view(np.float32)
    d = np.float32(1) + e
    nearest = np.float32(1) / d
    exact = 1.0 / d.astype(np.float64)
    exceptions: set[tuple[float, ...]] = set()
    for side in (np.float32(-np.inf), np.float32(np.inf)):
        outside = np.where(side > 0, nearest < exact, nearest > exact)
        reciprocal = np.where(outside, np.nextafter(nearest, side), nearest)
        for n in (np.ones_like(e), e):
            wrong = (n / d).view(np.uint32) != short_division(n, d, reciprocal).view(np.uint32)
            exceptions |= set(zip(n[wrong].tolist(), d[wrong].tolist(), reciprocal[wrong].tolist(), strict=True))
    assert exceptions == {(1.0, 2 - 2.0**-23, 0.5)}
