# SPDX-License-Identifier: MIT
"""The FP64 results and their bounds: by hand, against the CPU kernels, and against what must not pass."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cpu import hyper as cpu
from dsa_bench.data.hyper import gate_inputs, mix_inputs
from dsa_bench.model.hyper import SIGMOIDS, GateShape, MixShape, Sigmoid
from dsa_bench.model.hyper_inputs import GateInputs, MixInputs
from dsa_bench.model.inputs import BF16
from dsa_bench.oracle import hyper as oracle
from dsa_bench.oracle.attention import F64, Reference

MIX = MixShape(5, 2560)
GATE = GateShape(5)


def misses(out: Any, judged: tuple[Reference, F64]) -> int:
    """Elements beyond the bound."""
    reference, bound = judged
    return int((~(np.abs(out[reference.rows].astype(np.float64) - reference.out) <= bound)).sum())


def run_mix(inputs: MixInputs, form: Sigmoid) -> tuple[Any, Any]:
    shape = inputs.shape
    mixed, activated = (
        np.full((shape.rows, shape.hidden), np.nan, BF16),
        np.full((shape.rows, shape.rank), np.nan, BF16),
    )
    for rows in (slice(0, 2), slice(2, None)):
        cpu.pre_mix(inputs, form, rows, mixed)
        cpu.scaled_silu(inputs, form, rows, activated)
    return mixed, activated


def run_gate(inputs: GateInputs) -> tuple[Any, Any]:
    shape = inputs.shape
    x, out = np.full((shape.rows, shape.width), np.nan, BF16), np.full((shape.rows, shape.rank), np.nan, BF16)
    x[:, shape.gated :] = inputs.ready
    weight = inputs.weight.astype(np.float32)
    for rows in (slice(0, 2), slice(2, None)):
        cpu.gate_mul(inputs, rows, x)
        cpu.hyper_down(weight, x, rows, out)
    return x, out


def test_pre_mix_by_hand() -> None:
    one = np.ones((1, 4, 8), np.float32)
    normed, up = one.copy(), np.zeros_like(one)
    normed[0, :, 0] = (1, 2, 3, 4)
    up[0, :, 1] = (np.inf, -np.inf, 0, 0)
    inputs = MixInputs(normed.astype(BF16), up.astype(BF16), np.full((1, 8), 4.0, BF16))
    reference, _ = oracle.mixed(inputs, np.array([0]))
    assert reference.out[0, :3].tolist() == [10 / 8, 2 / 4, 4 / 8]
    silu, _ = oracle.activated(inputs, np.array([0]))
    assert silu.out[0, 0] == pytest.approx(1 / (1 + np.exp(-1.0)), rel=1e-15)


def test_the_gated_projection_by_hand() -> None:
    """x = (4 * sigmoid(0), ...) = 2 in channel 0; weight 6 there: silu(12 / 4)."""
    inputs = gate_inputs(GateShape(1, 32, 64, 8))
    for tensor in inputs.tensors.values():
        tensor[:] = 0
    inputs.attention[0, 0], inputs.weight[3, 0] = 4.0, 6.0
    x, out = run_gate(inputs)
    assert x[0, 0] == 2.0
    reference, _ = oracle.projected(x, inputs.weight, np.array([0]))
    assert reference.out[0, 3] == pytest.approx(3.0 / (1 + np.exp(-3.0)), rel=1e-15)
    assert float(out[0, 3]) == pytest.approx(3.0 / (1 + np.exp(-3.0)), rel=2.0**-8)
    assert not out[0, :3].any()


@pytest.mark.parametrize("form", SIGMOIDS)
def test_the_cpu_kernels_of_mix_lie_within_their_bounds(form: Sigmoid) -> None:
    inputs = mix_inputs(MIX, seed=3)
    mixed, activated = run_mix(inputs, form)
    rows = oracle.checked_rows(MIX.rows)
    assert misses(mixed, oracle.mixed(inputs, rows)) == 0
    assert misses(activated, oracle.activated(inputs, rows)) == 0


def test_the_two_forms_give_the_same_bits() -> None:
    one, two = (run_mix(mix_inputs(MIX), form) for form in SIGMOIDS)
    for first, second in zip(one, two, strict=True):
        assert np.array_equal(first.view(np.uint16), second.view(np.uint16))


def test_the_cpu_kernels_of_gate_lie_within_their_bounds() -> None:
    inputs = gate_inputs(GATE, seed=4)
    x, out = run_gate(inputs)
    rows = oracle.checked_rows(GATE.rows)
    assert misses(x[:, : GATE.gated], oracle.gated(inputs, rows)) == 0
    assert misses(out, oracle.projected(x, inputs.weight, rows)) == 0
    assert np.array_equal(x[:, GATE.gated :].view(np.uint16), inputs.ready.view(np.uint16))


def test_tiny_and_huge_gates() -> None:
    """Sigmoids that are subnormal, zero and one; values up to BF16's ends."""
    inputs = mix_inputs(MixShape(2, 64, rank=16))
    inputs.up[:] = np.linspace(-120, 120, inputs.up.size).reshape(inputs.up.shape)
    inputs.normed[0] = 1e38
    inputs.normed[1] = 1e-38
    rows = np.arange(2)
    for form in SIGMOIDS:
        assert misses(run_mix(inputs, form)[0], oracle.mixed(inputs, rows)) == 0


