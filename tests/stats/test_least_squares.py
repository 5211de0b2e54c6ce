# SPDX-License-Identifier: MIT
"""Oracle: the conditions that the least squares with x >= 0 fulfil and nothing else does (Karush, Kuhn, Tucker)."""

import numpy as np
import pytest

from dsa_bench.stats.least_squares import nonnegative_least_squares


@pytest.mark.parametrize("seed", range(30))
def test_the_optimum_fulfils_its_conditions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(int(rng.integers(6, 40)), 6)) * 10.0 ** rng.integers(-3, 4, size=6)
    targets = rng.normal(size=len(features))
    x = nonnegative_least_squares(features, targets)
    gradient = features.T @ (targets - features @ x) / np.linalg.norm(features, axis=0)
    assert (x >= 0).all()
    assert gradient.max() < 1e-8
    assert abs(gradient[x > 0]).max(initial=0) < 1e-8


def test_exact_coefficients_are_found() -> None:
    rng = np.random.default_rng(1)
    features, true = rng.uniform(size=(30, 5)), np.array([3.0, 0.0, 0.5, 0.0, 12.0])
    assert nonnegative_least_squares(features, features @ true) == pytest.approx(true, abs=1e-9)


def test_equal_and_empty_columns_are_no_failure() -> None:
    column = np.arange(1.0, 6.0)
    features = np.stack([column, column, np.zeros(5)], axis=1)
    x = nonnegative_least_squares(features, 2 * column)
    assert x[0] + x[1] == pytest.approx(2)
    assert x[2] == 0
    assert nonnegative_least_squares(features, -column).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="do not belong together"):
        nonnegative_least_squares(features, column[:3])
