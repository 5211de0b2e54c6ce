# SPDX-License-Identifier: MIT
"""`dsa-bench check` on the CPU backend."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Command = Callable[..., Any]
CPU = ("check", "--backend", "cpu")


def test_the_table(command: Command) -> None:
    outcome = command(*CPU, "--case", "tail-30", "softmax-scale")
    lines = outcome.out.splitlines()
    assert (outcome.code, outcome.err) == (0, "")
    assert lines[0].split() == ["case", "kernel", "status", "expected", "found", "ulps", "of", "tol.", "paths"]
    assert lines[1].split()[:5] == ["tail-30", "previous", "ok", "107886", "108032"]
    assert lines[4].split()[-4:] == ["digits", "96,", "single", "12"]
    assert lines[-3].startswith("softmax-scale, emulation: refused: softmax scale 1.07374e+09: int8-tc takes 0 to 1")
    assert lines[-2].startswith(
        "softmax-scale, emulation-digits: refused: softmax scale 1.07374e+09: int8-digits takes"
    )
    assert lines[-1] == "10 checks: 8 ok, 2 refused"


def test_an_interrupted_check_says_what_it_found(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsa_bench.sweep import numerics

    whole = numerics.check_cases

    def interrupted(*asked: Any) -> Any:
        for number, result in enumerate(whole(*asked)):
            if number == 3:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(numerics, "check_cases", interrupted)
    outcome = command(*CPU, "--case", "tail-30", "softmax-scale")
    assert outcome.code == 130
    assert outcome.out.splitlines()[-1] == "3 checks: 3 ok"
    assert "3 checks had ended, of 2 cases asked for" in outcome.err


def test_prefill_has_cases_and_kernels_of_its_own(command: Command) -> None:
    outcome = command(*CPU, "--op", "prefill", "--case", "groups", "cancelling-products")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[-1] == "16 checks: 1 limit, 15 ok"
    assert "cancelling-products, emulation-bf16: limit: a key of 16383 * 64 is 16384 * 64 in BF16" in outcome.out


def test_json_holds_every_number_and_no_other(command: Command) -> None:
    outcome = command(*CPU, "--case", "products-beyond-fp32,nan-query", "--kernels", "previous", "--format", "json")
    document = json.loads(outcome.out, parse_constant=lambda text: pytest.fail(text))
    assert (document["schema"], document["schema_version"], document["backend"]) == ("dsa-bench/check", 1, "cpu")
    limit, right = document["rows"]
    assert (limit["status"], limit["found"], limit["error_ulps"], limit["used"]) == ("limit", "nan", "inf", "inf")
    assert (right["status"], right["paths"], right["tolerance"], right["runs"]) == ("ok", None, "ulp 1", 3)
    assert outcome.code == 0


def test_an_undeclared_miss_is_exit_1(command: Command, monkeypatch: pytest.MonkeyPatch, tampered_backend: Any) -> None:
    def tamper(plan: Any, out: Any) -> None:
        if plan.kernel == "int8-tc":
            out[0, 3, 5] = 99

    monkeypatch.setattr("dsa_bench.backends.cpu.backend.CpuBackend", lambda: tampered_backend(tamper))
    outcome = command(*CPU, "--case", "toy-row", "tail-18")
    assert outcome.code == 1
    assert "out[0, 3, 5] is 99, FP64 17.3106" in outcome.out
    assert outcome.err == "dsa-bench: error: wrong result: toy-row (int8-tc), tail-18 (int8-tc)\n"


def test_a_case_that_no_kernel_takes_is_exit_3(command: Command) -> None:
    outcome = command(*CPU, "--case", "softmax-scale", "--kernels", "emulation")
    assert outcome.code == 3
    assert outcome.err.startswith("dsa-bench: error: no kernel takes softmax-scale")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--case", "no-such"), "--case no-such: is none of cancelling-products, fine-cancellation, "),
        (
            ("--kernels", "flash"),
            "'flash' is not one of previous, int8-tc, int8-digits, int8-ws, int8-union, emulation",
        ),
        (("--op", "sparse"), "'sparse' is not one of decode, prefill, dense, mix, gate"),
        (("--case", "groups"), "--case groups: is a case of prefill and not of decode; add --op prefill"),
        (("--kernels", "emulation-bf16"), "--kernels emulation-bf16: is no kernel of decode"),
        (("--format", "csv"), "'csv' is not one of table, json"),
        (("--case",), "--case: needs at least one value"),
    ],
)
def test_bad_usage_names_what_there_is(command: Command, options: tuple[str, ...], message: str) -> None:
    outcome = command(*CPU, *options)
    assert outcome.code == 2
    assert message in outcome.error


def test_auto_says_what_it_checks(command: Command) -> None:
    """F1, NVIDIA/cudf#6602."""
    outcome = command("check", "--case", "toy-row", "--kernels", "previous")
    assert outcome.code == 0
    assert outcome.err.startswith("dsa-bench: measuring the CPU backend: ")
