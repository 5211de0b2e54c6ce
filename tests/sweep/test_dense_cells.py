# SPDX-License-Identifier: MIT
"""Cells of `dense` on the CPU backend, as it is and tampered with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cpu.dense_cells import CpuDense
from dsa_bench.data.dense import dense_inputs
from dsa_bench.model.dense import DenseDtype, DenseShape
from dsa_bench.model.dense_request import DenseRequest, DenseVariant
from dsa_bench.model.errors import CannotMeasure, VariantRefused
from dsa_bench.model.record import Check
from dsa_bench.model.request import Policy
from dsa_bench.oracle.dense import dense_reference, rms_limit
from dsa_bench.splits.dense import dense_variants
from dsa_bench.sweep import memory
from dsa_bench.sweep.dense import DenseOperator
from dsa_bench.sweep.runs import Instruments, Measured, is_run_of, run_operator

SHAPE = DenseShape(512, 300, 4, 2, 16, 8)
REQUEST = DenseRequest((SHAPE,), ("fast",), policy=Policy(2), ceiling=False)
Tamper = Callable[[DenseVariant, int, Any], None]


class Silent:
    def begin_cell(self, cell: str, number: int, cells: int) -> None: ...
    def took_paths(self, variant: str, ctas: Any) -> None: ...
    def said(self, text: str) -> None: ...
    def begin_rounds(self, visits: int | None) -> None: ...
    def visited(self) -> None: ...


class Tampered(CpuDense):
    """`tamper(variant, copy, output)` may change what a launch wrote; each call says that it has `copies`."""

    def __init__(self, tamper: Tamper = lambda variant, copy, out: None, copies: int = 1) -> None:
        super().__init__()
        self._tamper = tamper
        self._copies = copies

    def load(self, inputs: Any, l2: str) -> Any:
        buffers: Any = super().load(inputs, l2)
        call = buffers.call

        def tampered(variant: DenseVariant) -> Any:
            made = call(variant)

            def launch(number: int) -> None:
                made.launch(number)
                self._tamper(variant, number % self._copies, buffers._out)

            return replace(made, launch=launch, copies=self._copies)

        buffers.call = tampered
        return buffers


def measured(backend: Any, timer: Any, request: DenseRequest = REQUEST, **options: Any) -> Measured:
    try:
        return run_operator(DenseOperator(request, backend, "none"), Instruments(timer, "none"), Silent(), **options)
    finally:
        backend.close()


def checks(backend: Any, timer: Any, request: DenseRequest = REQUEST) -> dict[str, Check]:
    return {check.variant: check for check in measured(backend, timer, request).run.checks}


@pytest.fixture
def timer(fake_timer: Any) -> Any:
    return fake_timer(lambda name, call, elapsed: 10.0)


def test_every_launch_is_right_and_says_its_geometry(timer: Any) -> None:
    found = checks(CpuDense(), timer)
    assert [check.status for check in found.values()] == ["ok"] * 4
    adaptive = found["fast/splits=4,chunk=128"]
    assert (adaptive.requested, adaptive.rules) == ((0,), ("seed-adaptive", "adaptive"))
    assert (adaptive.splits, adaptive.ctas, adaptive.gathered_bytes) == (4, 16, SHAPE.live_bytes)
    assert (adaptive.facts["chunk"], adaptive.facts["alive"], adaptive.facts["resident"]) == (128, 3, 1)
    assert adaptive.rms_error == pytest.approx(adaptive.rounding_floor, rel=0.2)


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (lambda variant, copy, out: out.__setitem__((1, 2), 9.0), "out[1, 2] is 9, the FP64 reference"),
        (lambda variant, copy, out: out.__setitem__((1, 2), np.nan), "out[1, 2] is nan"),
        (lambda variant, copy, out: out.fill(65504.0), "32 output elements were never written, first [0, 0]"),
    ],
)
def test_wrong_results_are_found(timer: Any, tamper: Any, reason: str) -> None:
    found = checks(Tampered(tamper), timer)
    assert {check.status for check in found.values()} == {"wrong_result"}
    assert all(reason in str(check.reason) for check in found.values())


def test_a_few_lost_keys_in_thousands_are_found_by_the_rms_error(timer: Any) -> None:
    """16 of 4096, or an output that is 0.25 % too large. One alone is for needles (backends/test_cpu_dense.py)."""

    def larger(variant: DenseVariant, copy: int, out: Any) -> None:
        out[:] = out.astype(np.float64) * 1.0025

    shape = replace(SHAPE, capacity=4096, length=4096)
    found = checks(Tampered(larger), timer, replace(REQUEST, shapes=(shape,)))
    assert all(str(check.reason).startswith("relative RMS error") for check in found.values())
    inputs = dense_inputs(shape)
    answer = dense_reference(inputs)
    limit = rms_limit(inputs, answer)
    shorter = dense_reference(replace(inputs, length=4080))
    size = np.sqrt(np.mean(np.square(answer.out)))
    assert np.sqrt(np.mean(np.square(shorter.out - answer.out))) / size > limit


def test_rows_beyond_the_64_are_compared_with_the_first_right_launch(timer: Any) -> None:
    """Of 68 rows the oracle takes 64; what it leaves out is lost by every split launch."""
    shape = replace(SHAPE, batch=17)
    (unseen, *_) = set(range(shape.rows)) - set(dense_reference(dense_inputs(shape)).rows.tolist())

    def lost(variant: DenseVariant, copy: int, out: Any) -> None:
        if variant.plan.splits > 1:
            out[unseen] = np.nan if variant.plan.live else 0

    found = checks(Tampered(lost), timer, replace(REQUEST, shapes=(shape,)))
    assert found.pop("fast/off").status == "ok"
    reasons = {check.reason for check in found.values()}
    assert reasons == {f"8 output elements are others than those of fast/off, first [{unseen}, 0]"}


def test_one_live_split_must_have_the_bits_of_the_monolithic_launch(timer: Any) -> None:
    def one_bit(variant: DenseVariant, copy: int, out: Any) -> None:
        if variant.plan.splits > 1:
            out.view(np.uint16)[0, 0] ^= 1

    short = replace(REQUEST, shapes=(replace(SHAPE, length=100),))
    found = checks(Tampered(one_bit), timer, short)
    assert found["fast/off"].status == "ok"
    reasons = {check.reason for name, check in found.items() if name != "fast/off"}
    assert reasons == {"all live keys are in one split, and the bits are others than those of fast/off"}
    last = checks(Tampered(one_bit), timer, replace(short, rules=("fixed:256", "off")))  # in whatever order
    assert last["fast/off"].status == "wrong_result"
    assert str(last["fast/off"].reason).endswith("others than those of fast/splits=2,chunk=256")


def test_the_last_copy_must_give_the_same_bits(timer: Any) -> None:
    def other(variant: DenseVariant, copy: int, out: Any) -> None:
        if copy == 2:
            out.view(np.uint16)[0, 0] ^= 1

    assert {check.status for check in checks(Tampered(copies=3), timer).values()} == {"ok"}
    found = checks(Tampered(other, copies=3), timer)
    assert {check.reason for check in found.values()} == {
        "the last copy of the inputs gives another output than the first"
    }


def test_a_kernel_that_refuses_the_shape_is_a_line_without_a_hash(timer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CpuDense()
    hash_of = backend.kernel_hash

    def refusing(kernel: str, shape: Any) -> str:
        if kernel == "fast":
            raise VariantRefused("fast takes head sizes of whole vectors")
        return hash_of(kernel, shape)

    monkeypatch.setattr(backend, "kernel_hash", refusing)
    run = measured(backend, timer, replace(REQUEST, kernels=("fast", "previous"))).run
    assert run.header.kernel_hashes["fast"] == ""
    assert run.header.kernel_hashes["previous"]


def test_a_kernel_has_the_hash_of_the_first_shape_that_it_takes(timer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_f32(kernel: str, shape: DenseShape) -> str:
        if shape.dtype != "f32":
            raise VariantRefused("fast takes head sizes of whole vectors")
        return kernel

    backend = CpuDense()
    monkeypatch.setattr(backend, "kernel_hash", of_f32)
    both = replace(REQUEST, shapes=(SHAPE, replace(SHAPE, dtype="f32")))
    assert measured(backend, timer, both).run.header.kernel_hashes == {"fast": "fast"}


@pytest.mark.parametrize(
    ("kernels", "resident"), [(("previous", "fast"), 4), (("fast", "previous"), 4), (("previous",), None)]
)
def test_a_record_says_how_many_ctas_of_the_tuned_kernel_are_resident(
    timer: Any, monkeypatch: pytest.MonkeyPatch, kernels: Any, resident: int | None
) -> None:
    """In whatever order kernels are asked for: a map takes its slots from it."""
    backend = CpuDense()
    monkeypatch.setattr(backend, "resident_ctas", lambda kernel, shape: {"previous": 8, "fast": 4}[kernel])
    run = measured(backend, timer, replace(REQUEST, kernels=kernels)).run
    assert run.header.device["resident_ctas"] == resident


def test_a_copy_is_refused_by_the_cpu(timer: Any) -> None:
    found = checks(CpuDense(), timer, replace(REQUEST, ceiling=True))
    assert (found["copy/kv"].status, found["copy/kv"].kernel) == ("launch_refused", "copy/kv")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_other_types_and_a_length_of_zero(timer: Any, dtype: DenseDtype) -> None:
    shapes = (replace(SHAPE, dtype=dtype, length=0), replace(SHAPE, dtype=dtype, length=512))
    run = measured(CpuDense(), timer, replace(REQUEST, shapes=shapes)).run
    assert {check.status for check in run.checks} == {"ok"}
    assert {check.facts["alive"] for check in run.checks if check.cell == shapes[0].key} == {0}


def test_cells_that_differ_in_their_length_share_their_data(timer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[DenseShape] = []

    def counted(shape: DenseShape, *rest: Any) -> Any:
        drawn.append(shape)
        return dense_inputs(shape, *rest)

    monkeypatch.setattr("dsa_bench.sweep.dense.dense_inputs", counted)
    larger = replace(SHAPE, capacity=600, length=550)
    measured(CpuDense(), timer, replace(REQUEST, shapes=(SHAPE, replace(SHAPE, length=20), larger)))
    assert drawn == [SHAPE, larger]


def test_a_run_is_known_again(timer: Any, tmp_path: Path) -> None:
    run = measured(CpuDense(), timer, record=tmp_path / "run.jsonl").run
    backend = CpuDense()
    assert is_run_of(run, DenseOperator(REQUEST, backend, "none"))
    assert not is_run_of(run, DenseOperator(replace(REQUEST, seed=1), backend, "none"))
    backend.close()


def test_beyond_this_machines_memory_nothing_is_measured(timer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available_bytes", lambda: 1000)
    with pytest.raises(CannotMeasure, match=r"GiB of memory to draw .* ask for less --capacity"):
        measured(CpuDense(), timer)


def test_rules_and_the_maps_choice_are_launches_of_a_cell() -> None:
    names = [one.name for one in dense_variants(("fast",), ("off",), SHAPE, tuned=256)]
    assert names == ["fast/off", "fast/splits=2,chunk=256"]
