# SPDX-License-Identifier: MIT
"""Oracle: recorded sweeps whose times, and so whose regrets, are given."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dsa_bench.model.device import DeviceSlots
from dsa_bench.model.errors import BadInput
from dsa_bench.report.plots.regret_map import SURE, UNSURE, regret_tile
from dsa_bench.report.regret import Scores, beyond, league, score, standing
from dsa_bench.report.regret_render import LEAGUE_WRITERS, REGRET_WRITERS, ROWS_ONLY, missing_lines
from dsa_bench.report.swept import run_slots, swept_cells
from dsa_bench.sweep.cell_times import CellTimes, cells_of_run

Sweep = Callable[..., Any]
H200 = DeviceSlots(132, 3)
SEED = {(4, 2048): {32: 11.94, 16: 10.40}, (8, 2048): {16: 13.2, 8: 12.7, 32: 18.8}}
"""Seed 000: 4 rows, 11.94 against 10.40; and 8 rows, where 8 splits beat the automatic 16."""


def scores(maker: Any, *rules: str, costs: Any = None, resident: int | None = None) -> Scores:
    run = maker.run()
    return score(swept_cells(run), rules, run_slots(run, resident), costs)


def test_regret_comes_from_raw_times(sweep: Sweep) -> None:
    """B6, google/benchmark#1482: 14.8 %, though the printed times give 14.4 %."""
    found = scores(sweep({(4, 2048): SEED[4, 2048]}, auto=32), "auto")
    (one,) = found.scored
    assert (one.splits, one.best_splits) == (32, 16)
    assert one.regret.cross_fitted == pytest.approx(11.94 / 10.40 - 1)
    text = REGRET_WRITERS["table"](found)
    assert "14.81%" in text
    assert "mean regret 14.81% [14.81% to 14.81%] over 1 shape, maximum 14.81% (rows 4, " in text


@pytest.mark.parametrize(("timer", "name"), [("cupti", "NVIDIA H200"), ("events", "NVIDIA H200"), ("cupti", "A100")])
def test_a_regret_below_a_known_tick_is_not_resolved(sweep: Sweep, timer: str, name: str) -> None:
    """However narrow its interval: 0.02 us is less than 32 ns, 0.04 us is not, and none is not named."""
    times = {(1, 2048): {16: 8.02, 8: 8.0}, (2, 2048): {16: 8.04, 8: 8.0}, (4, 2048): {16: 8.0, 8: 8.0}}
    run = sweep(times, auto=16, name=name).run()
    run.visits[:] = [visit._replace(timer=timer) for visit in run.visits]
    found = score(swept_cells(run), ["auto"], run_slots(run), None)
    known = (timer, name) == ("cupti", "NVIDIA H200")
    assert [one.is_below_tick for one in found.scored] == [known, False, False]
    said = (
        "auto: the regret of 1 shape (rows x candidates 1 x 2048) is less than a tick of cupti, 32 ns, and so not res"
    )
    assert (said in REGRET_WRITERS["table"](found)) == known
    assert [row["below_tick"] for row in json.loads(REGRET_WRITERS["json"](found))["rows"]] == [known, False, False]
    tile = regret_tile(found.scored[0], 2048)
    assert tile is not None
    assert tile.hatch == (UNSURE if known else SURE)


def test_rules_are_worked_out_from_the_recorded_slots(sweep: Sweep) -> None:
    """seed-wave takes 32 splits for 4 rows and 16 for 8; one-per-sm 16 and 8."""
    found = scores(sweep(SEED), "seed-wave", "one-per-sm")
    assert [(one.rule, one.cell.shape.rows, one.splits) for one in found.scored] == [
        ("seed-wave", 4, 32), ("one-per-sm", 4, 16), ("seed-wave", 8, 16), ("one-per-sm", 8, 8),
    ]  # fmt: skip
    table, shared = league(found)
    assert shared == 2
    assert [one.rule for one in table] == ["one-per-sm", "seed-wave"]
    worst = table[1]
    assert worst.total is not None
    assert worst.total.mean == pytest.approx((11.94 / 10.40 + 13.2 / 12.7) / 2 - 1)
    assert worst.total.maximum == pytest.approx(11.94 / 10.40 - 1)
    assert worst.worst is not None
    assert worst.worst.shape.rows == 4


