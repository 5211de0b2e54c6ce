# SPDX-License-Identifier: MIT
"""Tables and pictures of `dense`: a block for each kernel against its monolithic launch, and its share of the copy."""

from typing import Any

import pytest

from dsa_bench.model.dense import DenseShape
from dsa_bench.model.record import Check
from dsa_bench.report.cells import cell_tables
from dsa_bench.report.compare import Terms, compare_runs
from dsa_bench.report.compare_render import compare_text
from dsa_bench.report.compare_words import name
from dsa_bench.report.flat import flat_rows
from dsa_bench.report.plots import dense as plots
from dsa_bench.report.plots.canvas import drawing
from dsa_bench.report.plots.gallery import pictures
from dsa_bench.report.plots.subject import NothingToDraw, subject_of
from dsa_bench.report.recorded import recorded
from dsa_bench.report.regret import score, standing
from dsa_bench.report.render import to_markdown, to_text
from dsa_bench.report.seed_tables import dense_table
from dsa_bench.report.swept import NothingSwept, swept_cells
from dsa_bench.splits.dense import RULES, dense_variants
from dsa_bench.sweep.dense import plan_facts

SHAPE = DenseShape(4096, 2600)
TIMES = {
    "previous/off": 400.0, "previous/splits=16,chunk=256": 80.0, "previous/splits=32,chunk=128": 60.0,
    "previous/splits=32,chunk=live": 61.0, "fast/off": 48.0, "fast/splits=16,chunk=256": 9.6,
    "fast/splits=32,chunk=128": 8.0, "fast/splits=32,chunk=live": 8.2, "copy/kv": 5.0,
}  # fmt: skip


def run_of(maker: Any, lengths: tuple[int, ...] = (2600,), capacity: int = 4096, copies: bool = True) -> Any:
    """A run with the times above, a little more each round, longer for longer lengths."""
    maker.header(plan={"op": "dense"}, device={"backend": "cuda", "name": "H200", "sm_count": 132, "resident_ctas": 4})
    for length in lengths:
        shape = DenseShape(capacity, length)
        wanted = {name: us for name, us in TIMES.items() if copies or name != "copy/kv"}
        for one in dense_variants(("previous", "fast"), RULES, shape):
            facts = {**plan_facts(one.plan, shape), "resident": 4, "waves": one.plan.splits / 33, "occupancy": 0.24}
            maker.check(
                one.name, cell=shape.key, kernel=one.kernel, requested=one.requested, rules=one.rules,
                tiles_per_split=0, splits=one.plan.splits, ctas=16 * one.plan.splits,
                gathered_bytes=shape.live_bytes, facts=facts,
            )  # fmt: skip
        if copies:
            maker.check(
                "copy/kv", cell=shape.key, kernel="copy/kv", requested=(), tiles_per_split=0, splits=0, ctas=813,
                gathered_bytes=shape.live_bytes, rms_error=None, rounding_floor=None,
            )  # fmt: skip
        names = [check.variant for check in maker.lines if isinstance(check, Check) and check.cell == shape.key]
        series = {
            name: [wanted.get(name, 9.0) * (1 + length / 26e6) * (1 + 0.001 * (index % 3)) for index in range(16)]
            for name in names
        }
        control = next(name for name in names if name.startswith("fast/") and name.endswith("live"))
        maker.rounds({**series, "control": series[control]}, control, cell=shape.key)
    return maker.run()


def test_each_kernel_has_a_table_against_its_monolithic_launch_with_the_copy_in_both(maker: Any) -> None:
    previous, fast = cell_tables(run_of(maker))
    assert previous.label == "previous, capacity 4096, length 2600, heads 16/16 x 192/128, f16"
    assert (previous.reference, fast.reference) == ("previous/off", "fast/off")
    assert [table.rows[-1].check.variant for table in (previous, fast)] == ["copy/kv"] * 2
    adaptive = next(row for row in fast.rows if "seed-adaptive" in row.check.rules)
    assert adaptive.speedup is not None
    assert adaptive.speedup.centre == pytest.approx(6.0)
    assert {what: ratio.centre for what, ratio in adaptive.beside.items()} == pytest.approx(
        {"fixed:256": 1.2, "previous": 7.5}
    )
    assert adaptive.gather_share == pytest.approx(5 / 8)
    assert adaptive.gathered_gbps == pytest.approx(SHAPE.live_bytes / adaptive.time_us / 1e3, rel=1e-3)
    assert fast.fastest is not None
    assert fast.fastest.row is adaptive  # never the copy
    assert set(previous.rows[1].beside) == set()  # is fixed:256 itself, and `previous`


def test_text_has_the_columns_of_the_issue(maker: Any) -> None:
    tables = cell_tables(run_of(maker))
    lines = to_text(tables, color=False, width=None).splitlines()
    columns = ["rule", "grid", "chunk", "alive", "waves", "occ.", "time", "speedup", "interval", "fixed:256"]
    assert lines[1].split() == [*columns, "read/s", "of", "copy", "RMS", "err"]  # nothing there is over `previous`
    fast = lines[next(at for at, line in enumerate(lines) if line.startswith("fast, ")) :]
    assert fast[1].split() == [*columns, "previous", "read/s", "of", "copy", "RMS", "err"]
    assert [line.split()[0] for line in fast[2:7]] == ["off", "fixed:256", "seed-adaptive", "live", "copy/kv"]
    adaptive = fast[4]
    assert "16x32   128    21  0.97  24%" in adaptive
    assert "1.20x (1.20-1.20)" in adaptive
    assert "7.50x (7.50-7.50)" in adaptive
    assert "Fastest: fast under seed-adaptive = adaptive, 6.00x as fast as fast under off" in "\n".join(lines)
    markdown = to_markdown(tables)
    assert markdown.startswith("| capacity | length | kernel | rule | grid |")
    copied = next(row for row in flat_rows(tables) if row["kernel"] == "copy/kv")
    assert not copied.keys() & {"selection", "tiles_per_split", "dense_ratio"}
    assert (copied["chunk"], copied["copy_share"], copied["previous_ratio"], copied["ctas"]) == (None, None, None, 813)


