# SPDX-License-Identifier: MIT
"""What operators other than sparse attention are measured with on an open backend, and how their checks are printed."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsa_bench.cli.console import emit
from dsa_bench.cli.part import WHOLE, Part
from dsa_bench.model.errors import GateFailed
from dsa_bench.model.request import Policy

if TYPE_CHECKING:
    from dsa_bench.backends.base import Timed
    from dsa_bench.model.device import DeviceFacts
    from dsa_bench.model.operator_result import OperatorResult
    from dsa_bench.sweep.runs import Measured, Operator


def measure_operator(
    make: "Callable[[str], Operator]",
    backend: "Timed",
    backend_name: str,
    policy: Policy,
    said: list[str],
    record: Path | None,
    resume: bool,
    part: Part = WHOLE,
) -> "Measured":
    """Measure what `make` gives for an L2 mode.

    said  for the user, before the first cell      part  the operator's place in a larger run
    """
    from dsa_bench.bench.clocks import open_clocks
    from dsa_bench.bench.select import open_timer
    from dsa_bench.bench.timers import known_tick_us
    from dsa_bench.cli.progress import RunProgress
    from dsa_bench.sweep.runs import Instruments, run_operator

    on_gpu = backend.device.backend == "cuda"
    timer, said_of_timer = open_timer(policy.timer, backend, backend_name)
    clocks = open_clocks() if on_gpu else None
    if on_gpu and clocks is None:
        said.append("SM clocks are not watched: NVML cannot be used; see dsa-bench env")
    l2 = policy.l2 if on_gpu else "none"
    instruments = Instruments(timer, l2, clocks, known_tick_us(timer.name, backend.device.name))
    with RunProgress([line for line in (*said, said_of_timer) if line], part) as progress:
        return run_operator(make(l2), instruments, progress, argv=sys.argv[1:], record=record, resume=resume)


def print_checks(op: str, results: "Sequence[OperatorResult]", device: "DeviceFacts", format: str) -> None:
    """Print what `check` found of an operator. Raises GateFailed for a wrong result."""
    from dsa_bench.report.operator_check import operator_check_json, operator_check_text

    emit(operator_check_json(op, results, device) if format == "json" else operator_check_text(results))
    wrong = [f"{result.case} ({result.variant})" for result in results if result.status == "WRONG"]
    if wrong:
        raise GateFailed(f"wrong result: {'; '.join(wrong)}")
