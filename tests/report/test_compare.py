# SPDX-License-Identifier: MIT
"""Two recorded runs against each other: which lines answer to which, what is said of them, what a gate holds."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dsa_bench.model.errors import BadInput
from dsa_bench.model.run import Run
from dsa_bench.report.compare import Terms, compare_runs
from dsa_bench.report.compare_machine import compare_json, compare_junit
from dsa_bench.report.compare_render import compare_markdown, compare_text
from dsa_bench.report.comparison import Comparison

NAMES = ("base.jsonl", "head.jsonl")
AUTO = "int8-tc/splits=16"
ROUNDS = 8


@pytest.fixture
def recorded(maker: Any) -> Callable[..., Run]:
    """recorded({rows: {variant: time}}): that time, give or take 0.1 %, in each of 8 rounds."""

    def make(cells: dict[int, dict[str, float]], jitter: float = 0.001, **header: Any) -> Run:
        fresh = type(maker)().header(**header)
        for rows, times_us in cells.items():
            for variant in times_us:
                fresh.check(variant, rows)
            series = {variant: spread(time_us, jitter) for variant, time_us in times_us.items()}
            control = AUTO if AUTO in times_us else next(iter(times_us))
            fresh.rounds({**series, "control": spread(times_us[control], jitter)}, control, rows)
        return fresh.run()

    return make


def spread(time_us: float, jitter: float) -> list[float]:
    return [time_us * (1 + jitter * (index % 3 - 1)) for index in range(ROUNDS)]


def compare(base: Run, head: Run, allow: bool = False, **terms: Any) -> Comparison:
    return compare_runs(base, head, NAMES, Terms(**terms), allow_mismatch=allow)


def statuses(comparison: Comparison) -> dict[tuple[str, str], str]:
    return {(cell.shape["rows"], row.kernel): row.status for cell in comparison.cells for row in cell.rows}


@pytest.mark.parametrize(
    ("head_us", "status", "reasons"),
    [
        (140.0, "slower", ["1 slower"]),
        (114.9, "same", []),
        (115.0, "same", []),  # the edge belongs to the margin
        (116.0, "slower", ["1 slower"]),
        (60.0, "faster", []),
        (86.0, "faster", []),
    ],
)
def test_a_gate_is_one_sided_and_looks_at_the_threshold(
    recorded: Any, head_us: float, status: str, reasons: list[str]
) -> None:
    """E1, MinaProtocol/mina#19424."""
    comparison = compare(recorded({1: {AUTO: 100.0}}, 0.0), recorded({1: {AUTO: head_us}}, 0.0), margin=0.15)
    (row,) = comparison.rows
    assert row.status == status
    assert comparison.gate_reasons() == reasons
    assert (row.base_us, row.head_us) == (100.0, head_us)


def test_missing_and_new_cells_are_listed_and_the_rest_is_compared(recorded: Any) -> None:
    """E2, NVIDIA/nvbench#295."""
    base = recorded({rows: {"previous": 10.0 * rows} for rows in (128, 1, 8)})
    head = recorded({rows: {"previous": 10.0 * rows} for rows in (16, 8, 1)})
    comparison = compare(base, head)
    assert [cell.shape["rows"] for cell in comparison.cells] == ["1", "8", "16", "128"]
    assert comparison.counts == {"same": 2, "missing": 1, "new": 1}
    assert comparison.gate_reasons() == ["1 missing"]
    text = compare_text(comparison, color=False, width=None)
    assert "2 cells in both, 4 lines: 2 same, 1 missing, 1 new." in text
    assert "Missing from the head: decode, rows 128," in text
    assert "New in the head: decode, rows 16," in text


def test_a_record_that_says_its_selection_in_the_header_alone_meets_a_newer_one(recorded: Any) -> None:
    """Decision 0038: the cells of both are those of random lists, and not those of sorted ones."""
    old = recorded({8: {AUTO: 10.0}}, plan={"op": "decode", "data": {"selection": "random"}})
    other = recorded({8: {AUTO: 10.0}}, plan={"op": "decode", "data": {"selection": "sorted"}})
    new = recorded({8: {AUTO: 10.0}}, plan={"op": "decode", "data": {"selection": "random"}, "selections": []})
    lines = [replace(line, cell=f"{line.cell},selection=random") for line in new.checks]
    visits = [visit._replace(cell=f"{visit.cell},selection=random") for visit in new.visits]
    new = Run(new.header, lines, visits)
    for base, head in ((old, new), (new, old)):
        (cell,) = compare(base, head).cells
        assert [row.status for row in cell.rows] == ["same"]
        assert cell.label.startswith("decode, rows 8, context 8192, candidates 2048, selection random, heads 24/2")
    for run in (old, new):
        with pytest.raises(BadInput, match=r"no cell in common: .*selection=random"):
            compare(other, run)


