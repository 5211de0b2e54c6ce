# SPDX-License-Identifier: MIT
"""The comparison itself, on small arrays. That it catches broken kernels is tests/backends/test_cpu.py."""

import numpy as np
import pytest

from dsa_bench.bench.check import POISON, compare, refuse_blind_bound, refuse_reachable_poison, run_poisoned
from dsa_bench.model.errors import BadInput
from dsa_bench.model.inputs import BF16

EXPECTED = np.array([[[1.0, -2.0]], [[3.0, 0.0]]])
BOUND = np.full_like(EXPECTED, 0.1)
ROWS = np.array([0, 2])


def out(*rows: tuple[float, float]) -> np.ndarray:
    return np.array([[row] for row in rows], np.float32).astype(BF16)


def test_inside_the_bound_is_ok() -> None:
    outcome = compare(out((1.0, -2.0), (9.0, 9.0), (3.0, 0.0625)), EXPECTED, BOUND, ROWS)
    assert (outcome.status, outcome.reason) == ("ok", None)
    assert outcome.rms_error == pytest.approx(0.0625 / np.sqrt(14))


def test_the_worst_element_is_named_by_its_place_in_the_output() -> None:
    outcome = compare(out((1.0, -2.0), (0, 0), (3.0, 0.5)), EXPECTED, BOUND, ROWS)
    assert outcome.status == "wrong_result"
    assert outcome.reason == "out[2, 0, 1] is 0.5, the FP64 reference 0, the bound 0.1"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_wrong(bad: float) -> None:
    outcome = compare(out((1.0, bad), (0, 0), (3.0, 0.0)), EXPECTED, BOUND, ROWS)
    assert outcome.status == "wrong_result"
    assert outcome.rms_error is None


def test_poison_is_found_in_rows_that_no_oracle_looked_at() -> None:
    outcome = compare(out((1.0, -2.0), (POISON, POISON), (3.0, 0.0)), EXPECTED, BOUND, ROWS)
    assert outcome.reason == "2 output elements were never written, first [1, 0, 0]"


def test_the_poison_is_finite_and_out_of_reach() -> None:
    assert float(np.float64(POISON).astype(BF16)) == POISON
    with np.errstate(over="ignore"):
        assert np.isinf(np.float64(POISON * 1.01).astype(BF16).astype(np.float32))
    refuse_reachable_poison(1e38)
    for largest in (POISON, np.inf, np.nan):
        with pytest.raises(BadInput, match="--value-scale-multiplier"):
            refuse_reachable_poison(largest)


def test_a_bound_that_lets_everything_pass_is_refused() -> None:
    refuse_blind_bound(np.array([[[0.5, 1.0]]]), np.array([[1.0, 1.0]]))
    refuse_blind_bound(np.array([[[2.0**-133]]]), np.array([[0.0]]))
    for bound in (1.1, np.inf, np.nan):
        with pytest.raises(BadInput, match="lower --key-scale-multiplier or --query-std"):
            refuse_blind_bound(np.array([[[0.5, bound]]]), np.array([[2.0, 1.0]]))


class Buffer:
    def __init__(self) -> None:
        self.values = np.zeros(2)

    def fill_output(self, value: float) -> None:
        self.values[:] = value

    def output(self) -> np.ndarray:
        return self.values.copy()


def test_a_launch_that_writes_nothing_leaves_the_poison() -> None:
    buffer = Buffer()
    assert (run_poisoned(lambda _: None, buffer) == POISON).all()
    assert (run_poisoned(lambda call: buffer.fill_output(call), buffer) == 0).all()
