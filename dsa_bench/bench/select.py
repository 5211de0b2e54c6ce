# SPDX-License-Identifier: MIT
"""Which timer measures, and what the CPU backend has none of."""

from dsa_bench.backends.base import Timed
from dsa_bench.bench.timers import Timer, WallTimer
from dsa_bench.model.errors import BadInput, CannotMeasure


def open_timer(name: str, backend: Timed, asked_backend: str) -> tuple[Timer, str | None]:
    """Open a timer for a backend; with a line to tell the user where `auto` had to fall back.

    Raises BadInput for a timer that the asked backend never has, CannotMeasure for one that is missing here.
    """
    if backend.device.backend == "cuda":
        return _gpu_timer(name, backend)
    if name in ("auto", "wall"):
        return WallTimer(), None
    refuse_gpu_timer(name, asked_backend)
    raise CannotMeasure(f"--timer {name}: times GPU kernels, and no GPU is used here; use --timer auto")


def refuse_gpu_timer(name: str, asked_backend: str) -> None:
    """Raises BadInput if the CPU backend was asked for together with a timer of GPU kernels."""
    if asked_backend == "cpu" and name not in ("auto", "wall"):
        raise BadInput(f"--timer {name}: times GPU kernels, and --backend cpu has none; use --timer wall or auto")


def refuse_gpu_ceiling(asked: bool | int | None, asked_backend: str, option: str = "--ceiling") -> None:
    """Raises BadInput if the CPU backend was asked for together with a yardstick that only a GPU has."""
    if asked and asked_backend == "cpu":
        raise BadInput(f"{option}: measures GPU kernels, and --backend cpu has none")


def _gpu_timer(name: str, backend: Timed) -> tuple[Timer, str | None]:
    from dsa_bench.bench.gpu_timers import CuptiTimer, EventsTimer
    from dsa_bench.bench.profilers import open_profiler

    if name == "wall":
        raise BadInput("--timer wall: times calls that wait for their work, as --backend cpu's do; use cupti or events")
    said = None
    if name in ("auto", "cupti"):
        try:
            return CuptiTimer(open_profiler(), backend.stream, backend.synchronize), None
        except CannotMeasure as error:
            if name == "cupti":
                raise CannotMeasure(f"--timer cupti: {error}") from error
            said = f"timing with CUDA events, gaps between launches included: {error}"
    return EventsTimer(backend.stream, backend.synchronize), said