def test_fewer_resident_ctas_change_what_a_rule_chooses(sweep: Sweep) -> None:
    (one,) = scores(sweep({(8, 2048): SEED[8, 2048]}, resident_ctas=1), "seed-wave").scored
    assert one.splits == 8


def test_the_league_averages_what_all_rules_share_and_names_the_rest(sweep: Sweep) -> None:
    """E2: a rule that a cell cannot score is said, and no average is over other cells than its neighbour's."""
    found = scores(sweep(SEED), "seed-wave", "one-per-sm", "fa3", "model")  # fa3: 14 and 7 splits, not measured
    table, shared = league(found)
    assert [one.rule for one in table] == ["one-per-sm", "seed-wave"]
    assert shared == 2
    text = LEAGUE_WRITERS["table"](found)
    assert (
        "fa3 is not scored in 1 shape (rows x candidates 4 x 2048): chooses 14 splits, which were not measured" in text
    )
    assert "model is not scored in 2 shapes (rows x candidates 4 x 2048, 8 x 2048): its constants are not given" in text
    found = scores(sweep({**SEED, (1, 2048): {32: 5.0}}), "seed-wave", "fa2", "seed-384")
    assert [one.reason for one in found.unscored if one.rule == "seed-384"] == [
        "chooses 24 splits, which were not measured; add --rules seed-384 to the sweep"
    ]
    assert league(found)[1] == 2


def test_no_shared_cell_is_said_and_no_average_is_made_up(sweep: Sweep) -> None:
    found = scores(sweep({(4, 2048): {32: 1.0}, (8, 2048): {7: 1.0}}), "seed-wave", "fa3")
    table, shared = league(found)
    assert shared == 0
    assert [one.total for one in table] == [None, None]
    for write in LEAGUE_WRITERS.values():
        assert "fa3" in write(found)


def test_records_without_resident_ctas_say_what_they_lack(sweep: Sweep) -> None:
    old = sweep(SEED, auto=16, resident_ctas=None)
    found = scores(old, "seed-wave", "fa2", "auto")
    assert {(one.rule, one.cell.shape.rows): one.splits for one in found.scored} == {
        ("seed-wave", 4): 16, ("auto", 4): 16, ("seed-wave", 8): 16, ("auto", 8): 16,
    }  # fmt: skip
    assert {one.reason for one in found.unscored} == {
        "the record does not say how many CTAs were resident; say it with --resident N"
    }
    assert [one.splits for one in scores(old, "seed-wave", resident=3).scored] == [32, 16]


def test_a_model_without_its_constants_is_what_the_sweep_measured_for_it(sweep: Sweep) -> None:
    found = scores(sweep(SEED, rules={16: ("model",)}), "model")
    assert [one.splits for one in found.scored] == [16, 16]


def test_a_variant_that_failed_is_no_best_and_no_choice(sweep: Sweep) -> None:
    """C7, KernelTuner/kernel_tuner#314: 1 us of a wrong result or of half the rounds wins nothing."""
    maker = sweep({(8, 2048): {16: 13.2, 8: 12.7}}, auto=16)
    maker.check("int8-tc/splits=2", 8, status="wrong_result", reason="out[0, 0, 0] is 3")
    maker.check("int8-tc/splits=32", 8, requested=(1,))
    visits = [
        line for line in maker.lines if getattr(line, "variant", "") == "int8-tc/splits=8" and line.kind == "visit"
    ]
    for visit in visits:
        time_us = None if visit.round % 2 else 1.0
        status = {"status": "below_resolution", "reason": "0 us"} if visit.round % 2 else {}
        copied = visit._replace(variant="int8-tc/splits=32", attention_us=time_us, call_us=time_us, **status)
        maker.lines.insert(maker.lines.index(visit) + 1, copied)
    (cell,) = swept_cells(maker.run())
    assert set(cell.times) == {"int8-tc/splits=16", "int8-tc/splits=8"}
    assert cell.left_out["int8-tc/splits=32"] == "times in 8 of 16 rounds (below_resolution: 0 us)"
    assert cell.left_out["int8-tc/splits=2"] == "wrong_result: out[0, 0, 0] is 3"
    found = scores(maker, "auto", "seed-wave")
    assert {one.regret.best for one in found.scored} == {"int8-tc/splits=8"}


