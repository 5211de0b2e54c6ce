# SPDX-License-Identifier: MIT
"""The dense decode kernels against FP64: every type, rule, mask and head size, and bits that must agree."""

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from dense_runs import DenseRun, poison_of

from dsa_bench.backends.cuda.dense import DenseDeviceInputs, DenseLauncher, DenseWorkspace, allocate_output
from dsa_bench.backends.cuda.memory import allocate
from dsa_bench.data.dense import dense_inputs
from dsa_bench.jit.target import device_target
from dsa_bench.model.dense import DENSE_KERNELS, DenseDtype, DenseKernel, DensePlan, DenseShape
from dsa_bench.model.dense_inputs import DTYPES, DenseInputs
from dsa_bench.model.errors import VariantRefused
from dsa_bench.oracle.dense import DenseReference, dense_reference
from dsa_bench.splits.dense import RULES, live, parse_rule

pytestmark = pytest.mark.gpu

CAPACITY = 4096
LENGTHS = (0, 1, 24, 127, 128, 129, 520, 2600, 4096)


@pytest.fixture(scope="module")
def launcher(backend: Any) -> DenseLauncher:
    return DenseLauncher(device_target(backend.device.compute_capability), backend.stream)


@cache
def drawn(dtype: DenseDtype, length: int) -> tuple[DenseInputs, DenseReference]:
    inputs = dense_inputs(DenseShape(CAPACITY, length, dtype=dtype), seed=1)
    return inputs, dense_reference(inputs)