def test_without_the_monolithic_launch_the_automatic_rule_is_the_reference(maker: Any) -> None:
    run = run_of(maker)
    run.checks[:] = [check for check in run.checks if not check.variant.endswith("/off")]
    run.visits[:] = [visit for visit in run.visits if not visit.variant.endswith("/off")]
    assert [table.reference for table in cell_tables(run)] == [
        "previous/splits=32,chunk=128", "fast/splits=32,chunk=128",
    ]  # fmt: skip


def test_the_documents_table(maker: Any) -> None:
    table = dense_table([recorded("run", "run.jsonl", run_of(maker, (24, 2600)))])
    assert table is not None
    lines = table.splitlines()
    assert lines[0].startswith("| kernel | run | L2 | timer | capacity | length | batch | dtype | off | fixed:256 |")
    assert len(lines) == 2 + 4
    assert "| 6.00x | 6.00-6.00 | 1.20x | 1.20-1.20 | 21 | 0.97 | 24% |" in lines[-1]
    assert dense_table([]) is None


def test_pictures_have_a_line_for_each_launch(maker: Any) -> None:
    subject = subject_of(run_of(maker, (24, 520, 2600)))
    fast = [table for table in subject.tables if table.part == "fast"]
    alive = plots.lines_of(fast, plots.VALUES["splits that hold keys"])
    assert alive["seed-adaptive = adaptive"] == {24: 1, 520: 5, 2600: 21}
    assert "copy/kv" not in alive
    assert list(plots.lines_of(fast, plots.VALUES["time (µs)"])) == [
        "off", "fixed:256", "seed-adaptive = adaptive", "live", "copy/kv",
    ]  # fmt: skip
    with drawing():
        made, lacking = pictures(subject, formats=("svg",))
        again, _ = pictures(subject, formats=("svg",))
    assert set(made) == {"dense.svg", "drift.svg"}
    assert made == again
    assert lacking["decode-time"]


def test_no_line_leaves_the_panels_of_its_row(maker: Any) -> None:
    with drawing():
        figure = plots.draw(subject_of(run_of(maker, (24, 2600), copies=False)))
    for ax in figure.axes:
        low, high = ax.get_ylim()
        drawn = [float(y) for line in ax.get_lines() for y in line.get_ydata()]
        assert drawn
        assert low <= min(drawn)
        assert max(drawn) <= high


def test_nothing_to_draw_is_said(maker: Any, two_cells: Any) -> None:
    with pytest.raises(NothingToDraw, match="no dense cell has a time"):
        plots.draw(subject_of(two_cells.run()))
    run = run_of(maker, (0,))
    with pytest.raises(NothingToDraw, match="no dense cell has a time"):  # a length of 0 has no place on the axis
        plots.draw(subject_of(run))
    with pytest.raises(NothingSwept, match="no complete round of a split kernel in decode"):
        swept_cells(run)


def test_too_many_columns_are_not_drawn(maker: Any) -> None:
    run = run_of(maker)
    other = [run_of(type(maker)(), (300,), capacity) for capacity in (512, 1024)]
    for one in other:
        run.checks.extend(one.checks)
        run.visits.extend(one.visits)
    with pytest.raises(NothingToDraw, match="6 kernels, capacities and modes are too many"):
        plots.draw(subject_of(run))


def test_rules_are_scored_without_knowing_the_device(maker: Any) -> None:
    cells = swept_cells(run_of(maker), "dense")
    assert [cell.kernel for cell in cells] == ["previous", "fast"]
    scores = score(cells, ["auto", "off", "fixed:256", "live", "fixed:100", "fa2"], None, None)
    fast = {one.rule: one.regret.cross_fitted for one in scores.scored if one.cell.kernel == "fast"}
    assert fast == pytest.approx({"auto": 0.0, "off": 5.0, "fixed:256": 0.2, "live": 0.025}, abs=0.002)
    reasons = {one.rule: one.reason for one in scores.unscored}
    assert reasons == {
        "fixed:100": "chooses splits=41,chunk=100, which was not measured; add --rule fixed:100 to the sweep",
        "fa2": "is a rule of decode, and the run is of dense decode",
    }
    assert standing("live", scores.of("live")).worst is not None


def test_a_rule_of_dense_decode_says_nothing_of_decode(sweep: Any) -> None:
    cells = swept_cells(sweep({(8, 2048): {16: 10.0, 8: 9.0}}, auto=16).run())
    (one,) = score(cells, ["live"], None, None).unscored
    assert one.reason == "is a rule of dense decode, and the run is of decode"


def test_a_dense_shape_is_no_shape_of_sparse_attention(maker: Any) -> None:
    with pytest.raises(TypeError, match="is no shape of sparse attention"):
        _ = swept_cells(run_of(maker), "dense")[0].sparse


def test_compared_lines_of_dense_decode_are_told_by_their_rules(maker: Any) -> None:
    run = run_of(maker)
    compared = compare_runs(run, run, ("base", "head"), Terms(), allow_mismatch=True)
    text = compare_text(compared, color=False, width=None)
    assert "tiles/split" not in text
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("previous ")] == [
        ["previous", "off"], ["previous", "live"], ["previous", "seed-adaptive"], ["previous", "fixed:256"],
    ]  # fmt: skip
    assert name(compared.rows[0]) == "previous under off"
