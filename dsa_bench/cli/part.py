# SPDX-License-Identifier: MIT
"""The place of one request in a run of several."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Cells of the requests before this one, and of all requests; None if there is only this one."""

    before: int = 0
    of: int | None = None


WHOLE = Part()