@pytest.mark.parametrize(
    ("limit", "passes"), [(0.0, False), (0.09, False), (11.94 / 10.40 - 1 - 1e-6, False), (0.1482, True), (0.2, True)]
)
def test_the_gate_asks_whether_the_mean_is_surely_above(sweep: Sweep, limit: float, passes: bool) -> None:
    """E1, MinaProtocol/mina#19424: greater than, not almost equal."""
    found = scores(sweep({(4, 2048): SEED[4, 2048]}, auto=32), "auto")
    assert (beyond(found, limit) == []) == passes


def test_a_cell_whose_null_control_is_off_is_named(sweep: Sweep) -> None:
    """A regret of 0.00 % of times that differ from themselves by 5 % says nothing."""
    maker = sweep(SEED, auto=16)
    maker.lines[:] = [
        line._replace(attention_us=line.attention_us * 1.05)
        if line.kind == "visit" and line.control and "rows=8" in line.cell
        else line
        for line in maker.lines
    ]
    found = scores(maker, "auto")
    said = "one variant differs from itself beyond the margin in 1 shape (rows x candidates 8 x 2048); measure again"
    assert said in REGRET_WRITERS["table"](found)
    assert said in LEAGUE_WRITERS["table"](found)
    untrusted = json.loads(REGRET_WRITERS["json"](found))["untrusted"]
    assert [(one["rows"], one["candidates"], one["kernel"]) for one in untrusted] == [(8, 2048, "int8-tc")]
    assert not any("differs from itself" in line for line in missing_lines(scores(sweep(SEED, auto=16), "auto")))


def test_the_gate_lets_noise_pass_and_names_its_numbers(sweep: Sweep) -> None:
    noisy = scores(sweep({(4, 2048): {32: 10.1, 16: 10.0}}, auto=32, noise=0.05), "auto")
    assert beyond(noisy, 0.001) == []
    surely = scores(sweep(SEED, auto=16, noise=0.001), "seed-wave")
    (said,) = beyond(surely, 0.02)
    total = standing("seed-wave", surely.of("seed-wave")).total
    assert total is not None
    assert f"seed-wave: mean regret {total.mean:.2%} [" in said
    assert said.endswith("over 2 shapes lies above 2.00%")


def test_the_gate_refuses_what_it_cannot_see(sweep: Sweep) -> None:
    """E2, rjmurillo/moq.analyzers#1266: missing cells and missing intervals fail."""
    (missing, _) = beyond(scores(sweep(SEED), "fa3"), 0.5)
    assert missing.startswith(
        "fa3 has no regret in rows 4, context 8192, candidates 2048, heads 24/2: chooses 14 splits"
    )
    (short,) = beyond(scores(sweep(SEED, auto=16, rounds=8), "auto"), 0.5)
    assert short == "auto: 8 rounds are too few; 4 give an estimate, and 12 an interval"
    assert beyond(scores(sweep(SEED, auto=16, rounds=2), "auto"), 0.5)[0].startswith("auto: 2 rounds are too few")


def lacking(maker: Any, splits: int, rounds: tuple[int, ...]) -> Any:
    """The record with no time of a variant in some rounds."""
    read = {"attention_us": None, "call_us": None, "status": "below_resolution", "reason": "0 us"}
    maker.lines = [
        line._replace(**read)
        if line.kind == "visit" and line.splits == 1 and line.variant == f"int8-tc/splits={splits}"
        and not line.control and line.round in rounds
        else line
        for line in maker.lines
    ]  # fmt: skip
    return maker


