# SPDX-License-Identifier: MIT
"""The result of `dsa-bench check` as text and as JSON. ASCII only."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.outcome import CaseResult
from dsa_bench.model.text import printable

CHECK_SCHEMA = "dsa-bench/check"
COLUMNS = ("case", "kernel", "status", "expected", "found", "ulps", "of tol.", "paths")
LEFT = ("case", "kernel", "status", "paths")


def check_json(results: Sequence[CaseResult], device: DeviceFacts) -> str:
    """Numbers that JSON does not have are the texts nan, inf and -inf."""
    document = {
        "schema": CHECK_SCHEMA,
        "schema_version": 1,
        "backend": device.backend,
        "device": device.name,
        "rows": [{name: _json_value(value) for name, value in asdict(result).items()} for result in results],
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _json_value(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def check_text(results: Sequence[CaseResult]) -> str:
    """A line for each case and kernel with its worst element, then what is not ok and why, then the count."""
    lines = [
        COLUMNS,
        *(_cells(result, at and results[at - 1].case == result.case) for at, result in enumerate(results)),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(_justified, COLUMNS, line, widths)).rstrip() for line in lines]
    text += [
        printable(f"{result.case}, {result.kernel}: {result.status}: {result.reason}{_where(result)}")
        for result in results
        if result.status != "ok"
    ]
    return "\n".join([*text, summary(results)])


def summary(results: Sequence[CaseResult]) -> str:
    """How many checks ended in each way."""
    counts = Counter(result.status for result in results)
    return f"{len(results)} checks: " + ", ".join(
        f"{counts[status]} {status}" for status in sorted(counts, key=str.lower)
    )


def _justified(column: str, cell: str, width: int) -> str:
    return cell.ljust(width) if column in LEFT else cell.rjust(width)


def _cells(result: CaseResult, repeated: object) -> tuple[str, ...]:
    numbers = (_number(result.expected, ".7g"), _number(result.found, ".7g"), _number(result.error_ulps, ".2f"))
    used = "-" if result.used is None else _share(result.used)
    paths = ", ".join(f"{path} {ctas}" for path, ctas in (result.paths or {}).items() if ctas) or "-"
    return "" if repeated else result.case, result.kernel, result.status, *numbers, used, paths


def _share(used: float) -> str:
    if used < 100:
        return f"{used:.0%}"
    return f"{float(f'{used:.2g}'):.0f}x" if used < 1e6 else f"{used:.2g}x" if math.isfinite(used) else str(used)


def _number(value: float | None, spec: str) -> str:
    if value is None:
        return "-"
    text = format(value, spec)
    return text if len(text) <= 11 else format(value, ".2e")


def _where(result: CaseResult) -> str:
    if result.place is None:
        return ""
    return f" (out{list(result.place)} is {result.found:.6g}, FP64 {result.expected:.6g}; {result.setting})"
