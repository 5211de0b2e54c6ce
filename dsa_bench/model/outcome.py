# SPDX-License-Identifier: MIT
"""What a numerics case showed of one kernel."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "limit", "refused", "WRONG"]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The worst run of one kernel over a case's settings and splits.

    status       ok; limit: beyond the tolerance, as the kernel declares; refused: not launched; WRONG
    reason       why it is not ok
    tolerance    the rule and its limit, in words
    setting      the inputs and the splits of the worst run
    place        row, head, channel of its worst element, with what FP64 expects there and what was found
    error_ulps   that element's error, in units of BF16's spacing at the expected value; infinite for another class
    used         the error as a share of the tolerance
    runs         launches that were compared
    paths        CTAs of all of them that took each path; None where the kernel cannot tell
    """

    case: str
    kernel: str
    status: Outcome
    reason: str | None
    tolerance: str
    setting: str | None = None
    place: tuple[int, ...] | None = None
    expected: float | None = None
    found: float | None = None
    error_ulps: float | None = None
    used: float | None = None
    runs: int = 0
    paths: dict[str, int] | None = None
