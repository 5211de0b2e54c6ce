# SPDX-License-Identifier: MIT
"""The cases are what they say: analytic results, exact edges, bounds that see something."""

import re
from pathlib import Path

import numpy as np
import pytest

from dsa_bench.oracle.attention import candidate_positions, logits, reference
from dsa_bench.oracle.cases.case import Case, Limit, Tolerance
from dsa_bench.oracle.cases.catalog import DECODE_CASES, PREFILL_CASES
from dsa_bench.oracle.cases.pairs import FLOAT_VALUE_SCALE
from dsa_bench.oracle.tolerance import CODE_MAX, LARGE_VALUE_SCALE, fp16_bound, fp32_bound, query_load

ANALYTIC = [case for case in DECODE_CASES.values() if case.expected is not None]
BOUNDED = [case for case in DECODE_CASES.values() if case.tolerance.rule == "bound" and "8192" not in case.name]


@pytest.mark.parametrize("case", ANALYTIC, ids=lambda case: case.name)
def test_fp64_gives_the_analytic_result(case: Case) -> None:
    for setting in case.settings:
        out = reference(setting.build()).out
        finite = out[np.isfinite(out)]
        assert finite.size >= out.size // 2
        np.testing.assert_allclose(finite, np.full_like(finite, case.expected), rtol=1e-10, err_msg=setting.label)


@pytest.mark.parametrize("case", BOUNDED, ids=lambda case: case.name)
def test_no_bound_is_blind(case: Case) -> None:
    for setting in case.settings:
        inputs = setting.build()
        oracle = reference(inputs)
        for bound in (fp16_bound, fp32_bound):
            largest = CODE_MAX * np.abs(inputs.value_scale).max()
            assert bound(inputs, oracle.rows, oracle.out).max() < largest, setting.label


def test_figures_that_the_cases_are_known_by() -> None:
    expected = {case.name: case.expected for case in ANALYTIC}
    assert expected["common-logit"] == pytest.approx(0.6225, abs=5e-5)
    assert expected["common-logit-scaled"] == pytest.approx(0.5078, abs=5e-5)
    assert expected["signed-cancellation"] == pytest.approx(127 / 256, rel=1e-7)
    assert expected["tail-18"] == pytest.approx(0.0998, abs=5e-5)
    assert expected["tail-30"] == pytest.approx(107886.05, abs=5e-3)
    assert expected["toy-row"] == pytest.approx(17.3106, abs=5e-5)


def test_the_edges_are_exact() -> None:
    def built(name: str) -> tuple[np.ndarray, float, float]:
        """Logits of one head, largest load of the budget, largest value_scale."""
        inputs = DECODE_CASES[name].settings[0].build()
        x = logits(inputs, 0, 0, candidate_positions(inputs, 0))[0]
        return x, float(query_load(inputs, np.arange(2)).max()), float(inputs.value_scale.max())

    assert built("query-budget")[1] < 1 < built("query-budget-above")[1] < 1.001
    assert built("value-scale")[2] == LARGE_VALUE_SCALE < built("value-scale-above")[2] == FLOAT_VALUE_SCALE
    assert np.ptp(built("tail-20")[0]) == 20.0 < np.ptp(built("tail-20-above")[0]) == 20.125
    assert np.abs(built("common-logit")[0] - 8290560).tolist() == [0.5, 0.0]
    assert np.abs(built("tail-20")[0]).max() == 20.0


def test_sinks_lead_by_what_they_say() -> None:
    for lead in (4, 20):
        inputs = DECODE_CASES[f"sink-{lead}"].settings[0].build()
        for kv_head in range(2):
            x = logits(inputs, 0, kv_head, candidate_positions(inputs, 0))
            tail = x[:, 1:]
            assert x[:, 0] - tail.mean(axis=1) - 2 * tail.std(axis=1) == pytest.approx(np.full(12, lead), abs=0.15)


def test_a_limit_holds_for_its_kernel_and_its_backend() -> None:
    limits = (Limit("previous", "anywhere"), Limit("int8-tc", "on the CPU", backend="cpu"))
    case = Case("name", "shows", (), tolerance=Tolerance("ulp"), limits=limits)
    assert case.limit("previous", "cuda") is limits[0]
    assert case.limit("int8-tc", "cpu") is limits[1]
    assert case.limit("int8-tc", "cuda") is None
    assert case.limit("emulation", "cpu") is None


def test_the_page_lists_every_case_and_every_limit(root: Path) -> None:
    page = (root / "docs" / "numerics.md").read_text()
    listed = DECODE_CASES | {name: case for name, case in PREFILL_CASES.items() if name not in DECODE_CASES}
    assert re.findall(r"^\| `([a-z0-9.-]+)` \| .* \| (\S+) \|$", page, re.MULTILINE) == [
        (case.name, case.path or "-") for case in listed.values()
    ]
    for case in (*DECODE_CASES.values(), *PREFILL_CASES.values()):
        assert case.shows in page
        for limit in case.limits:
            assert f"| `{case.name}` | {limit.reason} |" in page


def test_prefill_has_every_case_of_decode_unsplit_and_more_rows() -> None:
    assert list(PREFILL_CASES)[: len(DECODE_CASES)] == list(DECODE_CASES)
    rows: set[int] = set()
    groups: set[int] = set()
    for case in PREFILL_CASES.values():
        assert case.tiles_per_split == (0,)
        for setting in () if case.name.startswith(("list-", "model-like-1")) else case.settings:
            shape = setting.build().shape
            assert shape.op == "prefill"
            rows.add(shape.rows)
            groups.add(shape.group)
    assert {9, 128} <= rows
    assert groups == set(range(1, 17))


def test_every_limit_of_the_bf16_prefill_is_its_emulations() -> None:
    """What the GPU's `previous` declares is what the emulation shows, and nothing more."""
    for case in PREFILL_CASES.values():
        on_gpu = case.limit("previous", "cuda")
        emulated = case.limit("emulation-bf16", "cpu")
        assert (on_gpu is None) == (emulated is None), case.name
        assert on_gpu is None or emulated is None or on_gpu.times == emulated.times
