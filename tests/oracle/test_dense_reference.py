# SPDX-License-Identifier: MIT
"""Dense causal attention in FP64. Oracles: a masked softmax written out, and BF16 arithmetic as libraries have it."""

from dataclasses import replace

import numpy as np
import pytest

from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.rounding import dequantised
from dsa_bench.oracle.sdpa import dense_bound, dense_reference


def inputs_of(rows: int, context: int, **knobs: float) -> SparseInputs:
    shape = SparseShape(rows, context, 8, query_heads=6, kv_heads=2, op="prefill")
    return sparse_inputs(shape, DataSpec(**knobs))  # pyright: ignore[reportArgumentType]


def whole(inputs: SparseInputs, p_type: type = np.float64) -> np.ndarray:
    """[rows, query_heads, head_size] with a mask over the whole matrix; probabilities in `p_type`, unnormalised."""
    shape = inputs.shape
    out = np.zeros((shape.rows, shape.query_heads, shape.head_size))
    mask = np.tril(np.ones((shape.rows, shape.context), bool), shape.context - shape.rows)
    for head in range(shape.query_heads):
        kv_head = head // shape.group
        keys, values = (
            dequantised(codes[kv_head], scale[kv_head]).astype(np.float64)
            for codes, scale in ((inputs.key, inputs.key_scale), (inputs.value, inputs.value_scale))
        )
        x = np.where(mask, inputs.scale * inputs.query[:, head].astype(np.float64) @ keys.T, -np.inf)
        p = np.exp(x - x.max(axis=1, keepdims=True))
        out[:, head] = p.astype(p_type).astype(np.float64) @ values / p.sum(axis=1, keepdims=True)
    return out


@pytest.mark.parametrize(("rows", "context"), [(40, 40), (5, 64), (1, 30)])
def test_each_row_sees_every_position_up_to_its_own(rows: int, context: int) -> None:
    inputs = inputs_of(rows, context)
    answer = dense_reference(inputs)
    assert len(answer.rows) == min(rows, 16)
    assert (answer.rows[0], answer.rows[-1]) == (0, rows - 1)
    np.testing.assert_allclose(answer.out, whole(inputs)[answer.rows], rtol=1e-10, atol=1e-13)
    last = replace(inputs, value=inputs.value.copy())
    last.value[:, -1] += 1
    assert (dense_reference(last).out[:-1] == answer.out[:-1]).all(), "only the last row sees the last position"
    assert (dense_reference(last).out[-1] != answer.out[-1]).any()


def test_what_is_selected_does_not_matter() -> None:
    inputs = inputs_of(5, 64)
    none = replace(inputs, selected=np.full_like(inputs.selected, -1))
    assert (dense_reference(none).out == dense_reference(inputs).out).all()


@pytest.mark.parametrize("query_std", [0.0, 1.4, 6.0])
def test_bf16_probabilities_are_inside_the_bound_and_a_lost_key_is_not(query_std: float) -> None:
    inputs = inputs_of(64, 256, query_std=query_std)
    answer = dense_reference(inputs)
    bound = dense_bound(inputs, answer)
    found = whole(inputs, BF16.type)[answer.rows].astype(BF16).astype(np.float64)
    assert (np.abs(found - answer.out) <= bound).all()
    assert (bound < 0.03 * 128 * np.abs(inputs.value_scale).max()).all()
    wrong_mask = replace(inputs, key=np.roll(inputs.key, 1, axis=1), value=np.roll(inputs.value, 1, axis=1))
    assert (np.abs(whole(wrong_mask)[answer.rows] - answer.out) > bound).any()
