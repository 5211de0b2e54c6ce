# SPDX-License-Identifier: MIT
"""What a request refuses, each with its option, value and rule."""

import pytest

from dsa_bench.model.cell_key import is_cell_key
from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import DataSpec, Policy, SparseCell, SparseRequest
from dsa_bench.model.shape import SparseShape, shape_of_key


@pytest.mark.parametrize(
    "selection",
    [
        "sorted",
        "random",
        "blocks:1",
        "blocks:16",
        "blocks:700",
        "overlap:0",
        "overlap:0.9",
        "overlap:0.05",
        "overlap:1",
    ],
)
def test_selections(selection: str) -> None:
    data = DataSpec(selection=selection)
    assert data.selection == selection
    shape = SparseShape(9, op="prefill")
    key = SparseCell(shape, data).key
    assert key == shape.key + ("" if selection == "sorted" else f",selection={selection}")
    assert is_cell_key(key)
    assert shape_of_key(key) == shape


def test_every_selection_has_cells_of_its_own() -> None:
    shapes = SparseShape(9, op="prefill"), SparseShape(16, op="prefill")
    request = SparseRequest(shapes, data=DataSpec(7, selection="random"), selections=("random", "sorted"))
    assert [(cell.shape, cell.data.selection, cell.data.seed) for cell in request.cells] == [
        (shape, kind, 7) for shape in shapes for kind in ("random", "sorted")
    ]
    assert len(set(request.cell_keys)) == 4
    assert SparseRequest(shapes).cell_keys == tuple(shape.key for shape in shapes)
    with pytest.raises(BadInput, match="--selection overlap:2: overlap:F takes a share"):
        SparseRequest(shapes, selections=("sorted", "overlap:2"))


@pytest.mark.parametrize(
    "selection",
    [
        "", "Sorted", "sorted:1", "random:2", "blocks", "blocks:", "blocks:0", "blocks:-1", "blocks:1.5", "blocks:+1",
        "blocks:1_0", "blocks:١", "blocks:" + "1" * 5000, "overlap", "overlap:", "overlap:-0.1", "overlap:1.1",
        "blocks:04", "overlap:.9", "overlap:0.90", "overlap:1.0", "overlap:0.", "overlap:00", "overlap:+0.5",
        "overlap:1e-1", "overlap:-0", "overlap:nan", "overlap:x", "overlap: 0.5", "overlap:٠", "overlap:0." + "9" * 30,
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
