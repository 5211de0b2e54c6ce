# SPDX-License-Identifier: MIT
"""The data behind each picture, and that every kind is drawn where a run has it."""

import itertools
import math
import random
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from map_doubles import splits_map

from dsa_bench.dispatch.map_file import read_map
from dsa_bench.model.errors import BadInput
from dsa_bench.model.run import Run, read_run
from dsa_bench.report.plots import canvas, decode_time, drift, league, prefill, regret_map, split_choices
from dsa_bench.report.plots.canvas import drawing
from dsa_bench.report.plots.gallery import GALLERY, pictures
from dsa_bench.report.plots.names import KINDS
from dsa_bench.report.plots.subject import NothingToDraw, Subject, subject_of

Sweep = Callable[..., Any]
SEED = {(8, 2048): {32: 18.8, 16: 13.2, 8: 12.7, 4: 17.7}, (4, 2048): {32: 11.9, 16: 10.4, 8: 10.5}}
RULES = {16: ("seed-wave",), 8: ("fa2",), 32: ("seed-384",)}


@pytest.fixture
def subject(sweep: Sweep) -> Subject:
    return subject_of(sweep(SEED, auto=16, noise=0.001, rules=RULES).run())


def shuffled(run: Run) -> Run:
    draw = random.Random(3)
    other = Run(run.header, list(run.checks), list(run.visits))
    draw.shuffle(other.checks)
    draw.shuffle(other.visits)
    return other


def texts(svg: bytes) -> str:
    """What the comments of text paths say; text itself is drawn as paths."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    root = ElementTree.fromstring(svg, parser)
    return "\n".join(str(node.text).strip() for node in root.iter() if node.tag is ElementTree.Comment)


def test_every_kind_has_a_name() -> None:
    assert tuple(GALLERY) == KINDS


def test_time_points_are_in_order_with_their_intervals_and_the_choice(subject: Subject) -> None:
    """E7, numpy/numpy#26637: numbers sort as numbers, whatever order the checks came in."""
    four, eight = subject.swept
    assert [point.tiles_per_split for point in decode_time.time_points(eight)] == [1, 2, 4, 8]
    assert [point.automatic for point in decode_time.time_points(eight)] == [False, True, False, False]
    for point, expected in zip(decode_time.time_points(four), (11.9, 10.4, 10.5), strict=True):
        assert point.low_us < point.time_us < point.high_us
        assert point.time_us == pytest.approx(expected, rel=0.002)


def test_a_launch_without_a_time_leaves_a_gap(sweep: Sweep) -> None:
    """E8, matplotlib/matplotlib#23693: never a zero."""
    run = sweep(SEED, auto=16).run()
    cell = next(visit.cell for visit in run.visits if visit.variant == "int8-tc/splits=8")
    run.visits[:] = [
        visit._replace(attention_us=None, call_us=None, status="below_resolution", reason="0 us")
        if (visit.cell, visit.variant) == (cell, "int8-tc/splits=8")
        else visit
        for visit in run.visits
    ]
    found = subject_of(run)
    points = [point for cell in found.swept for point in decode_time.time_points(cell)]
    assert len(points) == 6
    assert min(point.time_us for point in points) > 10


def test_points_of_few_rounds_have_no_width(sweep: Sweep) -> None:
    (cell,) = subject_of(sweep({(8, 2048): {16: 13.2}}, auto=16, rounds=4, noise=0.01).run()).swept
    (point,) = decode_time.time_points(cell)
    assert point.low_us == point.time_us == point.high_us


def test_regret_tiles_say_how_sure_they_are(subject: Subject, sweep: Sweep) -> None:
    """B6, google/benchmark#1482: 13.2 against 12.7 is 3.9 %, from the times themselves."""
    scores = regret_map.score(subject.swept, ["auto"], subject.slots, None)
    four, eight = (regret_map.regret_tile(one, 2048) for one in scores.of("auto"))
    assert eight is not None
    assert (eight.rows, eight.hatch) == (8, regret_map.SURE)
    assert eight.regret == pytest.approx(13.2 / 12.7 - 1, abs=0.002)
    assert four is not None
    assert (four.regret, four.hatch) == (0.0, regret_map.SURE)  # the automatic rule is the best in every half
    (one, *_) = scores.of("auto")
    around = replace(one, regret=replace(one.regret, cross_fitted=0.001, low=-0.001, high=0.002))
    assert getattr(regret_map.regret_tile(around, 2048), "hatch", None) == regret_map.UNSURE
    few = subject_of(sweep(SEED, auto=16, noise=0.001, rounds=4).run())
    tiles = [regret_map.regret_tile(one, 0) for one in regret_map.score(few.swept, ["auto"], None, None).of("auto")]
    assert {tile.hatch for tile in tiles if tile} == {regret_map.NO_INTERVAL}


