# SPDX-License-Identifier: MIT
"""The seed documents' tables, made from runs that measured their shapes; published figures in columns that say so."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from dsa_bench.model.dense_request import AUTO_RULE, FIXED, OFF
from dsa_bench.model.errors import BadInput
from dsa_bench.report import published
from dsa_bench.report.cells import CellTable, VariantRow, part_of
from dsa_bench.report.columns import interval, markdown, percent
from dsa_bench.report.recorded import Recorded, link
from dsa_bench.report.regret import ScoredChoice, score, standing
from dsa_bench.report.render import rate_text, time_text
from dsa_bench.report.swept import run_slots, swept_cells
from dsa_bench.splits.registry import AUTO
from dsa_bench.stats.location import Estimate

DOCUMENT = "document: "
"""Begins the heading of every column whose figures are published, not measured."""
SPLIT_RULES = (AUTO, "seed-384")
NONE = "-"
OURS = "int8-tc"


def decode_table(runs: Sequence[Recorded]) -> str | None:
    """Both kernels over rows and context, the automatic split."""
    return _pair_table(runs, "decode", published.DECODE)


def prefill_table(runs: Sequence[Recorded]) -> str | None:
    return _pair_table(runs, "prefill", published.PREFILL)


def tiles_table(runs: Sequence[Recorded]) -> str | None:
    """Decode time against tiles per split for 8 rows."""
    columns = ["run", "L2", "tiles per split", "splits", "CTAs", "int8-tc", f"{DOCUMENT}tensor core"]
    rows: list[list[str]] = []
    for one, table in _seed_cells(runs, "decode", {}):
        if (table.shape["rows"], table.shape["context"]) != (str(published.TILES_PER_SPLIT_ROWS), "8192"):
            continue
        asked = {value: row for row in table.rows if row.check.kernel == OURS for value in row.check.requested if value}
        found = {value: asked[value] for value in published.TILES_PER_SPLIT if value in asked}
        for value, row in found.items() if len(found) > 1 else ():
            name = f"{value} (automatic)" if 0 in row.check.requested else str(value)
            known = _published(one, table, lambda value=value: _document_time(published.TILES_PER_SPLIT[value]))
            geometry = (str(row.check.splits), str(row.check.ctas))
            rows.append([link(one.name, one.link), str(table.l2), name, *geometry, _time(row), known])
    return _table(columns, rows)


def fallback_table(runs: Sequence[Recorded]) -> str | None:
    """Data that leave the document's fast path. Above 1x the tensor-core kernel is faster."""
    columns = ["data", "run", "op", "rows", "previous", "int8-tc", "speedup", "interval",
               f"{DOCUMENT}previous", f"{DOCUMENT}tensor core", f"{DOCUMENT}speedup"]  # fmt: skip
    rows: list[list[str]] = []
    for words, data, known in published.FALLBACK:
        for op in ("prefill", "decode"):
            for one, table in _seed_cells(runs, op, data):
                if table.shape["context"] == str(published.FALLBACK_CONTEXT):
                    place = (op, int(table.shape["rows"]))
                    measured = _measured(table)
                    if measured is not None:
                        rows.append([words, link(one.name, one.link), op, table.shape["rows"], *measured[:4],
                                     *_document_pair(one, table, known.get(place))])  # fmt: skip
    return _table(columns, rows)


def regret_table(runs: Sequence[Recorded]) -> str | None:
    """Regret of the automatic rule, and of its predecessor where its launches were measured."""
    columns = ["run", "L2", "resident CTAs", "shapes", "rule", "mean", "95% interval", "max", "naive mean", "naive max",
               f"{DOCUMENT}mean", f"{DOCUMENT}max"]  # fmt: skip
    return _table(columns, [row for one in runs for row in _regret_rows(one)])


def mix_table(runs: Sequence[Recorded]) -> str | None:
    """PreMix and ScaledSilu with either sigmoid, and the branch-free one's share of the fastest copy of its bytes."""
    columns = ["kernel", "run", "L2", "timer", "rows", "branchy", "branch-free", "speedup", "interval", "of copy",
               f"{DOCUMENT}branchy", f"{DOCUMENT}branch-free"]  # fmt: skip
    rows: list[list[str]] = []
    for one, table in _cells_of(runs, "mix"):
        first, second = (_form(table, form) for form in ("branchy", "branch-free"))
        if first is None or second is None:
            continue
        part = str(part_of(second.check.kernel))
        share = NONE if second.gather_share is None else f"{second.gather_share:.0%}"
        known = published.MIX.get((part, int(table.shape["rows"])))
        if any(table.shape.get(name) != size for name, size in published.MIX_SHAPE.items()):
            known = None
        document = [NONE] * 2
        if known is not None:
            document = [_published(one, table, lambda us=us: _document_time(us)) for us in known]
        place = (str(table.l2), str(table.timer), table.shape["rows"])
        ours = (_time(first), _time(second), *_ratio(second))
        rows.append([part, link(one.name, one.link), *place, *ours, share, *document])
    return _table(columns, rows)


