# SPDX-License-Identifier: MIT
"""Which backend measures `mix` and `gate`."""

from types import SimpleNamespace

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


def test_what_a_gpu_has_to_say_of_its_launches_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device below SM 9.0 launches plainly, and the user hears of it."""
    old = SimpleNamespace(note="SM 8.6 has no programmatic dependent launch")
    monkeypatch.setattr(hyper, "_open_gpu", lambda op: old)
    assert hyper.open_hyper("auto", "gate") == (old, [old.note])
