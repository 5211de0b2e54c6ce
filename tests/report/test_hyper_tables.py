# SPDX-License-Identifier: MIT
"""Tables and pictures of `mix` and `gate`: a block for each kernel, its share of a copy, no columns of splits."""

from pathlib import Path
from typing import Any

import pytest

from dsa_bench.model.hyper import GateShape, MixShape
from dsa_bench.model.run import read_run
from dsa_bench.report.cells import cell_tables, part_of
from dsa_bench.report.compare import Terms, compare_runs
from dsa_bench.report.compare_render import compare_text
from dsa_bench.report.flat import flat_rows, to_csv
from dsa_bench.report.plots import hyper as plots
from dsa_bench.report.plots.canvas import drawing
from dsa_bench.report.plots.gallery import pictures
from dsa_bench.report.plots.subject import NothingToDraw, subject_of
from dsa_bench.report.recorded import recorded
from dsa_bench.report.render import to_markdown, to_text
from dsa_bench.report.seed_tables import gate_table, mix_table

TIMES = {
    "pre-mix/branchy": 40.0, "pre-mix/branch-free": 30.0, "scaled-silu/branchy": 9.0, "scaled-silu/branch-free": 6.0,
    "copy/pre-mix": 25.0, "copy/pre-mix/8-to-1": 24.0, "copy/scaled-silu": 3.0, "control": 40.0,
}  # fmt: skip


MODES = {"gate-mul+down/plain": 12.0, "gate-mul+down/pdl": 11.0, "gate-mul+down/pdl-early": 10.0, "control": 12.0}


def run_of(maker: Any, rows: tuple[int, ...] = (8192,), times: dict[str, float] = TIMES, shape: Any = MixShape) -> Any:
    maker.header()
    for count in rows:
        cell = shape(count).key
        for variant in times:
            if variant != "control":
                nothing = {"requested": (), "tiles_per_split": 0, "splits": 0, "kernel": variant, "ctas": 12}
                maker.check(variant, cell=cell, rms_error=None if "copy" in variant else 0.0016, **nothing)
        series = {name: [time_us * (1 + 0.001 * (index % 3)) for index in range(8)] for name, time_us in times.items()}
        maker.rounds(series, next(iter(times)), cell=cell)
    return maker


def test_each_kernel_has_a_table_against_its_own_branchy_form_and_its_own_copy(maker: Any) -> None:
    mixed, activated = cell_tables(run_of(maker).run())
    assert mixed.label == "pre-mix, rows 8192, hidden 2560, rank 320"
    assert activated.label == "scaled-silu, rows 8192, hidden 2560, rank 320"
    assert [row.check.variant for row in activated.rows] == [
        "scaled-silu/branchy", "scaled-silu/branch-free", "copy/scaled-silu",
    ]  # fmt: skip
    assert (mixed.reference, activated.reference) == ("pre-mix/branchy", "scaled-silu/branchy")
    assert activated.rows[1].speedup is not None
    assert activated.rows[1].speedup.centre == pytest.approx(1.5)
    assert [row.gather_share and round(row.gather_share, 3) for row in mixed.rows] == [0.6, 0.8, None, None]
    assert mixed.fastest is not None
    assert mixed.fastest.row.check.variant == "pre-mix/branch-free"  # never the copy
    assert mixed.noise is not None
    assert mixed.noise == activated.noise


def test_the_table_has_no_columns_of_splits(maker: Any) -> None:
    tables = cell_tables(run_of(maker).run())
    text = to_text(tables, color=False, width=None)
    lines = text.splitlines()
    assert lines[1].split() == ["kernel", "CTAs", "time", "speedup", "interval", "of", "copy", "RMS", "err"]
    assert lines[3].split()[:3] == ["pre-mix/branch-free", "12", "30.03"]
    assert lines[3].split()[-2:] == ["80%", "1.60e-3"]
    assert max(map(len, lines[:5])) <= 80
    assert "| 8192 | copy/pre-mix | 12 | 25.02 us | - | - | - | - |" in to_markdown(tables)
    flat = flat_rows(tables)[1]
    assert (flat["hidden"], flat["part"], flat["copy_share"]) == (2560, "pre-mix", pytest.approx(0.8))
    assert not flat.keys() & {
        "splits",
        "tiles_per_split",
        "gather_share",
        "dense_ratio",
        "gathered_bytes",
        "rules",
        "selection",
    }
    assert to_csv(tables).splitlines()[0] == ",".join(flat)


def test_without_a_copy_there_is_no_share(maker: Any) -> None:
    (table,) = cell_tables(run_of(maker, (8,), MODES, GateShape).run())
    assert table.label == "gate-mul+down, rows 8, gated 6144, width 10240, rank 320"
    text = to_text([table], color=False, width=None)
    assert "copy" not in text
    assert "Fastest: gate-mul+down/pdl-early, 1.20x as fast as gate-mul+down/plain" in text


def test_cells_are_in_numeric_order_and_a_record_is_read_back(maker: Any, tmp_path: Path) -> None:
    run = run_of(maker, (2048, 8, 1))
    again = read_run(run.write(tmp_path / "mix.jsonl"))
    assert [table.shape["rows"] for table in cell_tables(again)] == ["1", "1", "8", "8", "2048", "2048"]
    assert cell_tables(again) == cell_tables(run.run())