def gate_table(runs: Sequence[Recorded]) -> str | None:
    """gate-mul and its successor in each launch mode; speedups over the plain launch of the same rounds."""
    columns = ["run", "L2", "timer", "rows", "plain", "pdl", "speedup", "interval", "pdl-early", "early: speedup",
               "early: interval"]  # fmt: skip
    rows: list[list[str]] = []
    for one, table in _cells_of(runs, "gate"):
        plain, late, early = (_form(table, mode) for mode in ("plain", "pdl", "pdl-early"))
        if plain is None or late is None or early is None:
            continue
        place = (str(table.l2), str(table.timer), table.shape["rows"])
        rows.append(
            [link(one.name, one.link), *place, _time(plain), _time(late), *_ratio(late), _time(early), *_ratio(early)]
        )
    return _table(columns, rows)


def dense_table(runs: Sequence[Recorded]) -> str | None:
    """Dense decode under the document's rules and `live`, what its adaptive rule gains, and its share of a copy."""
    rules = (OFF, FIXED, AUTO_RULE, "live")
    columns = ["kernel", "run", "L2", "timer", "capacity", "length", "batch", "dtype", *rules, "over off", "interval",
               f"over {FIXED}", "its interval", "alive", "waves", "occ.", "read/s", "of copy"]  # fmt: skip
    rows: list[list[str]] = []
    for one, table in _cells_of(runs, "dense"):
        of_rule = {name: next((row for row in table.rows if name in row.check.rules), None) for name in rules}
        chosen = of_rule[AUTO_RULE]
        if chosen is None or chosen.time_us is None:
            continue
        shape, facts, fixed = table.shape, chosen.check.facts, chosen.beside.get(FIXED)
        place = [str(table.l2), str(table.timer), *(shape[name] for name in ("capacity", "length", "batch", "dtype"))]
        times = [NONE if row is None or row.time_us is None else _time(row) for row in of_rule.values()]
        geometry = [f"{facts['alive']:g}", f"{facts['waves']:.2f}", _share(facts.get("occupancy"))]
        rate = NONE if chosen.gathered_gbps is None else rate_text(chosen.gathered_gbps)
        gains = (*_estimate(chosen.speedup), *_estimate(fixed))
        reached = [rate, _share(chosen.gather_share)]
        rows.append([str(table.part), link(one.name, one.link), *place, *times, *gains, *geometry, *reached])
    return _table(columns, rows)


def _share(share: float | None) -> str:
    return NONE if share is None else f"{share:.0%}"


def _cells_of(runs: Sequence[Recorded], op: str) -> Iterator[tuple[Recorded, CellTable]]:
    return ((one, table) for one in runs for table in one.tables if table.op == op and table.rounds)


def _form(table: CellTable, form: str) -> VariantRow | None:
    return next((row for row in table.rows if row.check.variant.endswith(f"/{form}")), None)


def _ratio(row: VariantRow) -> tuple[str, str]:
    """A speedup and its interval."""
    return _estimate(row.speedup)


def _estimate(ratio: Estimate | None) -> tuple[str, str]:
    ends = NONE if ratio is None or ratio.interval is None else "{:.2f}-{:.2f}".format(*ratio.interval)
    return (NONE if ratio is None else f"{ratio.centre:.2f}x", ends)


def _regret_rows(one: Recorded) -> Iterator[list[str]]:
    try:
        cells = swept_cells(one.run)
    except BadInput:
        return
    slots = run_slots(one.run)
    for mode in dict.fromkeys((cell.timer, cell.l2) for cell in cells):
        of_mode = [cell for cell in cells if (cell.timer, cell.l2) == mode and len(cell.times) > 1 and cell.is_ruled]
        scores = score(of_mode, SPLIT_RULES, slots, None)
        for rule in SPLIT_RULES:
            scored = scores.of(rule)
            total = standing(rule, scored).total
            if total is None:
                continue
            resident = None if slots is None else slots.resident
            known = _document_regret(one, scored, rule, resident, mode[1])
            name = link(one.name, one.link)
            yield [name, mode[1], str(resident or NONE), str(total.cells), rule, percent(total.mean),
                   interval(total.low, total.high), percent(total.maximum), percent(total.naive_mean),
                   percent(total.naive_maximum), *known]  # fmt: skip


