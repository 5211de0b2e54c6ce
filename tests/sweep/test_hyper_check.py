# SPDX-License-Identifier: MIT
"""`check --op mix|gate`: what it tries, and that it finds what is wrong."""

from collections.abc import Iterator
from typing import Any

import pytest

from dsa_bench.backends.cpu.hyper_cells import CpuHyper
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.hyper import GateShape, HyperOp, MixShape
from dsa_bench.sweep import hyper_check


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hyper_check.SHAPES, "mix", (MixShape(3, 24, rank=40),))
    monkeypatch.setitem(hyper_check.SHAPES, "gate", (GateShape(5, 64, 128, 24),))


def checked(op: HyperOp, backend: CpuHyper) -> Iterator[Any]:
    begun: list[str] = []
    try:
        yield from hyper_check.check_hyper(op, backend, begun.append)
    finally:
        backend.close()
    assert len(begun) == hyper_check.check_cases(op)


def test_a_sigmoid_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuHyper, "sigmoid_differences", lambda self: (100, 2, 2.5))
    first, *others = checked("mix", CpuHyper("mix"))
    assert (first.status, first.tried, first.wrong) == ("WRONG", 100, 2)
    assert first.reason == "the two sigmoids of 2.5 have different bits, the first of 2"
    assert [one.status for one in others] == ["ok"] * 4


def test_a_projection_that_reads_too_early_is_found() -> None:
    """It has the bits that the launch before wrote."""

    class Early(CpuHyper):
        def chain(self, sets: Any, mode: Any, launches: int) -> Any:
            outs = super().chain(sets, mode, launches)
            if mode == "pdl-early":
                outs[7] = outs[6]
            return outs

    *_, plain, pdl, early = checked("gate", Early("gate"))
    assert [one.status for one in (plain, pdl, early)] == ["ok", "ok", "WRONG"]
    assert (early.tried, early.wrong) == (20, 1)
    assert early.reason == "launch 7 of the chain has other bits than it has alone"


def test_a_gpu_gets_ten_thousand_chained_launches() -> None:
    assert hyper_check.CHAIN_LAUNCHES["cuda"] == 10_000


def test_a_variant_that_is_refused_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, variant: Any) -> Any:
        raise VariantRefused("no room")

    monkeypatch.setattr("dsa_bench.backends.cpu.hyper_cells.CpuMix.call", refuse)
    _, *cells = checked("mix", CpuHyper("mix"))
    assert {(one.status, one.reason, one.tried) for one in cells} == {("refused", "no room", 0)}
