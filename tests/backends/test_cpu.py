# SPDX-License-Identifier: MIT
"""The CPU kernels against the FP64 oracle, inside the derived bound, and needles: no bound sees one candidate."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsa_bench.backends.cpu import kernels
from dsa_bench.backends.cpu.backend import CpuBackend, cpu_device
from dsa_bench.bench.check import compare, run_poisoned
from dsa_bench.bench.variant import Checked
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.attention import reference, relative_rms

SPLITS = (1, 2, 3, 8, 32, 40)
UNSPLIT = "previous"
ONES = np.ones(4, np.float32)


@pytest.fixture(scope="module")
def backend() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()


def plan(shape: SparseShape, splits: int | None) -> VariantPlan:
    """The kernel with so many splits; None is `previous`."""
    if splits is None:
        return VariantPlan(UNSPLIT, (), SplitPlan(shape.tiles, 1), shape.row_heads)
    return VariantPlan("int8-tc", (0,), SplitPlan(shape.tiles, splits), shape.row_heads * splits)


def output(backend: CpuBackend, inputs: SparseInputs, splits: int | None) -> np.ndarray:
    buffers = backend.load(inputs, "none")
    return run_poisoned(buffers.launcher(plan(inputs.shape, splits)), buffers)


def checked(backend: CpuBackend, inputs: SparseInputs, out: np.ndarray) -> Checked:
    answer = reference(inputs)
    return compare(out, answer.out, backend.bound("int8-tc", inputs, answer.rows, answer.out), answer.rows)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 3),
    context=st.integers(3, 400),
    candidates=st.integers(1, 300),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    head_size=st.sampled_from([1, 8, 64, 256]),
    splits=st.sampled_from([None, *SPLITS]),
    data=st.builds(
        DataSpec,
        seed=st.integers(0, 99),
        query_std=st.sampled_from([0.0, 0.01, 1.4, 20.0]),
        key_scale_multiplier=st.sampled_from([1e-30, 0.1, 1.0, 10.0]),
        value_scale_multiplier=st.sampled_from([1e-37, 1e-3, 1.0, 1e30]),
        invalid_fraction=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
        selection=st.sampled_from(["sorted", "random", "blocks:16", "overlap:0.9"]),
    ),
)
def test_both_kernels_stay_inside_the_bound(
    backend: CpuBackend, rows: int, context: int, candidates: int, kv_heads: int, group: int, head_size: int,
    splits: int | None, data: DataSpec,
) -> None:  # fmt: skip
    """D4, Dao-AILab/flash-attention#2901, and D9: shapes and scales that no default has."""
    inputs = sparse_inputs(SparseShape(rows, context, candidates, kv_heads * group, kv_heads, head_size), data)
    outcome = checked(backend, inputs, output(backend, inputs, splits))
    assert outcome.status == "ok", outcome.reason


@pytest.fixture(scope="module")
def everyday() -> SparseInputs:
    return sparse_inputs(SparseShape(rows=2, context=2000, candidates=700), DataSpec())


@pytest.mark.parametrize("splits", [None, *SPLITS])
def test_two_scales_are_applied_where_they_belong(backend: CpuBackend, splits: int | None) -> None:
    """D9, lightseekorg/tokenspeed#759: RMS below 2e-3 with scales that differ between K, V, heads, channels."""
    head, channel = np.arange(2)[:, None], np.arange(256)[None, :]
    inputs = replace(
        sparse_inputs(SparseShape(rows=2, context=2048, candidates=512), DataSpec()),
        key_scale=(0.01 * (1 + head) * (1 + channel / 256)).astype(np.float32),
        value_scale=(0.02 * (1 + 2 * head) * (1 + channel / 512)).astype(np.float32),
    )
    out = output(backend, inputs, splits)
    assert relative_rms(out.astype(np.float64), reference(inputs).out) < 2e-3
    wrong = {
        "swapped": replace(inputs, key_scale=inputs.value_scale, value_scale=inputs.key_scale),
        "head 0": replace(inputs, key_scale=inputs.key_scale[[0, 0]], value_scale=inputs.value_scale[[0, 0]]),
        "channel 0": replace(
            inputs,
            key_scale=inputs.key_scale[:, :1].repeat(256, 1),
            value_scale=inputs.value_scale[:, :1].repeat(256, 1),
        ),
    }  # fmt: skip
    for name, other in wrong.items():
        out = output(backend, other, splits)
        assert relative_rms(out.astype(np.float64), reference(inputs).out) > 0.1, name
        assert checked(backend, inputs, out).status == "wrong_result", name


