# SPDX-License-Identifier: MIT
"""What each condition and each step of the tensor-core arithmetic is for: without it, its case fails."""

import math
from typing import Any

import numpy as np
import pytest

from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.plan import SplitPlan
from dsa_bench.oracle.attention import reference, relative_rms
from dsa_bench.oracle.cases.catalog import DECODE_CASES
from dsa_bench.oracle.emulation import Arithmetic, Partial, attend_row, kernel_arithmetic, merge
from dsa_bench.oracle.emulation_bf16 import attend_row_bf16
from dsa_bench.oracle.rounding import exp2, significant, toward_zero
from dsa_bench.oracle.tolerance import fp16_bound
from dsa_bench.oracle.verdict import measure

SPLITS = (1, 3, 8)
KERNEL = Arithmetic()


def emulate(inputs: SparseInputs, splits: int, arithmetic: Arithmetic = KERNEL, **knobs: Any) -> np.ndarray:
    shape = inputs.shape
    plan = SplitPlan(shape.tiles, splits)
    row_heads = np.ndindex(shape.rows, shape.kv_heads)
    out = [attend_row(inputs, row, kv_head, plan, arithmetic, **knobs).out for row, kv_head in row_heads]
    return np.concatenate(out).reshape(shape.rows, shape.query_heads, shape.head_size)


def error(case_name: str, arithmetic: Arithmetic, **knobs: Any) -> float:
    """Share of the case's tolerance that the worst run uses."""
    case = DECODE_CASES[case_name]
    worst = 0.0
    for setting in case.settings:
        inputs = setting.build()
        oracle = reference(inputs)
        bound = fp16_bound(inputs, oracle.rows, oracle.out) if case.tolerance.rule == "bound" else np.zeros(1)
        for splits in SPLITS:
            with np.errstate(over="ignore", invalid="ignore"):
                found = emulate(inputs, splits, arithmetic, **knobs).astype(BF16)
            worst = max(worst, measure(found, oracle, case.tolerance, bound).used)
    return worst


@pytest.mark.parametrize(
    ("case", "without"),
    [
        ("cancelling-products", {"query_budget": math.inf}),
        ("huge-queries-some", {"query_budget": math.inf}),
        ("cancelling-products", {"digits": 1}),
        ("fine-cancellation", {"digits": 3}),
        ("signed-cancellation", {"residual": False}),
        ("common-logit", {"natural_log": False}),
        ("common-logit-scaled", {"natural_log": False}),
        ("tiny-value-scale", {"divide_first": False}),
        ("tail-18", {"probability_scale": 1.0}),
        ("value-scale", {"probability_scale": 1.0}),
        ("tail-30", {"tail_scale": math.inf}),
        ("tail-30", {"tail_depth": math.inf}),
        ("tail-100", {"wide_exponent": 0}),
        ("tail-100", {"far_factor": 0.0}),
        ("rising-maximum", {"max_rise": math.inf}),
        ("vast-value-scale", {"wide_scale": math.inf}),
        ("sink-16", {"probability_scale": 1.0}),
    ],
)
def test_a_step_is_needed(case: str, without: dict[str, Any]) -> None:
    assert error(case, Arithmetic(**without)) > 1
    assert error(case, Arithmetic()) <= 1


def test_the_limit_of_the_softmax_scale_is_needed() -> None:
    """Key scales of 2^-30 vanish in FP16, and the budget does not see what is left: a scale of 2^30 would."""
    assert error("softmax-scale", Arithmetic()) > 1
    assert error("softmax-scale", Arithmetic(), forced="digits") <= 1


@pytest.mark.parametrize("path", ["half", "digits", "single"])
def test_every_path_gives_ordinary_inputs_their_answer(path: str) -> None:
    for case in ("valid-65", "toy-row", "sink-12"):
        assert error(case, Arithmetic(), forced=path) <= 1