def test_an_estimate_of_zero_is_never_sure(subject: Subject) -> None:
    """Also where the bootstrap's draws hardly vary and leave it just outside their interval."""
    (one, *_) = regret_map.score(subject.swept, ["auto"], subject.slots, None).of("auto")
    at_zero = replace(one, regret=replace(one.regret, cross_fitted=0.0, low=0.0002, high=0.0002))
    tile = regret_map.regret_tile(at_zero, 2048)
    assert tile is not None
    assert tile.hatch == regret_map.UNSURE


def test_choices_with_their_ties(subject: Subject) -> None:
    chosen, unused = split_choices.split_choices(subject)
    assert unused == []
    assert [(one.automatic, one.best, one.tuned) for one in chosen] == [(16, 16, None), (16, 8, None)]
    assert [one.ties for one in chosen] == [(), ()]


def test_equal_launches_are_ties(maker: Any) -> None:
    """C8, flashinfer-ai/flashinfer#4433."""
    times = {
        "int8-tc/splits=16": [10.0, 10.1] * 8,
        "int8-tc/splits=8": [10.1, 10.0] * 8,
        "int8-tc/splits=4": [14.0] * 16,
    }
    maker.header()
    for variant in times:
        maker.check(variant)
    maker.rounds({**times, "control": [10.0, 10.1] * 8}, "int8-tc/splits=16")
    ((one,), _) = split_choices.split_choices(subject_of(maker.run()))
    assert {one.best, *one.ties} == {16, 8}


def test_a_map_of_another_device_draws_nothing_and_says_so(subject: Subject) -> None:
    """C2, vllm-project/vllm#28349: looked up as the dispatcher does."""
    mapped = replace(subject, tuned=splits_map())
    chosen, unused = split_choices.split_choices(mapped)
    assert {one.tuned for one in chosen} == {None}
    assert len(unused) == 1
    assert "the map is not used" in unused[0]
    chosen, unused = split_choices.split_choices(replace(mapped, slots=None))
    assert "say it with --resident N" in unused[0]


def test_the_measured_choice_of_a_map_is_its_rule(sweep: Sweep) -> None:
    found = subject_of(sweep({(8, 2048): {16: 13.2, 8: 12.7}}, auto=16, rules={8: ("map",)}).run())
    assert [one.tuned for one in split_choices.split_choices(found)[0]] == [8]


def test_a_map_of_two_kernels_is_a_cross_on_the_kernel_taken(root: Path) -> None:
    """By a rule of either table, else by the automatic choice; decision 0039."""
    record = next((root / "results/nvidia-h200/kernel-choice").glob("*-splits.json"))
    run = read_run(record.with_name(record.name.replace("-splits.json", ".jsonl")))
    chosen, unused = split_choices.split_choices(subject_of(run, tuned=read_map(record)))
    assert unused == []
    crossed = [(one.cell.sparse.rows, one.cell.sparse.candidates, one.cell.kernel) for one in chosen if one.tuned]
    assert len({place[:2] for place in crossed}) == len(crossed)
    assert (1, 2048, "int8-digits") in crossed  # no rule
    assert (2, 4096, "int8-digits") in crossed  # a rule
    assert (4, 8192, "int8-tc") in crossed  # a rule of the other table


def test_a_kernel_has_one_colour_in_every_picture(maker: Any, subject: Subject) -> None:
    maker.header(plan={"op": "prefill"})
    cell = "op=prefill,rows=128,context=8192,candidates=2048,query_heads=24,kv_heads=2,head_size=256"
    times = {name: [90.0] * 8 for name in ("previous", "int8-ws", "int8-tc", "copy")}
    for name in times:
        maker.check(name, 128, cell=cell)
    maker.rounds({**times, "control": [90.0] * 8}, "int8-tc", cell=cell)
    with drawing():
        figures = prefill.draw(subject_of(maker.run())), decode_time.draw(subject)
    colors: dict[str, set[object]] = {}
    for line in itertools.chain.from_iterable(figure.axes[0].get_lines() for figure in figures):
        colors.setdefault(str(line.get_label()).split(", ")[0], set()).add(line.get_color())
    assert colors["int8-tc"] == {canvas.KERNEL_COLORS["int8-tc"]}
    assert len(set(canvas.KERNEL_COLORS.values())) == len(canvas.KERNEL_COLORS)
    assert "copy, same bytes" in [line.get_label() for line in figures[0].axes[0].get_lines()]


def test_a_shape_without_a_regret_has_a_dash(sweep: Sweep) -> None:
    times = {(1, 512): {8: 5.0, 4: 6.0}, (1, 2048): {8: 5.0, 4: 6.0}, (8, 512): {8: 5.0, 4: 6.0}}
    with drawing():
        figure = regret_map.draw(subject_of(sweep(times, auto=8, noise=0.001).run()))
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["-", "0.0%", "0.0%", "0.0%"]


