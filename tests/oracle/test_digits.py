# SPDX-License-Identifier: MIT
"""The folded query in digits: its bound, at its edges."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.plan import SplitPlan
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.digits import BITS, digit_scores, fixed_point
from dsa_bench.oracle.emulation_digits import attend_row_digits


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-80, 200), st.integers(0, 60))
def test_a_channel_is_off_by_at_most_one_unit_and_the_largest_fills_the_digits(
    seed: int, exponent: int, spread: int
) -> None:
    rng = np.random.default_rng(seed)
    folded = rng.standard_normal((4, 256)) * 2.0 ** (exponent - rng.uniform(0, spread, (4, 256)))
    units, unit = fixed_point(folded)
    assert (np.abs(units - np.ldexp(folded, -unit[:, None].astype(int))) <= 1).all()
    largest = np.abs(units).max(axis=1)
    assert (largest >= 0.99 * 2**BITS).all()
    assert (largest <= 0x7F7F7F7F).all()


@pytest.mark.parametrize("largest", [1.0, 1.984375 - 2.0**-23, 1.984375, 2 - 2.0**-23])
def test_the_largest_number_of_four_balanced_digits_is_not_passed(largest: float) -> None:
    units, _ = fixed_point(np.array([[largest, -largest]]))
    assert 0.99 * 2**BITS <= units[0, 0] <= 0x7F7F7F7F
    assert units[0, 1] == -units[0, 0]


def test_scores_keep_what_a_common_part_would_drown() -> None:
    """32768 and -32766 against codes of 64 and -64: +-8 nats at 1/16, exactly."""
    scores = digit_scores(np.array([[32768.0, -32766.0]]), np.array([[64.0, 64.0], [-64.0, -64.0]]), np.float32(1 / 16))
    assert scores.tolist() == [[8.0, -8.0]]


def test_what_is_not_finite_has_no_score_and_what_is_has_one() -> None:
    keys = np.array([[1.0, 0.0], [0.0, 2.0]])
    folded = np.array([[np.inf, 1.0], [0.0, np.nan], [2.0**200, 2.0**199], [0.0, 0.0], [2.0**-140, 0.0]])
    scores = digit_scores(folded, keys, np.float32(1 / 16))
    assert np.isnan(scores[:2]).all()
    assert (np.isfinite(scores[2:])).all()
    assert scores[2, 0] == scores[2, 1] > 2.0**100
    assert (scores[3:] == 0).all()


@pytest.mark.parametrize("value_scale", [1.0, 2.0**20, np.nan])
def test_a_row_without_a_candidate_is_zeros_whatever_the_query_and_the_scales_hold(value_scale: float) -> None:
    inputs = sparse_inputs(SparseShape(2, 300, 200), DataSpec(seed=1))
    inputs.query[0, 3, 1] = np.inf
    inputs.key_scale[0, 7] = np.nan
    inputs.value_scale[0, 9] = value_scale
    inputs.selected[0] = -1
    for splits in (1, 3, 5):
        assert not attend_row_digits(inputs, 0, 0, SplitPlan(inputs.shape.tiles, splits)).any()
    assert np.isnan(attend_row_digits(inputs, 1, 0, SplitPlan(inputs.shape.tiles, 3))).all(), "a row with candidates"
