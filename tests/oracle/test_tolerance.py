# SPDX-License-Identifier: MIT
"""The bounds are derived, not fitted; here each of their terms meets its worst case.

That the CPU kernels stay inside for any shape is tests/backends/test_cpu.py.
"""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsa_bench.data.synthetic import decode_inputs
from dsa_bench.model.inputs import BF16
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import DecodeShape
from dsa_bench.oracle.attention import reference
from dsa_bench.oracle.tolerance import SMALLEST_BF16, U_BF16, fp32_bound, logit_magnitude


@given(st.floats(-3e38, 3e38))
def test_a_store_rounds_by_no_more_than_its_term(value: float) -> None:
    rounded = float(np.float64(value).astype(BF16))
    assert abs(rounded - value) <= U_BF16 * abs(value) + SMALLEST_BF16


def test_the_unit_roundoff_is_reached() -> None:
    """Halfway between 1 and its neighbour: a smaller unit would refuse a perfect kernel."""
    halfway = 1 + 2.0**-8
    assert abs(float(np.float64(halfway).astype(BF16)) - halfway) > 0.99 * U_BF16 * halfway


def test_a_perfect_kernel_is_inside_even_without_logits() -> None:
    """With a query of zero the bound is little but the store's term."""
    inputs = decode_inputs(DecodeShape(rows=8, context=512, candidates=64), DataSpec(query_std=0.0))
    answer = reference(inputs)
    stored = answer.out.astype(BF16).astype(np.float64)
    assert (np.abs(stored - answer.out) <= fp32_bound(inputs, answer.rows, answer.out)).all()


def test_logit_magnitude_is_above_every_logit() -> None:
    shape = DecodeShape(rows=2, context=128, candidates=128)
    inputs = decode_inputs(shape, DataSpec())
    extreme = replace(inputs, key=np.where(inputs.key > 0, 127, -127).astype(np.int8))
    rows = np.arange(2)
    folded = extreme.query.astype(float).reshape(2, 2, 12, 256) * extreme.key_scale[None, :, None]
    logits = np.einsum("rghd,gcd->rghc", folded, extreme.key.astype(float)) / 16
    assert (np.abs(logits).max(-1).reshape(2, 24) <= logit_magnitude(extreme, rows)).all()


def test_the_bound_grows_with_every_cause() -> None:
    shape = DecodeShape(rows=1, context=512, candidates=64)
    inputs = decode_inputs(shape, DataSpec())
    answer = reference(inputs)
    bound = fp32_bound(inputs, answer.rows, answer.out)
    louder = replace(inputs, key_scale=inputs.key_scale * 2)
    brighter = replace(inputs, value_scale=inputs.value_scale * 2)
    longer = replace(inputs, selected=inputs.selected.repeat(2, 1))
    for other in (louder, brighter, longer):
        assert (fp32_bound(other, answer.rows, answer.out) > bound).all()
    assert (bound > 0).all()
    assert (bound < 0.02 * np.abs(inputs.value_scale).max() * 128).all(), "and is small beside the values"
