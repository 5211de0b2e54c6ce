# SPDX-License-Identifier: MIT
"""The bounds are derived, not fitted; here each of their terms meets its worst case.

That the CPU kernels stay inside for any shape is tests/backends/test_cpu.py.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.inputs import BF16
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.attention import reference
from dsa_bench.oracle.emulation import rounds_within
from dsa_bench.oracle.survey import Norms, key_rounding, survey
from dsa_bench.oracle.tolerance import (
    QUERY_BUDGET,
    SMALLEST_BF16,
    U_BF16,
    U_FP32,
    bf16_bound,
    fp16_bound,
    fp32_bound,
    key_noise,
    largest_output,
    logit_magnitude,
    query_error,
    query_load,
    union_bound,
    ws_bound,
)


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
    inputs = sparse_inputs(SparseShape(rows=8, context=512, candidates=64), DataSpec(query_std=0.0))
    answer = reference(inputs)
    stored = answer.out.astype(BF16).astype(np.float64)
    assert (np.abs(stored - answer.out) <= fp32_bound(inputs, answer.rows, answer.out)).all()


def test_logit_magnitude_is_above_every_logit() -> None:
    shape = SparseShape(rows=2, context=128, candidates=128)
    inputs = sparse_inputs(shape, DataSpec())
    extreme = replace(inputs, key=np.where(inputs.key > 0, 127, -127).astype(np.int8))
    rows = np.arange(2)
    folded = extreme.query.astype(float).reshape(2, 2, 12, 256) * extreme.key_scale[None, :, None]
    logits = np.einsum("rghd,gcd->rghc", folded, extreme.key.astype(float)) / 16
    assert (np.abs(logits).max(-1).reshape(2, 24) <= logit_magnitude(extreme, rows)).all()


def test_the_bound_grows_with_every_cause() -> None:
    shape = SparseShape(rows=1, context=512, candidates=64)
    inputs = sparse_inputs(shape, DataSpec())
    answer = reference(inputs)
    bound = fp32_bound(inputs, answer.rows, answer.out)
    louder = replace(inputs, key_scale=inputs.key_scale * 2)
    brighter = replace(inputs, value_scale=inputs.value_scale * 2)
    longer = replace(inputs, selected=inputs.selected.repeat(2, 1))
    for other in (louder, brighter, longer):
        assert (fp32_bound(other, answer.rows, answer.out) > bound).all()
    assert (bound > 0).all()
    assert (bound < 0.02 * np.abs(inputs.value_scale).max() * 128).all(), "and is small beside the values"


@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=40),
    st.floats(1e-6, 8),
    st.integers(0, 2**32 - 1),
)
def test_weights_move_by_no_more_than_the_bound(x: list[float], delta: float, seed: int) -> None:
    """sum |p' - p| <= 2 min(tanh(delta / 2), w exp(2 delta)) for any errors within +-delta, mostly at its ends."""
    exact = np.array(x)
    rng = np.random.default_rng(seed)
    errors = rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], exact.size) * delta
    p, moved = softmax(exact), softmax(exact + errors)
    others = np.delete(p, p.argmax()).sum()
    bound = 2 * min(np.tanh(delta / 2), others * np.exp(2 * delta))
    assert np.abs(moved - p).sum() <= bound * (1 + 1e-12) + 1e-14


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def test_both_bounds_on_weights_are_reached() -> None:
    """Two candidates delta apart either way; and a far one that all errors favour."""
    delta = 0.3
    moved = np.abs(softmax(np.array([delta, -delta])) - softmax(np.array([-delta, delta]))).sum()
    assert moved == 2 * 2 * np.tanh(delta) / 2
    p, q = softmax(np.array([0.0, -20.0])), softmax(np.array([-delta, -20.0 + delta]))
    assert np.abs(q - p).sum() > 2 * p[1] * (np.exp(2 * delta) - 1) * 0.999