def toy_row(selected: list[int]) -> SparseInputs:
    query = np.zeros((1, 1, 256), BF16)
    query[0, 0, 0] = 16
    key, value = np.zeros((1, 8, 256), np.int8), np.zeros((1, 8, 256), np.int8)
    key[0, 4, 0], value[0, 3], value[0, 4] = 1, 10, 20
    ones = np.ones((1, 256), np.float32)
    return SparseInputs(query, key, value, ones, ones, np.array([selected], np.int32))


@pytest.mark.parametrize("splits", [None, *SPLITS])
def test_the_toy_row(backend: CpuBackend, splits: int | None) -> None:
    """D1, vllm-project/vllm#48364: a first tile without a candidate is nothing; a row without one is zeros."""
    assert (output(backend, toy_row([-1] * 64 + [3, 4] + [-1] * 62), splits) == BF16.type(17.25)).all()
    assert (output(backend, toy_row([-1] * 128 + [3, 4] + [-1] * 382), splits) == BF16.type(17.25)).all()
    assert (output(backend, toy_row([-1] * 512), splits) == 0).all()
    assert not np.signbit(output(backend, toy_row([-1] * 512), splits).astype(np.float32)).any()


def test_a_poisoned_partial_without_weight_adds_nothing() -> None:
    """D1, vllm-project/vllm#48364: (-inf, 0, NaN) merged with a good partial, in both orders."""
    nothing = kernels.Partial(
        np.array([-np.inf], np.float32), np.zeros(1, np.float32), np.full((1, 4), np.nan, np.float32)
    )
    good = kernels.Partial(np.array([3.0], np.float32), np.array([2.0], np.float32), np.full((1, 4), 8.0, np.float32))
    for partials in ([nothing, good], [good, nothing], [nothing, good, nothing]):
        assert (kernels.merge(partials, ONES) == 4.0).all()
    assert (kernels.merge([nothing, nothing], ONES) == 0.0).all()


def test_a_merge_weighs_by_the_maxima() -> None:
    def partial(m: float, l: float, acc: float) -> kernels.Partial:  # noqa: E741 - the maths
        return kernels.Partial(np.array([m], np.float32), np.array([l], np.float32), np.full((1, 2), acc, np.float32))

    merged = kernels.merge([partial(0.0, 1.0, 10.0), partial(1.0, 1.0, 20.0)], ONES[:2])
    assert merged == pytest.approx(np.full((1, 2), (10 + 20 * math.e) / (1 + math.e)), rel=1e-6)
    far = kernels.merge([partial(-1000.0, 1.0, 10.0), partial(1000.0, 1.0, 20.0)], ONES[:2])
    assert (far == 20.0).all()


CANDIDATES = 645  # ten tiles and a rest of five
BOUNDARIES = sorted(
    {0, 1, CANDIDATES - 1, 639, 640}
    | {tile * 64 + step for tile in range(1, 11) for step in (-1, 0)}
    | {
        SplitPlan(11, splits).candidate_slice(split, CANDIDATES).start + step
        for splits in SPLITS
        for split in range(1, min(splits, 11))
        for step in (-1, 0)
    }
    - {-1}
)


