# SPDX-License-Identifier: MIT
"""The result of `dsa-bench check --op dense|mix|gate` as text and as JSON. ASCII only."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.operator_result import OperatorResult
from dsa_bench.model.text import printable
from dsa_bench.report.columns import aligned

COLUMNS = ("case", "variant", "status", "compared", "wrong")


def operator_check_json(op: str, results: Sequence[OperatorResult], device: DeviceFacts) -> str:
    """Every result, and where it was found."""
    document = {
        "schema": f"dsa-bench/{op}-check",
        "schema_version": 1,
        "backend": device.backend,
        "device": device.name,
        "rows": [asdict(result) for result in results],
    }
    return json.dumps(document, indent=1, allow_nan=False)


def operator_check_text(results: Sequence[OperatorResult]) -> str:
    """A line for each case and variant, then what is not ok and why, then the count."""
    rows = [
        (_case(results, at), one.variant, one.status, _compared(one), str(one.wrong)) for at, one in enumerate(results)
    ]
    table = aligned(COLUMNS, rows, left=("case", "variant", "status"))
    said = [printable(f"{one.case}, {one.variant}: {one.status}: {one.reason}") for one in results if one.reason]
    counts = Counter(one.status for one in results)
    summary = ", ".join(f"{counts[status]} {status}" for status in sorted(counts, key=str.lower))
    return "\n".join([table, *said, f"{len(results)} checks: {summary}"])


def _compared(one: OperatorResult) -> str:
    return f"{one.tried} {one.of.removesuffix('s') if one.tried == 1 else one.of}"


def _case(results: Sequence[OperatorResult], at: int) -> str:
    """The name of a case on its first line."""
    return "" if at and results[at - 1].case == results[at].case else results[at].case
