# SPDX-License-Identifier: MIT
"""Two backends as one: each kernel's name says whose it is."""

from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cpu.backend import CpuBackend
from dsa_bench.backends.sides import SidesBackend
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.splits.geometry import CpuSparse, effective_variants


@pytest.fixture
def sides(tampered_backend: Any) -> Any:
    def negate(_: Any, out: Any) -> None:
        out[:] = -out

    b = tampered_backend(negate)
    b.geometry = CpuSparse(64)
    opened = SidesBackend(CpuBackend(), b)
    yield opened
    opened.close()


def test_the_output_is_that_of_the_side_that_ran_last(sides: Any) -> None:
    inputs = sparse_inputs(SparseShape(1, 256, 256), DataSpec())
    buffers = sides.load(inputs, "none")
    outputs = {}
    for side in "AB":
        plan = sides.geometry.plan(f"int8-tc@{side}", inputs.shape, 0)
        buffers.fill_output(1.0)
        buffers.launcher(plan)(0)
        outputs[side] = buffers.output().astype(np.float32)
    np.testing.assert_allclose(outputs["A"], -outputs["B"], rtol=0.01, atol=0.01)
    plain = sides.geometry.plan("previous", inputs.shape, None)
    buffers.launcher(plain)(0)
    np.testing.assert_allclose(buffers.output().astype(np.float32), outputs["A"], rtol=0.02, atol=0.02)
    buffers.close()


def test_each_side_has_its_own_geometry(sides: Any) -> None:
    shape = SparseShape(1, 8192, 2048)
    names = [plan.name for plan in effective_variants(sides.geometry, shape, ["int8-tc@A", "int8-tc@B"], [0, 1])]
    assert "int8-tc@A/splits=32" in names
    assert "int8-tc@B/splits=32" in names
    auto = {side: sides.geometry.plan(f"int8-tc@{side}", shape, 0).split.splits for side in "AB"}
    assert auto["B"] == 32 >= auto["A"]
    assert sides.kernel_hash("int8-tc@A") == CpuBackend().kernel_hash("int8-tc")
