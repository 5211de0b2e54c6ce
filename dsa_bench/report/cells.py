# SPDX-License-Identifier: MIT
"""A run's table: one block for each cell, one row for each variant. A pure function of a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.cell_key import cell_words
from dsa_bench.model.dense_request import COPY, FIXED, OFF
from dsa_bench.model.record import Check, Header, Visit
from dsa_bench.model.request import DENSE, is_yardstick
from dsa_bench.model.run import Run, complete_rounds
from dsa_bench.model.shape import OPS, SORTED
from dsa_bench.stats.location import Estimate, median_ratio, paired_ratio
from dsa_bench.stats.verdict import NoiseFloor, null_control

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class VariantRow:
    """One variant of a cell.

    check         its correctness run: kernel, requested and effective geometry, status, RMS error
    status        "ok", or why there is no time
    time_us       median attention time over rounds; call_us likewise
    speedup       time of the cell's reference / time of this variant, above 1 is faster; None for the reference
    median_ratio  the same as the seeds print it: the median of the rounds' ratios
    gather_share  time of the fastest gather ceiling / time of this variant; None where no ceiling was measured. Of a
                  hyper-connection kernel the ceiling is a copy of its bytes
    dense_ratio   time of dense attention / time of this variant, above 1 is faster; None where none was measured
    beside        of dense decode: time of another variant / time of this one, by what that is: `fixed:256`, the rule
                  that seed 004 replaces, of the same kernel; `previous`, that kernel with the same geometry
    """

    check: Check
    status: str
    reason: str | None
    time_us: float | None = None
    call_us: float | None = None
    speedup: Estimate | None = None
    median_ratio: float | None = None
    gather_share: float | None = None
    dense_ratio: Estimate | None = None
    beside: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])

    @property
    def gathered_gbps(self) -> float | None:
        """Bytes that one call gathers, per second: 10^9 of them; None for what gathers nothing or has no time."""
        if self.time_us is None or self.check.gathered_bytes is None:
            return None
        return self.check.gathered_bytes / self.time_us / 1e3


@dataclass(frozen=True, slots=True)
class Fastest:
    """The row with the least median time, and what may be said of the rows behind it.

    ties     rows whose interval against it holds 1: not told apart
    next     the fastest row that is no tie, and its time / the fastest's
    """

    row: VariantRow
    ties: list[VariantRow]
    next: tuple[VariantRow, Estimate] | None


@dataclass(frozen=True, slots=True)
class CellTable:
    """One cell: its rows in the order asked for, what they are compared with, and the noise floor. A cell of `mix` or
    `dense` has one for each of its kernels, over the same rounds.

    reference  the variant that speedups are against: of dense decode the monolithic launch, else `previous`, else the
               automatic rule's, else the first with a time
    """

    shape: dict[str, str]
    rows: list[VariantRow]
    reference: str | None
    fastest: Fastest | None
    rounds: int
    timer: str | None
    l2: str | None
    rounding_floor: float | None
    noise: NoiseFloor | None

    @property
    def selection(self) -> str | None:
        """How lists are drawn; None for an operator without lists."""
        return self.shape.get("selection", SORTED) if self.op in OPS else None

    @property
    def label(self) -> str:
        """The shape in words, as a heading."""
        return cell_words(self.shape) if self.part is None else f"{self.part}, {cell_words(self.shape)}"

    @property
    def part(self) -> str | None:
        """What of its cell the table holds; None where it holds all."""
        return next((_part(self.op, row.check.kernel) for row in self.rows), None)

    @property
    def op(self) -> str:
        return self.shape.get("op", "decode")

    @property
    def dense(self) -> VariantRow | None:
        """The row of dense attention, if it has a time."""
        return next((row for row in self.rows if row.check.kernel == DENSE and row.time_us is not None), None)

    @property
    def wrong(self) -> list[VariantRow]:
        """Rows that gave a wrong result."""
        return [row for row in self.rows if row.status == "wrong_result"]


def cell_tables(run: Run) -> list[CellTable]:
    """One table for each cell of the run that has a check, in numeric order of the shape.

    Visits of different timers or L2 modes are never compared: a cell that has them gets a table for each.
    """
    checks: dict[str, dict[str, Check]] = {}
    for check in run.checks:
        checks.setdefault(check.cell, {})[check.variant] = check
    rounds: dict[str, dict[tuple[str, str], list[list[Visit]]]] = {}
    for cell, _, visits in complete_rounds(run):
        rounds.setdefault(cell, {}).setdefault((visits[0].timer, visits[0].l2), []).append(visits)
    return [
        _cell_table(cell_shape(drawn_cell(run.header, cell)), part, of_mode)
        for cell in sorted(checks, key=cell_order)
        for _, of_mode in sorted(rounds.get(cell, {("", ""): []}).items())
        for part in _parts(cell_shape(cell).get("op", "decode"), checks[cell].values())
    ]


def part_of(kernel: str) -> str | None:
    """What of its cell a kernel computes, or whose bytes it copies: `pre-mix` of `pre-mix/branchy`, of `copy/pre-mix`
    and of `copy/pre-mix/8-to-1`. None where a cell is one computation."""
    first, slash, second = kernel.partition("/")
    return None if not slash else second.partition("/")[0] if is_yardstick(kernel) else first


def _part(op: str, kernel: str) -> str | None:
    """See part_of. Kernels of dense decode compute the same, and differ more from each other than rules do."""
    return kernel if op == "dense" else part_of(kernel)


def _parts(op: str, checks: Iterable[Check]) -> list[list[Check]]:
    parts: dict[str | None, list[Check]] = {}
    for check in checks:
        parts.setdefault(_part(op, check.kernel), []).append(check)
    if op != "dense":
        return list(parts.values())
    copies = parts.pop(COPY, [])  # of the cell's bytes, whichever kernel reads them
    return [[*of_kernel, *copies] for of_kernel in parts.values()] or [copies]


def cell_shape(cell: str) -> dict[str, str]:
    """The parts of a cell's key by name."""
    return {name: value for name, _, value in (part.partition("=") for part in cell.split(","))}


