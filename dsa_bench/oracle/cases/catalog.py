# SPDX-License-Identifier: MIT
"""Every numerics case of each operator, by name, in the order of the report."""

from dsa_bench.model.shape import Op
from dsa_bench.oracle.cases.case import Case
from dsa_bench.oracle.cases.pairs import CORNERS, NOT_FINITE
from dsa_bench.oracle.cases.prefill import prefill_cases
from dsa_bench.oracle.cases.rows import LISTS, SCALES
from dsa_bench.oracle.cases.sinks import SINKS

DECODE_CASES: dict[str, Case] = {case.name: case for case in (*CORNERS, *NOT_FINITE, *LISTS, *SCALES, *SINKS)}
PREFILL_CASES: dict[str, Case] = {case.name: case for case in prefill_cases(DECODE_CASES.values())}
CASES: dict[Op, dict[str, Case]] = {"decode": DECODE_CASES, "prefill": PREFILL_CASES}