def test_a_sum_beyond_fp32_is_a_declared_limit() -> None:
    inputs = mix_inputs(MixShape(1, 8, rank=8))
    inputs.up[:], inputs.normed[:] = 100.0, 3e38
    reference, bound = oracle.mixed(inputs, np.array([0]))
    assert np.isfinite(reference.out).all()
    assert np.isinf(bound).all()


Mistake = Callable[[MixInputs], Any]
MISTAKES: dict[str, Mistake] = {
    "a branch is left out": lambda inputs: zero(inputs.normed, (slice(None), 3)),
    "two branches are swapped": lambda inputs: swap(inputs.up, (slice(None), 0), (slice(None), 1)),
    "one gate is another's": lambda inputs: swap(inputs.up, (2, 1, 700), (2, 1, 701)),
    "a vector is shifted": lambda inputs: swap(inputs.normed, (4, 2, slice(0, 8)), (4, 2, slice(8, 16))),
}


def zero(tensor: Any, place: Any) -> None:
    tensor[place] = 0


def swap(tensor: Any, one: Any, other: Any) -> None:
    tensor[one], tensor[other] = tensor[other].copy(), tensor[one].copy()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_mix_is_beyond_the_bound(mistake: str) -> None:
    wrong = mix_inputs(MIX)
    MISTAKES[mistake](wrong)
    assert misses(run_mix(wrong, "branch-free")[0], oracle.mixed(mix_inputs(MIX), np.arange(MIX.rows)))


@pytest.mark.parametrize("channels", [slice(0, 32), slice(6112, 6144), slice(10208, 10240), slice(640, 648)])
def test_a_step_of_channels_that_is_left_out_is_beyond_the_bound_of_few_rows(channels: slice) -> None:
    inputs = gate_inputs(GATE)
    x, _ = run_gate(inputs)
    judged = oracle.projected(x, inputs.weight, np.arange(GATE.rows), oracle.FEW_CHAIN)
    out = np.empty((GATE.rows, GATE.rank), BF16)
    weight = inputs.weight.astype(np.float32)
    weight[:, channels] = 0
    cpu.hyper_down(weight, x, slice(None), out)
    assert misses(out, judged)


def test_bounds_stay_far_below_the_outputs() -> None:
    """A bound that anything meets would check nothing."""
    inputs = gate_inputs(GATE)
    x, _ = run_gate(inputs)
    for chain, share in ((oracle.FEW_CHAIN, 0.02), (None, 0.2)):
        reference, bound = oracle.projected(x, inputs.weight, np.arange(GATE.rows), chain)
        assert np.median(bound) < share * reference.out.std()
    mixed, bound = oracle.mixed(mix_inputs(MIX), np.arange(MIX.rows))
    assert np.median(bound) < 0.01 * mixed.out.std()


def test_checked_rows_hold_both_ends() -> None:
    assert oracle.checked_rows(1).tolist() == [0]
    rows = oracle.checked_rows(8192)
    assert (rows.size, rows[0], rows[-1]) == (64, 0, 8191)


def test_the_slope_of_silu() -> None:
    y = np.linspace(-20, 20, 1_000_001)
    assert np.abs(np.gradient(oracle.silu(y), y)).max() < oracle.SILU_SLOPE