def test_one_failed_visit_does_not_take_the_best_away(sweep: Sweep) -> None:
    """The best lost 1 of 16 rounds: the regret stays, on 15 rounds, as `tune` has it."""
    found = scores(lacking(sweep({(4, 2048): SEED[4, 2048]}, auto=32), 16, (5,)), "auto")
    (one,) = found.scored
    assert one.regret.cross_fitted == pytest.approx(11.94 / 10.40 - 1)
    assert one.regret.rounds == 15
    assert found.left_out == []
    assert "lies above 2.00%" in beyond(found, 0.02)[0]


def test_a_right_variant_that_is_left_out_is_said_and_fails_the_gate(sweep: Sweep) -> None:
    """Without the best, the automatic rule would have no regret."""
    made = lacking(sweep({(4, 2048): {32: 11.94, 16: 10.40, 8: 12.0}}, auto=32), 16, tuple(range(5)))
    made.check("int8-tc/splits=2", 4, requested=(16,), status="wrong_result", reason="out[0, 0, 0] is 3")
    found = scores(made, "auto")
    assert found.scored[0].regret.cross_fitted == pytest.approx(0.0)
    why = "times in 11 of 16 rounds (below_resolution: 0 us)"
    (said,) = beyond(found, 0.5)
    assert said == f"int8-tc/splits=16 does not compete in {found.cells[0].label}: {why}"
    for write in (*REGRET_WRITERS.values(), *LEAGUE_WRITERS.values()):
        assert (why in write(found)) == (write not in (REGRET_WRITERS[f] for f in ROWS_ONLY)
                                         and write not in (LEAGUE_WRITERS[f] for f in ROWS_ONLY))  # fmt: skip
    lines = missing_lines(found)
    assert lines == [
        f"int8-tc/splits=16 does not compete in 1 shape (rows x candidates 4 x 2048): {why}",
        "int8-tc/splits=2 does not compete in 1 shape (rows x candidates 4 x 2048): wrong_result: out[0, 0, 0] is 3",
    ]
    assert [one["variant"] for one in json.loads(REGRET_WRITERS["json"](found))["left_out"]] == [
        "int8-tc/splits=16", "int8-tc/splits=2"
    ]  # fmt: skip


def test_two_that_share_too_few_rounds_are_not_compared(sweep: Sweep) -> None:
    made = lacking(sweep({(4, 2048): SEED[4, 2048]}, auto=32), 16, (0, 1, 2))
    found = scores(lacking(made, 32, (8, 9, 10)), "auto")
    assert found.scored == []
    assert "10 of 16 rounds have a time of every launch that is left" in found.unscored[0].reason
    assert len(beyond(found, 0.5)) == 3


def test_regret_and_tune_read_one_record_alike(sweep: Sweep) -> None:
    """The same launches compete on the same rounds, and the same record is refused."""
    made = sweep({(4, 2048): {32: 11.94, 16: 10.40, 8: 12.0, 4: 15.0}}, auto=32)
    for splits, rounds in ((16, (5,)), (8, (0, 1, 2, 3, 9)), (4, (12, 13))):
        made = lacking(made, splits, rounds)
    run = made.run()
    (swept,), (tuned,) = swept_cells(run), cells_of_run(run, ("int8-tc",))
    assert isinstance(tuned, CellTimes)
    assert swept.rounds.tolist() == tuned.rounds.tolist()
    assert list(swept.left_out.items()) == tuned.failed
    assert [times.tolist() for times in swept.times.values()] == [times.tolist() for times in tuned.times.values()]
    mixed = replace(
        run, visits=[visit._replace(timer="events" if visit.round > 7 else "cupti") for visit in run.visits]
    )
    for read in (swept_cells, lambda mixed: cells_of_run(mixed, ("int8-tc",))):
        with pytest.raises(BadInput, match="cupti, L2 none and events, L2 none, which are never compared"):
            read(mixed)