def test_json_says_the_selection_of_every_line(recorded: Any) -> None:
    run = recorded({1: {AUTO: 10.0}, 8: {AUTO: 10.0}}, plan={"op": "decode", "selections": ["sorted", "random"]})
    run.checks[1] = replace(run.checks[1], cell=f"{run.checks[1].cell},selection=random")
    rows = json.loads(compare_json(compare(run, run), strict=False))["rows"]
    assert [row["selection"] for row in rows] == ["sorted", "random"]


@pytest.mark.parametrize("swapped", [False, True])
def test_no_overlap_and_no_cell_are_refused(recorded: Any, maker: Any, swapped: bool) -> None:
    """E2, andymai/occt-wasm#44."""
    some, other, empty = recorded({1: {AUTO: 1.0}}), recorded({2: {AUTO: 1.0}}), type(maker)().header().run()
    with pytest.raises(BadInput, match="no cell in common: the first of base is op=decode,rows="):
        compare(*((other, some) if swapped else (some, other)))
    with pytest.raises(BadInput, match="holds no cell"):
        compare(*((empty, some) if swapped else (some, empty)))


def test_a_failed_variant_is_named_and_gates(recorded: Any) -> None:
    """E2, NVIDIA/nvbench#386: a failed cell in the head."""
    base = recorded({1: {"previous": 20.0, AUTO: 10.0}})
    head = recorded({1: {"previous": 20.0}})
    failed = replace(base.checks[1], status="wrong_result", reason="out[0, 1] is [NaN]", rms_error=None)
    head.add(failed)
    comparison = compare(base, head)
    assert statuses(comparison) == {("1", "previous"): "same", ("1", "int8-tc"): "failed"}
    assert comparison.gate_reasons() == ["1 failed"]
    assert "in the head: wrong result: out[0, 1] is [NaN]" in compare_text(comparison, color=False, width=None)
    assert compare(head, base).gate_reasons() == ["1 invalid"], "a base without a number proves nothing"


def below_resolution(run: Run, variant: str) -> Run:
    visits = [
        visit._replace(attention_us=None, call_us=None, status="below_resolution", reason="wall read 0 us")
        if visit.variant == variant
        else visit
        for visit in run.visits
    ]
    return replace(run, visits=visits)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_line_without_a_number_on_a_side_is_invalid_and_no_nan(recorded: Any, swapped: bool) -> None:
    """E5, benchmark-action/github-action-benchmark#204: 0 or null against 13.2, either way round."""
    good = recorded({1: {"previous": 20.0, AUTO: 13.2}})
    pair = (below_resolution(good, AUTO), good)
    comparison = compare(*(reversed(pair) if swapped else pair))
    assert statuses(comparison)["1", "int8-tc"] == "invalid"
    assert comparison.gate_reasons() == ["1 invalid"]
    assert comparison.mean is not None
    assert comparison.mean.centre == pytest.approx(1.0), "over lines with a number on both sides"
    document = json.loads(compare_json(comparison, strict=False), parse_constant=pytest.fail)
    (row,) = [row for row in document["rows"] if row["status"] == "invalid"]
    assert row["ratio"] is row["change"] is None
    assert "below resolution: wall read 0 us" in row["reason"]
    for made in (compare_text(comparison, color=False, width=None), compare_markdown(comparison)):
        assert "nan" not in made.lower()
        assert "inf" not in made.lower().replace("finding", "")


def with_times(run: Run, attention_us: float, call_us: float) -> Run:
    return replace(run, visits=[visit._replace(attention_us=attention_us, call_us=call_us) for visit in run.visits])


@pytest.mark.parametrize(
    ("metric", "line"), [("attention", "13.20 us 12.70 us  -3.8%"), ("call", "16.50 us 18.00 us  +9.1%")]
)
def test_a_percentage_comes_from_the_two_numbers_of_its_line(recorded: Any, metric: str, line: str) -> None:
    """E6, benchmark-action/github-action-benchmark#239."""
    run = recorded({1: {AUTO: 1.0}})
    comparison = compare(with_times(run, 13.2, 16.5), with_times(run, 12.7, 18.0), metric=metric)
    assert line in compare_text(comparison, color=False, width=None)
    assert f"{metric} time" in compare_text(comparison, color=False, width=None)


