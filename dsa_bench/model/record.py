# SPDX-License-Identifier: MIT
"""The lines of a run: one header, then checks and visits. Raw samples only; every table is a pure function of them.

Published as JSON Schema in docs/schemas/record.schema.json.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

SCHEMA = "dsa-bench/record"
SCHEMA_VERSION = 1

Status = Literal["ok", "compile_failed", "launch_refused", "wrong_result", "below_resolution", "no_events", "untrusted"]


@dataclass(frozen=True, slots=True)
class Header:
    """What ran, where, and what was asked. `plan` is the request; resume compares it, the device and the kernels."""

    created: str
    version: str
    commit: str | None
    dirty: bool | None
    argv: tuple[str, ...]
    seed: int
    device: dict[str, Any]
    versions: dict[str, str]
    plan: dict[str, Any]
    kernel_hashes: dict[str, str]
    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION
    kind: Literal["header"] = "header"


@dataclass(frozen=True, slots=True)
class Check:
    """The correctness run of one variant in one cell, on the inputs that are timed afterwards.

    rules           names of the split rules, of those asked, that choose this variant; absent in older records
    rms_error       RMS(out - reference) / RMS(reference) over the checked rows
    rounding_floor  the same for the FP64 reference rounded to BF16
    gathered_bytes  K and V bytes that one call gathers, or of dense decode the live ones, which it reads; None for the
                    dense line of sparse attention, and in lines from before the field was there
    facts           of dense decode's launch: `chunk` keys per split, splits `alive` at the length, `resident` CTAs of
                    an SM, `waves` on the whole device, `occupancy` (docs/dense.md); empty for other operators
    """

    cell: str
    variant: str
    kernel: str
    kernel_hash: str
    requested: tuple[int, ...]
    tiles_per_split: int
    splits: int
    ctas: int
    data_hash: str
    status: Status
    reason: str | None
    rms_error: float | None
    rounding_floor: float | None
    rules: tuple[str, ...] = ()
    gathered_bytes: int | None = None
    facts: dict[str, float] = field(default_factory=dict[str, float])
    kind: Literal["check"] = "check"


class Visit(NamedTuple):
    """One variant in one round: the median of `launches` launches. A tuple, because runs hold them by the 100,000.

    attention_us  length of the union of the attention kernels' intervals of one call; None unless status is "ok"
    call_us       from the first start to the last end of the call's device work; likewise
    attempt       0, or more when the round was taken again as a whole; the last complete attempt counts
    place         the visit's place in its round's order
    control       the second visit of the null control
    """

    cell: str
    variant: str
    kernel_hash: str
    requested: tuple[int, ...]
    splits: int
    round: int
    attempt: int
    place: int
    control: bool
    timer: str
    l2: str
    launches: int
    attention_us: float | None
    call_us: float | None
    status: Status = "ok"
    reason: str | None = None
    clocks: dict[str, float] = {}  # noqa: RUF012 - never written to
    kind: Literal["visit"] = "visit"


Line = Header | Check | Visit
LATER_FIELDS: dict[type, frozenset[str]] = {Check: frozenset({"rules", "gathered_bytes", "facts"})}
"""Fields that lines of this schema's first runs lack: a reader takes their default."""


def line_content(line: Line) -> dict[str, Any]:
    """A line as the JSON object that stands for it."""
    return line._asdict() if isinstance(line, Visit) else asdict(line)