def test_a_dominant_candidate_makes_huge_logits_sharp() -> None:
    """The gap allows rounding errors of many nats; a second candidate within them does not, nor does an overflow."""
    inputs = sparse_inputs(SparseShape(rows=1, context=64, candidates=64, query_heads=2), DataSpec(seed=1))
    huge = replace(inputs, query=(inputs.query.astype(np.float32) * 2.0**28).astype(BF16))
    answer = reference(huge)
    v_max = 128 * np.abs(inputs.value_scale).max()
    for bound in (fp32_bound, fp16_bound):
        assert (logit_magnitude(huge, answer.rows) > 1e9).all()
        assert bound(huge, answer.rows, answer.out).max() < 0.01 * v_max
    twin = replace(huge, key=huge.key.copy())
    twin.key[:, 1:] = twin.key[:, :1]
    assert fp32_bound(twin, answer.rows, answer.out).max() > v_max
    same = replace(huge, selected=np.full_like(huge.selected, 5))
    assert fp32_bound(same, answer.rows, reference(same).out).max() < 0.01 * v_max, "duplicates have one logit"
    beyond = replace(huge, key_scale=huge.key_scale * np.float32(2.0**110))
    assert fp32_bound(beyond, answer.rows, answer.out).max() > v_max
    assert fp16_bound(beyond, answer.rows, answer.out).max() < 0.01 * v_max, "digits do not overflow"


def test_the_query_budget_decides_which_bound_of_a_logit_counts() -> None:
    """Beyond it the digits are better than one FP16 number at it, for every head that shares the KV head."""
    shape = SparseShape(rows=1, context=256, candidates=256, query_heads=4)
    inputs = sparse_inputs(shape, DataSpec(query_std=3.0))
    louder = replace(inputs, query=inputs.query.copy())
    louder.query[:, 0] = (louder.query[:, 0].astype(np.float32) * 4).astype(BF16)
    rows = np.arange(1)
    assert query_load(inputs, rows).max() < 1 < query_load(louder, rows)[0, 0]
    out = np.zeros((1, 4, 256))
    before, after = fp16_bound(inputs, rows, out)[0], fp16_bound(louder, rows, out)[0]
    assert (after[1] < 0.2 * before[1]).all(), "its group"
    assert (after[2:] == before[2:]).all(), "the other KV head"
    large = replace(inputs, value_scale=inputs.value_scale * np.float32(2.0**24))
    assert (fp16_bound(large, rows, out) < 2.0**24 * 0.2 * fp16_bound(inputs, rows, out)).all()


@given(st.integers(0, 2**32 - 1), st.floats(-30, 12), st.integers(0, 20), st.sampled_from([2.0**-10, 1 / 16, 0.3, 1.0]))
def test_the_load_is_above_what_the_rounding_does(seed: int, size: float, spread: int, scale: float) -> None:
    """So a head within its budget by the sum of |q'| is within it by eps, for any products; also as the kernel adds."""
    rng = np.random.default_rng(seed)
    inputs = sparse_inputs(SparseShape(rows=1, context=1, candidates=1, query_heads=4), DataSpec())
    products = rng.uniform(0.5, 2, (2, 256)) * 2.0 ** (size - rng.integers(0, spread + 1, (2, 256)))
    inputs = replace(inputs, key_scale=products.astype(np.float32), scale=scale)
    inputs.query[:] = 1.0
    rows = np.arange(1)
    eps, load = query_error(inputs, rows)[0], query_load(inputs, rows)[0]
    assert (eps[load <= 1 + 2.0**-9] <= QUERY_BUDGET).all()
    half = inputs.key_scale.astype(np.float16).astype(np.float64)
    for head, at in ((0, 0), (1, 2)):
        within = rounds_within(half[head : head + 1], np.float32(scale), QUERY_BUDGET)
        assert load[at] <= 1 + 2.0**-9 if within else load[at] > 1 - 2.0**-9


def test_one_fp16_probability_is_coarser_than_two() -> None:
    inputs = sparse_inputs(SparseShape(rows=2, context=256, candidates=64), DataSpec())
    answer = reference(inputs)
    decode = fp16_bound(inputs, answer.rows, answer.out)
    prefill = fp16_bound(replace(inputs, op="prefill"), answer.rows, answer.out)
    v_max = 128 * np.abs(inputs.value_scale).max()
    assert (prefill > decode).all()
    assert (prefill - decode).max() <= 2.0**-11 * v_max


