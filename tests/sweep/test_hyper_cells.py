# SPDX-License-Identifier: MIT
"""Cells of `mix` and `gate` on the CPU backend, as it is and tampered with."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.base import ReadyCall
from dsa_bench.backends.cpu.hyper_cells import CpuHyper
from dsa_bench.model.errors import CannotMeasure, VariantRefused
from dsa_bench.model.hyper import GateShape, HyperOp, MixShape
from dsa_bench.model.hyper_request import HyperRequest, HyperShape
from dsa_bench.model.record import Check
from dsa_bench.model.request import Policy
from dsa_bench.model.run import Run, complete_rounds, read_run
from dsa_bench.oracle.hyper import checked_rows
from dsa_bench.sweep import memory
from dsa_bench.sweep.hyper import HyperOperator
from dsa_bench.sweep.runs import Instruments, run_operator

MIX, GATE = MixShape(70, 64, rank=16), GateShape(70, 64, 96, 16)
Tamper = Callable[[str, int, dict[str, Any]], None]


class Silent:
    def begin_cell(self, cell: str, number: int, cells: int) -> None: ...
    def took_paths(self, variant: str, ctas: Any) -> None: ...
    def said(self, text: str) -> None: ...
    def begin_rounds(self, visits: int | None) -> None: ...
    def visited(self) -> None: ...


class Tampered(CpuHyper):
    """`tamper(variant, copy, outputs)` may change what a launch wrote; each variant says that it has `copies`."""

    def __init__(self, op: HyperOp, tamper: Tamper, copies: int = 1) -> None:
        super().__init__(op)
        self._tamper = tamper
        self._copies = copies

    def load(self, inputs: Any, l2: str) -> Any:
        buffers: Any = super().load(inputs, l2)
        call = buffers.call

        def tampered(variant: Any) -> ReadyCall:
            made = call(variant)

            def launch(number: int) -> None:
                made.launch(number)
                written = {name: getattr(buffers, f"_{name}") for name in buffers.outputs(variant, 0)}
                self._tamper(variant.name, number, written)

            return replace(made, launch=launch, copies=self._copies)

        buffers.call = tampered
        return buffers


@pytest.fixture
def measure(fake_timer: Any) -> Iterator[Callable[..., Run]]:
    opened: list[CpuHyper] = []

    def run(shape: HyperShape, backend: CpuHyper | None = None, rounds: int = 2, **record: Any) -> Run:
        request = HyperRequest((shape,), policy=Policy(rounds)).on("cpu")
        opened.append(backend or CpuHyper(request.op))
        timer = fake_timer(lambda *_: 50.0)
        measured = run_operator(
            HyperOperator(request, opened[-1], "none"), Instruments(timer, "none"), Silent(), **record
        )
        assert measured.failure is None
        return measured.run

    yield run
    for backend in opened:
        backend.close()


def failed(run: Run) -> dict[str, Check]:
    return {check.variant: check for check in run.checks if check.status != "ok"}


@pytest.mark.parametrize(("shape", "control"), [(MIX, "pre-mix/branchy"), (GATE, "gate-mul+down/plain")])
def test_every_variant_is_checked_and_visited_and_the_first_is_the_control(
    measure: Any, shape: HyperShape, control: str
) -> None:
    run = measure(shape)
    assert failed(run) == {}
    assert {check.cell for check in run.checks} == {shape.key}
    assert {(check.requested, check.tiles_per_split, check.splits) for check in run.checks} == {((), 0, 0)}
    assert all(check.ctas >= 1 and check.kernel == check.variant for check in run.checks)
    assert all(1e-4 < (check.rounding_floor or 0) < 4e-3 and (check.rms_error or 1) < 4e-3 for check in run.checks)
    assert {visit.variant for visit in run.visits if visit.control} == {control}
    assert len(list(complete_rounds(run))) == 2
    assert run.header.kernel_hashes.keys() == {check.variant for check in run.checks}


@pytest.mark.parametrize(
    ("shape", "variant", "output", "row"),
    [
        (MIX, "pre-mix/branchy", "mixed", 69),
        (MIX, "scaled-silu/branch-free", "activated", 0),
        (GATE, "gate-mul+down/pdl", "x", 0),
        (GATE, "gate-mul+down/pdl-early", "out", 69),
    ],
)
def test_a_wrong_element_is_found_and_not_timed(
    measure: Any, shape: HyperShape, variant: str, output: str, row: int
) -> None:
    def tamper(name: str, copy: int, written: dict[str, Any]) -> None:
        if name == variant:
            written[output][row, 5] = 77

    run = measure(shape, Tampered("mix" if shape is MIX else "gate", tamper))
    assert failed(run).keys() == {variant}
    assert (failed(run)[variant].reason or "").startswith(f"{output}: out[{row}, 5] is 77, the FP64 reference ")
    assert variant not in {visit.variant for visit in run.visits}


def test_what_no_launch_writes_is_found(measure: Any) -> None:
    """A12: memory of an earlier launch holds the right answer."""

    class Idle(CpuHyper):
        def run(self, task: Any, rows: int) -> None:
            super().run(task, rows - 1)

    run = measure(MIX, Idle("mix"))
    assert failed(run).keys() == {check.variant for check in run.checks}
    assert failed(run)["pre-mix/branchy"].reason == "mixed: 64 output elements were never written, first [69, 0]"
    run = measure(GATE, Idle("gate"))
    assert failed(run)["gate-mul+down/plain"].reason == "x: 64 output elements were never written, first [69, 0]"


def test_rows_that_fp64_left_out_are_compared_with_the_first_variant(measure: Any) -> None:
    left_out = 6  # of 70 rows 64 are checked

    def tamper(name: str, copy: int, written: dict[str, Any]) -> None:
        if name.endswith(("branch-free", "pdl")):
            out = written[next(reversed(written))]
            out[left_out, 3] = out[left_out, 3].astype(np.float32) * 1.01

    for shape, op, first in ((MIX, "mix", "pre-mix/branchy"), (GATE, "gate", "gate-mul+down/plain")):
        assert left_out not in checked_rows(shape.rows)
        found = failed(measure(shape, Tampered(op, tamper)))  # type: ignore[arg-type]
        assert len(found) == (2 if op == "mix" else 1)
        assert f"of {first}, which gives the same bits; 1 elements differ" in str(next(iter(found.values())).reason)


def test_the_ready_columns_must_stay(measure: Any) -> None:
    def tamper(name: str, copy: int, written: dict[str, Any]) -> None:
        if name == "gate-mul+down/pdl":
            written["x"][3, 95] = 9

    reason = str(failed(measure(GATE, Tampered("gate", tamper)))["gate-mul+down/pdl"].reason)
    assert reason.startswith("x's ready columns[3, 31] is 9, not the ")


def test_an_error_inside_the_bound_of_a_long_sum_is_seen_by_its_rms(measure: Any) -> None:
    """Every output is 2 % off: the bound of 10240 additions is wider than that."""
    shape = GateShape(8, 10208, 10240, 320)

    def lose(name: str, copy: int, written: dict[str, Any]) -> None:
        if name == "gate-mul+down/plain":
            lost = written["out"].astype(np.float32)
            written["out"][:] = lost * 1.02

    found = failed(measure(shape, Tampered("gate", lose)))
    assert "relative RMS error 0.021; a right kernel stays below 0.0078" in str(found["gate-mul+down/plain"].reason)


def test_the_last_copy_of_a_cold_launch_is_checked_as_well(measure: Any) -> None:
    seen: list[int] = []

    def tamper(name: str, copy: int, written: dict[str, Any]) -> None:
        if name == "scaled-silu/branchy":
            seen.append(copy)
            if copy == 2:
                written["activated"][0, 0] = 0

    found = failed(measure(MIX, Tampered("mix", tamper, copies=3)))
    assert seen == [0, 2]
    assert found.keys() == {"scaled-silu/branchy"}
    assert "of copy 0 of the same tensors" in str(found["scaled-silu/branchy"].reason)


def test_a_variant_that_is_refused_is_a_row(measure: Any) -> None:
    class Refusing(CpuHyper):
        def load(self, inputs: Any, l2: str) -> Any:
            buffers: Any = super().load(inputs, l2)
            call = buffers.call

            def refuse(variant: Any) -> ReadyCall:
                if variant.name == "pre-mix/branchy":
                    raise VariantRefused("too many copies")
                return call(variant)

            buffers.call = refuse
            return buffers

    run = measure(MIX, Refusing("mix"))
    (check,) = failed(run).values()
    assert (check.status, check.reason, check.ctas) == ("launch_refused", "too many copies", 0)
    assert {visit.variant for visit in run.visits if visit.control} == {"pre-mix/branch-free"}


def test_a_record_goes_on_where_it_ended(measure: Any, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    whole = measure(MIX, record=record)
    lines = record.read_text().splitlines()
    record.write_text("\n".join(lines[:-3]) + "\n")
    measure(MIX, record=record, resume=True)
    again = read_run(record)
    assert [index for _, index, _ in complete_rounds(again)] == [0, 1]
    assert again.header == whole.header


def test_a_cell_beyond_memory_is_refused_before_it_is_drawn(measure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available_bytes", lambda: 1000)
    with pytest.raises(CannotMeasure, match=r"op=mix,.*GiB are available; ask for fewer --rows"):
        measure(MIX)