def drawn_cell(header: Header, cell: str) -> str:
    """A cell's key with how its lists are drawn, which older records say in their header alone."""
    data = header.plan.get("data")
    if cell_shape(cell).get("op") not in OPS or "selections" in header.plan or not isinstance(data, dict):
        return cell
    kind = str(cast("dict[str, Any]", data).get("selection", SORTED))
    return cell if kind == SORTED else f"{cell},selection={kind}"


def cell_order(cell: str) -> tuple[Any, ...]:
    """Sorts cells by the numbers of their shape."""
    return tuple(int(value) if value.isdecimal() else value for value in cell_shape(cell).values())


def _cell_table(shape: dict[str, str], checks: list[Check], rounds: list[list[Visit]]) -> CellTable:
    times = _Times(rounds)
    reference = _reference(checks, times)
    first = rounds[0][0] if rounds else None
    gather = min(
        (check.variant for check in checks if _is_ceiling(check.kernel) and times.times(check.variant)),
        key=lambda variant: float(np.median(list(times.times(variant).values()))),
        default=None,
    )
    dense = next((check.variant for check in checks if check.kernel == DENSE and times.times(check.variant)), None)
    rows = [_row(check, reference, gather, dense, times) for check in checks]
    if any(check.facts for check in checks):
        fixed = next((check.variant for check in checks if FIXED in check.rules), None)
        rows = [_beside(row, fixed, times) for row in rows]
    return CellTable(
        shape=shape,
        rows=rows,
        reference=reference,
        fastest=_fastest(rows, times),
        rounds=len(rounds),
        timer=first and first.timer,
        l2=first and first.l2,
        rounding_floor=next((check.rounding_floor for check in checks), None),
        noise=_noise(times),
    )


def _is_ceiling(kernel: str) -> bool:
    """Whether a kernel moves exactly the bytes of those beside it."""
    return kernel == "gather" or (is_yardstick(kernel) and part_of(kernel) is not None)


class _Times:
    """Visits by variant and round; only rounds in which both sides have a time are ever paired."""

    def __init__(self, rounds: Sequence[Sequence[Visit]]) -> None:
        self._visits: dict[tuple[str, bool], dict[int, Visit]] = {}
        for visits in rounds:
            for visit in visits:
                self._visits.setdefault((visit.variant, visit.control), {})[visit.round] = visit

    def visits(self, variant: str, control: bool = False) -> list[Visit]:
        """In the order of rounds, whatever order they were recorded in."""
        return [visit for _, visit in sorted(self._visits.get((variant, control), {}).items())]

    def times(self, variant: str, control: bool = False) -> dict[int, float]:
        """round -> attention_us of the visits that have one."""
        return {visit.round: visit.attention_us for visit in self.visits(variant, control) if visit.attention_us}

    def paired(self, variant: str, reference: str, control: bool = False) -> tuple[Times, Times] | None:
        """(variant_us, reference_us) of the rounds that have both; None if there is none."""
        one, other = self.times(variant, control), self.times(reference)
        common = sorted(one.keys() & other.keys())
        if not common:
            return None
        return np.array([one[index] for index in common]), np.array([other[index] for index in common])

    def control(self) -> str | None:
        return next((variant for variant, control in self._visits if control), None)


