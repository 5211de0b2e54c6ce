# SPDX-License-Identifier: MIT
"""Which backend measures `mix` and `gate`."""

import pytest

from dsa_bench.backends import hyper
from dsa_bench.backends.cpu.hyper_cells import CpuHyper
from dsa_bench.model.errors import CannotMeasure, CompileFailed


def fail(error: Exception) -> object:
    def open_gpu(op: str) -> None:
        raise error

    return open_gpu


def test_auto_takes_the_cpu_where_no_gpu_works_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hyper, "_open_gpu", fail(CannotMeasure("no driver")))
    backend, said = hyper.open_hyper("auto", "mix")
    backend.close()
    assert isinstance(backend, CpuHyper)
    assert said == ["measuring the CPU backend: no driver"]
    with pytest.raises(CannotMeasure, match="--backend cuda: no driver"):
        hyper.open_hyper("cuda", "mix")


def test_a_kernel_that_does_not_compile_is_no_reason_to_measure_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hyper, "_open_gpu", fail(CompileFailed("pre_mix.cu: line 3")))
    with pytest.raises(CompileFailed, match="line 3"):
        hyper.open_hyper("auto", "mix")