def test_fp16_flushes_what_lies_below_the_largest_that_the_kernels_tiles_hold(root: Path) -> None:
    """Half a step of FP16's subnormals, over the least that a tile holds of the largest probability: 2^bits, and a
    margin less where the reference may lie above the maximum."""
    constants = {
        name: float(value)
        for file in ("int8_ws.cuh", "prefill_int8_union.cu")
        for name, value in re.findall(r"constexpr float (\w+) = ([\d.]+)f;", (root / "kernels/dsa" / file).read_text())
    }
    union = (root / "kernels/dsa/prefill_int8_union.cu").read_text()
    assert "kShift = int8_ws::kTop - int8_ws::kHeadroom;" in union, "so it holds as much of a reference as int8-ws"
    half_a_step = float(np.finfo(np.float16).smallest_subnormal) / 2
    bits = constants["kTop"] - constants["kHeadroom"]
    assert flushed_by(ws_bound) == pytest.approx(half_a_step / 2**bits, rel=1e-6)
    assert flushed_by(union_bound) == pytest.approx(half_a_step / 2 ** (bits - constants["kMargin"]), rel=1e-6)


def flushed_by(bound: Any) -> float:
    """What a bound adds for each candidate, of the largest output, beyond FP32's sums: lists twice as long, all else
    the same."""
    inputs = sparse_inputs(SparseShape(rows=1, context=256, candidates=64, op="prefill"), DataSpec(query_std=0.0))
    rows, out = np.arange(1), np.zeros((1, 24, 256))
    longer = replace(inputs, selected=inputs.selected.repeat(2, 1))
    each = (bound(longer, rows, out) - bound(inputs, rows, out)) / largest_output(inputs) / 64
    assert np.ptp(each) < 1e-6 * each.max()
    return float(each.mean()) - 2 * 2 * U_FP32


def test_bf16_keys_move_logits_by_what_the_survey_finds() -> None:
    """Twice the queries, twice the shift; keys that BF16 holds shift nothing."""
    inputs = sparse_inputs(SparseShape(rows=2, context=128, candidates=128, op="prefill"), DataSpec())
    rows = np.arange(2)
    shift = survey(inputs, rows, "keys").shift
    keys = inputs.key.astype(np.float64) * inputs.key_scale[:, None].astype(np.float64)
    stored = (inputs.key.astype(np.float32) * inputs.key_scale[:, None]).astype(BF16).astype(np.float64)
    query = inputs.query.astype(np.float64).reshape(2, 2, 12, 256)
    moved = np.abs(np.einsum("rghd,gcd->rghc", query, stored - keys)) / 16
    allowed = np.array([moved[row, :, :, inputs.selected[row][inputs.selected[row] >= 0]] for row in rows], object)
    np.testing.assert_allclose(shift, [one.max(axis=0).reshape(24) for one in allowed], rtol=1e-12)
    louder = replace(inputs, query=(inputs.query.astype(np.float32) * 2).astype(BF16))
    np.testing.assert_allclose(survey(louder, rows, "keys").shift, 2 * shift, rtol=1e-12)
    exact = replace(inputs, key_scale=np.full_like(inputs.key_scale, 0.25))
    assert (survey(exact, rows, "keys").shift == 0).all()
    out = reference(exact).out
    assert (bf16_bound(exact, rows, out) > 2 * U_BF16 * 128 * np.abs(inputs.value_scale).min()).all(), "p and values"
    np.testing.assert_allclose(key_noise(inputs, rows, 1), np.sqrt(np.square(moved[:, 1]).mean(axis=(1, 2))), rtol=0.2)


def test_lengths_bound_what_a_survey_finds() -> None:
    inputs = sparse_inputs(SparseShape(rows=3, context=5000, candidates=300), DataSpec(query_std=2.0))
    rows, norms = np.arange(3), Norms(inputs)
    for rounded in ("query", "keys"):
        near, far = survey(inputs, rows, rounded), norms.survey(inputs, rows, rounded)
        for name, factor in (("largest", 10.0), ("shift", 10.0)):
            assert (getattr(far, name) >= getattr(near, name)).all()
            assert (getattr(far, name) <= factor * getattr(near, name)).all(), "and by no more than chance explains"
        assert np.isinf(far.others_log).all()
    longest = np.sqrt(np.square(key_rounding(inputs, 1, slice(None))).sum(axis=1)).max()
    query = np.sqrt(np.square(inputs.query[:, 12:].astype(float)).sum(axis=-1))
    np.testing.assert_allclose(norms.survey(inputs, rows, "keys").shift[:, 12:], query * longest / 16, rtol=1e-9)