def test_direction_is_stated_and_swapped_sides_give_the_inverse(recorded: Any) -> None:
    """B6, psf/pyperf#79: 73.6 against 13.2."""
    slow, fast = recorded({1: {AUTO: 73.6}}), recorded({1: {AUTO: 13.2}})
    assert "5.58x faster" in compare_text(compare(slow, fast), color=False, width=None)
    assert "5.58x slower" in compare_text(compare(fast, slow), color=False, width=None)


def test_the_mean_of_opposite_ratios_is_one(recorded: Any) -> None:
    """B6, vllm-project/vllm#13917."""
    mean = compare(recorded({1: {AUTO: 10.0}, 2: {AUTO: 10.0}}), recorded({1: {AUTO: 20.0}, 2: {AUTO: 5.0}})).mean
    assert mean is not None
    assert mean.centre == pytest.approx(1.0)


def test_the_order_of_lines_in_a_record_changes_nothing(recorded: Any) -> None:
    """E7, rapidsai/asvdb#10."""
    cells = {rows: {"previous": 20.0 * rows, AUTO: 10.0 * rows, "int8-tc/splits=8": 12.0} for rows in (128, 1, 16, 8)}
    base, head = (renamed(recorded(cells, jitter), "int8-tc/splits=8", (2, 4), 8) for jitter in (0.004, 0.003))
    made = compare_markdown(compare(base, head))
    shuffle = random.Random(7)
    for run in (base, head):
        shuffle.shuffle(run.checks)
        shuffle.shuffle(run.visits)
    assert compare_markdown(compare(base, head)) == made
    assert [line.split(",")[1] for line in made.splitlines() if "| decode" in line][::3] == [
        f" rows {rows}" for rows in (1, 8, 16, 128)
    ]


def renamed(run: Run, variant: str, requested: Sequence[int], splits: int) -> Run:
    """The variant as if that launch had been asked for by those values."""
    name = f"int8-tc/splits={splits}"
    checks = [
        replace(check, variant=name, requested=tuple(requested), splits=splits) if check.variant == variant else check
        for check in run.checks
    ]
    visits = [visit._replace(variant=name) if visit.variant == variant else visit for visit in run.visits]
    return replace(run, checks=checks, visits=visits)


def test_an_automatic_rule_that_chooses_otherwise_is_compared_with_itself(recorded: Any) -> None:
    """Cells match by what was asked for: a worse rule is a slower line, not a missing one and a new one."""
    base = renamed(recorded({1: {AUTO: 10.0}}), AUTO, (0, 2), 16)
    head = renamed(recorded({1: {AUTO: 30.0}}), AUTO, (0, 16), 2)
    comparison = compare(base, head)
    found = [(row.requested, row.status) for row in comparison.rows]
    assert found == [((0,), "slower"), ((2,), "missing")]
    assert "16 -> 2" in compare_text(comparison, color=False, width=None)


def test_a_value_that_one_side_was_not_asked_for_is_found_by_its_launch(recorded: Any) -> None:
    base = renamed(recorded({1: {AUTO: 10.0}}), AUTO, (0, 2), 16)
    head = renamed(recorded({1: {AUTO: 10.0}}), AUTO, (0,), 16)
    assert [(row.requested, row.status) for row in compare(base, head).rows] == [((0, 2), "same")]
    assert [(row.requested, row.status) for row in compare(head, base).rows] == [((0,), "same")]


def test_a_run_without_the_automatic_rule_is_compared(recorded: Any) -> None:
    base = renamed(recorded({1: {"previous": 20.0, AUTO: 10.0}}), AUTO, (4,), 8)
    head = renamed(recorded({1: {"previous": 20.0, AUTO: 11.0}}), AUTO, (4,), 8)
    assert statuses(compare(base, head)) == {("1", "previous"): "same", ("1", "int8-tc"): "slower"}


def test_a_ceiling_neither_gates_nor_counts(recorded: Any) -> None:
    comparison = compare(
        recorded({1: {AUTO: 10.0, "copy": 1.0, "gather": 1.0}}), recorded({1: {AUTO: 10.0, "copy": 2.0}})
    )
    assert statuses(comparison) == {("1", "int8-tc"): "same", ("1", "copy"): "slower", ("1", "gather"): "missing"}
    assert comparison.counts == {"same": 1}
    assert comparison.gate_reasons() == []


