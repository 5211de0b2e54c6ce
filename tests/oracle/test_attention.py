# SPDX-License-Identifier: MIT
"""Oracle of the oracle: a slow evaluation with Python's own floats, and the toy row of the cases."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.attention import reference, relative_rms


def slowly(inputs: SparseInputs, row: int, head: int) -> list[float]:
    """One output row, element by element, in Python floats."""
    shape = inputs.shape
    kv_head = head // (shape.query_heads // shape.kv_heads)
    channels = range(shape.head_size)
    logits: dict[int, float] = {}
    positions: list[int] = []
    for entry in inputs.selected[row].tolist():
        if 0 <= entry < shape.context:
            positions.append(entry)
            query, scale, key = inputs.query[row, head], inputs.key_scale[kv_head], inputs.key[kv_head, entry]
            logits[entry] = inputs.scale * math.fsum(float(query[d]) * float(scale[d]) * int(key[d]) for d in channels)
    if not positions:
        return [0.0] * shape.head_size
    top = max(logits.values())
    weights = [math.exp(logits[p] - top) for p in positions]
    return [
        float(inputs.value_scale[kv_head, d])
        * math.fsum(w * int(inputs.value[kv_head, p, d]) for w, p in zip(weights, positions, strict=True))
        / math.fsum(weights)
        for d in channels
    ]


def test_the_reference_is_the_definition() -> None:
    """D4, Dao-AILab/flash-attention#2901: heads are grouped; duplicates count twice; entries outside do not count."""
    shape = SparseShape(rows=3, context=40, candidates=12, query_heads=6, kv_heads=3, head_size=8)
    inputs = sparse_inputs(shape, DataSpec(invalid_fraction=0.4, selection="random"))
    inputs.selected[1, :4] = 7
    inputs.selected[2] = -1
    answer = reference(inputs)
    assert answer.rows.tolist() == [0, 1, 2]
    for row in range(3):
        for head in range(6):
            np.testing.assert_allclose(answer.out[row, head], slowly(inputs, row, head), rtol=1e-12, atol=1e-15)


def toy_row(selected: list[int]) -> SparseInputs:
    query = np.zeros((1, 1, 256), BF16)
    query[0, 0, 0] = 16
    key, value = np.zeros((1, 8, 256), np.int8), np.zeros((1, 8, 256), np.int8)
    key[0, 4, 0], value[0, 3], value[0, 4] = 1, 10, 20
    ones = np.ones((1, 256), np.float32)
    return SparseInputs(query, key, value, ones, ones, np.array([selected], np.int32))


@pytest.mark.parametrize(
    "selected",
    [[3, 4], [4, 3], [-1] * 64 + [3, 4] + [-1] * 62, [8, 3, 2**31 - 1, 4, -(2**31)], [3, 3, 4, 4]],
)
def test_the_toy_row(selected: list[int]) -> None:
    """D1, vllm-project/vllm#48364: (10 + 20e) / (1 + e) = 17.3106 wherever the two stand."""
    answer = reference(toy_row(selected))
    assert answer.out == pytest.approx(np.full((1, 1, 256), (10 + 20 * math.e) / (1 + math.e)), rel=1e-14)
    assert answer.out.max() == pytest.approx(17.3106, abs=5e-5)
    assert answer.out.astype(BF16).max() == 17.25


@pytest.mark.parametrize("selected", [[-1], [-1] * 128, [8, 9, 2**31 - 1]])
def test_no_candidate_gives_zeros(selected: list[int]) -> None:
    """D1, vllm-project/vllm#48364."""
    answer = reference(toy_row(selected))
    assert (answer.out == 0).all()
    assert answer.rounding_floor == 0


def test_huge_logits_do_not_overflow() -> None:
    inputs = toy_row([3, 4])
    answer = reference(replace(inputs, key_scale=inputs.key_scale * np.float32(1e6)))
    assert (answer.out == 20).all()


@pytest.mark.parametrize(("rows", "checked"), [(1, 1), (63, 63), (64, 64), (65, 64), (1000, 64)])
def test_checked_rows_are_evenly_spaced(rows: int, checked: int) -> None:
    shape = SparseShape(rows=rows, context=1000, candidates=1, query_heads=1, kv_heads=1, head_size=1)
    at = reference(sparse_inputs(shape, DataSpec())).rows
    assert (len(at), at[0], at[-1]) == (checked, 0, rows - 1)
    assert np.ptp(np.diff(at)) <= 1 if rows > 2 else True


def test_relative_rms() -> None:
    assert relative_rms(np.array([3.0, 4.0]), np.array([3.0, 5.0])) == pytest.approx(1 / math.sqrt(34))
    assert relative_rms(np.zeros(3), np.zeros(3)) == 0
    assert relative_rms(np.ones(3), np.zeros(3)) == math.inf
    assert math.isnan(relative_rms(np.array([math.nan]), np.ones(1)))


def two_scales() -> SparseInputs:
    """The data of D9: scales that differ between K and V, heads and channels."""
    rng = np.random.default_rng(0)
    shape = SparseShape(rows=4, context=2048, candidates=512)
    base = sparse_inputs(shape, DataSpec())
    codes = np.clip(np.rint(rng.standard_normal((2, 2, 2048, 256)) * 40), -127, 127).astype(np.int8)
    head, channel = np.arange(2)[:, None], np.arange(256)[None, :]
    return replace(
        base,
        key=codes[0],
        value=codes[1],
        key_scale=(0.01 * (1 + head) * (1 + channel / 256)).astype(np.float32),
        value_scale=(0.02 * (1 + 2 * head) * (1 + channel / 512)).astype(np.float32),
    )


def test_wrong_scales_are_far_off() -> None:
    """D9, lightseekorg/tokenspeed#759: scales swapped, shared by the heads, or by the channels."""
    inputs = two_scales()
    right = reference(inputs).out
    wrong = {
        "swapped": replace(inputs, key_scale=inputs.value_scale, value_scale=inputs.key_scale),
        "head 0 for both": replace(
            inputs,
            key_scale=inputs.key_scale[[0, 0]],
            value_scale=inputs.value_scale[[0, 0]],
        ),
        "channel 0 for all": replace(
            inputs,
            key_scale=inputs.key_scale[:, :1].repeat(256, 1),
            value_scale=inputs.value_scale[:, :1].repeat(256, 1),
        ),
    }
    assert {name: relative_rms(reference(other).out, right) > 0.1 for name, other in wrong.items()} == dict.fromkeys(
        wrong, True
    )