def test_one_fp16_tile_is_what_prefill_has() -> None:
    """Without the residual: at most 2 * 4064 * 2^-12 where signed values cancel, and sinks hold up to 12 nats."""
    inputs = DECODE_CASES["signed-cancellation"].settings[0].build()
    assert kernel_arithmetic("prefill") == Arithmetic(residual=False)
    assert kernel_arithmetic("decode") == Arithmetic()
    found = emulate(inputs, 1, kernel_arithmetic("prefill"))
    assert np.abs(found - 127 / 256).max() <= 2 * 4064 * 2**-12
    assert error("sink-12", Arithmetic(residual=False)) <= 1


def test_a_poisoned_partial_without_weight_adds_nothing() -> None:
    """D1, vllm-project/vllm#48364: (-inf, 0, NaN) merged with a good partial, in both orders."""
    nothing = Partial(np.array([-np.inf], np.float32), np.zeros(1, np.float32), np.full((1, 4), np.nan, np.float32))
    good = Partial(np.array([3.0], np.float32), np.array([2.0], np.float32), np.full((1, 4), 8.0, np.float32))
    for partials in ([nothing, good], [good, nothing], [nothing, good, nothing]):
        assert (merge(partials) == 4.0).all()
    assert (merge([nothing, nothing]) == 0.0).all()


def test_a_merge_does_not_lose_a_far_split_that_value_scale_brings_back() -> None:
    far = Partial(np.array([0.0], np.float32), np.ones(1, np.float32), np.full((1, 2), 2.0**100, np.float32))
    near = Partial(np.array([100.0], np.float32), np.ones(1, np.float32), np.zeros((1, 2), np.float32))
    expected = pytest.approx(np.full((1, 2), 2.0**100 * math.exp(-100)), rel=1e-5)
    assert merge([far, near]) == expected
    assert (merge([far, near], Arithmetic(far_factor=0.0)) == 0).all()


def test_same_inputs_same_bits_and_other_rows_change_nothing() -> None:
    inputs = DECODE_CASES["folded-products"].settings[1].build()
    first = emulate(inputs, 3)
    assert (emulate(inputs, 3).view(np.uint32) == first.view(np.uint32)).all()
    inputs.query[1] = np.nan
    inputs.selected[1] = 7
    inputs.selected[2] = -1
    again = emulate(inputs, 3)
    assert (again[0].view(np.uint32) == first[0].view(np.uint32)).all()
    assert (again[2] == 0).all()


def test_truncation_is_toward_zero_and_by_less_than_one_place() -> None:
    x = np.random.default_rng(0).standard_normal(1000) * 2.0 ** np.arange(-100, 100, 0.2)
    truncated = toward_zero(x).astype(np.float64)
    assert (np.abs(truncated) <= np.abs(x)).all()
    assert (np.abs(x - truncated) < np.abs(x) * 2.0**-23).all()
    assert (toward_zero(truncated) == truncated).all()


def test_exponentials_flush_below_the_normal_numbers_unless_told() -> None:
    x = np.array([-126.0, -126.5, -149.0, -200.0, 0.0, -np.inf], np.float32)
    assert exp2(x).tolist() == [2.0**-126, 0.0, 0.0, 0.0, 1.0, 0.0]
    assert exp2(x, subnormal=True)[[1, 2, 3]] == pytest.approx([2.0**-126.5, 2.0**-149, 0.0], rel=1e-6)


def test_significant_bits_know_no_range() -> None:
    assert significant(np.array([1 + 2.0**-24, 3 * 2.0**300]), 24).tolist() == [1.0, 3 * 2.0**300]
    x = np.random.default_rng(1).standard_normal(100)
    assert (significant(x, 24) == x.astype(np.float32)).all()


def test_bf16_keys_values_and_probabilities_cost_what_the_seed_measured() -> None:
    """Seed 000: relative RMS error 4.2e-3 for the BF16-dequantising prefill, 1.7e-3 for the other, floor 1.5e-3."""
    inputs = DECODE_CASES["model-like-8"].settings[0].build()
    oracle = reference(inputs)
    found = np.array([[attend_row_bf16(inputs, row, kv_head) for kv_head in range(2)] for row in range(8)])
    stored = found.reshape(oracle.out.shape).astype(BF16).astype(np.float64)
    assert 3.9e-3 < relative_rms(stored, oracle.out) < 4.6e-3
    inputs.selected[3] = -1
    assert (attend_row_bf16(inputs, 3, 1) == 0).all()
