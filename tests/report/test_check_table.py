# SPDX-License-Identifier: MIT
"""The check table from given results."""

import json
import math
from dataclasses import replace

from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.outcome import CaseResult
from dsa_bench.report.check import check_json, check_text

RESULTS = [
    CaseResult("corner", "previous", "ok", None, "ulp 1", "one tile, 1 splits", (0, 1, 2), 0.1, 0.1001, 0.25, 0.25, 3),
    CaseResult("corner", "int8-tc", "WRONG", "far off", "ulp 1", "one tile, 8 splits", (0, 1, 2), 0.1, math.nan,
               math.inf, math.inf, 3, {"half": 0, "digits": 12, "single": 4}),
    CaseResult("row", "previous", "refused", "no \x1b[31mGPU", "bound"),
]  # fmt: skip


def test_the_text() -> None:
    assert check_text(RESULTS).splitlines() == [
        "case    kernel    status   expected   found  ulps  of tol.  paths",
        "corner  previous  ok            0.1  0.1001  0.25      25%  -",
        "        int8-tc   WRONG         0.1     nan   inf      inf  digits 12, single 4",
        "row     previous  refused         -       -     -        -  -",
        "corner, int8-tc: WRONG: far off (out[0, 1, 2] is nan, FP64 0.1; one tile, 8 splits)",
        "row, previous: refused: no \\x1b[31mGPU",
        "3 checks: 1 ok, 1 refused, 1 WRONG",
    ]


def test_a_share_of_the_tolerance_is_a_plain_number() -> None:
    shares = [
        check_text([replace(RESULTS[0], used=used)]).splitlines()[1].split()[-2] for used in (0.5, 99, 128, 9999, 1e12)
    ]
    assert shares == ["50%", "9900%", "130x", "10000x", "1e+12x"]


def test_json_is_json() -> None:
    document = json.loads(check_json(RESULTS, DeviceFacts("cpu", "CPU", 2)))
    first, second, third = document["rows"]
    assert (first["place"], first["paths"], first["used"]) == ([0, 1, 2], None, 0.25)
    assert (second["found"], second["error_ulps"], second["paths"]["single"]) == ("nan", "inf", 4)
    assert (third["status"], third["expected"]) == ("refused", None)
