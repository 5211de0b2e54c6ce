# SPDX-License-Identifier: MIT
"""What a kernel is compiled for."""

import re
from dataclasses import dataclass

from dsa_bench.model.errors import BadInput

_SPELLING = re.compile(r"(?:sm_|compute_)?([1-9][0-9]?)\.?([0-9])([af]?)")


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture: number = 10 x major + minor, an integer; suffix "a" or "f" adds instructions of its own."""

    number: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.number}{self.suffix}"

    @property
    def sm(self) -> str:
        """The compiler's spelling."""
        return f"sm_{self}"


def parse_target(value: str | tuple[int, int] | Target) -> Target:
    """Read `9.0`, (9, 0), `90`, `90a`, `sm_90a`, `12.0` or `sm_120f`; anything else is BadInput."""
    if isinstance(value, Target):
        return value
    text = value if isinstance(value, str) else ".".join(map(str, value))
    if not (match := _SPELLING.fullmatch(text)):
        raise BadInput(
            f"target {text!r}: must look like 9.0, 90a or sm_90a; known targets: {' '.join(map(str, TARGETS))}"
        )
    major, minor, suffix = match.groups()
    return Target(10 * int(major) + int(minor), suffix)


def device_target(capability: str | tuple[int, int]) -> Target:
    """The target for a device: from 9.0 on the one with the device's own instructions ("90a"), plain before ("86")."""
    number = parse_target(capability).number
    return Target(number, "a" if number >= 90 else "")


TARGETS = tuple(parse_target(name) for name in ("80", "86", "89", "90a", "100a", "120a"))
"""The targets that every kernel is compiled for without a device at hand."""