def test_compare_names_forms_and_copies_are_only_shown(maker: Any) -> None:
    base = run_of(maker).run()
    slower = run_of(type(maker)(), times={**TIMES, "copy/pre-mix": 48.0}).run()
    comparison = compare_runs(base, slower, ("a", "b"), Terms(), allow_mismatch=True)
    assert comparison.gate_reasons(False) == []
    text = compare_text(comparison, color=False, width=None)
    assert "mix, rows 8192, hidden 2560, rank 320, wall, L2 none" in text
    assert "tiles/split" not in text
    assert {row.kernel for row in comparison.rows} == TIMES.keys() - {"control"}


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("pre-mix/branchy", "pre-mix"),
        ("copy/pre-mix", "pre-mix"),
        ("copy/pre-mix/8-to-1", "pre-mix"),
        ("copy", None),
        ("dense", None),
        ("int8-tc@A", None),
    ],
)
def test_the_part_of_a_cell(kernel: str, part: str | None) -> None:
    assert part_of(kernel) == part


def cells(table: str | None) -> list[list[str]]:
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def of_h200(run: Any) -> Any:
    run.header.device["name"] = "NVIDIA H200"
    run.visits[:] = [visit._replace(l2="warm") for visit in run.visits]
    return recorded("r", "r.jsonl", run)


def test_the_seeds_table_of_mix_has_the_documents_figures_beside_its_shape_only(maker: Any) -> None:
    one = of_h200(run_of(maker, (8, 8192)).run())
    rows = {(row[0], row[4]): row[5:] for row in cells(mix_table([one]))}
    assert rows["pre-mix", "8192"] == [
        "40.04 us", "30.03 us", "1.33x", "1.33-1.33", "80%", "112.1 us", "82.7 us",
    ]  # fmt: skip
    assert rows["scaled-silu", "8192"][-2:] == ["7.3 us", "6.1 us"]
    assert rows["pre-mix", "8"][-2:] == ["-", "-"]
    other = recorded("r", "r.jsonl", run_of(type(maker)(), shape=lambda count: MixShape(count, 64)).run())
    assert "document" not in (mix_table([other]) or "")
    assert gate_table([one]) is None


def test_the_table_of_gate_has_each_modes_speedup_over_the_plain_launch(maker: Any) -> None:
    (row,) = cells(gate_table([recorded("r", "r.jsonl", run_of(maker, (8,), MODES, GateShape).run())]))
    assert row[3:] == [
        "8", "12.01 us", "11.01 us", "1.09x", "1.09-1.09", "10.01 us", "1.20x", "1.20-1.20",
    ]  # fmt: skip


def test_lines_of_a_picture_are_the_forms_over_ascending_rows(maker: Any) -> None:
    """E7, numpy/numpy#26637: numbers sort as numbers; E8: what has no time leaves a gap."""
    run = run_of(maker, (2048, 8, 1)).run()
    run.visits[:] = [
        visit._replace(attention_us=None, call_us=None, status="below_resolution", reason="0 us")
        if visit.variant == "pre-mix/branchy" and "rows=8," in visit.cell
        else visit
        for visit in run.visits
    ]
    mixed = [table for table in cell_tables(run) if "pre-mix" in table.label]
    lines = plots.lines_of(mixed, lambda row: row.time_us)
    assert list(lines) == ["branchy", "branch-free", "copy", "copy/8-to-1"]
    assert list(lines["branchy"]) == [1, 2048]
    assert list(lines["copy/8-to-1"]) == [1, 8, 2048]


def test_pictures_of_both_operators(maker: Any) -> None:
    with drawing():
        made, lacking = pictures(subject_of(run_of(maker, (1, 8)).run()), formats=["svg"])
        assert set(made) == {"mix.svg", "drift.svg"}
        assert lacking["gate"] == "no gate cell has a time"
        for words in (b"copy/8-to-1, same bytes", b"scaled-silu", b"share of the copy ceiling (%)"):
            assert words in made["mix.svg"]
        assert b"1 row" in made["drift.svg"]
        pairs = subject_of(run_of(type(maker)(), (1, 8, 8192), MODES, GateShape).run())
        made, _ = pictures(pairs, formats=["svg"])
        assert set(made) == {"gate.svg", "drift.svg"}
        for words in (b"pdl-early", b"speedup over plain", b"8192"):
            assert words in made["gate.svg"]
        without_copies = {name: time_us for name, time_us in TIMES.items() if "copy" not in name}
        made, _ = pictures(subject_of(run_of(type(maker)(), (8,), without_copies).run()), ["mix"], ["svg"])
        assert b"share" not in made["mix.svg"]


def test_too_many_sizes_are_not_drawn_side_by_side(maker: Any) -> None:
    maker.header()
    for hidden in (8, 16, 24):
        shape = MixShape(8, hidden)
        for variant in ("pre-mix/branchy", "scaled-silu/branchy"):
            maker.check(variant, cell=shape.key, kernel=variant, requested=(), tiles_per_split=0, splits=0)
        times = {"pre-mix/branchy": [9.0] * 8, "scaled-silu/branchy": [3.0] * 8, "control": [9.0] * 8}
        maker.rounds(times, "pre-mix/branchy", cell=shape.key)
    with drawing(), pytest.raises(NothingToDraw, match="6 sizes and modes are too many side by side; 4 fit"):
        plots.draw_mix(subject_of(maker.run()))
