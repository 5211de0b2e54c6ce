# SPDX-License-Identifier: MIT
"""Every numerics case of decode, by name, in the order of the report."""

from dsa_bench.oracle.cases.case import Case
from dsa_bench.oracle.cases.pairs import CORNERS, NOT_FINITE
from dsa_bench.oracle.cases.rows import LISTS, SCALES

DECODE_CASES: dict[str, Case] = {case.name: case for case in (*CORNERS, *NOT_FINITE, *LISTS, *SCALES)}
