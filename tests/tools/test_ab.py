# SPDX-License-Identifier: MIT
"""Two backends in the same rounds, on doubles of the timer."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.backends.cpu.backend import CpuBackend
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.errors import GateFailed
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape


@pytest.fixture
def ab(root: Path) -> Any:
    spec = importlib.util.spec_from_file_location("ab", root / "tools" / "ab.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_new_side_is_compared_with_the_old_one_and_the_old_one_with_itself(ab: Any, fake_timer: Any) -> None:
    backend = CpuBackend()
    timer = fake_timer(lambda name, *_: {"old": 10.0, "new": 8.0}[name])
    line = ab.compare(backend, backend, timer, sparse_inputs(SparseShape(1, 64, 64), DataSpec()), "int8-tc", 8)
    backend.close()
    assert line.startswith("rows 1, int8-tc: 10.00 -> 8.00 us, new / old 0.8000 [0.8000, 0.8000]: faster; ")
    assert line.endswith("; old / old 1.0000 [1.0000, 1.0000]")


def test_a_wrong_kernel_is_not_timed(ab: Any, fake_timer: Any, tampered_backend: Any) -> None:
    def tamper(_: Any, out: Any) -> None:
        out[:] = 0

    right, wrong = CpuBackend(), tampered_backend(tamper)
    timer = fake_timer(lambda *_: 1.0)
    with pytest.raises(GateFailed, match=r"new int8-tc: out\["):
        ab.compare(right, wrong, timer, sparse_inputs(SparseShape(1, 64, 64), DataSpec()), "int8-tc", 8)
    assert timer.calls == []
    right.close()
    wrong.close()