GPU = {
    "backend": "cuda", "name": "NVIDIA H200", "sm_count": 132, "compute_capability": "9.0", "l2_bytes": 62914560,
    "memory_bytes": 150000000000, "driver": "580.65.06", "runtime": "CUDA 13.0", "compiler": "NVRTC 13.0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "NVIDIA A100"}, "device.name: base NVIDIA H200, head NVIDIA A100"),
        ({"sm_count": 108}, "device.sm_count: base 132, head 108"),
        ({"driver": "570.1"}, "device.driver: base 580.65.06, head 570.1"),
        ({"driver": None}, "device.driver: base 580.65.06, head unknown"),
    ],
)
def test_other_devices_are_refused_or_said_on_every_line(recorded: Any, change: dict[str, Any], said: str) -> None:
    """E9, chrishayuk/larql#370."""
    cells = {1: {"previous": 20.0, AUTO: 10.0}}
    base, head = recorded(cells, device=GPU), recorded(cells, device=GPU | change)
    with pytest.raises(BadInput) as refused:
        compare(base, head)
    assert str(refused.value).startswith(f"base.jsonl and head.jsonl are not alike: {said}; --allow-device-mismatch")
    comparison = compare(base, head, allow=True)
    text = compare_text(comparison, color=False, width=None)
    assert f"NOT ALIKE: {said}" in text
    (field,) = change
    assert [line.endswith(f" {field}") for line in text.splitlines() if "us  +0.0%" in line] == [True, True]
    assert compare_markdown(comparison).count(f"| {field} |".replace("_", "\\_")) == 2
    rows = json.loads(compare_json(comparison, strict=False))["rows"]
    assert [row["not_alike"] for row in rows] == [[f"device.{field}"]] * 2
    assert compare_junit(comparison, strict=False).count(f"NOT ALIKE: {said}") == 2


def test_facts_that_a_header_lacks_are_unknown_and_not_equal(recorded: Any) -> None:
    """E9, a16z/jolt#1824."""
    lacking = {name: value for name, value in GPU.items() if name != "driver"}
    run = recorded({1: {AUTO: 10.0}}, device=lacking)
    with pytest.raises(BadInput, match=r"device\.driver: base unknown, head unknown"):
        compare(run, run)


def test_padded_shared_memory_is_another_device(recorded: Any) -> None:
    base, head = (recorded({1: {AUTO: 10.0}}, plan={"op": "decode", "pad_smem": padding}) for padding in (0, 40000))
    with pytest.raises(BadInput, match="pad_smem: base 0, head 40000"):
        compare(base, head)
    assert compare(recorded({1: {AUTO: 10.0}}), base).rows[0].status == "same", "older records have none"


def test_a_newer_compiler_is_said_and_not_refused(recorded: Any) -> None:
    base = recorded({1: {AUTO: 10.0}}, device=GPU)
    head = recorded({1: {AUTO: 10.0}}, device=GPU | {"compiler": "NVRTC 13.5"}, versions={"numpy": "2.1.0"})
    text = compare_text(compare(base, head), color=False, width=None)
    assert (
        "Not the same on both sides: compiler: base NVRTC 13.0, head NVRTC 13.5; numpy: base 2.0.0, head 2.1.0." in text
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"timer": "events"}, "timer: base wall, head events"),
        ({"l2": "cold"}, "l2: base none, head cold"),
        ({"clocks": {"sm_mhz": 1400.0}}, "sm_mhz: base 1980, head 1400"),
    ],
)
def test_other_timers_modes_and_clocks_are_refused_with_their_cell(
    recorded: Any, change: dict[str, Any], said: str
) -> None:
    """E9, orieg/php-judy#87: the clock setting is known by the clocks that were seen."""
    run = recorded({1: {AUTO: 10.0}})
    base = replace(run, visits=[visit._replace(clocks={"sm_mhz": 1980.0}) for visit in run.visits])
    head = replace(base, visits=[visit._replace(**change) for visit in base.visits])
    with pytest.raises(BadInput) as refused:
        compare(base, head)
    assert f"(decode, rows 1, context 8192, candidates 2048, heads 24/2, {change.get('timer', 'wall')}" in str(
        refused.value
    )
    assert said in str(refused.value)
    assert compare(base, head, allow=True).rows[0].status == "same"


