# SPDX-License-Identifier: MIT
"""Maps that choose among kernels, from recorded sweeps whose times are made up: the truth is known."""

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_doubles import H200

from dsa_bench.dispatch.map_file import map_text, parse_map
from dsa_bench.model.documents import Misfit
from dsa_bench.model.map_parts import Target
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.splits_map import MapRule, SplitTable
from dsa_bench.report.map_verify import Gain, verified_cells
from dsa_bench.splits import kernels
from dsa_bench.splits.digits import asked_digit_splits, cluster_counts, digit_splits, smallest_digit_target
from dsa_bench.sweep.tune import summary_of, warnings_of
from dsa_bench.sweep.tuned import verify_request
from dsa_bench.sweep.tuned_map import Tuned, tuned_map


@pytest.fixture(autouse=True, scope="module")
def faster_with_one_row() -> Iterator[None]:
    """What is said of maps here does not depend on where `int8-digits` runs without one: with 1 row alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "FASTER_DIGITS", {"9.0": (kernels.Measured((1, 1), (8, 128), 2, 12),)})
        yield


def shape(rows: int, candidates: int = 2048) -> SparseShape:
    return SparseShape(rows, 8192, candidates)


def tc(_: SparseShape, tiles: int) -> float:
    """32 tiles, automatic 1 with 1 to 4 rows and 2 with 8: what one tile and four cost."""
    return {1: 8.0, 2: 8.0, 4: 9.0, 8: 14.0}[tiles]


def tables(tuned: Tuned) -> dict[str, SplitTable]:
    return {table.kernel: table for table in tuned.splits_map.tables if isinstance(table, SplitTable)}


def times(**us: float) -> Any:
    """Of clusters, by tiles of the longest split."""
    return lambda _, tiles: us[f"t{tiles}"]


def test_a_kernel_that_is_surely_faster_is_a_rule_of_its_own_table(sweep: Any) -> None:
    """4 rows: a cluster of 8 is automatic, 4 tiles; 32 splits do not fit, so 1 is 16 splits there as 2 is."""
    tuned = tuned_map(sweep([shape(4)], tc, digits=times(t2=11.7, t4=7.0, t8=12.0)))
    found = tables(tuned)
    assert found["int8-tc"].rules == ()
    assert found["int8-digits"].rules == (MapRule((4, 4), (32, 32), 3),)  # 3 and 4 are one launch, the smaller stands
    (cell,) = found["int8-digits"].cells
    assert (cell.auto, cell.best, list(cell.us)) == (3, 3, ["2", "3", "8"])
    assert cell.against is not None
    assert (cell.against.kernel, cell.against.tiles_per_split) == ("int8-tc", 1)
    assert cell.against.ratio[0] == pytest.approx(7 / 8, rel=0.02)
    assert found["int8-tc"].cells[0].against is None
    facts = found["int8-digits"]
    assert (facts.kernel_hash, facts.cta_slots, facts.clusters) == ("2" * 16, 132, H200.clusters)
    assert (found["int8-tc"].cta_slots, found["int8-tc"].clusters) == (396, None)
    assert found["int8-tc"].validation == facts.validation


@pytest.mark.parametrize("digits", [8.0, 8.0 / 1.005, 9.0])
def test_a_kernel_that_is_no_more_than_the_margin_faster_is_no_rule(sweep: Any, digits: float) -> None:
    """Do no harm: 20 sweeps of equal kernels, and of one 0.5 % or less faster, take what runs without a map."""
    for seed in range(20):
        made = tuned_map(sweep([shape(4)], tc, digits=times(t2=12.0, t4=digits, t8=13.0), seed=seed))
        assert [table.rules for table in made.splits_map.tables] == [(), ()]


def test_a_tie_of_two_kernels_goes_to_the_one_that_runs_without_a_map(sweep: Any) -> None:
    """8 rows, automatic 2: 4 tiles of int8-tc and a cluster of 6 are equally fast, and both surely faster."""
    fast = lambda _, tiles: {1: 14.0, 2: 13.0, 4: 11.0, 8: 15.0}[tiles]  # noqa: E731
    for seed in range(10):
        found = tables(tuned_map(sweep([shape(8)], fast, digits=times(t2=20.0, t4=15.0, t6=11.0, t8=12.0), seed=seed)))
        assert (found["int8-tc"].rules, found["int8-digits"].rules) == ((MapRule((8, 8), (32, 32), 4),), ())


def test_where_int8_digits_runs_without_a_map_a_rule_may_take_int8_tc(sweep: Any) -> None:
    """1 row of 32 tiles on an H200; on a device of another capability it is int8-tc that runs."""
    of_tc = lambda _, tiles: {1: 8.0, 2: 9.0, 4: 9.5, 8: 14.0}[tiles]  # noqa: E731
    slow = times(t1=12.0, t2=10.0, t4=11.0, t8=14.0)
    found = tables(tuned_map(sweep([shape(1)], of_tc, digits=slow)))
    assert (found["int8-tc"].rules, found["int8-digits"].rules) == ((MapRule((1, 1), (32, 32), 1),), ())
    (cell,) = found["int8-tc"].cells
    assert cell.against is not None
    assert (cell.against.kernel, cell.against.tiles_per_split, cell.auto) == ("int8-digits", 2, 1)
    other = replace(H200, compute_capability="10.0")
    assert [one.rules for one in tables(tuned_map(sweep([shape(1)], of_tc, digits=slow, device=other))).values()] == [
        (),
        (),
    ]


def test_rules_of_two_kernels_are_as_few_as_they_can_be_and_never_meet(sweep: Any) -> None:
    def digits(of: SparseShape, tiles: int) -> float:
        return {1: 12.5, 2: 11.7, 4: 6.0, 6: 12.0, 8: 12.0}[tiles] if of.rows < 8 else 20.0

    def of_tc(of: SparseShape, tiles: int) -> float:
        return 7.0 if of.rows == 8 and tiles == 4 else tc(of, tiles)

    shapes = [shape(rows) for rows in (2, 4, 8)]
    tuned = tuned_map(sweep(shapes, of_tc, digits=digits))
    found = tables(tuned)
    assert found["int8-digits"].rules == (MapRule((2, 4), (32, 32), 3),)
    assert found["int8-tc"].rules == (MapRule((8, 8), (32, 32), 4),)
    validation = found["int8-tc"].validation
    assert validation.regret_map is not None
    assert validation.regret_map.mean == pytest.approx(0, abs=0.01)
    assert validation.held_out is not None
    assert validation.held_out.mean > 0.05  # without a cell no rule reaches it
    assert [line.partition(":")[0] for line in summary_of(tuned)] == [table.name for table in found.values()]


def test_a_shape_without_a_time_of_int8_digits_stays_in_the_table_of_int8_tc(sweep: Any) -> None:
    """Its automatic launch was wrong, so none of its launches competes, and the map says so."""
    run = sweep([shape(4)], tc, digits=times(t2=5.0, t4=5.0, t8=5.0), control=1.0)
    checks = [
        replace(one, status="wrong_result", reason="out[0] is 9") if one.variant == "int8-digits/splits=8" else one
        for one in run.checks
    ]
    visits = [visit for visit in run.visits if visit.variant != "int8-digits/splits=8"]
    tuned = tuned_map(replace(run, checks=checks, visits=visits))
    assert [table.kernel for table in tuned.splits_map.tables] == ["int8-tc"]
    said = list(warnings_of(tuned))
    assert any(
        "int8-digits/splits=16 does not compete" in line
        and "int8-digits/splits=8, the automatic launch of its kernel, has no times" in line
        for line in said
    )


def test_rules_of_two_kernels_for_one_launch_are_a_contradiction(sweep: Any) -> None:
    tuned = tuned_map(sweep([shape(4)], tc, digits=times(t2=11.7, t4=7.0, t8=12.0)))
    content = json.loads(map_text(tuned.splits_map))
    content["tables"][0]["rules"] = [{"rows": [4, 4], "tiles": [32, 32], "tiles_per_split": 2}]
    with pytest.raises(Misfit, match="one launch cannot take int8-digits and int8-tc") as refused:
        parse_map(json.dumps(content).encode())
    assert refused.value.place == "/tables/1/rules/0"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("kernel", "foo", "/kernel is 'foo', must be int8-tc: what the table's kernel replaces"),
        ("kernel", "int8-digits", "/kernel is 'int8-digits', must be int8-tc"),
        ("ratio", [0.9, 1.0, 1.1], "/ratio 0.9 must lie between its ends 1 and 1.1"),
        ("tiles_per_split", 2, r" says 2 tiles per split and 8\.\d+ us of int8-tc, whose own cell has 1 "),
        ("us", 0.5, r" says 1 tiles per split and 0.5 us of int8-tc, whose own cell has 1 \(auto\) and 8\.\d+ us"),
    ],
)
def test_what_a_kernel_replaces_is_held_against_its_own_cell(sweep: Any, field: str, value: Any, said: str) -> None:
    content = json.loads(map_text(tuned_map(sweep([shape(4)], tc, digits=times(t2=11.7, t4=7.0, t8=12.0))).splits_map))
    content["tables"][1]["cells"][0]["against"][field] = value
    with pytest.raises(Misfit) as refused:
        parse_map(json.dumps(content).encode())
    assert re.match(f"/tables/1/cells/0/against{said}", f"{refused.value.place} {refused.value}")


def test_two_kernels_cannot_both_run_without_the_map(sweep: Any) -> None:
    content = json.loads(map_text(tuned_map(sweep([shape(4)], tc, digits=times(t2=11.7, t4=7.0, t8=12.0))).splits_map))
    ours, digits = (table["cells"][0] for table in content["tables"])
    ours["against"] = {"kernel": "int8-digits", "tiles_per_split": digits["auto"], "us": digits["auto_us"],
                       "ratio": [1.1, 1.1, 1.1]}  # fmt: skip
    with pytest.raises(Misfit, match="says that int8-digits runs without the map, whose own cell says that of int8-tc"):
        parse_map(json.dumps(content).encode())


def test_of_several_versions_of_the_replaced_kernel_one_has_to_agree(sweep: Any) -> None:
    content = json.loads(map_text(tuned_map(sweep([shape(4)], tc, digits=times(t2=11.7, t4=7.0, t8=12.0))).splits_map))
    older = copy.deepcopy(content["tables"][0])
    older["kernel_hash"] = "9" * 16
    older["cells"][0]["us"]["1"] = older["cells"][0]["auto_us"] = 9.0
    content["tables"].insert(0, older)
    parse_map(json.dumps(content).encode())
    content["tables"].pop(1)
    with pytest.raises(Misfit, match="and 9 us"):
        parse_map(json.dumps(content).encode())


@pytest.mark.parametrize(
    ("clusters", "said"),
    [
        ({"016": 7}, "is no size"),
        ({"a": 7}, "is no size"),
        ({"16": -1}, "must be an integer"),
        ({}, "holds no count above 0"),
        ({"16": 0, "8": 0}, "holds no count above 0"),
    ],
)
def test_clusters_that_are_none_are_named_with_their_place(sweep: Any, clusters: Any, said: str) -> None:
    content = json.loads(map_text(tuned_map(sweep([shape(4)], tc, digits=times(t2=9.0, t4=7.0, t8=9.0))).splits_map))
    content["tables"][1]["clusters"] = clusters
    with pytest.raises(Misfit, match=said) as refused:
        parse_map(json.dumps(content).encode())
    assert refused.value.place.startswith("/tables/1/clusters")


def test_only_int8_digits_has_clusters(sweep: Any) -> None:
    content = json.loads(map_text(tuned_map(sweep([shape(4)], tc, digits=times(t2=9.0, t4=7.0, t8=9.0))).splits_map))
    content["tables"][0]["clusters"] = content["tables"][1]["clusters"]
    with pytest.raises(Misfit, match="is a field of int8-digits, and the table is of int8-tc") as refused:
        parse_map(json.dumps(content).encode())
    assert refused.value.place == "/tables/0/clusters"


@pytest.mark.parametrize(("digits", "gain"), [(7.0, Gain.HOLDS), (8.5, Gain.GONE)])
def test_a_rule_of_another_kernel_is_verified_against_what_runs_without_a_map(
    sweep: Any, digits: float, gain: Gain
) -> None:
    run = sweep([shape(4)], tc, values=(0,), digits=times(t4=digits))
    checks = [replace(one, rules=("map",)) if one.kernel == "int8-digits" else one for one in run.checks]
    (cell,) = verified_cells(replace(run, checks=checks))
    assert (cell.gain, cell.kernel) == (gain, "int8-digits")
    assert cell.ratio == pytest.approx(digits / 8, rel=0.01)
    assert "int8-digits" in cell.label


def test_a_verification_measures_both_kernels(sweep: Any) -> None:
    found = tables(tuned_map(sweep([shape(4)], tc, digits=times(t2=11.7, t4=7.0, t8=12.0))))
    request = verify_request(found["int8-digits"], "9.0", 16, "auto", DataSpec())
    assert request is not None
    assert request.kernels == ("int8-tc", "int8-digits")
    assert request.tuned == (Target("int8-digits", 3),)
    assert verify_request(found["int8-tc"], "9.0", 16, "auto", DataSpec()) is None


def test_a_verification_measures_what_runs_without_a_map_whatever_the_map_says_of_it(sweep: Any) -> None:
    """1 row of 32 tiles takes int8-digits on an H200, and the map is of int8-tc alone or says nothing of the other."""
    table = tables(tuned_map(sweep([shape(1)], tc, digits=times(t1=12.0, t2=10.0, t4=11.0, t8=14.0))))["int8-tc"]
    silent = replace(table, cells=tuple(replace(cell, against=None) for cell in table.cells))
    for capability, measured in (("9.0", ("int8-tc", "int8-digits")), ("10.0", ("int8-tc",)), (None, ("int8-tc",))):
        request = verify_request(silent, capability, 16, "auto", DataSpec())
        assert request is not None
        assert request.kernels == measured


def test_an_automatic_launch_that_nothing_asks_for_does_not_compete(sweep: Any) -> None:
    """3 rows of 128 tiles are cut into 22 splits: 1 tile per split asks for 32, 6 for 16. No map could name that."""
    slow = lambda of, tiles: float(of.rows + tiles)  # noqa: E731
    made = sweep([shape(3, 8192), shape(4)], slow, digits=lambda of, _: 2.0 if of.tiles == 128 else 20.0)
    tuned = tuned_map(made)
    assert {table.kernel: [cell.tiles for cell in table.cells] for table in tuned.splits_map.tables} == {
        "int8-tc": [128, 32], "int8-digits": [32],
    }  # fmt: skip
    said = [line for line in warnings_of(tuned) if "a launch that no tiles per split asks for" in line]
    assert any(line.startswith("int8-digits/splits=22 does not compete at rows 3, ") for line in said)


def test_nothing_is_tuned_against_less_than_what_runs_without_a_map(
    sweep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 rows of 64 tiles take 13 splits of int8-digits, which no value asks for: a rule of int8-tc that beats the
    automatic int8-tc alone would make them slower."""
    monkeypatch.setattr(kernels, "FASTER_DIGITS", {"9.0": (kernels.Measured((1, 8), (8, 128), 2, 12),)})
    slow = lambda _, tiles: 20.0 + abs(tiles - 4)  # noqa: E731
    tuned = tuned_map(sweep([shape(5, 4096), shape(4)], slow, digits=lambda *_: 5.0))
    assert {table.kernel: [cell.rows for cell in table.cells] for table in tuned.splits_map.tables} == {
        "int8-tc": [4], "int8-digits": [4],
    }  # fmt: skip
    assert all(rule.rows == (4, 4) for table in tuned.splits_map.tables for rule in table.rules)
    assert [line for line in warnings_of(tuned) if "not in the map" in line] == [
        "rows 5, context 8192, candidates 4096 is not in the map: int8-digits/splits=13, which runs there without a "
        "map, is a launch that no tiles per split asks for"
    ]


@given(tiles=st.integers(1, 300), rows=st.integers(1, 20))
def test_the_automatic_launch_is_that_of_its_value_where_it_has_one(tiles: int, rows: int) -> None:
    """One name is one launch: equal splits of a shape have equal heads, by the rule or asked for."""
    clusters = cluster_counts(H200.clusters)
    chosen = digit_splits(tiles, rows, 2, 12, 132, clusters)
    value = smallest_digit_target(tiles, chosen.splits, clusters)
    assert value is None or asked_digit_splits(tiles, rows, 2, 12, value, 132, clusters) == chosen


def test_a_map_of_a_gpu_without_clusters_is_of_int8_tc_alone(sweep: Any) -> None:
    """The dispatcher does not launch the kernel there, so a rule for it would do harm."""
    old = replace(H200, compute_capability="8.0", clusters=None)
    tuned = tuned_map(sweep([shape(4)], tc, digits=lambda *_: 2.0, device=old))
    assert [(table.kernel, table.rules) for table in tuned.splits_map.tables] == [("int8-tc", ())]
