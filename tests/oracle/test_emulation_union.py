# SPDX-License-Identifier: MIT
"""Rows that share tiles in NumPy: whose constants, which rows, and how far above a maximum a reference may lie."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.request import UNION_CONTEXT, UNION_GROUP, UNION_KV_HEADS
from dsa_bench.oracle import emulation_union as union
from dsa_bench.oracle.attention import candidate_positions, logits, reference
from dsa_bench.oracle.cases.catalog import PREFILL_CASES
from dsa_bench.oracle.cases.rows import row_inputs
from dsa_bench.oracle.verdict import measure

SINKS = PREFILL_CASES["neighbour-sinks"]


def test_the_constants_are_the_kernels(root: Path) -> None:
    source = (root / "kernels/dsa/prefill_int8_union.cu").read_text()
    found = {
        name: float(value)
        for name, value in re.findall(r"constexpr (?:int|unsigned|float) (\w+) = ([\d.]+)f?;", source)
    }
    assert found["kMargin"] == union.MARGIN
    assert found["kEven"] == union.EVEN
    assert found["kRows"] == union.ROWS
    assert found["kMaxGroup"] == UNION_GROUP
    assert found["kMaxContext"] == UNION_CONTEXT
    assert found["kMaxKvHeads"] == UNION_KV_HEADS
    assert found["kMostTiles"] * 64 == union.MOST_CANDIDATES
    assert (found["kRun"], found["kSpan"]) == (union.RUN, union.SPAN)


def used_by_sinks(margin: float) -> dict[str, float]:
    """Setting -> the share of the tolerance that it uses."""
    used: dict[str, float] = {}
    for label, build in SINKS.settings:
        inputs = build()
        shared = union.shared_candidates(inputs, 0)
        heads = [union.attend_union(inputs, 0, kv_head, shared, np.float32(margin)) for kv_head in range(2)]
        out = np.concatenate(heads, axis=1).astype(BF16)
        used[label] = measure(out, reference(inputs), SINKS.tolerance, np.zeros(1)).used
    return used


def test_references_3_bits_above_the_maximum_hold_every_sink() -> None:
    assert max(used_by_sinks(float(union.MARGIN)).values()) <= 1


def test_references_4_bits_above_it_lose_tails_below_sinks_in_all_quarters() -> None:
    """Such sinks are taken for none; a quarter without one shows the others."""
    assert {label for label, used in used_by_sinks(4).items() if used > 1} == {
        "each quarter of the first tile, 16 nats",
        "each quarter of the fourth tile, 16 nats",
        "every tenth, 16 nats",
    }


def test_rows_with_sinks_share_and_lead_by_what_they_say() -> None:
    for label, build in SINKS.settings:
        inputs = build()
        assert len(union.shared_candidates(inputs, 0)) == 500, label
        sinks = np.count_nonzero((inputs.value[0] == 0).all(axis=1))
        for row in range(4):
            positions = candidate_positions(inputs, row)
            is_sink = (inputs.value[0, positions] == 0).all(axis=1)
            expected = 0 if label.startswith("one, of the middle rows") and row in (0, 3) else sinks
            assert np.count_nonzero(is_sink) == expected, label
            for kv_head in range(2):
                x = logits(inputs, row, kv_head, positions)
                tail = x[:, ~is_sink]
                ends = (tail.mean(axis=1) + 2 * tail.std(axis=1))[:, None]
                assert np.abs(x[:, is_sink] - ends - float(label.split()[-2])).max(initial=0.0) < 0.25


def alike(rows: int = 4, candidates: int = 512, context: int = 9000) -> SparseInputs:
    """Rows that all have the first `candidates` positions."""
    inputs = row_inputs(rows=rows, valid=1, entries=candidates, query_heads=2)
    inputs.selected[:] = np.arange(candidates)
    cache = np.zeros((2, context, 256), np.int8)
    return SparseInputs(inputs.query, cache, cache, inputs.key_scale, inputs.value_scale, inputs.selected)


def test_rows_share_where_their_lists_are_alike() -> None:
    inputs = alike()
    assert union.shared_candidates(inputs, 0).tolist() == list(range(512))
    inputs.selected[3, 16:32] += 1000
    assert len(union.shared_candidates(inputs, 0)) == 512 + 16
    inputs.selected[3, 15] += 1000
    assert len(union.shared_candidates(inputs, 0)) == 0, "fewer than half of its first 32"


def test_rows_that_a_duplicate_an_empty_list_or_the_end_keeps_apart() -> None:
    inputs = alike(rows=7)
    assert len(union.shared_candidates(inputs, 4)) == 0, "three rows"
    inputs.selected[2, 100] = 101
    assert len(union.shared_candidates(inputs, 0)) == 0, "a duplicate"
    inputs.selected[2] = -1
    assert len(union.shared_candidates(inputs, 0)) == 0, "nothing"


@pytest.mark.parametrize(("own", "size"), [(150, 720), (151, 0)])
def test_a_union_is_at_most_two_thirds_of_its_lists(own: int, size: int) -> None:
    inputs = alike()
    inputs.selected[:, 120:] = -1
    for row in range(4):
        inputs.selected[row, 120 : 120 + own] = 120 + own * row + np.arange(own)
    assert len(union.shared_candidates(inputs, 0)) == size


@pytest.mark.parametrize(("candidates", "size"), [(4096, 4096), (4097, 0)])
def test_a_union_is_at_most_4096(candidates: int, size: int) -> None:
    assert len(union.shared_candidates(alike(candidates=candidates), 0)) == size


@pytest.mark.parametrize("far", [16, 31])
def test_runs_of_16_span_up_to_12_bits(far: int) -> None:
    for span, size in ((4095, 32), (4096, 0)):
        inputs = alike(candidates=32)
        inputs.selected[:, far:] += (far - 1) // 16 * 16 + span - far
        assert len(union.shared_candidates(inputs, 0)) == size


def paths_of(inputs: SparseInputs) -> set[str]:
    """That four rows take with the first KV head."""
    return {path for one in union.attend_neighbours(inputs, 0, 0) for path in one.paths}


@pytest.mark.parametrize(
    ("query_heads", "kv_heads", "path"), [(12, 1, "union"), (13, 1, "two"), (128, 128, "union"), (129, 129, "two")]
)
def test_heads_up_to_which_rows_share(query_heads: int, kv_heads: int, path: str) -> None:
    inputs = row_inputs(rows=4, valid=64, query_heads=query_heads, kv_heads=kv_heads)
    inputs.selected[:] = inputs.selected[0]
    assert paths_of(inputs) == {path}


@pytest.mark.parametrize(("value_scale", "path"), [(2.0**16, "union"), (np.nextafter(np.float32(2**16), 9e9), "two")])
def test_value_scales_up_to_which_rows_share(value_scale: float, path: str) -> None:
    inputs = alike()
    inputs.value_scale[0, 7] = value_scale
    assert paths_of(inputs) == {path}


def test_products_beyond_fp32_are_not_shared() -> None:
    inputs = alike()
    inputs.query[3, 0, 5], inputs.key_scale[0, 5] = 1e30, 1e30
    assert "union" not in paths_of(replace(inputs, scale=1e-38))


def test_rows_that_do_not_share_are_those_of_int8_ws() -> None:
    inputs = alike()
    taken = [dict(one.paths) for one in union.attend_neighbours(inputs, 0, 0)]
    assert taken == [{"union": 1}] * 4
    inputs.query[1] = 1e4
    taken = [dict(one.paths) for one in union.attend_neighbours(inputs, 0, 0)]
    assert taken == [{"two": 1}, {"four": 1}, {"two": 1}, {"two": 1}], "none, if two digits do not do for one"
