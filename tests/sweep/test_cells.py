# SPDX-License-Identifier: MIT
"""A run from request to record, on the CPU backend with fake timers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cpu.backend import CpuBackend
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.errors import BadInput
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.record import Visit
from dsa_bench.model.request import DataSpec, Policy, SparseRequest
from dsa_bench.model.run import complete_rounds, read_run
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.attention import reference
from dsa_bench.report.cells import cell_tables
from dsa_bench.sweep.cells import Bench, is_run_of, run_cells
from dsa_bench.sweep.check import Checker

ROWS_1 = SparseShape(rows=1, context=200, candidates=130)
ROWS_8 = SparseShape(rows=8, context=200, candidates=130)


def request(*shapes: SparseShape, rounds: int | None = 2, **options: Any) -> SparseRequest:
    policy = Policy(rounds, options.pop("budget_s", None))
    asked = SparseRequest(shapes, tiles_per_split=options.pop("tiles_per_split", (1,)), policy=policy, **options)
    return asked.on("cpu")


class Listener:
    """Counts what it is told; may press Ctrl-C after so many visits."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.cells: list[tuple[str, int, int]] = []
        self.planned: list[int | None] = []
        self.paths: dict[str, dict[str, int]] = {}
        self.heard: list[str] = []
        self.visits = 0
        self._interrupt_after = interrupt_after

    def begin_cell(self, cell: str, number: int, cells: int) -> None:
        self.cells.append((cell, number, cells))

    def said(self, text: str) -> None:
        self.heard.append(text)

    def took_paths(self, variant: str, ctas: Any) -> None:
        self.paths[variant] = dict(ctas)

    def begin_rounds(self, visits: int | None) -> None:
        self.planned.append(visits)

    def visited(self) -> None:
        self.visits += 1
        if self.visits == self._interrupt_after:
            raise KeyboardInterrupt


@pytest.fixture
def bench(fake_timer: Any) -> Any:
    backend = CpuBackend()
    yield Bench(backend, fake_timer(lambda name, *_: 10.0 if name == "previous" else 5.0), "none")
    backend.close()


def places(visits: list[Visit]) -> list[tuple[str, int, int]]:
    return [(visit.cell, visit.round, visit.place) for visit in visits]


def test_a_run_holds_checks_and_visits_of_each_cell(bench: Bench) -> None:
    """E7, rapidsai/asvdb#10: after a sweep of rows 1 and 8, the first record says rows 1."""
    listener = Listener()
    run = run_cells(request(ROWS_1, ROWS_8, tiles_per_split=(0, 1, 2)), bench, listener, argv=["decode"]).run
    assert [check.cell for check in run.checks if check.kernel == "previous"] == [ROWS_1.key, ROWS_8.key]
    assert {check.status for check in run.checks} == {"ok"}
    assert all(0 < (check.rms_error or 0) < 4e-3 and check.rounding_floor for check in run.checks)
    assert {(visit.timer, visit.l2, visit.status) for visit in run.visits} == {("wall", "none", "ok")}
    assert [visit.cell for visit in run.visits] == sorted(
        (visit.cell for visit in run.visits), key=[ROWS_1.key, ROWS_8.key].index
    )
    assert len(list(complete_rounds(run))) == 4
    assert listener.cells == [(ROWS_1.key, 0, 2), (ROWS_8.key, 1, 2)]
    assert listener.planned == [len([v for v in run.visits if v.cell == key]) for key in (ROWS_1.key, ROWS_8.key)]
    assert run.header.seed == 0
    assert run.header.argv == ("decode",)
    assert run.header.device["backend"] == "cpu"
    assert run.header.plan["shapes"][1]["rows"] == 8


def test_the_control_is_the_automatic_rule_else_previous(bench: Bench) -> None:
    for options, control in (
        ({"tiles_per_split": (1, 0)}, None),
        ({"tiles_per_split": (1,)}, "previous"),
        ({"tiles_per_split": (2,), "kernels": ("int8-tc",)}, "int8-tc/splits=2"),
    ):
        run = run_cells(request(ROWS_1, **options), bench, Listener()).run
        automatic = next((check.variant for check in run.checks if 0 in check.requested), None)
        assert {visit.variant for visit in run.visits if visit.control} == {control or automatic}


