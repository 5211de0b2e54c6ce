# SPDX-License-Identifier: MIT
"""Tables of fixed runs. Oracle: golden text, and numbers worked out beside it."""

import csv
import io
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.model.run import Run
from dsa_bench.report.cells import CellTable, cell_tables, untrusted_cells
from dsa_bench.report.flat import to_csv, to_json, to_jsonl
from dsa_bench.report.render import MACHINE_WRITERS, time_text, to_markdown, to_text
from dsa_bench.report.words import conclusion

GOLDEN = Path(__file__).parent / "golden"

COLUMNS = (
    "rows,context,candidates,query_heads,kv_heads,head_size,kernel,tiles_per_split_requested,tiles_per_split,splits,"
    "ctas,status,reason,time_us,call_us,reference,speedup,speedup_low,speedup_high,speedup_median,gather_share,"
    "rms_error,rounding_floor,rounds,timer,l2,noise_ratio,noise_low,noise_high,trusted,"
    "variant,gathered_bytes,gathered_gbps,dense_ratio,dense_ratio_low,dense_ratio_high,rules,selection"
)


def text(run: Run, **options: Any) -> str:
    return to_text(cell_tables(run), **{"color": False, "width": None, **options})


def every_format(run: Run) -> list[str]:
    return [
        text(run),
        text(run, color=True, width=80),
        *(write(cell_tables(run)) for write in MACHINE_WRITERS.values()),
    ]


@pytest.fixture
def with_failure(two_cells: Any) -> Run:
    reason = "out[0, 1, 2] is 3, the FP64 reference 1, the bound 0.1"
    wrong = {"status": "wrong_result", "reason": reason, "requested": (1, 2), "rms_error": 0.5}
    return two_cells.check("int8-tc/splits=32", 8, **wrong).run()


def test_golden_table(with_failure: Run) -> None:
    assert text(with_failure) + "\n" == (GOLDEN / "decode.txt").read_text()


def test_golden_markdown(with_failure: Run) -> None:
    assert to_markdown(cell_tables(with_failure)) + "\n" == (GOLDEN / "decode.md").read_text()


def test_the_table_fits_80_columns_and_sentences_the_terminal(with_failure: Run) -> None:
    grid = [line for line in text(with_failure).splitlines() if line.startswith(("kernel ", "previous ", "int8-tc "))]
    assert len(grid) == 7
    assert max(map(len, grid)) <= 80
    wrapped = [line for line in text(with_failure, width=80).splitlines() if "/splits=32: " not in line]
    assert max(map(len, wrapped)) <= 80
    assert " ".join(text(with_failure, width=80).split()) == " ".join(text(with_failure).split())


def test_colour_adds_codes_and_changes_no_text(with_failure: Run) -> None:
    colored = text(with_failure, color=True)
    assert "\x1b[" in colored
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in plain.splitlines()] == text(with_failure).splitlines()


def test_machine_formats_hold_the_raw_numbers(with_failure: Run) -> None:
    """B6, google/benchmark#1482: ratios from raw values; E7, rapidsai/asvdb#10: keys keep their types."""
    tables = cell_tables(with_failure)
    document = json.loads(to_json(tables))
    assert (document["schema"], document["schema_version"]) == ("dsa-bench/decode-table", 1)
    assert len(document["conclusions"]) == 2
    rows = document["rows"]
    assert [(row["rows"], row["kernel"], row["status"]) for row in rows] == [
        (1, "previous", "ok"), (1, "int8-tc", "ok"), (8, "previous", "ok"), (8, "int8-tc", "ok"),
        (8, "int8-tc", "wrong_result"),
    ]  # fmt: skip
    assert rows == [json.loads(line) for line in to_jsonl(tables).splitlines()]
    assert to_csv(tables).splitlines()[0] == COLUMNS == ",".join(rows[0])
    for flat, row in zip(csv.DictReader(io.StringIO(to_csv(tables))), rows, strict=True):
        for name, value in row.items():
            expected = "" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)
            assert flat[name] == expected
    assert rows[1]["time_us"] == pytest.approx((51.0 * 1.02 + 52.0 * 1.02) / 2, rel=0.02)
    assert rows[1]["speedup"] == pytest.approx(2 / 1.02, rel=1e-3)
    assert rows[1]["tiles_per_split_requested"] == [0]
    assert rows[4]["time_us"] is rows[4]["speedup"] is None