def test_other_inputs_are_refused(recorded: Any) -> None:
    base = recorded({1: {AUTO: 10.0}})
    head = replace(base, checks=[replace(check, data_hash="e" * 16) for check in base.checks])
    with pytest.raises(BadInput, match=r"inputs: base d{16}, head e{16}"):
        compare(base, head)


def test_a_record_of_two_modes_is_compared_mode_by_mode(recorded: Any) -> None:
    """A mixed record: the same cell warm and cold in one file."""
    warm = recorded({1: {AUTO: 10.0}})
    cold = [visit._replace(l2="cold", round=visit.round + ROUNDS, attention_us=20.0) for visit in warm.visits]
    mixed = replace(warm, visits=[*warm.visits, *cold])
    comparison = compare(mixed, mixed)
    assert [(cell.mode, cell.rows[0].base_us, cell.rows[0].status) for cell in comparison.cells] == [
        (("wall", "cold"), 20.0, "same"),
        (("wall", "none"), pytest.approx(10.0), "same"),
    ]
    assert [row.status for row in compare(mixed, warm).rows] == ["same", "missing"]
    assert [row.status for row in compare(warm, mixed).rows] == ["same", "new"]


def test_a_shift_of_all_lines_is_called_that_and_what_exceeds_it_stays_flagged(recorded: Any) -> None:
    """E9, chrishayuk/larql#370: twenty lines +12 % +- 1 %, and one +40 % over that."""
    base = {rows: {AUTO: 10.0} for rows in range(1, 22)}
    head = {rows: {AUTO: 10.0 * (1.11 + 0.01 * (rows % 3))} for rows in range(1, 21)} | {21: {AUTO: 10.0 * 1.12 * 1.4}}
    comparison = compare(recorded(base), recorded(head))
    assert comparison.shift is not None
    assert comparison.shift.ratio == pytest.approx(1.12, abs=0.001)
    assert (comparison.shift.rows, comparison.shift.within) == (21, 20)
    text = compare_text(comparison, color=False, width=None)
    assert "One common shift of +12.0%: 20 of 21 lines agree with it within 2.0%." in text
    assert (
        "Beyond the shift: int8-tc at auto tiles per split (decode, rows 21, context 8192, candidates 2048, "
        "heads 24/2, wall, L2 none): +40.0% against the shift." in text
    )
    assert "21 of the 21 lines that moved ran equal kernel code on both sides (one hash)." in text
    assert comparison.gate_reasons() == ["21 slower"]


def some_below_resolution(run: Run, variant: str, *rounds: int) -> Run:
    untimed = below_resolution(run, variant).visits
    return replace(run, visits=[b if v.round in rounds else v for v, b in zip(run.visits, untimed, strict=True)])


@pytest.mark.parametrize(("untimed", "status"), [(range(1, 8), "invalid"), (range(3), "invalid"), (range(2), "same")])
def test_a_number_from_too_few_rounds_is_none(recorded: Any, untimed: range, status: str) -> None:
    """Times in three quarters of the rounds stand for them; one time of eight, or five, would gate nothing."""
    base = recorded({1: {"previous": 20.0, AUTO: 10.0}})
    head = some_below_resolution(base, AUTO, *untimed)
    for comparison, side in ((compare(base, head), "head"), (compare(head, base), "base")):
        (row,) = [row for row in comparison.rows if row.kernel == "int8-tc"]
        assert row.status == status
        if status == "invalid":
            why = f"times in {8 - len(untimed)} of 8 rounds (below resolution: wall read 0 us)"
            assert row.reason == f"in the {side}: {why}"
            assert comparison.gate_reasons() == ["1 invalid"]


def test_paired_sides_need_the_same_rounds(recorded: Any) -> None:
    """Both have 6 of 8, and 4 in common."""
    run = recorded({1: {AUTO: 10.0}})
    sides = some_below_resolution(run, AUTO, 0, 1), some_below_resolution(run, AUTO, 2, 3)
    (row,) = compare(*sides, paired=True).rows
    assert (row.status, row.reason) == ("invalid", "both sides have a time in 4 of 8 rounds")
    assert compare(*sides).rows[0].status == "same"


