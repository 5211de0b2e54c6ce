# SPDX-License-Identifier: MIT
"""Tables of a fixed prefill run with ceilings and a dense line. Oracle: golden text, and numbers worked out here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.model.record import Header
from dsa_bench.model.run import Run
from dsa_bench.report.cells import cell_tables
from dsa_bench.report.flat import flat_rows
from dsa_bench.report.render import rate_text, to_markdown, to_text
from dsa_bench.report.words import what_dense_is

GOLDEN = Path(__file__).parent / "golden"
GATHERED = 128 * 2048 * 2 * 256 * 2


@pytest.fixture
def prefill(maker: Any) -> Run:
    """8 rounds: previous 160 us, int8-tc 64 us, gather 40 us, dense 48 us, each slower by 1 us a round."""
    maker.header(plan={"op": "prefill"})
    geometry = {"requested": (), "splits": 1, "tiles_per_split": 32, "ctas": 256, "gathered_bytes": GATHERED}
    dense = {"splits": 0, "tiles_per_split": 0, "ctas": 0, "gathered_bytes": None, "kernel": "dense"}
    for name, changes in (("previous", {}), ("int8-tc", {}), ("gather", {"rms_error": None}), ("dense/cudnn", dense)):
        maker.check(name, 128, **geometry | changes)
    times = {"previous": 160.0, "int8-tc": 64.0, "gather": 40.0, "dense/cudnn": 48.0, "control": 160.0}
    maker.rounds({name: [time_us + index for index in range(8)] for name, time_us in times.items()}, "previous", 128)
    maker.lines = [
        line if isinstance(line, Header) else
        line._replace(cell=line.cell.replace("op=decode", "op=prefill")) if hasattr(line, "_replace") else
        replace(line, cell=line.cell.replace("op=decode", "op=prefill"))
        for line in maker.lines
    ]  # fmt: skip
    return maker.run()


def test_golden_prefill_table(prefill: Run) -> None:
    text = to_text(cell_tables(prefill), color=False, width=None) + "\n"
    assert text == (GOLDEN / "prefill.txt").read_text()
    assert max(len(line) for line in text.splitlines()[1:6]) <= 80
    assert to_markdown(cell_tables(prefill)) + "\n" == (GOLDEN / "prefill.md").read_text()


def test_a_record_from_before_cells_named_their_selection_says_it_too(prefill: Run) -> None:
    prefill.header.plan["data"] = {"selection": "random"}
    (table,) = cell_tables(prefill)
    assert (table.selection, "selection random" in table.label) == ("random", True)
    prefill.header.plan["selections"] = ["random", "sorted"]
    (table,) = cell_tables(prefill)
    assert (table.selection, "selection" in table.label) == ("sorted", False)


def test_dense_is_no_choice_and_no_reference(prefill: Run) -> None:
    """It is the fastest here, and still int8-tc is: dense attention computes something else."""
    (table,) = cell_tables(prefill)
    assert table.fastest is not None
    assert table.fastest.row.check.kernel == "int8-tc"
    assert table.reference == "previous"
    dense = table.rows[3]
    assert (dense.speedup, dense.gather_share, dense.dense_ratio, dense.gathered_gbps) == (None, None, None, None)
    assert table.dense is dense


def test_gathered_bytes_share_and_ratio_to_dense(prefill: Run) -> None:
    previous, int8_tc, gather, dense = flat_rows(cell_tables(prefill))
    assert int8_tc["gathered_bytes"] == GATHERED
    assert int8_tc["gathered_gbps"] == pytest.approx(GATHERED / 67.5e-6 / 1e9)
    assert gather["gathered_gbps"] == pytest.approx(GATHERED / 43.5e-6 / 1e9)
    assert int8_tc["dense_ratio"] == pytest.approx(51.5 / 67.5, rel=0.01)
    assert int8_tc["dense_ratio_low"] < int8_tc["dense_ratio"] < int8_tc["dense_ratio_high"]
    assert previous["gather_share"] == pytest.approx(43.5 / 163.5, rel=0.02)
    assert (dense["kernel"], dense["variant"], dense["gathered_bytes"]) == ("dense", "dense/cudnn", None)


def test_without_a_dense_line_nothing_is_said_of_it(prefill: Run) -> None:
    prefill.checks[:] = [replace(check, status="launch_refused", reason="no backend runs")
                         if check.kernel == "dense" else check for check in prefill.checks]  # fmt: skip
    prefill.visits[:] = [visit for visit in prefill.visits if visit.variant != "dense/cudnn"]
    (table,) = cell_tables(prefill)
    assert what_dense_is(table) is None
    text = to_text([table], color=False, width=None)
    assert "dense/cudnn: launch refused: no backend runs" in text
    assert "another computation" not in text


def test_rates_have_three_figures_and_a_unit() -> None:
    assert [rate_text(gbps) for gbps in (0.1234, 12.34, 999.4, 999.6, 9432.1)] == [
        "0.123 GB/s", "12.3 GB/s", "999 GB/s", "1.00 TB/s", "9.43 TB/s",
    ]  # fmt: skip
