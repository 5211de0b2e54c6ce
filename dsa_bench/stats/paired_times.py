# SPDX-License-Identifier: MIT
"""The paired times of one cell's variants, read from its checks and complete rounds.

Whatever chooses among variants reads them here, so that a regret and a map of one record rest on the same variants and
rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsa_bench.model.errors import BadInput
from dsa_bench.model.record import Check, Visit
from dsa_bench.stats.regret import Halves
from dsa_bench.stats.several import FloatArray, IntArray

FEWEST_TIMES = 0.75
"""Share of a cell's rounds in which a variant needs a time to compete, and in which all that compete need one."""


@dataclass(frozen=True, slots=True)
class PairedTimes:
    """The variants of a cell that compete: right, and timed.

    times     variant -> one time in us a round, in the order of the checks; empty where no rounds can be paired
    control   second visits of one variant, `controlled`, in the same rounds; None where a round lacks one
    rounds    the indices of the rounds in which all of `times` have a time, ascending
    complete  the cell's complete rounds, with those that lack a time
    left_out  variant -> why it does not compete
    """

    timer: str
    l2: str
    times: dict[str, FloatArray]
    control: FloatArray | None
    controlled: str | None
    rounds: IntArray
    complete: int
    left_out: dict[str, str]


def paired_times(checks: Sequence[Check], rounds: Sequence[Sequence[Visit]], keep: str | None) -> PairedTimes:
    """Read a cell with at least one complete round.

    checks  of the variants that are to be compared; rounds hold visits of others too
    keep    the variant that the others are compared with: it is never left out for the sake of their rounds
    A variant with times in fewer than FEWEST_TIMES of the rounds is left out. Then, until all that are left share as
    many rounds, and an interval of a regret if the complete rounds give one, the one with the most gaps is. Two that
    share too few are both left out: one alone would be compared with itself.
    Raises BadInput for visits of more than one timer or L2 mode, which are never compared.
    """
    timer, l2 = _mode(rounds)
    read = _Read(rounds)
    left_out = {check.variant: f"{check.status}: {check.reason}" for check in checks if check.status != "ok"}
    timed: dict[str, set[int]] = {}
    for check in checks:
        if check.status == "ok":
            found = read.timed(check.variant)
            if is_usable(len(found), len(rounds)):
                timed[check.variant] = found
            else:
                left_out[check.variant] = read.gaps(check.variant)
    common = _share_rounds(timed, read, keep, left_out)
    controlled = read.controlled if read.controlled in timed else None
    control = None if controlled is None else read.series(controlled, common, control=True)
    paired = control is not None and 0 < len(control) == len(common)
    return PairedTimes(
        timer=timer,
        l2=l2,
        times={variant: np.array(read.series(variant, common)) for variant in timed},
        control=np.array(control) if paired else None,
        controlled=controlled if paired else None,
        rounds=np.array(common, np.int64),
        complete=len(rounds),
        left_out={check.variant: left_out[check.variant] for check in checks if check.variant in left_out},
    )


def is_usable(timed: int, rounds: int) -> bool:
    """Whether so many rounds with a time stand for all of them."""
    return timed > 0 and timed >= FEWEST_TIMES * rounds


def gaps_text(timed: int, rounds: int, failed: Visit | None) -> str:
    """How many rounds have a time, and what was wrong with the first that has none."""
    said = "" if failed is None else f" ({failed.status}: {failed.reason})"
    return f"times in {timed} of {rounds} rounds{said}"


def _mode(rounds: Sequence[Sequence[Visit]]) -> tuple[str, str]:
    modes = {(visit.timer, visit.l2): visit.cell for visits in rounds for visit in visits}
    if len(modes) > 1:
        said = " and ".join(f"{timer}, L2 {l2}" for timer, l2 in sorted(modes))
        cell = next(iter(modes.values()))
        raise BadInput(f"{cell}: was measured with {said}, which are never compared; record them apart")
    ((mode, _),) = modes.items()
    return mode


def _share_rounds(timed: dict[str, set[int]], read: "_Read", keep: str | None, left_out: dict[str, str]) -> list[int]:
    """The rounds in which all of `timed` have a time; those that stand in the way are moved to `left_out`."""
    while timed:
        common = sorted(set[int].intersection(*timed.values()))
        if _enough(common, read.rounds):
            return common
        others = [variant for variant in timed if variant != keep]
        last = max(others, key=lambda variant: _in_the_way(variant, timed), default=None)
        few = f"; {_count(len(common))} of {len(read.rounds)} rounds have a time of every launch that is left"
        out = list(timed) if last is None or len(timed) == 2 else [last]
        for variant in out:
            left_out[variant] = read.gaps(variant) + few
            del timed[variant]
    return []


def _enough(common: Sequence[int], complete: Sequence[int]) -> bool:
    """Whether the common rounds are usable, and give an interval of a regret where the complete ones do."""
    halves = [Halves.of(np.array(rounds, np.int64)).can_resample for rounds in (common, complete)]
    return is_usable(len(common), len(complete)) and halves[0] >= halves[1]


def _in_the_way(variant: str, timed: Mapping[str, set[int]]) -> tuple[int, int, str]:
    """The fewest times first, then what the others share without it; the name, so that no order of lines decides."""
    without = [rounds for name, rounds in timed.items() if name != variant]
    return -len(timed[variant]), len(set[int].intersection(*without)) if without else 0, variant


def _count(rounds: int) -> str:
    return str(rounds) if rounds else "none"


class _Read:
    """Visits by variant and round."""

    def __init__(self, rounds: Sequence[Sequence[Visit]]) -> None:
        self._visits: dict[tuple[str, bool], dict[int, Visit]] = {}
        for visits in rounds:
            for visit in visits:
                self._visits.setdefault((visit.variant, visit.control), {})[visit.round] = visit
        self.rounds = sorted(visits[0].round for visits in rounds)

    @property
    def controlled(self) -> str | None:
        """The variant with second visits, if any has them."""
        return next((variant for variant, control in self._visits if control), None)

    def timed(self, variant: str) -> set[int]:
        """Rounds in which the variant has a time."""
        visits = self._visits.get((variant, False), {})
        return {index for index, visit in visits.items() if visit.attention_us is not None}

    def gaps(self, variant: str) -> str:
        visits = self._visits.get((variant, False), {})
        failed = next((visit for _, visit in sorted(visits.items()) if visit.attention_us is None), None)
        return gaps_text(len(self.timed(variant)), len(self.rounds), failed)

    def series(self, variant: str, rounds: Sequence[int], control: bool = False) -> list[float]:
        """The times of those rounds that have one."""
        visits = self._visits.get((variant, control), {})
        times = (visits[index].attention_us for index in rounds if index in visits)
        return [time_us for time_us in times if time_us is not None]
