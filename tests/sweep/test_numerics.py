# SPDX-License-Identifier: MIT
"""The check of kernels on cases: what is compared, and what each outcome takes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cpu.backend import CpuBackend
from dsa_bench.model.errors import BadInput
from dsa_bench.model.outcome import CaseResult
from dsa_bench.model.request import CHECKED_KERNELS, SPARSE_KERNELS
from dsa_bench.oracle.cases.case import Case, Limit, Tolerance
from dsa_bench.oracle.cases.catalog import DECODE_CASES, PREFILL_CASES
from dsa_bench.sweep.numerics import check_cases, chosen_cases, chosen_kernels

LONG = ("list-2048", "list-2112", "list-8192", "model-like-1")
SHORT = [name for name in DECODE_CASES if name not in LONG]
LIMITS = {
    ("tail-100", "previous"), ("tail-100", "int8-tc"), ("rising-maximum", "previous"), ("rising-maximum", "int8-tc"),
    ("products-beyond-fp32", "previous"), ("products-beyond-fp32", "int8-tc"),
    ("sink-24", "emulation"), ("single-channel-sink-16", "emulation"),
    ("tail-100", "int8-digits"), ("rising-maximum", "int8-digits"), ("products-beyond-fp32", "int8-digits"),
    ("sink-20", "emulation-digits"), ("sink-24", "emulation-digits"),
}  # fmt: skip


PREFILL_LIMITS = {
    *(one for one in LIMITS if "emulation" not in one[1] and one[1] != "int8-digits"),
    *((name, other) for other in ("int8-ws", "int8-union") for name, kernel in LIMITS if kernel == "int8-tc"),
    *((case.name, limit.kernel) for case in PREFILL_CASES.values() for limit in case.limits if "emu" in limit.kernel),
}
PREFILL_LONG = ("list-2048", "list-2112", "list-8192", "model-like-1", "model-like-128")


@pytest.fixture(scope="module")
def backend() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()


def checked(backend: Any, case: Case | str, *kernels: str) -> list[CaseResult]:
    case = DECODE_CASES[case] if isinstance(case, str) else case
    return list(check_cases([case], kernels or SPARSE_KERNELS, backend))


@pytest.mark.parametrize("name", SHORT)
def test_every_kernel_of_the_cpu_holds_or_has_declared_its_limit(backend: CpuBackend, name: str) -> None:
    for result in checked(backend, name, *CHECKED_KERNELS["decode"]):
        expected = "limit" if (name, result.kernel) in LIMITS else "ok"
        if name == "softmax-scale" and result.kernel in ("emulation", "emulation-digits"):
            expected = "refused"
        assert result.status == expected, (result.kernel, result.reason)
        assert (result.paths is None) == (result.kernel != "emulation" or expected == "refused")


@pytest.mark.parametrize("name", [name for name in PREFILL_CASES if name not in PREFILL_LONG])
def test_every_prefill_kernel_holds_or_has_declared_its_limit(backend: CpuBackend, name: str) -> None:
    """Declared limits are all shown: one that an emulation does not need would hide a miss on a GPU."""
    kernels = CHECKED_KERNELS["prefill"]
    for result in check_cases([PREFILL_CASES[name]], kernels, backend):
        expected = "limit" if (name, result.kernel) in PREFILL_LIMITS else "ok"
        if name == "softmax-scale" and result.kernel in ("emulation", "emulation-ws", "emulation-union"):
            expected = "refused"
        assert result.status == expected, (result.kernel, result.reason)
        assert result.setting is None or result.setting.endswith(", 1 splits")


def test_prefill_is_accurate_over_many_rows(backend: CpuBackend) -> None:
    """One FP16 probability costs less than 4 % of the floor; BF16 everywhere shows what it declares."""
    one, bf16 = check_cases([PREFILL_CASES["model-like-128"]], ["emulation", "emulation-bf16"], backend)
    assert one.status == "ok"
    assert one.paths == {"half": 256, "digits": 0, "single": 0}
    assert bf16.status == "limit"


def test_a_long_list_holds_too(backend: CpuBackend) -> None:
    """8192 candidates with 1 tile per split: 32 splits of 4 tiles."""
    case = DECODE_CASES["list-8192"]
    one_row = replace(case, settings=case.settings[:1], tiles_per_split=(1,))
    (result,) = checked(backend, one_row, "emulation")
    assert (result.status, result.setting, result.paths) == (
        "ok",
        "1 rows, 32 splits",
        {"half": 64, "digits": 0, "single": 0},
    )


def test_every_geometry_runs_once(backend: CpuBackend) -> None:
    """valid-65 has 8 tiles: automatic, 1, 2 and 3 tiles per split, and 64, which is all in one."""
    case = DECODE_CASES["valid-65"]
    results = checked(backend, replace(case, settings=case.settings[:1]), "previous", "int8-tc")
    assert [result.runs for result in results] == [1, len({1, 8, 4, 3})]


def test_a_wrong_element_is_found_and_named(tampered_backend: Any) -> None:
    def tamper(plan: Any, out: Any) -> None:
        if plan.kernel == "int8-tc":
            out[1, 5, 7] = 3.0

    backend = tampered_backend(tamper)
    right, wrong = checked(backend, "common-logit")
    backend.close()
    assert right.status == "ok"
    assert (wrong.status, wrong.place, wrong.found) == ("WRONG", (1, 5, 7), 3.0)
    assert wrong.error_ulps == pytest.approx((3 - 0.62246) / 2**-8, rel=1e-4)
    assert "times the tolerance (ulp 1)" in str(wrong.reason)


def test_an_element_that_was_not_written_is_wrong(tampered_backend: Any) -> None:
    backend = tampered_backend(lambda _, out: out.fill(2.0**127 * (2 - 2.0**-7)))
    assert {result.reason for result in checked(backend, "toy-row")} == {"6144 output elements were never written"}
    backend.close()


def test_zeros_are_wrong_in_every_case(tampered_backend: Any) -> None:
    """No tolerance passes a kernel that computes nothing, but where nothing is right."""
    backend = tampered_backend(lambda _, out: out.fill(0.0))
    for name in SHORT:
        (result,) = checked(backend, name, "previous")
        assert result.status in ("WRONG", "limit"), name
        assert result.status == "WRONG" or (name, "previous") in LIMITS
    backend.close()


def test_an_error_beyond_the_declared_limit_is_wrong(backend: CpuBackend) -> None:
    case = DECODE_CASES["tail-100"]
    generous = replace(case, limits=(Limit("previous", "declared", times=4.0),))
    narrow = replace(case, limits=(Limit("previous", "declared", times=3.0),))
    for given, status in ((generous, "limit"), (narrow, "WRONG"), (replace(case, limits=()), "WRONG")):
        assert checked(backend, given, "previous")[0].status == status


def test_a_path_that_is_not_the_edges_is_wrong(backend: CpuBackend) -> None:
    (result,) = checked(backend, replace(DECODE_CASES["query-budget"], path="digits"), "emulation")
    assert (result.status, result.reason) == ("WRONG", "its slowest path was half, not digits")
    assert checked(backend, replace(DECODE_CASES["query-budget"], path="digits"), "int8-tc")[0].status == "ok"


def test_a_blind_bound_is_no_pass(backend: CpuBackend) -> None:
    huge = replace(DECODE_CASES["products-beyond-fp32"], tolerance=Tolerance("bound"))
    (result,) = checked(backend, huge, "previous")
    assert result.status == "WRONG"
    assert "sees nothing" in str(result.reason)


def test_a_declared_limit_may_be_that_no_bound_sees_anything(backend: CpuBackend) -> None:
    (result,) = check_cases([PREFILL_CASES["huge-queries"]], ["emulation-bf16"], backend)
    assert result.status == "limit"
    for limits in ((), (Limit("emulation-bf16", "something else"),)):
        (result,) = check_cases([replace(PREFILL_CASES["huge-queries"], limits=limits)], ["emulation-bf16"], backend)
        assert (result.status, "sees nothing" in str(result.reason)) == ("WRONG", True)


def test_choices() -> None:
    assert [case.name for case in chosen_cases([])] == list(DECODE_CASES)
    assert [case.name for case in chosen_cases(["toy-row", "tail-18"])] == ["toy-row", "tail-18"]
    with pytest.raises(BadInput, match=r"--case toy: is none of cancelling-products, .*toy-row.*sink-24"):
        chosen_cases(["toy"])
    assert chosen_kernels(None, "cpu") == ["previous", "int8-tc", "int8-digits", "emulation", "emulation-digits"]
    assert chosen_kernels(None, "cuda") == ["previous", "int8-tc", "int8-digits"]
    assert chosen_kernels(None, "cuda", "prefill") == ["previous", "int8-tc", "int8-ws", "int8-union"]
    assert chosen_kernels(["int8-tc"], "cuda") == ["int8-tc"]
    emulations = ["emulation", "emulation-bf16", "emulation-ws", "emulation-union"]
    assert chosen_kernels(None, "cpu", "prefill") == ["previous", "int8-tc", "int8-ws", "int8-union", *emulations]
    assert [case.name for case in chosen_cases([], "prefill")] == list(PREFILL_CASES)
    for name in emulations:
        with pytest.raises(BadInput, match="--backend cpu"):
            chosen_kernels([name], "cuda", "prefill")
    with pytest.raises(BadInput, match="emulation-bf16: is no kernel of decode; choose from previous, int8-tc, int8-d"):
        chosen_kernels(["emulation-bf16"], "cpu")
    with pytest.raises(BadInput, match="--case groups: is a case of prefill and not of decode; add --op prefill"):
        chosen_cases(["groups"])


def test_the_paths_are_those_of_the_launch(backend: CpuBackend) -> None:
    case = DECODE_CASES["huge-queries-some"]
    inputs = case.settings[0].build()
    buffers = backend.load(inputs, "none")
    plan = backend.geometry.plan("emulation", inputs.shape, 1)
    paths = buffers.paths(plan)
    assert paths == {"half": 40, "digits": 8, "single": 0}
    assert sum(paths.values()) == plan.ctas
    assert list(paths) == ["half", "digits", "single"]
    assert buffers.paths(backend.geometry.plan("int8-tc", inputs.shape, 1)) is None
    assert np.isfinite(buffers.output().astype(np.float32)).all()
