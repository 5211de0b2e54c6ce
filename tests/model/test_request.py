# SPDX-License-Identifier: MIT
"""What a request refuses, each with its option, value and rule."""

import pytest

from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import DataSpec, Policy


@pytest.mark.parametrize(
    "selection", ["sorted", "random", "blocks:1", "blocks:16", "blocks:007", "overlap:0", "overlap:0.9", "overlap:1"]
)
def test_selections(selection: str) -> None:
    assert DataSpec(selection=selection).selection == selection


@pytest.mark.parametrize(
    "selection",
    [
        "", "Sorted", "sorted:1", "random:2", "blocks", "blocks:", "blocks:0", "blocks:-1", "blocks:1.5", "blocks:+1",
        "blocks:1_0", "blocks:١", "blocks:" + "1" * 5000, "overlap", "overlap:", "overlap:-0.1", "overlap:1.1",
        "overlap:nan", "overlap:x",
    ],
)  # fmt: skip
def test_other_selections_are_bad_input(selection: str) -> None:
    with pytest.raises(BadInput, match=r"^--selection "):
        DataSpec(selection=selection)


@pytest.mark.parametrize("rounds", [-2, 0, 1, 3, 15])
def test_rounds_are_even(rounds: int) -> None:
    with pytest.raises(BadInput, match=rf"--rounds {rounds}: must be even and at least 2"):
        Policy(rounds=rounds)


def test_a_policy_ends() -> None:
    with pytest.raises(ValueError, match="rounds or a budget"):
        Policy(rounds=None)
