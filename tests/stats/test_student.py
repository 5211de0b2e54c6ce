# SPDX-License-Identifier: MIT
"""Oracle: Abramowitz and Stegun, table 26.10, and the normal quantile."""

from statistics import NormalDist

import numpy as np
import pytest

from dsa_bench.stats.student import student_quantile, tail_stretch


@pytest.mark.parametrize(
    ("free", "share", "t", "off"),
    [
        (4, 0.975, 2.776, 0.001), (4, 0.9975, 5.598, 0.005), (4, 0.9995, 8.610, 0.015), (6, 0.95, 1.943, 0.0005),
        (6, 0.9995, 5.959, 0.003), (10, 0.9995, 4.587, 0.001), (15, 0.975, 2.131, 0.0003), (30, 0.975, 2.042, 0.0003),
        (60, 0.995, 2.660, 0.0003),
    ],
)  # fmt: skip
def test_quantiles_are_those_of_the_table(free: int, share: float, t: float, off: float) -> None:
    assert student_quantile(share, free) == pytest.approx(t, rel=off)
    assert student_quantile(1 - share, free) == pytest.approx(-t, rel=off)


def test_the_median_is_zero_and_too_few_degrees_are_refused() -> None:
    assert student_quantile(0.5, 7) == 0.0
    with pytest.raises(ValueError, match="3 degrees of freedom"):
        student_quantile(0.9, 3)


def test_each_rank_is_stretched_as_its_own_level() -> None:
    """Rank k of n, counted from 1, is the share (2 k - 1) / (2 n)."""
    stretch = tail_stretch(1000, 6)
    assert stretch.shape == (2001,)
    for at in (1, 5, 50, 1500, 1995):
        z = NormalDist().inv_cdf(at / 2000)
        assert z * stretch[at] == pytest.approx(student_quantile(at / 2000, 6))
    assert np.isfinite(stretch).all()
    assert stretch[0] == stretch[1]
    assert stretch[2000] == stretch[1999]
