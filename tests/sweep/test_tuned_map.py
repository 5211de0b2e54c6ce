# SPDX-License-Identifier: MIT
"""Maps from recorded sweeps whose times are made up: the truth is known."""

import itertools
import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from binomial import most_wrong

from dsa_bench.dispatch.look_up import MapTable
from dsa_bench.dispatch.map_file import map_text
from dsa_bench.model.errors import BadInput
from dsa_bench.model.record import Visit
from dsa_bench.model.run import Run
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.splits_map import MapRule
from dsa_bench.sweep.tuned_map import tuned_map


def shape(rows: int, candidates: int = 2048, **changes: Any) -> SparseShape:
    return SparseShape(rows, 8192, candidates, **changes)


ROWS_8 = shape(8)
"""32 tiles; with 396 slots the automatic rule takes 2 tiles per split."""


def times(**us: float) -> Any:
    """Microseconds by tiles of the longest split, t1=..., whatever the shape."""
    return lambda _, tiles: us[f"t{tiles}"]


FLAT = times(t1=12.0, t2=12.0, t4=12.0, t8=12.0)
FOUR_WINS = times(t1=13.0, t2=12.7, t4=11.0, t8=14.0)


def rules(run: Run) -> tuple[MapRule, ...]:
    (table,) = tuned_map(run).splits_map.tables
    return table.rules


def test_a_sure_gain_is_a_rule(sweep: Any) -> None:
    tuned = tuned_map(sweep([ROWS_8], FOUR_WINS))
    (table,) = tuned.splits_map.tables
    assert table.rules == (MapRule((8, 8), (32, 32), 4),)
    (cell,) = table.cells
    assert (cell.rows, cell.tiles, cell.auto, cell.best, cell.ties) == (8, 32, 2, 4, ())
    assert list(cell.us) == ["1", "2", "4", "8"]
    assert cell.ratio[1] < 11 / 12.7 < cell.ratio[2]
    assert (table.kernel_hash, table.cta_slots, table.l2) == ("1" * 16, 396, "none")
    assert (table.policy.timer, table.policy.rounds, table.policy.context) == ("wall", 16, 8192)
    assert tuned.splits_map.created == "2026-01-02T03:04:05Z"
    assert tuned.splits_map.generator == "dsa-bench 0.1.0"


def test_twenty_seeds_give_the_same_rules(sweep: Any) -> None:
    """C8, flashinfer-ai/flashinfer#4433: 0.2 us of noise on 12.72 against 12.70, automatic inside the band."""
    close = times(t1=14.0, t2=12.72, t4=12.70, t8=15.0)
    for seed in range(20):
        (table,) = tuned_map(sweep([ROWS_8], close, noise=0.2 / 12.7, seed=seed)).splits_map.tables
        assert table.rules == ()
        (cell,) = table.cells
        assert {cell.best, *cell.ties} == {2, 4}
    for seed in range(20):
        far = times(t1=14.0, t2=12.72, t4=11.0, t8=15.0)
        assert rules(sweep([ROWS_8], far, noise=0.2 / 12.7, seed=seed)) == (MapRule((8, 8), (32, 32), 4),)


def test_the_tie_nearest_to_the_automatic_value_is_taken(sweep: Any) -> None:
    """C8, KernelTuner/kernel_tuner#282: of 4 and 8, equally fast, always 4, because automatic is 2."""
    for seed in range(10):
        equal = times(t1=14.0, t2=13.0, t4=11.0, t8=11.0)
        assert rules(sweep([ROWS_8], equal, noise=0.003, seed=seed)) == (MapRule((8, 8), (32, 32), 4),)


def test_the_same_samples_give_the_same_bytes(sweep: Any) -> None:
    """C8, and E7, rapidsai/asvdb#10: in whatever order they were recorded."""
    run = sweep([shape(rows, n) for rows in (1, 2, 8) for n in (512, 2048)], FOUR_WINS)
    text = map_text(tuned_map(run).splits_map)
    for seed in range(3):
        checks, visits = list(run.checks), list(run.visits)
        random.Random(seed).shuffle(checks)
        random.Random(seed).shuffle(visits)
        assert map_text(tuned_map(Run(run.header, checks, visits)).splits_map) == text


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 4, 8))))
def test_only_right_and_timed_launches_compete(sweep: Any, order: tuple[int, ...]) -> None:
    """C7, KernelTuner/kernel_tuner#314: 1 raises, 2 has no time, 4 takes 11.0, 8 takes 12.0; automatic is 16."""
    slow = times(t1=5.0, t2=5.0, t4=11.0, t8=12.0, t16=20.0)
    run = sweep([ROWS_8], slow, values=(16, 0, *order), slots=32, fails={1: "compile_failed", 2: math.nan})
    tuned = tuned_map(run)
    (table,) = tuned.splits_map.tables
    assert table.rules == (MapRule((8, 8), (32, 32), 4),)
    assert list(table.cells[0].us) == ["4", "8", "16"]
    assert tuned.cells[0].failed == [
        ("int8-tc/splits=32", "compile_failed: out[0, 0, 0] is 9"),
        ("int8-tc/splits=16", "times in 0 of 16 rounds (below_resolution: read 0 us)"),
    ]


