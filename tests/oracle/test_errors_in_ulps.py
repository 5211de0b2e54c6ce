# SPDX-License-Identifier: MIT
"""Errors in units of BF16's spacing, and the class of what is not finite."""

import math

import numpy as np
import pytest

from dsa_bench.oracle.attention import Reference
from dsa_bench.oracle.cases.case import BOUND, ONE_ULP, Tolerance
from dsa_bench.oracle.verdict import Error, measure, pooled_share, spacing

NONE = np.zeros(1)


def measured(found: list[float], expected: list[float], tolerance: Tolerance = ONE_ULP, bound: float = 0.0) -> Error:
    oracle = Reference(np.array([0]), np.array([[expected]]))
    return measure(np.array([[found]]), oracle, tolerance, np.array(bound))


def test_spacing() -> None:
    assert spacing(np.array([1.0, 1.99, 2.0, 255.0, 0.0, 2.0**-126, 2.0**-133, -3.0])).tolist() == [
        2**-7, 2**-7, 2**-6, 1.0, 2.0**-133, 2.0**-133, 2.0**-133, 2**-6,
    ]  # fmt: skip


def test_the_worst_element_is_named() -> None:
    error = measured([1.0, 2.0, 4.0], [1.0, 2.0 + 2**-7, 4.0])
    assert (error.place, error.found, error.expected, error.ulps, error.used) == ((0, 0, 1), 2.0, 2 + 2**-7, 0.5, 0.5)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf),
        (math.nan, math.inf), (math.inf, math.nan), (-math.inf, math.inf),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tolerance", [ONE_ULP, BOUND])
def test_another_class_is_infinitely_far_off(found: float, expected: float, tolerance: Tolerance) -> None:
    assert measured([found], [expected], tolerance, 1.0).used == math.inf


@pytest.mark.parametrize("same", [math.nan, math.inf, -math.inf])
def test_the_same_class_is_right(same: float) -> None:
    assert measured([same, 1.0], [same, 1.0]).used == 0


def test_an_overflow_of_the_store_is_right() -> None:
    assert measured([math.inf], [1e39]).used == 0
    assert measured([-math.inf], [1e39]).used == math.inf


def test_rms_rules() -> None:
    found, expected = [1.0, 1.0], [1.003, 1.002]
    rms = math.sqrt((0.003**2 + 0.002**2) / (1.003**2 + 1.002**2))
    assert measured(found, expected, Tolerance("rms", 1e-3)).used == pytest.approx(rms / 1e-3)
    assert measured(found, expected, Tolerance("rms over floor", 2.0)).used == pytest.approx(0.5)
    assert measured(found, expected, Tolerance("tail rms", 1e-3)).used == pytest.approx(0.0, abs=1e-6)
    assert measured([math.nan, 1.0], expected, Tolerance("rms", 1.0)).used == math.inf


def test_the_rms_of_a_tail_is_that_of_the_worst_row() -> None:
    """A row of large outputs would hide what another is off by, and a row that is no number is not passed over."""
    expected = np.array([[[1024.0, 1024.0]], [[1.0, 1.0]]])
    oracle, tolerance = Reference(np.arange(2), expected), Tolerance("tail rms", 1e-3)
    found = expected + np.array([[[4.0, 0.0]], [[0.003, 0.004]]])
    assert measure(found, oracle, tolerance, NONE).used == pytest.approx(math.sqrt(12.5), rel=0.01)
    worst = measure(found, oracle, tolerance, NONE)
    assert (worst.place, worst.found) == ((1, 0, 1), 1.004)
    for row in range(2):
        found[row] = math.nan
        assert measure(found, oracle, tolerance, NONE).used == math.inf


def test_runs_are_pooled_in_squares() -> None:
    errors = [Error(0, (), 0, 0, 0, squares) for squares in ((4.0, 1.0), (5.0, 3.5))]
    assert pooled_share(errors, Tolerance("rms over floor", 1.0)) == pytest.approx(math.sqrt(2))
    assert pooled_share([Error(0, (), 0, 0, 0, (1.0, 0.0))], Tolerance("rms over floor")) == math.inf
