# SPDX-License-Identifier: MIT
"""What a dense call may be: bad input is one line that names the option and the limit."""

from typing import Any

import numpy as np
import pytest

from dsa_bench.data.dense import dense_inputs
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.dense_inputs import DenseInputs
from dsa_bench.model.errors import BadInput


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 0}, r"--capacity 0: must be at least 1"),
        ({"length": -1}, r"--length -1: must be at least 0"),
        ({"length": 4097}, r"--length 4097: must be at most --capacity 4096"),
        ({"query_heads": 15, "kv_heads": 2}, r"--query-heads 15: must be a multiple of --kv-heads 2"),
        ({"dtype": "f8"}, r"--dtype f8: must be one of f32, f16, bf16"),
        ({"capacity": 2**30, "length": 1}, r"--capacity 1073741824: must be at most 1073741823"),
        ({"head_size": 0}, r"--head-size 0"),
        ({"value_head_size": 0}, r"--value-head-size 0"),
        ({"batch": 0}, r"--batch 0"),
    ],
)
def test_bad_shapes(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        DenseShape(**({"capacity": 4096, "length": 2600} | change))
    assert "\n" not in str(refused.value)


def test_the_shape_of_the_document() -> None:
    shape = DenseShape(4096, 2600)
    assert (shape.rows, shape.group) == (16, 1)
    assert shape.live_bytes == 16 * 2600 * (192 + 128) * 2
    assert shape.key == (
        "op=dense,dtype=f16,capacity=4096,length=2600,query_heads=16,kv_heads=16,head_size=192,value_head_size=128,"
        "batch=1,query_len=1"
    )
    assert dense_inputs(DenseShape(64, 3)).shape == DenseShape(64, 3)


def test_rows_find_their_tensors() -> None:
    inputs = dense_inputs(DenseShape(16, 9, 6, 2, 8, 8, batch=2, query_len=3))
    places = [inputs.place(row) for row in range(inputs.shape.rows)]
    assert places == [(b, h, i, h // 3) for b in range(2) for h in range(6) for i in range(3)]


@pytest.mark.parametrize(
    ("pad_limit", "causal", "stops"),
    [
        (None, False, [9, 9, 9, 9, 9, 9]),
        (None, True, [7, 8, 9, 7, 8, 9]),
        ([4, -1], False, [4, 4, 4, 9, 9, 9]),
        ([4, 99], True, [2, 3, 4, 7, 8, 9]),
        ([1, 0], True, [0, 0, 1, 0, 0, 0]),
    ],
)
def test_what_a_row_sees(pad_limit: list[int] | None, causal: bool, stops: list[int]) -> None:
    plain = dense_inputs(DenseShape(16, 9, 1, 1, 8, 8, batch=2, query_len=3))
    limits = None if pad_limit is None else np.array(pad_limit, np.int32)
    inputs = DenseInputs(plain.query, plain.key, plain.value, 9, causal=causal, pad_limit=limits)
    assert [inputs.stop(row) for row in range(6)] == stops