def test_the_league_is_the_least_mean_first(subject: Subject) -> None:
    table, shared = league.standings(subject)
    assert shared == 1  # fa2 chooses launches of 4 rows that were not measured
    means = [one.total.mean for one in table if one.total]
    assert means == sorted(means)
    assert {"seed-wave", "seed-384"} <= {one.rule for one in table}


def test_prefill_lines_are_in_numeric_order(maker: Any) -> None:
    """E7, pandas-dev/pandas#8596: 128 after 16."""
    maker.header(plan={"op": "prefill"})
    for rows, time_us in ((128, 90.0), (16, 20.0), (2048, 700.0)):
        cell = f"op=prefill,rows={rows},context=8192,candidates=2048,query_heads=24,kv_heads=2,head_size=256"
        maker.check("int8-tc", rows, cell=cell, gathered_bytes=rows * 2**21).check(
            "dense/flash", rows, cell=cell, kernel="dense"
        )
        maker.rounds(
            {"int8-tc": [time_us] * 8, "dense/flash": [2 * time_us] * 8, "control": [time_us] * 8}, "int8-tc", cell=cell
        )
    found = subject_of(maker.run())
    lines = prefill.prefill_lines(list(found.tables))
    assert [point.rows for point in lines["int8-tc"]] == [16, 128, 2048]
    assert [point.time_us for point in lines["dense/flash"]] == [40.0, 180.0, 1400.0]
    assert lines["int8-tc"][0].gathered_tbps == pytest.approx(16 * 2**21 / 20e-6 / 1e12)
    assert lines["dense/flash"][0].gathered_tbps is None
    with drawing():
        made, lacking = pictures(found, ["prefill", "decode-time"], ["svg"])
    assert set(made) == {"prefill.svg"}
    assert set(lacking) == {"decode-time"}
    assert "dense/flash (another computation)" in texts(made["prefill.svg"])


def test_the_fastest_context_of_prefill_is_not_cut_off(maker: Any) -> None:
    maker.header(plan={"op": "prefill"})
    for context, time_us in ((8192, 90.0), (32768, 30.0)):
        cell = f"op=prefill,rows=128,context={context},candidates=2048,query_heads=24,kv_heads=2,head_size=256"
        maker.check("int8-tc", 128, cell=cell, gathered_bytes=128 * 2**21)
        maker.rounds({"int8-tc": [time_us] * 8, "control": [time_us] * 8}, "int8-tc", cell=cell)
    with drawing():
        figure = prefill.draw(subject_of(maker.run()))
    rate = figure.axes[3]
    assert rate.get_ylim()[0] == 0
    assert rate.get_ylim()[1] > 128 * 2**21 / 30e-6 / 1e12


SELECTIONS = ("sorted", "random", "blocks:4", "overlap:0.5", "overlap:0.9")


@pytest.fixture
def selections(maker: Any) -> Subject:
    """Prefill of one shape on five kinds of lists."""
    maker.header(plan={"op": "prefill", "selections": list(SELECTIONS)})
    for at, kind in enumerate(SELECTIONS):
        cell = "op=prefill,rows=128,context=8192,candidates=2048,query_heads=24,kv_heads=2,head_size=256"
        cell += "" if kind == "sorted" else f",selection={kind}"
        maker.check("int8-tc", 128, cell=cell, gathered_bytes=128 * 2**21)
        maker.rounds({"int8-tc": [50.0 + at] * 8, "control": [50.0 + at] * 8}, "int8-tc", cell=cell)
    return subject_of(maker.run())


def test_each_selection_of_prefill_has_a_column_of_its_own(selections: Subject) -> None:
    with drawing():
        figure = prefill.draw(selections)
    titles = [ax.get_title() for ax in figure.axes[:5]]
    assert {title.rpartition("selection ")[2] for title in titles} == set(SELECTIONS)
    times = {tuple(line.get_ydata()) for ax in figure.axes[:5] for line in ax.lines}
    assert times == {(50.0 + at,) for at in range(5)}
    one_more = replace(selections.tables[0], shape=selections.tables[0].shape | {"selection": "blocks:16"})
    with pytest.raises(NothingToDraw, match=r"^6 contexts, list lengths, selections and modes are too many"):
        prefill.draw(replace(selections, tables=[*selections.tables, one_more]))


def test_the_drift_strip_names_each_selection(selections: Subject) -> None:
    with drawing():
        figure = drift.draw(selections)
    names = [text.get_text() for text in figure.axes[0].texts]
    assert names == ["128 rows\nctx 8192", *(f"128 rows\nctx 8192\n{kind}" for kind in SELECTIONS[1:])]