def _document_regret(
    one: Recorded, scored: Sequence[ScoredChoice], rule: str, resident: int | None, l2: str
) -> tuple[str, str]:
    shapes = {(choice.cell.sparse.rows, choice.cell.sparse.candidates) for choice in scored}
    contexts = {choice.cell.sparse.context for choice in scored}
    known = published.SPLIT_REGRETS.get((resident or 0, rule))
    same = frozenset(shapes) == published.SPLIT_SHAPES and contexts == {8192} and l2 == "warm" and _on_its_device(one)
    return (percent(known.mean), percent(known.maximum)) if known is not None and same else (NONE, NONE)


def _pair_table(runs: Sequence[Recorded], op: str, known: Mapping[tuple[int, int], published.Pair]) -> str | None:
    columns = ["run", "L2", "timer", "rows", "context", "previous", "int8-tc", "speedup", "interval", "RMS error, both",
               f"{DOCUMENT}previous", f"{DOCUMENT}tensor core", f"{DOCUMENT}speedup"]  # fmt: skip
    rows: list[list[str]] = []
    for one, table in _seed_cells(runs, op, {}):
        place = (int(table.shape["rows"]), int(table.shape["context"]))
        measured = _measured(table)
        if place in known and measured is not None:
            mode = (str(table.l2), str(table.timer))
            rows.append(
                [
                    link(one.name, one.link),
                    *mode,
                    *map(str, place),
                    *measured,
                    *_document_pair(one, table, known[place]),
                ]
            )
    return _table(columns, rows)


def _seed_cells(runs: Sequence[Recorded], op: str, data: Mapping[str, float]) -> Iterator[tuple[Recorded, CellTable]]:
    """Cells with the document's heads and list length, whose data differ from the default in `data` only."""
    expected = published.DEFAULT_DATA | dict(data)
    selection = expected.pop("selection")  # the header has the first of several; each table says its own
    for one in runs:
        asked = one.run.header.plan.get("data")
        drawn = cast("dict[str, Any]", asked if isinstance(asked, dict) else {})
        if any(drawn.get(name) != value for name, value in expected.items()):
            continue
        if one.run.header.plan.get("pad_smem"):
            continue
        for table in one.tables:
            known = all(table.shape.get(name) == size for name, size in published.SHAPE.items())
            if table.op == op and known and table.selection == selection:
                yield one, table


def _measured(table: CellTable) -> list[str] | None:
    """Times, speedup, interval and errors of `previous` and the tensor-core kernel; None where neither has a line."""
    previous = next((row for row in table.rows if row.check.kernel == "previous"), None)
    ours = [row for row in table.rows if row.check.kernel == OURS]
    chosen = next((row for row in ours if 0 in row.check.requested or not row.check.requested), None)
    if previous is None or chosen is None:
        return None
    return [_time(previous), _time(chosen), *_ratio(chosen), f"{_rms(previous)} / {_rms(chosen)}"]


def _document_pair(one: Recorded, table: CellTable, known: published.Pair | None) -> list[str]:
    if known is None or _published(one, table, str) == NONE:
        return [NONE] * 3
    return [_document_time(known.previous_us), _document_time(known.tensor_core_us), known.ratio]


def _published(one: Recorded, table: CellTable, text: Callable[[], str]) -> str:
    """What the document says, beside a run that it can stand beside: its GPU, and a warm L2."""
    return text() if table.l2 == "warm" and _on_its_device(one) else NONE


def _document_time(time_us: float) -> str:
    """With as many figures as the document gives."""
    return f"{time_us:g} us" if time_us < 1000 else f"{time_us / 1000:g} ms"


def _on_its_device(one: Recorded) -> bool:
    return one.run.header.device.get("name") == published.DEVICE


def _time(row: VariantRow) -> str:
    return row.status.replace("_", " ") if row.time_us is None else time_text(row.time_us)


def _rms(row: VariantRow) -> str:
    return NONE if row.check.rms_error is None else f"{row.check.rms_error:.2e}".replace("e-0", "e-")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str | None:
    """None without a row; document columns only where one of them has a figure."""
    shown = [
        at for at, name in enumerate(columns) if not name.startswith(DOCUMENT) or any(row[at] != NONE for row in rows)
    ]
    if not rows:
        return None
    return markdown(
        [columns[at] for at in shown], [[row[at] for at in shown] for row in rows], ("run", "data", "rule", "kernel")
    )