def test_a_wrong_launch_never_wins(sweep: Any) -> None:
    """C7: {0: 11.0, 4: wrong output}."""
    run = sweep([ROWS_8], times(t2=11.0, t4=1.0), values=(0, 4), fails={4: "wrong_result"})
    tuned = tuned_map(run)
    assert tuned.splits_map.tables[0].rules == ()
    assert tuned.splits_map.tables[0].cells[0].us.keys() == {"2"}


def test_a_cell_without_its_automatic_rule_is_lost(sweep: Any) -> None:
    run = sweep([ROWS_8], FOUR_WINS, fails={0: "wrong_result"})
    tuned = tuned_map(run)
    assert tuned.splits_map.tables == ()
    assert [(one.shape, one.reason) for one in tuned.lost] == [
        (ROWS_8, "the automatic rule's launch int8-tc/splits=16 has no times")
    ]


def test_all_failed_is_no_cell(sweep: Any) -> None:
    """C7, The-OpenROAD-Project/OpenROAD-flow-scripts#1406."""
    run = sweep([ROWS_8], FOUR_WINS, fails=dict.fromkeys((0, 1, 2, 4, 8), "wrong_result"))
    assert tuned_map(run).splits_map.tables == ()


def test_equal_launches_write_no_rule(sweep: Any) -> None:
    """Do no harm: 20 cells that are all the same (decision 0016: in 0 of 40 maps)."""
    shapes = [shape(rows, n) for rows in (1, 2, 4, 8) for n in (512, 1024, 2048, 4096, 8192)]
    for seed in range(4):
        run = sweep(shapes, lambda *_: 12.0, noise=0.02, seed=seed, values=(0, 1, 2, 3, 4, 6, 8, 16))
        assert rules(run) == ()


def test_a_gain_of_just_the_margin_is_a_rule_in_one_map_of_twenty(sweep: Any) -> None:
    """Every other launch gains the margin exactly: the chance that any cell of a map has a rule is 5 % at most."""
    shapes = [shape(1), shape(8)]
    runs = 40
    wrong = sum(
        bool(rules(sweep(shapes, times(t1=10.1, t2=10.1, t4=10.0), noise=0.01, seed=seed, values=(0, 4))))
        for seed in range(runs)
    )
    assert wrong <= most_wrong(runs, 0.05)


def test_a_gain_within_the_margin_is_no_rule(sweep: Any) -> None:
    """Do no harm: 0.8 % is below the margin of 1 %, however sure it is; 1.5 % is above."""
    for gain, count in ((1.008, 0), (1.015, 1)):
        run = sweep([ROWS_8], times(t1=13.0, t2=11.0 * gain, t4=11.0, t8=13.0), noise=0.0005)
        assert len(rules(run)) == count


def test_neighbours_share_a_rule_and_unshared_cells_do_not(sweep: Any) -> None:
    """C4, vllm-project/vllm#52192: rows 3 has what rows 2 and 4 share, rows 9 and 4096 the automatic rule."""
    shapes = [shape(rows) for rows in (1, 2, 4, 8)]
    table = tuned_map(sweep(shapes, lambda s, tiles: 11.0 if tiles == 4 and s.rows < 8 else 13.0)).splits_map.tables[0]
    assert table.rules == (MapRule((1, 4), (32, 32), 4),)
    look_up = MapTable(table).value
    assert [look_up(rows, 32) for rows in (3, 8, 9, 4096)] == [4, None, None, None]


def test_neighbours_share_a_value_that_costs_neither_much(sweep: Any) -> None:
    """Rows 1 takes 4 or 8, rows 2 only 8 within the limit of 1 %: one rule of 8."""

    def time_us(s: SparseShape, tiles: int) -> float:
        return {1: 14.0, 2: 13.5, 4: 11.0 if s.rows == 1 else 11.6, 8: 11.03 if s.rows == 1 else 11.0}[tiles]

    assert rules(sweep([shape(1), shape(2)], time_us, noise=0.0005)) == (MapRule((1, 2), (32, 32), 8),)


