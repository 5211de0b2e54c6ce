# SPDX-License-Identifier: MIT
"""What an operator hands to the bench, and what the bench hands back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from dsa_bench.model.errors import CompileFailed, VariantRefused
from dsa_bench.model.record import Status


class Timing(NamedTuple):
    """Medians over one visit's launches, in microseconds (statistics of a visit: docs/measuring.md)."""

    attention_us: float
    call_us: float


class VisitFailed(Exception):
    """One visit gave no time; the run goes on and the record says why."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status: Status = status


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of a correctness run; `reason` says what is wrong unless status is "ok"."""

    status: Status
    reason: str | None = None
    rms_error: float | None = None


def not_launched(error: CompileFailed | VariantRefused) -> Checked:
    """The outcome of a variant whose kernel was not compiled or not launched."""
    return Checked("compile_failed" if isinstance(error, CompileFailed) else "launch_refused", str(error))


def beyond_rms(error: float | None, limit: float, of: str = "") -> str | None:
    """Why a relative RMS error is too large, in words; None if it is not. `of` says of what part of the output."""
    if error is None or not error > limit:
        return None
    return f"relative RMS error {error:.2g}{of}; a right kernel stays below {limit:.2g}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One configuration of a cell.

    launch   enqueues one call; its argument counts calls, so that cold launches can rotate buffers
    check    runs the variant once on the inputs that are timed and compares the output
    kernels  names of the device kernels of one call, whose time counts as attention; empty on the CPU; None where
             nobody knows them, as of a library's call: then all of the call's device work counts
    copies   how many copies of the inputs the launches rotate through
    """

    name: str
    launch: Callable[[int], None]
    check: Callable[[], Checked]
    kernels: tuple[str, ...] | None = ()
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """One visit: a variant in a round, or why there is no time."""

    variant: str
    control: bool
    round: int
    attempt: int
    place: int
    launches: int
    timing: Timing | None
    status: Status = "ok"
    reason: str | None = None
    clocks: dict[str, float] = field(default_factory=dict[str, float])
