# SPDX-License-Identifier: MIT
"""The correctness run where the oracle leaves rows out: all of them against `previous`, in little memory."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cpu.backend import CpuBackend, CpuSparseBuffers
from dsa_bench.bench.variant import Checked
from dsa_bench.data.synthetic import peak_bytes, sparse_inputs
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.attention import reference
from dsa_bench.splits.geometry import unsplit_plan
from dsa_bench.sweep.check import BLOCK_ROWS, Checker
from dsa_bench.sweep.cpu_time import LONGEST_LAUNCH_S, cpu_launch_s, refuse_long_launches

SHAPE = SparseShape(rows=200, context=700, candidates=512, query_heads=4, kv_heads=2, op="prefill")


def checked(backend: CpuBackend, inputs: SparseInputs, kernel: str) -> Checked:
    buffers = backend.load(inputs, "none")
    plan = unsplit_plan(kernel, inputs.shape)
    try:
        return Checker(backend, inputs, buffers, reference(inputs)).check(plan, buffers.launcher(plan))
    finally:
        backend.close()


def unchecked_row(inputs: SparseInputs) -> int:
    """A row that the oracle does not look at."""
    return next(row for row in range(inputs.shape.rows) if row not in reference(inputs).rows)


@pytest.mark.parametrize("kernel", ["int8-tc", "emulation", "emulation-bf16"])
@pytest.mark.parametrize("query_std", [1.4, 5.6])
def test_right_kernels_pass_in_every_row(kernel: str, query_std: float) -> None:
    """The BF16 arithmetic too, against plain FP32, with queries like a model's and 4 times as large."""
    outcome = checked(CpuBackend(), sparse_inputs(SHAPE, DataSpec(query_std=query_std)), kernel)
    assert outcome.status == "ok", outcome.reason


class OneTileLess(CpuBackend):
    """Loses the last tile of one row and KV head, as a kernel with a wrong loop end would."""

    def __init__(self, row: int) -> None:
        super().__init__()
        self._row = row

    def load(self, inputs: SparseInputs, *mode: str) -> CpuSparseBuffers:
        selected = inputs.selected.copy()
        selected[self._row, -64:] = -1
        less = CpuSparseBuffers(replace(inputs, selected=selected), self._run)
        whole = super().load(inputs, "none")

        class Buffers(CpuSparseBuffers):
            def launcher(self, variant: VariantPlan) -> Callable[[int], None]:
                source = less if variant.kernel != "previous" else whole
                launch = source.launcher(variant)

                def launch_and_take(call: int) -> None:
                    launch(call)
                    self._out[:] = source.output()

                return launch_and_take

        return Buffers(inputs, self._run)


def test_a_tile_lost_in_a_row_that_the_oracle_leaves_out_is_found() -> None:
    inputs = sparse_inputs(SHAPE, DataSpec())
    row = unchecked_row(inputs)
    outcome = checked(OneTileLess(row), inputs, "int8-tc")
    assert outcome.status == "wrong_result"
    assert f"row {row}, KV head" in str(outcome.reason) or f"out[{row}, " in str(outcome.reason)


def test_a_wrong_element_in_a_row_of_any_block_is_found_and_named(tampered_backend: Any) -> None:
    inputs = sparse_inputs(SHAPE, DataSpec())
    row = next(row for row in range(BLOCK_ROWS, SHAPE.rows) if row not in reference(inputs).rows)

    def tamper(plan: VariantPlan, out: Any) -> None:
        if plan.kernel == "int8-tc":
            out[row, 3, 7] += 2

    outcome = checked(tampered_backend(tamper), inputs, "int8-tc")
    assert outcome.status == "wrong_result"
    assert f"out[{row}, 3, 7] is " in str(outcome.reason)
    assert "`previous`" in str(outcome.reason)


class Stored:
    """Buffers whose output is there already."""

    copies = 1

    def __init__(self, out: np.ndarray) -> None:
        self._out = out

    def launcher(self, _: VariantPlan) -> Callable[[int], None]:
        return lambda _: None

    def fill_output(self, _: float) -> None:
        pass

    def output(self) -> np.ndarray:
        return self._out

    def close(self) -> None:
        pass


def test_all_rows_take_less_memory_than_one_fp64_copy_of_them() -> None:
    """8192 rows of 24 heads would otherwise take gigabytes."""
    inputs = sparse_inputs(SparseShape(rows=4096, context=4096, candidates=2, query_heads=4, op="prefill"), DataSpec())
    backend = CpuBackend()
    buffers, plan = backend.load(inputs, "none"), unsplit_plan("int8-tc", inputs.shape)
    buffers.launcher(plan)(0)
    stored = Stored(buffers.output())
    checker = Checker(backend, inputs, stored, reference(inputs))
    tracemalloc.start()
    try:
        outcome = checker.check(plan, stored.launcher(plan))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        backend.close()
    assert outcome.status == "ok", outcome.reason
    assert peak < 8 * inputs.query.size


def test_the_cpu_stops_where_a_launch_is_no_measurement() -> None:
    refuse_long_launches(SparseShape(rows=128, op="prefill"), workers=2)
    refuse_long_launches(SparseShape(rows=8192), workers=2)  # decode has no such limit
    shape = SparseShape(rows=8192, context=32768, op="prefill")
    with pytest.raises(
        CannotMeasure, match=r"takes 0.6 GiB of memory and about 21 s a launch on 2 CPU workers.* up to 3973 --rows"
    ):
        refuse_long_launches(shape, workers=2)
    refuse_long_launches(shape, workers=8)
    fitting = replace(shape, rows=int(shape.rows * LONGEST_LAUNCH_S / cpu_launch_s(shape, 2)))
    refuse_long_launches(fitting, workers=2)
    assert peak_bytes(shape) > sparse_inputs(SparseShape(64, 512, op="prefill"), DataSpec()).nbytes
    assert np.isclose(cpu_launch_s(shape, 2), 2 * cpu_launch_s(shape, 4))