def test_a_rule_of_one_value_covers_lists_of_other_lengths(sweep: Any) -> None:
    """8 tiles: 8 tiles per split are one split, as 16 would be."""
    shapes = [shape(8, 512), shape(8, 1024), shape(8, 2048)]
    run = sweep(shapes, lambda s, tiles: 10.0 if tiles == min(16, s.tiles) else 13.0, values=(0, 1, 2, 4, 8, 16))
    assert rules(run) == (MapRule((8, 8), (8, 32), 16),)


def test_an_untrusted_cell_has_to_gain_more_than_its_control_was_off(sweep: Any) -> None:
    """FOUR_WINS gains 15 %."""
    assert len(rules(sweep([ROWS_8], FOUR_WINS, control=1.05))) == 1
    assert rules(sweep([ROWS_8], FOUR_WINS, control=1 / 1.16)) == ()
    tuned = tuned_map(sweep([ROWS_8], FOUR_WINS, control=1.05))
    assert [cell.shape for cell in tuned.untrusted] == [ROWS_8]
    null = tuned.splits_map.tables[0].validation.null_control
    assert null is not None
    assert (null.untrusted, null.rows, null.tiles) == (1, 8, 32)
    assert null.ratio == pytest.approx(1.05, abs=0.01)


def test_the_validation_says_what_the_rules_are_worth(sweep: Any) -> None:
    """Automatic loses 13/11 - 1 in each of four cells; the rule nothing; held out, the outer cells lose it again."""
    shapes = [shape(rows) for rows in (1, 2, 4, 8)]
    validation = (
        tuned_map(sweep(shapes, lambda _, tiles: 11.0 if tiles == 4 else 13.0, noise=0.001))
        .splits_map.tables[0]
        .validation
    )
    assert validation.regret_auto is not None
    assert validation.regret_map is not None
    assert validation.held_out is not None
    assert validation.regret_auto.mean == pytest.approx(2 / 11, abs=0.005)
    assert validation.regret_map.mean == pytest.approx(0, abs=0.005)
    assert validation.held_out.mean == pytest.approx(1 / 11, abs=0.005)
    assert validation.held_out.max == pytest.approx(2 / 11, abs=0.005)
    assert (validation.held_out.cells, validation.held_out.tiles) == (4, 32)
    low, high = validation.regret_auto.low, validation.regret_auto.high
    assert low is not None
    assert high is not None
    assert low < 2 / 11 < high


def test_heads_are_apart(sweep: Any) -> None:
    """C5, flashinfer-ai/flashinfer#3363: KV heads 2 and 4, both rows 8 and 2048 candidates, with opposite winners."""
    shapes = [shape(8, query_heads=24, kv_heads=2), shape(8, query_heads=48, kv_heads=4)]
    run = sweep(shapes, lambda s, tiles: 11.0 if tiles == (4 if s.kv_heads == 2 else 8) else 13.0)
    tables = tuned_map(run).splits_map.tables
    assert [(t.kv_heads, t.group, t.rules[0].tiles_per_split) for t in tables] == [(2, 12, 4), (4, 12, 8)]


def test_two_cells_of_one_entry_are_refused(sweep: Any) -> None:
    run = sweep([shape(8), replace(shape(8), context=2048)], FOUR_WINS)
    with pytest.raises(BadInput, match=r"at contexts 2048 and 8192, .*choose one with --context"):
        tuned_map(run)
    assert tuned_map(run, context=2048).splits_map.tables[0].policy.context == 2048
    with pytest.raises(BadInput, match="are both 32 tiles"):
        tuned_map(sweep([shape(8, 2048), shape(8, 2047)], FOUR_WINS))
    with pytest.raises(BadInput, match="holds no decode cell of int8-tc with context 7"):
        tuned_map(run, context=7)


def test_runs_that_cannot_be_a_map_are_refused(sweep: Any) -> None:
    with pytest.raises(BadInput, match=r"rows=8.* has 14 complete rounds and a map needs 16"):
        tuned_map(sweep([ROWS_8], FOUR_WINS, rounds=14))
    with pytest.raises(BadInput, match=r"^the run: .* was measured without the automatic rule"):
        tuned_map(sweep([ROWS_8], FOUR_WINS, values=(1, 2, 4)))
    run = sweep([ROWS_8], FOUR_WINS)
    mixed = Run(run.header, run.checks, [v._replace(timer="events") if v.round > 7 else v for v in run.visits])
    with pytest.raises(BadInput, match=r"^the run: .*events, L2 none and wall, L2 none"):
        tuned_map(mixed)
    bad = Run(replace(run.header, device={**run.header.device, "name": 7}), run.checks, run.visits)
    with pytest.raises(BadInput, match="/device/name of the map is 7, must be a text"):
        tuned_map(bad)


