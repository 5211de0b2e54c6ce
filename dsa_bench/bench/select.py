# SPDX-License-Identifier: MIT
"""Which timer measures."""

from dsa_bench.backends.base import Backend
from dsa_bench.bench.timers import Timer, WallTimer
from dsa_bench.model.errors import BadInput, CannotMeasure


def open_timer(name: str, backend: Backend, asked_backend: str) -> tuple[Timer, str | None]:
    """Open a timer for a backend; with a line to tell the user where `auto` had to fall back.

    Raises BadInput for a timer that the asked backend never has, CannotMeasure for one that is missing here.
    """
    if name in ("auto", "wall"):
        return WallTimer(), None
    if asked_backend == "cpu":
        raise BadInput(f"--timer {name}: times GPU kernels, and --backend cpu has none; use --timer wall or auto")
    raise CannotMeasure(f"--timer {name}: times GPU kernels, and no GPU is used here; use --timer auto")