def test_swapped_sides_give_the_inverse(maker: Any) -> None:
    """B6, google/benchmark#1482: 73.6 against 13.2 is 5.58x, and the other way round its inverse."""
    slow, fast = [73.6] * 8, [13.2] * 8
    sentences, ratios = [], []
    for previous, other in ((slow, fast), (fast, slow)):
        run = type(maker)().header().check("previous").check("int8-tc/splits=1")
        run = run.rounds({"previous": previous, "int8-tc/splits=1": other, "control": previous}, "previous").run()
        (table,) = cell_tables(run)
        assert table.rows[1].speedup is not None
        ratios.append(table.rows[1].speedup.centre)
        sentences.append(conclusion(table))
    assert ratios[0] == pytest.approx(73.6 / 13.2)
    assert ratios[0] * ratios[1] == pytest.approx(1.0)
    assert sentences[0].startswith("Fastest: int8-tc at auto tiles per split, 5.58x as fast as previous")
    assert sentences[1].startswith("Fastest: previous, 5.58x as fast as the next, int8-tc at auto tiles per split")


def test_ratios_come_from_raw_times(maker: Any) -> None:
    """B6, google/benchmark#1482: 11.94 over 10.40 is 1.148, though the printed 11.9 over 10.4 is 1.144."""
    run = maker.header().check("previous").check("int8-tc/splits=1")
    run = run.rounds(
        {"previous": [11.94] * 8, "int8-tc/splits=1": [10.40] * 8, "control": [11.94] * 8}, "previous"
    ).run()
    row = json.loads(to_json(cell_tables(run)))["rows"][1]
    assert row["speedup"] == pytest.approx(11.94 / 10.40, rel=1e-12)
    assert row["speedup_median"] == pytest.approx(11.94 / 10.40, rel=1e-12)


def test_the_order_of_records_changes_nothing(with_failure: Run) -> None:
    """E7, rapidsai/asvdb#10: visits are matched by cell, variant and round; axes sort as numbers."""
    expected = every_format(with_failure)
    for seed in range(5):
        shuffled = list(with_failure.visits)
        random.Random(seed).shuffle(shuffled)
        assert every_format(replace(with_failure, visits=shuffled)) == expected


def test_axes_sort_as_numbers(maker: Any) -> None:
    """E7, rapidsai/asvdb#10: 1, 8, 16, 128."""
    maker.header()
    for rows in (128, 16, 1, 8):
        maker.check("previous", rows)
    assert [table.shape["rows"] for table in cell_tables(maker.run())] == ["1", "8", "16", "128"]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_rounds_have_a_ratio_and_no_interval(maker: Any, count: int) -> None:
    """B6, google/benchmark#1482: nothing is invented that the rounds cannot support."""
    run = maker.header().check("previous").check("int8-tc/splits=1")
    run = run.rounds(
        {"previous": [4.0] * count, "int8-tc/splits=1": [2.0] * count, "control": [4.0] * count}, "previous"
    )
    (table,) = cell_tables(run.run())
    assert table.rows[1].speedup is not None
    assert table.rows[1].speedup.interval is None
    assert f"{count} rounds are too few" in conclusion(table)
    row = json.loads(to_json([table]))["rows"][1]
    assert (row["speedup"], row["speedup_low"], row["noise_low"]) == (pytest.approx(2.0), None, None)


def test_no_complete_round_is_said(maker: Any) -> None:
    run = maker.header().check("previous").check("int8-tc/splits=1").run()
    (table,) = cell_tables(run)
    assert {(row.status, row.reason) for row in table.rows} == {("not_measured", "no complete round")}
    assert conclusion(table) == "Nothing was timed."
    assert "not measured" in text(run)
    assert json.loads(to_json([table]))["rows"][0]["timer"] is None


def test_a_cut_off_round_does_not_count(two_cells: Any) -> None:
    whole = two_cells.run()
    cut = replace(whole, visits=whole.visits[:-1])
    assert [table.rounds for table in cell_tables(whole)] == [8, 8]
    assert [table.rounds for table in cell_tables(cut)] == [7, 8]


def test_a_run_without_cells_has_no_table(maker: Any) -> None:
    tables = cell_tables(maker.header().run())
    assert to_text(tables, color=False, width=None) == to_csv(tables) == to_jsonl(tables) == ""
    assert json.loads(to_json(tables))["rows"] == []


def below_resolution(maker: Any, previous: list[float | None], other: list[float | None]) -> CellTable:
    run = maker.header().check("previous").check("int8-tc/splits=1")
    (table,) = cell_tables(
        run.rounds({"previous": previous, "int8-tc/splits=1": other, "control": previous}, "previous").run()
    )
    return table


def test_a_time_below_resolution_is_none(maker: Any) -> None:
    """B1, triton-lang/triton#8948, and E5, sharkdp/hyperfine#642: no ratio, no NaN, no infinity."""
    table = below_resolution(maker, [5.0] * 8, [None] * 8)
    assert (table.rows[1].status, table.rows[1].time_us, table.rows[1].speedup) == ("below_resolution", None, None)
    assert conclusion(table) == "Only previous was timed: 5.00 us."
    assert "below resolution" in to_text([table], color=False, width=None)
    assert "NaN" not in to_json([table])