@pytest.mark.parametrize("splits", [None, *SPLITS])
def test_needles(backend: CpuBackend, splits: int | None) -> None:
    """All weight on one candidate, at the first, last and boundary places of tiles and splits: its value comes out."""
    shape = SparseShape(
        rows=len(BOUNDARIES), context=1000, candidates=CANDIDATES, query_heads=2, kv_heads=1, head_size=16
    )
    base = sparse_inputs(replace(shape, rows=1, query_heads=2), DataSpec(selection="random"))
    listed = np.random.default_rng(0).permutation(1000)[:CANDIDATES].astype(np.int32)
    needle = int(np.setdiff1d(np.arange(1000), listed)[0])
    key = np.zeros_like(base.key)
    key[0, needle] = 127
    selected = np.tile(listed, (len(BOUNDARIES), 1))
    selected[np.arange(len(BOUNDARIES)), BOUNDARIES] = needle
    query = np.full((len(BOUNDARIES), 2, 16), 100, BF16)
    inputs = replace(base, query=query, key=key, key_scale=np.ones_like(base.key_scale), selected=selected)
    expected = (inputs.value[0, needle] * inputs.value_scale[0]).astype(BF16)
    out = output(backend, inputs, splits)
    missed = [place for place, got in zip(BOUNDARIES, out, strict=True) if not (got == expected).all()]
    assert missed == []


def test_broken_outputs_fail_the_check(backend: CpuBackend, everyday: SparseInputs) -> None:
    """A lost tile, a swapped row, an element never written, one too large: each is a wrong result."""
    good = output(backend, everyday, 3)
    assert checked(backend, everyday, good).status == "ok"

    shortened = everyday.selected.copy()
    shortened[1, 64:128] = -1
    lost_tile = output(backend, replace(everyday, selected=shortened), 3)
    unwritten = good.copy()
    unwritten[1, 5, 7] = BF16.type(2.0**127 * (2 - 2.0**-7))
    nan, one_off = good.copy(), good.copy()
    nan[0, 0, 0] = np.nan
    one_off[1, 23, 255] *= BF16.type(1.25)
    reasons = {
        name: checked(backend, everyday, out)
        for name, out in {
            "lost tile": lost_tile,
            "swapped rows": good[::-1].copy(),
            "swapped heads": good[:, ::-1].copy(),
            "unwritten": unwritten,
            "nan": nan,
            "one off": one_off,
            "zeros": np.zeros_like(good),
        }.items()
    }
    assert {name: outcome.status for name, outcome in reasons.items()} == dict.fromkeys(reasons, "wrong_result")
    assert reasons["unwritten"].reason == "1 output elements were never written, first [1, 5, 7]"
    assert "out[0, 0, 0] is nan" in (reasons["nan"].reason or "")
    assert reasons["nan"].rms_error is None
    assert "out[1, 23, 255] is " in (reasons["one off"].reason or "")


def test_a_launch_writes_every_element_each_time(backend: CpuBackend, everyday: SparseInputs) -> None:
    buffers = backend.load(everyday, "none")
    for splits in (None, 1, 40):
        launch = buffers.launcher(plan(everyday.shape, splits))
        first, second = run_poisoned(launch, buffers), run_poisoned(launch, buffers)
        assert first.tobytes() == second.tobytes()
    assert buffers.output() is not buffers.output()


def test_device_facts_and_hashes(backend: CpuBackend) -> None:
    facts = cpu_device()
    assert facts.backend == "cpu"
    assert facts.sm_count >= 1
    assert facts.name
    assert facts.compute_capability is None
    assert backend.kernel_hash("previous") != backend.kernel_hash("int8-tc")
    assert backend.kernel_hash("previous") == CpuBackend.kernel_hash(backend, "previous")


def test_missing_gpu_is_said_once() -> None:
    """F1, NVIDIA/cudf#6602: with no driver, or with every device hidden."""
    from dsa_bench.backends.select import open_backend
    from dsa_bench.model.errors import CannotMeasure

    opened, said = open_backend("auto")
    assert opened.device.backend == "cpu"
    assert said is not None
    assert said.startswith("measuring the CPU backend: ")
    opened.close()
    with pytest.raises(CannotMeasure, match=r"--backend cuda: "):
        open_backend("cuda")