def test_a_record_is_the_run(bench: Bench, tmp_path: Path) -> None:
    run = run_cells(request(ROWS_1), bench, Listener(), record=tmp_path / "r.jsonl").run
    read = read_run(tmp_path / "r.jsonl")
    assert (read.header, read.checks, read.visits) == (run.header, run.checks, run.visits)


@pytest.mark.parametrize("interrupt_after", [1, 6, 7, 11])
def test_an_interrupted_run_is_finished_by_a_second_one(bench: Bench, tmp_path: Path, interrupt_after: int) -> None:
    """C10, ROCm/aiter#5263: every finished visit is kept; --resume measures only what is missing."""
    record, asked = tmp_path / "r.jsonl", request(ROWS_1, ROWS_8)
    listener = Listener(interrupt_after)
    measured = run_cells(asked, bench, listener, record=record)
    assert isinstance(measured.failure, KeyboardInterrupt)
    assert listener.heard == [f"what was measured is in {record}; the same command with --resume goes on"]
    kept = read_run(record).visits
    assert len(kept) == interrupt_after
    whole = [ROWS_1.key] if interrupt_after > 6 else []
    assert measured.run.visits == [visit for visit in kept if visit.cell in whole]
    assert {check.cell for check in measured.run.checks} == set(whole)
    with pytest.raises(BadInput, match="exists; add --resume"):
        run_cells(asked, bench, Listener(), record=record)

    listener = Listener()
    run = run_cells(asked, bench, listener, record=record, resume=True).run
    assert run.visits[:interrupt_after] == kept
    assert len(list(complete_rounds(run))) == 4
    assert listener.visits == 12 - 3 * (interrupt_after // 3)
    assert read_run(record).visits == run.visits
    once = run_cells(asked, bench, Listener()).run
    assert cell_tables(run) == cell_tables(once)

    again = Listener()
    assert run_cells(asked, bench, again, record=record, resume=True).run.visits == run.visits
    assert again.visits == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tiles_per_split": (2,)}, r"plan.tiles_per_split was \[1\], now \[2\]"),
        ({"data": DataSpec(seed=1)}, "plan.data.seed was 0, now 1"),
        ({"rounds": 4}, "plan.policy.rounds was 2, now 4"),
    ],
)
def test_another_plan_does_not_go_on(bench: Bench, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    record = tmp_path / "r.jsonl"
    run_cells(request(ROWS_1), bench, Listener(), record=record)
    before = record.read_bytes()
    with pytest.raises(BadInput, match=said):
        run_cells(request(ROWS_1, **change), bench, Listener(), record=record, resume=True)
    assert record.read_bytes() == before


def test_a_record_from_before_selections_and_clusters_is_gone_on_with(bench: Bench, tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    assert isinstance(run_cells(request(ROWS_1), bench, Listener(3), record=record).failure, KeyboardInterrupt)
    text = record.read_text()
    for later in (',"selections":[]', ',"clusters":null'):
        assert text.count(later) == 1
        text = text.replace(later, "")
    record.write_text(text)
    assert is_run_of(read_run(record), request(ROWS_1), bench.backend)
    run = run_cells(request(ROWS_1), bench, Listener(), record=record, resume=True).run
    assert len(list(complete_rounds(run))) == 2


def refuse_changed(bench: Bench, tmp_path: Path, old: str, new: str, said: str) -> int:
    """A run that was cut short, `old` replaced by `new` in its record, is not gone on with and stays as it is. How
    often `old` stood there."""
    record = tmp_path / "r.jsonl"
    run_cells(request(ROWS_1), bench, Listener(4), record=record)
    text = record.read_text()
    assert old in text
    record.write_text(text.replace(old, new))
    changed = record.read_bytes()
    with pytest.raises(BadInput, match=said):
        run_cells(request(ROWS_1), bench, Listener(), record=record, resume=True)
    assert record.read_bytes() == changed
    return text.count(old)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"backend":"cpu"', '"backend":"gpu"', "device.backend was 'gpu', now 'cpu'"),
        ('"kernel_hashes":{"previous":"', '"kernel_hashes":{"previous":"x', "kernel_hashes.previous was 'x"),
        ('"data_hash":"', '"data_hash":"x', "the inputs of op=decode,rows=1,.* differ from the record's"),
        ('"kind":"header"', '"kind":"heading"', "1: has kind 'heading'"),
        ('"schema_version":1', '"schema_version":2', "1: has schema_version 2"),
    ],
)
def test_a_changed_record_does_not_go_on(bench: Bench, tmp_path: Path, old: str, new: str, said: str) -> None:
    refuse_changed(bench, tmp_path, old, new, said)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (',"costs":null', "", "plan.costs was absent, now None"),
        (',"costs":null', ',"costs":null,"later":null', "plan.later was None, now absent"),
    ],
)
def test_a_field_that_a_header_lacks_is_named(bench: Bench, tmp_path: Path, old: str, new: str, said: str) -> None:
    assert refuse_changed(bench, tmp_path, old, new, said) == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("int8-tc/splits=3", "int8-tc/splits=2", "'int8-tc/splits=2': absent now"),
        ('"requested":[1]', '"requested":[0,1]', r"'int8-tc/splits=3': requested was \(0, 1\), now \(1,\)"),
        ('"ctas":6', '"ctas":24', "'int8-tc/splits=3': ctas was 24, now 6"),
    ],
)
def test_launches_of_other_code_do_not_go_on(bench: Bench, tmp_path: Path, old: str, new: str, said: str) -> None:
    """The kernels' hashes do not tell how a rule shares out a row; no round with both launches would be complete."""
    refuse_changed(bench, tmp_path, old, new, f"was measured with other launches \\({said}\\); begin another record")