def test_lines_without_an_interval_say_nothing_of_a_shift(recorded: Any) -> None:
    """4 rounds of each of 8 lines, all 12 % slower: no line is surely so."""
    base, head = (recorded({rows: {AUTO: time_us} for rows in range(1, 9)}) for time_us in (10.0, 11.2))
    assert compare(base, head).shift is not None
    short = [replace(run, visits=[visit for visit in run.visits if visit.round < 4]) for run in (base, head)]
    assert compare(*short).shift is None


def test_lines_that_move_apart_have_no_common_shift(recorded: Any) -> None:
    base = {rows: {AUTO: 10.0} for rows in range(1, 9)}
    assert compare(recorded(base), recorded({r: {AUTO: 10.0 + r} for r in range(1, 9)})).shift is None
    assert compare(recorded(base), recorded(base)).shift is None


def test_lines_too_noisy_to_have_moved_share_nothing(recorded: Any) -> None:
    """Wide intervals agree with any shift."""
    base, head = ({rows: {AUTO: time_us} for rows in range(1, 9)} for time_us in (10.0, 11.0))
    assert compare(recorded(base, 0.2), recorded(head, 0.2)).shift is None
    assert "head is not told apart from base (+10" in compare_text(
        compare(recorded({1: {AUTO: 10.0}}, 0.2), recorded({1: {AUTO: 11.0}}, 0.2)), color=False, width=None
    )


@pytest.mark.parametrize(
    ("change", "badge"),
    [(1.05, ":white_check_mark:"), (1.15, ":warning:"), (1.30, ":red_circle:"), (0.85, ":green_circle:")],
)
def test_marks_only_colour(recorded: Any, change: float, badge: str) -> None:
    """Seed 004: from 15 % and from 30 %; the verdict is the margin's."""
    comparison = compare(recorded({1: {AUTO: 100.0}}, 0.0), recorded({1: {AUTO: 100.0 * change}}, 0.0), margin=0.5)
    assert f"| {badge} | decode, rows 1" in compare_markdown(comparison)
    assert comparison.rows[0].status == "same"


def test_the_null_controls_stand_beside_the_lines_and_an_untrusted_one_is_named(recorded: Any) -> None:
    base = recorded({1: {AUTO: 10.0}})
    off = [visit._replace(attention_us=10.5) if visit.control else visit for visit in base.visits]
    head = replace(base, visits=off)
    comparison = compare(base, head)
    text = compare_text(comparison, color=False, width=None)
    assert "null control base +0.00% [+0.00%, +0.00%], head +5.00%" in text
    assert "UNTRUSTED" in text
    assert "The null control of head was off in decode, rows 1," in text
    assert "UNTRUSTED |" in compare_markdown(comparison)


def test_noisy_lines_are_inconclusive_and_gate_only_when_strict(recorded: Any) -> None:
    comparison = compare(recorded({1: {AUTO: 10.0}}, 0.05), recorded({1: {AUTO: 10.2}}, 0.05))
    assert comparison.counts == {"inconclusive": 1}
    assert comparison.gate_reasons() == []
    assert comparison.gate_reasons(strict=True) == ["1 inconclusive"]
    assert "inconclusive (~" in compare_text(comparison, color=False, width=None)
    assert "<failure" not in compare_junit(comparison, strict=False)
    assert '<failure type="inconclusive"' in compare_junit(comparison, strict=True)


def test_too_few_rounds_are_no_verdict(recorded: Any) -> None:
    run = recorded({1: {AUTO: 10.0}})
    short = replace(run, visits=[visit for visit in run.visits if visit.round < 4])
    (row,) = compare(short, short).rows
    assert (row.status, row.ratio and row.ratio.interval) == ("inconclusive", None)


def test_paired_sides_pair_their_rounds(recorded: Any) -> None:
    """A drift of 30 % that both sides share cancels; as independent runs nothing can be said."""
    run = recorded({1: {AUTO: 10.0}}, 0.0)
    drift = replace(run, visits=[v._replace(attention_us=10 * (1 + 0.04 * v.round)) for v in run.visits])
    faster = replace(drift, visits=[v._replace(attention_us=(v.attention_us or 0) * 0.97) for v in drift.visits])
    paired, apart = compare(drift, faster, paired=True), compare(drift, faster)
    assert (paired.rows[0].status, apart.rows[0].status) == ("faster", "inconclusive")
    assert "Both sides were measured in the same rounds" in compare_text(paired, color=False, width=None)
    assert "their rounds are independent samples" in compare_text(apart, color=False, width=None)
