# SPDX-License-Identifier: MIT
"""What `check` finds of operators other than sparse attention."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """One check of `dense`, `mix` or `gate`.

    tried, wrong  what was compared (bit patterns, rows or launches, as `of` says), and how many were wrong
    status        "ok", "WRONG", or "refused": the device or the compiler does not take it
    """

    case: str
    variant: str
    of: str
    tried: int
    wrong: int
    status: Literal["ok", "WRONG", "refused"]
    reason: str | None = None
