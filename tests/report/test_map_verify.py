# SPDX-License-Identifier: MIT
"""Whether a map still gains, from records that lack something."""

from typing import Any

from dsa_bench.report.map_verify import Gain, verified_cells, verified_json, verified_text
from dsa_bench.splits.geometry import TUNED

TIMES = {(4, 2048): {32: 11.94, 16: 10.40}, (8, 2048): {16: 13.2, 8: 12.7}}


def test_a_cell_without_the_maps_choice_or_the_automatic_rule_is_invalid(sweep: Any) -> None:
    """Rows 4 have both; the map's choice is 16 splits, which run for 0 in rows 8; then nothing was asked for 0."""
    run = sweep(TIMES, auto=32, rules={16: (TUNED,)}).run()
    found = verified_cells(run)
    assert [(cell.rows, cell.gain, cell.reason) for cell in found] == [
        (4, Gain.HOLDS, None), (8, Gain.INVALID, "the automatic rule was not measured here"),
    ]  # fmt: skip
    assert "rows 8, candidates 2048: the automatic rule was not measured here" in verified_text(found)
    assert '"gain": "invalid"' in verified_json(found)
    (one, other) = verified_cells(sweep(TIMES, auto=16, rules={32: (TUNED,)}).run())
    assert one.gain is Gain.GONE
    assert (other.gain, other.value, other.ratio) == (Gain.INVALID, 0, None)
    assert other.reason == "the map's choice was not measured here"