def test_a_map_from_a_record_of_20_shapes_is_quick(sweep: Any) -> None:
    """Within 3 s on two cores with the reading of the record (tests/cli/test_tune.py); most of it is this."""
    shapes = [shape(rows, n) for rows in (1, 2, 4, 8) for n in (512, 1024, 2048, 4096, 8192)]
    run = sweep(shapes, lambda s, tiles: 11.0 + tiles / s.rows, values=(0, 1, 2, 3, 4, 6, 8, 16))
    start = time.process_time()
    tuned_map(run)
    assert time.process_time() - start < 2.5


def without(run: Run, gone: Callable[[Visit], bool]) -> Run:
    """The run with no time in the visits that are gone."""
    read = {"attention_us": None, "call_us": None, "status": "below_resolution", "reason": "read 0 us"}
    return replace(run, visits=[visit._replace(**read) if gone(visit) else visit for visit in run.visits])


def place(visit: Visit) -> int:
    """Of the visit's variant among 32, 16, 8, 4 splits."""
    return (32, 16, 8, 4).index(visit.splits)


@pytest.mark.parametrize("failure", ["wrong_result", "no times"])
def test_no_rule_spans_a_shape_that_was_measured_and_failed(sweep: Any, failure: str) -> None:
    """Rows 1 and 4 share a value; rows 2 lie between them, and there nothing is known to be right."""
    run = sweep([shape(1), shape(2), shape(4)], lambda s, tiles: 11.0 if tiles == 4 else 13.0)
    assert rules(run) == (MapRule((1, 4), (32, 32), 4),)
    key = shape(2).key
    if failure == "wrong_result":
        checks = [replace(one, status="wrong_result", reason="out") if one.cell == key else one for one in run.checks]
        failed = replace(run, checks=checks, visits=[visit for visit in run.visits if visit.cell != key])
    else:
        failed = without(run, lambda visit: visit.cell == key)
    assert [one.shape for one in tuned_map(failed).lost] == [shape(2)]
    assert rules(failed) == (MapRule((1, 1), (32, 32), 4), MapRule((4, 4), (32, 32), 4))


def test_held_out_rules_do_not_span_it_either(sweep: Any) -> None:
    """Without rows 2, rows 1 and 8 would share a rule; rows 4 failed, so rows 2 held out get the automatic one."""
    four = sweep([shape(1), shape(2), shape(4), shape(8)], lambda s, tiles: 11.0 if tiles == 4 else 13.0, noise=0.001)
    whole, failed = (
        tuned_map(run).splits_map.tables[0].validation.held_out
        for run in (four, without(four, lambda visit: visit.cell == shape(4).key))
    )
    assert whole is not None
    assert failed is not None
    assert whole.mean == pytest.approx(1 / 11, abs=0.005), "rows 2 and 4 lie inside"
    assert failed.mean == pytest.approx(2 / 11, abs=0.005), "none of the three does"


def test_a_map_rests_on_the_rounds_that_all_its_launches_have(sweep: Any) -> None:
    """Launch k of four lacks rounds k, k + 4, ...: each competes with 12 of 16, and no round has all."""
    run = sweep([ROWS_8, shape(4)], FOUR_WINS)
    apart = without(run, lambda visit: visit.cell == ROWS_8.key and visit.round % 4 == place(visit))
    tuned = tuned_map(apart)
    (lost,) = tuned.lost
    assert (lost.shape, lost.timed, lost.unfinished) == (ROWS_8, True, False)
    assert lost.reason.startswith("the automatic rule's launch int8-tc/splits=16 cannot be compared with: times in 12")
    assert "rounds have a time of every launch that is left" in lost.reason
    assert [cell.shape for cell in tuned.cells] == [shape(4)]


def test_the_launch_with_most_gaps_goes_first(sweep: Any) -> None:
    """8 splits lack 2 rounds and 32 splits 4, all apart: without the latter 14 rounds are shared."""
    gaps = {32: (2, 3, 6, 7), 8: (0, 1)}
    run = without(sweep([ROWS_8], FOUR_WINS), lambda visit: visit.round in gaps.get(visit.splits, ()))
    tuned = tuned_map(run)
    (cell,) = tuned.cells
    assert cell.rounds.tolist() == list(range(2, 16))
    assert cell.failed == [
        ("int8-tc/splits=32", "times in 12 of 16 rounds (below_resolution: read 0 us); 10 of 16 rounds have a time of "
         "every launch that is left")
    ]  # fmt: skip
    assert tuned.splits_map.tables[0].policy.rounds == 14
    assert rules(run) == (MapRule((8, 8), (32, 32), 4),)