def test_drift_is_taken_inside_rounds(maker: Any) -> None:
    previous, half = [10.0, 11.0, 10.0, 12.0], [5.0, 5.5, 5.0, 6.0]
    control = [5.0, 5.5, 5.05, 6.0]
    maker.header().check("previous").check("int8-tc/splits=16")
    maker.rounds({"previous": previous, "int8-tc/splits=16": half, "control": control}, "int8-tc/splits=16")
    rounds = drift.drift_rounds(maker.run())
    assert [one.null for one in rounds] == pytest.approx([0, 0, math.log(1.01), 0])
    assert [one.low for one in rounds] == pytest.approx([0] * 4)
    assert [one.high for one in rounds] == pytest.approx([0] * 4)
    assert [one.clocks for one in rounds] == [{}] * 4


def test_clocks_are_in_the_strip_where_they_were_read(maker: Any) -> None:
    run = maker.header().check("previous").rounds({"previous": [10.0] * 8, "control": [10.0] * 8}, "previous").run()
    run.visits[:] = [
        visit._replace(clocks={"sm_mhz": 1980.0 - visit.round, "memory_mhz": 3201.0}) for visit in run.visits
    ]
    rounds = drift.drift_rounds(run)
    assert [one.clocks["sm_mhz"] for one in rounds] == [1980.0 - index for index in range(8)]
    with drawing():
        made, _ = pictures(subject_of(run), ["drift"], ["svg"])
    assert "SM clock" in texts(made["drift.svg"])


def test_the_order_of_records_changes_no_picture(subject: Subject) -> None:
    """E7, rapidsai/asvdb#10."""
    other = subject_of(shuffled(subject.run))
    with drawing():
        assert pictures(subject, KINDS[:4], ["svg"]) == pictures(other, KINDS[:4], ["svg"])


def test_twenty_shapes_are_drawn_whole(sweep: Sweep) -> None:
    """The seed's sweep: every kind that decode has, each picture within 200 kB."""
    times = {
        (rows, candidates): {splits: 3 + candidates / 64 / splits + splits / 8 for splits in (32, 16, 11, 8, 4)}
        for rows, candidates in itertools.product((1, 2, 4, 8), (512, 1024, 2048, 4096, 8192))
    }
    found = subject_of(sweep(times, auto=16, noise=0.003, rules=RULES).run())
    with drawing():
        made, lacking = pictures(found)
    assert set(made) == {f"{kind}.{format}" for kind in KINDS if kind not in lacking for format in ("svg", "png")}
    assert set(lacking) == {"prefill", "dense", "mix", "gate"}
    assert max(map(len, made.values())) < 200_000
    said = texts(made["split-choices.svg"])
    assert all(f"rows {rows}, candidates {candidates}" in said for rows, candidates in times)


def test_a_run_without_the_automatic_rule(sweep: Sweep) -> None:
    """Its times are drawn without a mark; what is about the rule says what it lacks."""
    found = subject_of(sweep(SEED).run())
    with drawing():
        made, lacking = pictures(found, formats=["svg"])
    assert {"decode-time.svg", "split-choices.svg", "drift.svg"} <= set(made)
    assert "0 tiles per split, the automatic rule, was not asked for" in lacking["regret-map"]
    assert "automatic choice" not in texts(made["decode-time.svg"])
    assert "automatic rule" not in texts(made["split-choices.svg"]).replace("Splits of each row: automatic rule", "")


def test_two_timers_in_one_cell_are_refused(maker: Any) -> None:
    """Times of two timers are never compared: a cell that has both is refused, by its name."""
    maker.header().check("int8-tc/splits=16").check("int8-tc/splits=8")
    times = {"int8-tc/splits=16": [10.0] * 8, "int8-tc/splits=8": [11.0] * 8, "control": [10.0] * 8}
    run = maker.rounds(times, "int8-tc/splits=16").run()
    run.visits.extend([visit._replace(timer="events", round=visit.round + 8) for visit in run.visits])
    with pytest.raises(BadInput, match=r"was measured with events, L2 .* and wall, L2 .*record them apart"):
        subject_of(run)


def test_names_are_no_markup(sweep: Sweep) -> None:
    """A8, agsaru/Repo2Readme#187, and matplotlib's own markup: $ and [ ] are signs like others."""
    found = subject_of(sweep(SEED, auto=16, name="GPU [/tmp/x] $a_b$\x1b[31m").run())
    with drawing():
        made, _ = pictures(found, ["decode-time"], ["svg"])
    assert "GPU [/tmp/x] $a_b$\\x1b[31m" in texts(made["decode-time.svg"])


def test_nothing_measured_is_nothing_drawn(maker: Any) -> None:
    with pytest.raises(BadInput, match="no cell has a complete round"):
        subject_of(maker.header().check("previous").run())
    empty = Subject(maker.run(), [], [], None)
    for draw in GALLERY.values():
        with pytest.raises(NothingToDraw):
            draw(empty)