def _reference(checks: list[Check], times: _Times) -> str | None:
    timed = [check for check in checks if not is_yardstick(check.kernel) and times.times(check.variant)]
    monolithic = (check for check in timed if OFF in check.rules)
    choices: Iterator[Check] = (check for check in timed if check.kernel == "previous" and not check.facts)
    automatic = (check for check in timed if 0 in check.requested)
    chosen = next(monolithic, None) or next(choices, None) or next(automatic, None) or next(iter(timed), None)
    return chosen and chosen.variant


def _row(check: Check, reference: str | None, gather: str | None, dense: str | None, times: _Times) -> VariantRow:
    if check.status != "ok":
        return VariantRow(check, check.status, check.reason)
    visits = times.visits(check.variant)
    attention_us = [visit.attention_us for visit in visits if visit.attention_us is not None]
    call_us = [visit.call_us for visit in visits if visit.call_us is not None]
    if not attention_us:
        failed = next((visit for visit in visits if visit.status != "ok"), None)
        return VariantRow(
            check, failed.status if failed else "not_measured", failed.reason if failed else "no complete round"
        )
    is_sparse = not is_yardstick(check.kernel)
    compared = reference is not None and check.variant != reference and is_sparse
    pair = times.paired(check.variant, reference) if compared and reference else None
    ceiling = None if not is_sparse or gather is None else times.paired(gather, check.variant)
    beside_dense = None if not is_sparse or dense is None else times.paired(dense, check.variant)
    return VariantRow(
        check,
        "ok",
        None,
        time_us=float(np.median(attention_us)),
        call_us=float(np.median(call_us)),
        speedup=pair and paired_ratio(pair[1], pair[0]),
        median_ratio=pair and median_ratio(pair[1], pair[0]),
        gather_share=ceiling and paired_ratio(*ceiling).centre,
        dense_ratio=beside_dense and paired_ratio(*beside_dense),
    )


def _beside(row: VariantRow, fixed: str | None, times: _Times) -> VariantRow:
    """A row of dense decode with the ratios of VariantRow.beside. `fixed` names the variant of that rule."""
    if row.time_us is None or is_yardstick(row.check.kernel):
        return row
    variant = row.check.variant
    others = {FIXED: fixed, "previous": f"previous/{variant.partition('/')[2]}"}
    pairs = {what: times.paired(name, variant) for what, name in others.items() if name and name != variant}
    return replace(row, beside={what: paired_ratio(*pair) for what, pair in pairs.items() if pair})


def _fastest(rows: list[VariantRow], times: _Times) -> Fastest | None:
    timed = [row for row in rows if row.time_us is not None and not is_yardstick(row.check.kernel)]
    if not timed:
        return None
    first, *others = sorted(timed, key=lambda row: row.time_us or 0.0)
    pairs = [(row, times.paired(row.check.variant, first.check.variant)) for row in others]
    behind = [(row, pair, paired_ratio(*pair)) for row, pair in pairs if pair]
    each = 1 - 0.05 / max(len(behind), 1)  # Bonferroni: all comparisons with the fastest together hold at 95 %
    ties = [row for row, pair, ratio in behind if _holds_one(paired_ratio(*pair, each)) and _holds_one(ratio, False)]
    following = next(((row, ratio) for row, _, ratio in behind if row not in ties), None)
    return Fastest(first, ties, following)


def _holds_one(ratio: Estimate, without_interval: bool = True) -> bool:
    """Whether a ratio's interval holds 1; `without_interval` where the rounds give none at that confidence."""
    return without_interval if ratio.interval is None else ratio.interval[0] <= 1.0


def noise_floor(rounds: Sequence[Sequence[Visit]]) -> NoiseFloor | None:
    """Of a cell's null control, over the rounds that have both of its visits; None where none has."""
    return _noise(_Times(rounds))


def _noise(times: _Times) -> NoiseFloor | None:
    control = times.control()
    pair = control and times.paired(control, control, control=True)
    return null_control(*pair) if pair else None


def untrusted_cells(tables: list[CellTable]) -> list[CellTable]:
    """Cells whose null control found two visits of one variant apart by more than half the margin."""
    return [table for table in tables if table.noise is not None and not table.noise.trusted]
