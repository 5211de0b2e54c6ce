# SPDX-License-Identifier: MIT
"""Synthetic inputs of the hyper-connection operators, and which bit patterns a sample holds."""

import numpy as np
import pytest

from dsa_bench.data.hyper import EDGE_PATTERNS, GATE_STD, gate_inputs, mix_inputs, sampled_patterns
from dsa_bench.model.hyper import GateShape, MixShape


def test_every_tensor_has_a_stream_of_its_own() -> None:
    wide, narrow = (mix_inputs(MixShape(4, 64, rank=rank)) for rank in (16, 8))
    assert np.array_equal(wide.up, narrow.up)
    assert not np.array_equal(wide.up, wide.normed)


def test_deviations_and_mixed_signs() -> None:
    inputs = mix_inputs(MixShape(64, 2560))
    up = inputs.up.astype(np.float64)
    assert up.std() == pytest.approx(GATE_STD, rel=0.02)
    assert up.mean() == pytest.approx(0.0, abs=0.01)
    signs = up.ravel() >= 0
    assert np.mean(signs[1:] != signs[:-1]) == pytest.approx(0.5, abs=0.01), "neighbours differ half of the time"


def test_a_projection_has_the_deviation_of_its_input() -> None:
    inputs = gate_inputs(GateShape(4, 10240))
    quarter = inputs.attention.astype(np.float64) @ inputs.weight.astype(np.float64).T / 4
    assert quarter.std() == pytest.approx(1.0, rel=0.1)


def test_a_sample_has_every_exponent_sign_and_edge() -> None:
    edges, *rest = (chunk.view(np.uint32) for chunk in sampled_patterns(65537))
    bits = np.concatenate(rest)
    assert bits.size == -(-(2**32) // 65537)
    assert np.unique(bits >> 23).size == 512
    for value in (0.0, 2.0**-126, 1.0, np.inf):
        at = int(np.float32(value).view(np.uint32))
        wanted = np.arange(max(at - EDGE_PATTERNS, 0), at + EDGE_PATTERNS, dtype=np.uint32)
        assert np.isin(wanted, edges).all()
        assert np.isin(wanted | np.uint32(1 << 31), edges).all()