@pytest.mark.parametrize("rounds", [2, 4, 8, 16])
def test_every_format_says_the_same_and_machine_formats_hold_raw_numbers(sweep: Sweep, rounds: int) -> None:
    found = scores(sweep(SEED, auto=16, rounds=rounds, noise=0.01), "auto", "one-per-sm", "fa3")
    document = json.loads(REGRET_WRITERS["json"](found))
    assert (document["schema"], document["schema_version"]) == ("dsa-bench/regret", 1)
    rows = [json.loads(line) for line in REGRET_WRITERS["jsonl"](found).splitlines()]
    assert rows == document["rows"]
    assert len(rows) == len(REGRET_WRITERS["csv"](found).splitlines()) - 1 == 4
    assert rows[0]["regret"] == found.scored[0].regret.cross_fitted
    assert {one["rule"] for one in document["unscored"]} == {"fa3"}
    assert [one["rule"] for one in document["overall"]] == ["auto", "one-per-sm", "fa3"]
    for write in (REGRET_WRITERS["table"], REGRET_WRITERS["markdown"], *LEAGUE_WRITERS.values()):
        assert write(found) == write(found)
        assert "one-per-sm" in write(found)
        assert write(found).isascii()


def test_what_is_no_sweep_is_refused(maker: Any, sweep: Sweep, two_cells: Any) -> None:
    with pytest.raises(BadInput, match="no complete round of a split kernel"):
        swept_cells(maker.header().run())
    for wrong in (0, -3, "132", True, 2.5):
        with pytest.raises(BadInput, match="sm_count"):
            run_slots(sweep(SEED, sm_count=wrong).run())
    with pytest.raises(BadInput, match="resident_ctas"):
        run_slots(sweep(SEED, resident_ctas=0).run())
    assert [list(cell.times) for cell in swept_cells(two_cells.run())] == [["int8-tc/splits=16"]] * 2


def test_markup_in_a_record_is_data(sweep: Sweep) -> None:
    """A8, agsaru/Repo2Readme#187."""
    maker = sweep({(4, 2048): {16: 1.0}})
    maker.check("int8-tc/splits=32", 4, status="launch_refused", reason="[/red] \x1b[31m | x")
    text = LEAGUE_WRITERS["table"](scores(maker, "seed-wave", "one-per-sm"))
    assert "[/red] \\x1b[31m | x" in text


def test_int8_digits_is_scored_against_its_own_launches_and_by_its_own_rule(sweep: Sweep) -> None:
    """Its clusters merge inside the kernel: no named rule chooses them, and its launches are no choice of int8-tc's."""
    maker = sweep(SEED, auto=16)
    digits = sweep({(4, 2048): {8: 7.6, 16: 8.0}, (8, 2048): {8: 10.5, 16: 21.0}}, auto=8)
    for line in digits.lines[1:]:
        named = line.variant.replace("int8-tc", "int8-digits")
        kernel = {"kernel": "int8-digits"} if line.kind == "check" else {"control": False}
        changed = (
            line._replace(variant=named, **kernel) if line.kind == "visit" else replace(line, variant=named, **kernel)
        )
        if line.kind == "check" or not line.control:
            maker.lines.append(changed)
    found = scores(maker, "auto", "one-per-sm")
    of_kernel = [(one.cell.kernel, one.rule, one.splits, one.best_splits) for one in found.scored]
    assert of_kernel == [
        ("int8-tc", "auto", 16, 16), ("int8-tc", "one-per-sm", 16, 16), ("int8-digits", "auto", 8, 8),
        ("int8-tc", "auto", 16, 8), ("int8-tc", "one-per-sm", 8, 8), ("int8-digits", "auto", 8, 8),
    ]  # fmt: skip
    text = REGRET_WRITERS["table"](found)
    assert "auto: mean regret 1.97% " in text
    assert "auto, int8-digits: mean regret 0.00% " in text
    assert [row["rule"] for row in json.loads(REGRET_WRITERS["json"](found))["overall"]] == [
        "auto", "auto, int8-digits", "one-per-sm",
    ]  # fmt: skip