def test_rounds_without_a_variant_that_is_right_now_are_taken_again(
    fake_timer: Any, tampered_backend: Any, tmp_path: Path
) -> None:
    record, asked = tmp_path / "r.jsonl", request(ROWS_1, rounds=4)
    for kernel, interrupt_after in (("int8-tc", 5), ("no kernel", None)):
        backend = tampered_backend(spoil(kernel))
        bench = Bench(backend, fake_timer(lambda *_: 1.0), "none")
        run = run_cells(asked, bench, Listener(interrupt_after), record=record, resume=True).run
        backend.close()
    assert {visit.variant for visit in run.visits if visit.round < 2 and visit.attempt == 0} == {"previous"}
    assert [(index, len(visits)) for _, index, visits in complete_rounds(run)] == [(index, 3) for index in range(4)]


def spoil(kernel: str) -> Callable[[VariantPlan, Any], None]:
    def tamper(plan: VariantPlan, out: Any) -> None:
        if plan.kernel == kernel:
            out[0, 0, 0] += 1

    return tamper


def test_a_wrong_variant_is_a_row_and_never_a_time(fake_timer: Any, tampered_backend: Any) -> None:
    """C7, KernelTuner/kernel_tuner#314."""
    backend = tampered_backend(spoil("int8-tc"))
    timer = fake_timer(lambda name, *_: 10.0 if name == "previous" else 5.0)
    run = run_cells(request(ROWS_1), Bench(backend, timer, "none"), Listener()).run
    backend.close()
    assert [(check.kernel, check.status) for check in run.checks] == [("previous", "ok"), ("int8-tc", "wrong_result")]
    assert "out[0, 0, 0] is " in (run.checks[1].reason or "")
    assert {visit.variant for visit in run.visits} == {"previous"}
    assert {name for name, _ in timer.calls} == {"previous"}
    (table,) = cell_tables(run)
    assert (table.rows[1].status, table.rows[1].time_us) == ("wrong_result", None)
    assert table.fastest is not None
    assert table.fastest.row is table.rows[0]


def test_nothing_right_is_nothing_timed(fake_timer: Any, tampered_backend: Any) -> None:
    def tamper(_: VariantPlan, out: Any) -> None:
        out[:] = 0

    backend = tampered_backend(tamper)
    timer = fake_timer(lambda *_: 1.0)
    run = run_cells(request(ROWS_1), Bench(backend, timer, "none"), Listener()).run
    backend.close()
    assert {check.status for check in run.checks} == {"wrong_result"}
    assert run.visits == []
    assert timer.calls == []