def test_a_reference_below_resolution_is_no_reference(maker: Any) -> None:
    """E5, sharkdp/hyperfine#642: zero as base."""
    table = below_resolution(maker, [None] * 8, [5.0] * 8)
    assert table.reference == "int8-tc/splits=1"
    assert conclusion(table) == "Only int8-tc at auto tiles per split was timed: 5.00 us."
    assert table.noise is None


def test_only_rounds_with_both_times_are_paired(maker: Any) -> None:
    table = below_resolution(maker, [5.0] * 8, [None, None, *[10.0] * 6])
    assert table.rows[1].speedup is not None
    assert table.rows[1].speedup.rounds == 6
    assert table.rows[1].speedup.centre == pytest.approx(0.5)


def test_reasons_do_not_depend_on_the_order_of_visits(maker: Any) -> None:
    """E7, rapidsai/asvdb#10."""
    run = maker.header().check("previous").check("int8-tc/splits=1")
    run = run.rounds({"previous": [5.0] * 8, "int8-tc/splits=1": [None] * 8, "control": [5.0] * 8}, "previous").run()
    assert every_format(replace(run, visits=run.visits[::-1])) == every_format(run)


def test_an_untrusted_cell_says_so(maker: Any) -> None:
    run = maker.header().check("previous").check("int8-tc/splits=1")
    run = run.rounds({"previous": [5.0] * 8, "int8-tc/splits=1": [1.0] * 8, "control": [5.2] * 8}, "previous").run()
    tables = cell_tables(run)
    assert untrusted_cells(tables) == tables
    assert "noise floor +4.00% [+4.00%, +4.00%] UNTRUSTED" in text(run)
    assert conclusion(tables[0]).endswith("but the null control was off, so do not trust it.")


def test_a_difference_within_its_interval_is_not_proven(maker: Any) -> None:
    run = maker.header().check("previous").check("int8-tc/splits=1")
    wobble = [5.0, 5.2] * 4
    run = run.rounds({"previous": wobble, "int8-tc/splits=1": wobble[::-1], "control": wobble}, "previous").run()
    assert conclusion(cell_tables(run)[0]) == (
        "Fastest: previous, not told apart from int8-tc at auto tiles per split."
    )


NAMES = ["Attn[splitk=16]", "[slug]", "[/red]", "[bold]x[/bold]", ":smile:", "a" * 100, "http://x.y/[z]"]


@pytest.mark.parametrize("kernel", NAMES)
def test_data_is_never_markup(maker: Any, kernel: str) -> None:
    """A8, agsaru/Repo2Readme#187: names and reasons in square brackets are complete in every format."""
    reason = f"expected one of [0, 1, 2, 4] in [/tmp/{kernel}]"
    run = maker.header().check(kernel, status="compile_failed", reason=reason, rms_error=None).run()
    for output in every_format(run):
        assert kernel in output
    for output in (text(run), text(run, color=True), to_json(cell_tables(run))):
        assert reason in output
    timed = type(maker)().header().check(kernel).rounds({kernel: [5.0] * 8, "control": [5.0] * 8}, kernel).run()
    for output in (text(timed), to_markdown(cell_tables(timed))):
        assert f"Only {kernel} was timed: 5.00 us." in output


@pytest.mark.parametrize(
    ("time_us", "shown"),
    [(0.123, "0.12 us"), (10.404, "10.40 us"), (99.994, "99.99 us"), (123.45, "123.5 us"), (9999.9, "9999.9 us"),
     (10_000.0, "10.00 ms"), (1_234_567.0, "1234.57 ms")],
)  # fmt: skip
def test_times_carry_their_unit(time_us: float, shown: str) -> None:
    assert time_text(time_us) in (shown, shown.replace("123.5", "123.4"))


def test_every_line_that_is_not_told_apart_is_named_and_the_next_one_is_not(maker: Any) -> None:
    """A noisy slow line ties although a steady one before it does not; one without a common round is left out."""
    run = maker.header()
    times = {
        "previous": [30.0] * 8,
        "int8-tc/splits=1": [10.0, 10.1] * 4,
        "int8-tc/splits=2": [10.5] * 8,
        "int8-tc/splits=4": [8.0, 14.0] * 4,
    }
    for splits, asked in ((1, 0), (2, 2), (4, 4)):
        run = run.check(f"int8-tc/splits={splits}", requested=(asked,))
    (table,) = cell_tables(run.check("previous").rounds(times | {"control": [30.0] * 8}, "previous").run())
    assert table.fastest is not None
    assert table.fastest.row.check.splits == 1
    assert [row.check.splits for row in table.fastest.ties] == [4]
    assert table.fastest.next is not None
    assert table.fastest.next[0].check.splits == 2
    assert conclusion(table).endswith("and not told apart from int8-tc at 4 tiles per split.")