def check(
    backend: Any,
    launcher: DenseLauncher,
    kernel: DenseKernel,
    plan: DensePlan,
    inputs: DenseInputs,
    answer: DenseReference | None = None,
) -> np.ndarray:
    """Run once over a poisoned output; fails beyond the derived bound. Returns the output."""
    return DenseRun(backend, launcher, kernel, plan, inputs).check(answer or dense_reference(inputs))


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one.view(np.uint8), other.view(np.uint8))


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_rule_and_length(
    backend: Any, launcher: DenseLauncher, dtype: DenseDtype, rule: str, kernel: DenseKernel
) -> None:
    for length in LENGTHS:
        inputs, answer = drawn(dtype, length)
        check(backend, launcher, kernel, parse_rule(rule)(CAPACITY, 16), inputs, answer)


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_fits_one_split_has_the_bits_of_the_monolithic_kernel(
    backend: Any, launcher: DenseLauncher, dtype: DenseDtype, kernel: DenseKernel
) -> None:
    for length, masked in itertools.product((1, 24, 100, 128), (False, True)):
        inputs, _ = drawn(dtype, length)
        if masked:
            mask = np.random.default_rng(length).normal(size=(1, 1, CAPACITY)).astype(np.float32)
            mask[..., ::5] = -np.inf
            inputs = replace(inputs, mask=mask, softcap=1.5)
        whole = check(backend, launcher, kernel, DensePlan(1, CAPACITY), inputs)
        for plan in (DensePlan(32, 128), DensePlan(16, 256), live(CAPACITY, 16)):
            assert same_bits(check(backend, launcher, kernel, plan, inputs), whole), (length, plan.name)


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_captured_launch_follows_the_live_length(
    backend: Any, launcher: DenseLauncher, dtype: DenseDtype, rule: str, kernel: DenseKernel
) -> None:
    """Captured once at a length of 1, replayed while it grows and shrinks: the bits of eager launches."""
    plan = parse_rule(rule)(CAPACITY, 16)
    captured = DenseRun(backend, launcher, kernel, plan, drawn(dtype, 1)[0])
    with backend.stream:
        backend.stream.begin_capture()
        captured.enqueue()
        graph = backend.stream.end_capture()
    for length in (1, 129, 4096, 2600, 24, 0, 520):
        captured.set_length(length)
        captured.poison()
        graph.launch(backend.stream)
        inputs, answer = drawn(dtype, length)
        assert same_bits(captured.output(), check(backend, launcher, kernel, plan, inputs, answer)), length


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
def test_a_length_that_is_none_is_clamped_on_the_device(
    backend: Any, launcher: DenseLauncher, kernel: DenseKernel
) -> None:
    for plan in (DensePlan(1, CAPACITY), DensePlan(32, 128), live(CAPACITY, 16)):
        for said, meant in ((-5, 0), (CAPACITY + 1, CAPACITY), (2**31 - 1, CAPACITY)):
            run = DenseRun(backend, launcher, kernel, plan, drawn("f16", meant)[0])
            run.set_length(said)
            run.poison()
            run.enqueue()
            expected = check(backend, launcher, kernel, plan, *drawn("f16", meant))
            assert same_bits(run.output(), expected), (plan.name, said)


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_groups_masks_caps_and_limits(
    backend: Any, launcher: DenseLauncher, dtype: DenseDtype, kernel: DenseKernel
) -> None:
    shape = DenseShape(600, 431, 6, 2, 64, 32, batch=3, query_len=5, dtype=dtype)
    plain = dense_inputs(shape, seed=2)
    mask = np.random.default_rng(0).normal(size=(3, 5, 600)).astype(np.float32)
    mask[:, :, ::3] = -np.inf
    mask[1, 2] = -np.inf
    mask[0, 0, :128] = -np.inf
    limits = np.array([0, 300, -1], np.int32)
    changes: list[dict[str, Any]] = [
        {},
        {"causal": True},
        {"softcap": 2.0},
        {"scale": 0.5},
        {"pad_limit": limits},
        {"pad_limit": np.array([3, 431, 700], np.int32), "causal": True},
        {"mask": mask},
        {"mask": mask, "causal": True, "softcap": 0.7, "pad_limit": limits},
    ]
    for change, plan in itertools.product(changes, (DensePlan(1, 600), DensePlan(4, 150), live(600, 90))):
        check(backend, launcher, kernel, plan, replace(plain, **change))


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_with_nothing_live_gives_zeros(
    backend: Any, launcher: DenseLauncher, dtype: DenseDtype, kernel: DenseKernel
) -> None:
    inputs, _ = drawn(dtype, 520)
    nothing = (
        drawn(dtype, 0)[0],
        replace(inputs, mask=np.full((1, 1, CAPACITY), -np.inf, np.float32)),
        replace(inputs, pad_limit=np.zeros(1, np.int32)),
    )
    for empty, plan in itertools.product(nothing, (DensePlan(1, CAPACITY), DensePlan(32, 128), live(CAPACITY, 16))):
        assert not check(backend, launcher, kernel, plan, empty).view(np.uint8).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("head_size", "value_head_size"), [(8, 8), (64, 64), (72, 200), (128, 128), (192, 128), (256, 256), (16, 256)]
)
def test_head_sizes_of_whole_vectors(
    backend: Any, launcher: DenseLauncher, head_size: int, value_head_size: int, dtype: DenseDtype
) -> None:
    inputs = dense_inputs(DenseShape(700, 650, 4, 2, head_size, value_head_size, dtype=dtype), seed=head_size)
    answer = dense_reference(inputs)
    for kernel, plan in itertools.product(DENSE_KERNELS, (DensePlan(1, 700), DensePlan(5, 140), live(700, 4))):
        check(backend, launcher, kernel, plan, inputs, answer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_size", "value_head_size"), [(1, 1), (190, 126), (7, 3), (255, 129), (512, 300)])
def test_head_sizes_that_break_vectors_are_left_to_previous(
    backend: Any, launcher: DenseLauncher, head_size: int, value_head_size: int, dtype: DenseDtype
) -> None:
    inputs = dense_inputs(DenseShape(300, 290, 4, 2, head_size, value_head_size, dtype=dtype), seed=head_size)
    answer = dense_reference(inputs)
    for plan in (DensePlan(1, 300), DensePlan(3, 100), live(300, 4)):
        check(backend, launcher, "previous", plan, inputs, answer)
        with pytest.raises(VariantRefused, match=r"fast takes a .*head size of whole 16-byte vectors up to 256"):
            check(backend, launcher, "fast", plan, inputs, answer)


def test_a_head_size_beyond_previous_is_refused(backend: Any, launcher: DenseLauncher) -> None:
    inputs = dense_inputs(DenseShape(64, 60, 1, 1, 513, 8))
    with pytest.raises(VariantRefused, match="head sizes up to 512"):
        check(backend, launcher, "previous", DensePlan(1, 64), inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_previous_takes_buffers_aligned_to_their_elements(
    backend: Any, launcher: DenseLauncher, dtype: DenseDtype
) -> None:
    """D7, vllm-project/vllm#45466: a view that starts one element in is contiguous and misaligned."""
    inputs = dense_inputs(DenseShape(300, 290, 4, 2, 64, 32, dtype=dtype))
    for plan in (DensePlan(1, 300), DensePlan(3, 100)):
        run = DenseRun(backend, launcher, "previous", plan, inputs, shifted=True)
        run.check(dense_reference(inputs))


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_beyond_the_live_length_are_not_read(
    backend: Any, launcher: DenseLauncher, dtype: DenseDtype, kernel: DenseKernel
) -> None:
    for length in (1, 130, 2600):
        inputs, answer = drawn(dtype, length)
        key, value = inputs.key.copy(), inputs.value.copy()
        key[:, :, length:], value[:, :, length:] = np.nan, np.nan
        for rule in RULES:
            plan = parse_rule(rule)(CAPACITY, 16)
            clean = check(backend, launcher, kernel, plan, inputs, answer)
            dirty = check(backend, launcher, kernel, plan, replace(inputs, key=key, value=value), answer)
            assert same_bits(clean, dirty)


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
def test_a_needle_at_every_boundary_of_steps_warps_and_splits(
    backend: Any, launcher: DenseLauncher, kernel: DenseKernel
) -> None:
    """All weight on one key: losing any single one of 700 would show."""
    plain = dense_inputs(DenseShape(1024, 700, 2, 1, 64, 64))
    for place in (0, 1, 7, 8, 31, 32, 33, 63, 64, 127, 128, 129, 255, 256, 511, 512, 639, 640, 698, 699):
        inputs = replace(plain, query=plain.query.copy(), key=plain.key.copy())
        inputs.query[..., 0], inputs.key[..., 0], inputs.key[:, :, place, 0] = 200.0, -2.0, 2.0
        for plan in (DensePlan(1, 1024), DensePlan(8, 128), DensePlan(64, 16), live(1024, 2)):
            out = check(backend, launcher, kernel, plan, inputs)
            assert np.array_equal(out, np.repeat(inputs.value[0, 0, place][None], 2, axis=0)), (place, plan.name)


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
def test_rising_and_falling_scores_and_one_far_above_the_rest(
    backend: Any, launcher: DenseLauncher, kernel: DenseKernel
) -> None:
    """The running maximum changes at every step, never, and once by 200 nats."""
    plain = dense_inputs(DenseShape(2048, 2000, 2, 2, 64, 64, dtype="f32"))
    ramp = np.linspace(-100, 100, 2048, dtype=np.float32)
    jump = np.zeros(2048, np.float32)
    jump[1300] = 200.0
    for mask in (ramp, ramp[::-1].copy(), jump):
        inputs = replace(plain, mask=mask[None, None])
        for plan in (DensePlan(1, 2048), DensePlan(16, 128), live(2048, 2)):
            check(backend, launcher, kernel, plan, inputs)


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
def test_many_rows(backend: Any, launcher: DenseLauncher, kernel: DenseKernel) -> None:
    inputs = dense_inputs(DenseShape(512, 500, 20, 2, 64, 64, batch=10, query_len=3))
    for rule in RULES:
        check(backend, launcher, kernel, parse_rule(rule)(512, 600), inputs)
    for plan in (DensePlan(4, 128), DensePlan(2, 128, live=True)):
        check(backend, launcher, kernel, plan, inputs)


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
def test_offsets_beyond_two_to_the_31(backend: Any, launcher: DenseLauncher, kernel: DenseKernel) -> None:
    """D6, vllm-project/vllm#47671: KV head 1 starts at element 2^31 + 256 of the keys."""
    small = dense_inputs(DenseShape(160, 150, 2, 2, 256, 8))
    capacity = 2**23 + 1
    caches: list[Any] = []
    for host in (small.key, small.value):
        cache = allocate((1, 2, capacity, host.shape[-1]), np.float16)
        with backend.stream:
            cache.fill(np.nan)
        backend.synchronize()
        for head in range(2):
            cache[0, head, :160].set(np.ascontiguousarray(host[0, head]))
        caches.append(cache)
    uploaded = DenseDeviceInputs.upload(small)
    device = replace(uploaded, key=caches[0], value=caches[1])
    # The launch takes nothing of the caches but their shape.
    claimed = replace(
        small,
        key=np.broadcast_to(np.float16(0), (1, 2, capacity, 256)),
        value=np.broadcast_to(np.float16(0), (1, 2, capacity, 8)),
    )
    answer = dense_reference(small)
    for plan in (DensePlan(1, capacity), DensePlan(64, -(-capacity // 64)), live(capacity, 2)):
        DenseRun(backend, launcher, kernel, plan, claimed, device=device).check(answer)


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
def test_the_same_input_gives_the_same_bits(backend: Any, launcher: DenseLauncher, kernel: DenseKernel) -> None:
    """Whichever CTA of a row comes last."""
    inputs, answer = drawn("f16", 2600)
    for plan in (DensePlan(32, 128), DensePlan(64, 64)):
        run = DenseRun(backend, launcher, kernel, plan, inputs)
        first = run.check(answer)
        for _ in range(200):
            run.poison()
            run.enqueue()
            assert same_bits(run.output(), first), plan.name


@pytest.mark.parametrize(
    "plan", [DensePlan(32, 128), DensePlan(64, 64), live(CAPACITY, 16)], ids=lambda plan: plan.name
)
def test_fast_adds_splits_in_their_order(backend: Any, launcher: DenseLauncher, plan: DensePlan) -> None:
    """With a query of zeros every weight is 1 and every sum of them an integer, so NumPy makes the same bits of the
    partials; with values that cancel between splits another order would make others."""
    inputs = dense_inputs(DenseShape(CAPACITY, 4001, dtype="f32"), seed=5)
    inputs.query[:] = 0
    inputs.value[:, :, ::97] *= 1e6
    run = DenseRun(backend, launcher, "fast", plan, inputs)
    run.poison()
    run.enqueue()
    out = run.output()
    alive, rows = plan.alive(4001), inputs.shape.rows
    partials = run.workspace.acc.get().reshape(rows, plan.splits, -1)[:, :alive]
    acc = np.add.reduce(partials.swapaxes(0, 1))  # NumPy adds along an outer axis one after the other
    assert same_bits(out, acc / np.float32(4001))
    assert not same_bits(out, np.add.reduce(partials.swapaxes(0, 1)[::-1]) / np.float32(4001))


def test_counters_are_zero_after_every_launch(backend: Any, launcher: DenseLauncher) -> None:
    """At lengths that leave no split, one, some and all of them alive, and rows that see different numbers of keys."""
    run = DenseRun(backend, launcher, "fast", DensePlan(32, 128), drawn("f16", 1)[0])
    for length in (1, 0, 128, 129, 4096, 2600, 24, 4095):
        run.set_length(length)
        run.enqueue()
        assert run.counters_are_zero(), length
    limited = dense_inputs(DenseShape(600, 431, 6, 2, 64, 32, batch=3, query_len=5))
    limited = replace(limited, causal=True, pad_limit=np.array([3, 152, -1], np.int32))
    run = DenseRun(backend, launcher, "fast", DensePlan(4, 150), limited)
    run.check(dense_reference(limited))
    assert run.counters_are_zero()


def test_a_lost_split_would_fail_the_check(backend: Any, launcher: DenseLauncher) -> None:
    inputs, answer = drawn("f16", 2600)
    lost = replace(inputs, mask=np.zeros((1, 1, CAPACITY), np.float32))
    assert lost.mask is not None
    lost.mask[..., 640:768] = -np.inf
    for kernel in DENSE_KERNELS:
        with pytest.raises(AssertionError, match="of the bound"):
            check(backend, launcher, kernel, DensePlan(32, 128), lost, answer)


def test_a_plan_that_covers_too_little_is_a_bug(backend: Any, launcher: DenseLauncher) -> None:
    inputs, _ = drawn("f16", 24)
    plan = DensePlan(2, 128)
    workspace = DenseWorkspace.allocate("fast", inputs.shape, plan)
    with pytest.raises(ValueError, match="does not cover"):
        launcher.launches(
            "fast", plan, inputs, DenseDeviceInputs.upload(inputs), workspace, allocate_output(inputs.shape)
        )


def test_poison_is_no_answer() -> None:
    for dtype in DTYPES:
        assert np.isfinite(np.float64(poison_of(dtype)))