def test_rows_between_the_oracles_are_compared_with_previous(fake_timer: Any, tampered_backend: Any) -> None:
    """With 100 rows the oracle looks at 64; the row after the first checked pair is seen through `previous`."""
    shape = SparseShape(rows=100, context=128, candidates=64, query_heads=2, kv_heads=1, head_size=16)
    unseen = next(row for row in range(100) if row not in np.linspace(0, 99, 64).round())

    def tamper(plan: VariantPlan, out: Any) -> None:
        if plan.kernel == "int8-tc":
            out[unseen, 1, 3] += 1

    backend = tampered_backend(tamper)
    run = run_cells(request(shape), Bench(backend, fake_timer(lambda *_: 1.0), "none"), Listener()).run
    backend.close()
    assert run.checks[1].status == "wrong_result"
    assert f"out[{unseen}, 1, 3] is " in (run.checks[1].reason or "")
    assert "`previous`" in (run.checks[1].reason or "")


def test_a_timer_without_resolution_is_no_result(fake_timer: Any) -> None:
    """B1, triton-lang/triton#8948: no time, no speedup, in the run and in its table."""
    backend = CpuBackend()
    run = run_cells(request(ROWS_1), Bench(backend, fake_timer(lambda *_: 0.0), "none"), Listener()).run
    backend.close()
    assert {visit.status for visit in run.visits} == {"below_resolution"}
    (table,) = cell_tables(run)
    assert {(row.status, row.time_us, row.speedup) for row in table.rows} == {("below_resolution", None, None)}
    assert table.fastest is None
    assert table.noise is None


def test_a_budget_is_shared_by_the_cells(bench: Bench) -> None:
    """The fake timer takes no real time, so each cell's share ends by the clock."""
    listener = Listener()
    run = run_cells(request(ROWS_1, ROWS_8, rounds=None, budget_s=0.4), bench, listener).run
    assert listener.planned == [None, None]
    for key in (ROWS_1.key, ROWS_8.key):
        taken = {visit.round for visit in run.visits if visit.cell == key}
        assert len(taken) >= 2
        assert len(taken) % 2 == 0


def test_an_unreachable_record_measures_nothing(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    listener = Listener()
    with pytest.raises(BadInput, match=r"--record .*file/r.jsonl: cannot be written"):
        run_cells(request(ROWS_1), bench, listener, record=tmp_path / "file" / "r.jsonl")
    assert listener.cells == []


def test_paths_are_told_only_where_they_are_asked_for(fake_timer: Any) -> None:
    backend = CpuBackend()
    asked = request(ROWS_1, kernels=("int8-tc", "emulation"))
    for tell in (False, True):
        listener = Listener()
        timer = fake_timer(lambda *_: 1.0)
        run = run_cells(asked, Bench(backend, timer, "none", tell_paths=tell), listener).run
        ctas = {check.variant: check.ctas for check in run.checks if check.kernel == "emulation"}
        told = {name: sum(paths.values()) for name, paths in listener.paths.items() if paths}
        assert told == (ctas if tell else {})
    backend.close()


def test_a_kv_head_with_small_values_does_not_hide_behind_another(tampered_backend: Any) -> None:
    """All zeros in the heads whose output is 1e5 times smaller: invisible in the RMS error over all heads."""

    def tamper(_: VariantPlan, out: Any) -> None:
        out[:, :12] = 0

    inputs = sparse_inputs(SparseShape(2, 512, 256), DataSpec())
    inputs.value_scale[0] *= 1e-5
    for backend, status in ((CpuBackend(), "ok"), (tampered_backend(tamper), "wrong_result")):
        buffers = backend.load(inputs, "none")
        plan = backend.geometry.plan("previous", inputs.shape, None)
        checked = Checker(backend, inputs, buffers, reference(inputs)).check(plan, buffers.launcher(plan))
        assert checked.status == status, checked.reason
        backend.close()


def test_a_copy_of_the_inputs_that_gives_other_bits_is_wrong(tampered_backend: Any) -> None:
    """Cold launches rotate through copies; the last one is checked against the first."""
    calls: list[int] = []

    def tamper(_: VariantPlan, out: Any) -> None:
        calls.append(1)
        out[0, 0, 0] += len(calls) // 2 * out[0, 0, 0] / 128

    backend = tampered_backend(tamper)
    inputs = sparse_inputs(SparseShape(1, 512, 256), DataSpec())
    buffers = backend.load(inputs, "none")
    buffers.copies = 3
    plan = backend.geometry.plan("previous", inputs.shape, None)
    checked = Checker(backend, inputs, buffers, reference(inputs)).check(plan, buffers.launcher(plan))
    assert (checked.status, checked.reason) == ("wrong_result", "copy 2 of the inputs gives another output than copy 0")
    backend.close()
