# SPDX-License-Identifier: MIT
"""Keys and words of the cells of every operator."""

import pytest

from dsa_bench.model.cell_key import cell_words, is_cell_key
from dsa_bench.model.errors import BadInput
from dsa_bench.model.hyper import GateShape, MixShape
from dsa_bench.model.shape import SparseShape, shape_of_key

SHAPES = [SparseShape(1), SparseShape(9, op="prefill"), MixShape(8192), GateShape(8)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.key)
def test_a_cell_is_known_by_the_key_of_its_operator_and_no_other(shape: SparseShape | MixShape | GateShape) -> None:
    key = shape.key
    assert is_cell_key(key)
    other = key.replace("op=mix", "op=gate") if "op=mix" in key else "op=mix" + key[key.index(",") :]
    wrong = [other, key + ",x=1", key[:-1] + "x", key.removeprefix("op="), "", "op=dense" + key[key.index(",") :]]
    assert [one for one in wrong if is_cell_key(one)] == []
    assert not is_cell_key(key.replace(f"rows={shape.rows}", "rows=0"))


def test_words_name_what_varies() -> None:
    words = [cell_words(dict(part.split("=") for part in shape.key.split(","))) for shape in SHAPES]
    assert words[0] == "rows 1, context 8192, candidates 2048, heads 24/2"
    assert words[2:] == ["rows 8192, hidden 2560, rank 320", "rows 8, gated 6144, width 10240, rank 320"]


def test_another_operators_key_names_no_sparse_shape() -> None:
    with pytest.raises(BadInput, match=r"op=mix,rows=1,.*: is no cell of decode or prefill"):
        shape_of_key(MixShape(1).key)
