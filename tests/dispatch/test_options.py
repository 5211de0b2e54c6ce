# SPDX-License-Identifier: MIT
"""The grammar of seed 000, A5 (vllm-project/vllm#28159) and C11 (flashinfer-ai/flashinfer#3975)."""

from pathlib import Path

import numpy as np
import pytest

from dsa_bench.dispatch.dispatcher import Dispatcher
from dsa_bench.dispatch.options import OPTIONS, resolve_options, resolve_splits
from dsa_bench.model.errors import BadInput, BadOption

DECODE = "ep.cuda.dsa_decode_int8_tc"
KNOB = "ep.cuda.dsa_decode_int8_tc_tiles_per_split"
SWITCHES = [name for name, option in OPTIONS.items() if option.is_switch]
NEVER_A_SWITCH = [
    "00", "01", "-0", "000001", "+1", " 1", "1 ", "2", "-1", "1x", "true", "on", "t", "false", "1\n", "١", "0x1", "1.0",
]  # fmt: skip
NEVER_A_COUNT = ["-1", "+1", " 1", "1 ", "1x", "1_0", "4.5", "1e3", "٤", "0x4", "auto", "1\n"]


def test_the_names_are_those_of_the_seed_and_three_of_ours() -> None:
    assert {name: (option.variable, option.default) for name, option in OPTIONS.items()} == {
        "ep.cuda.dsa_prefill_int8_tc": ("ORT_DSA_PREFILL_INT8_TC", 0),
        "ep.cuda.dsa_prefill_int8_ws": ("ORT_DSA_PREFILL_INT8_WS", 1),
        "ep.cuda.dsa_prefill_int8_union": ("ORT_DSA_PREFILL_INT8_UNION", 0),
        "ep.cuda.dsa_prefill_kernel": ("ORT_DSA_PREFILL_KERNEL", 1),
        "ep.cuda.dsa_decode_int8_tc": ("ORT_DSA_DECODE_INT8_TC", 0),
        "ep.cuda.dsa_decode_int8_tc_tiles_per_split": ("ORT_DSA_DECODE_INT8_TC_TILES_PER_SPLIT", 0),
        "ep.cuda.dsa_decode_int8_digits": ("ORT_DSA_DECODE_INT8_DIGITS", 1),
    }


@pytest.mark.parametrize("text", ["", *NEVER_A_SWITCH])
@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_exactly_0_or_1(name: str, text: str) -> None:
    with pytest.raises(BadOption, match=f'^option {name}: .* is not exactly "0" or "1"$') as raised:
        resolve_options({name: text}, {})
    assert repr(text) in str(raised.value)
    assert isinstance(raised.value, BadInput)  # exit 2
    variable = OPTIONS[name].variable
    if text:
        with pytest.raises(BadOption, match=f"^environment variable {variable}: "):
            resolve_options({}, {variable: text})


@pytest.mark.parametrize("text", ["", *NEVER_A_COUNT])
def test_the_knob_is_a_decimal_integer(text: str) -> None:
    with pytest.raises(BadOption, match=f"^option {KNOB}: .*non-negative decimal integer"):
        resolve_options({KNOB: text}, {})
    if text:
        with pytest.raises(BadOption, match=r"^environment variable ORT_DSA_DECODE_INT8_TC_TILES_PER_SPLIT: "):
            resolve_options({}, {OPTIONS[KNOB].variable: text})


def test_the_knob_has_a_range() -> None:
    assert resolve_options({KNOB: "2147483647"}, {}).tiles_per_split.value == 2**31 - 1
    assert resolve_options({KNOB: "0004"}, {}).tiles_per_split.value == 4
    for text in ("2147483648", "9" * 5000):
        with pytest.raises(BadOption, match="is above 2147483647"):
            resolve_options({KNOB: text}, {})


def test_option_over_environment_over_default() -> None:
    variable = OPTIONS[DECODE].variable

    def resolved(options: dict[str, str], environment: dict[str, str]) -> tuple[int, str]:
        setting = resolve_options(options, environment).decode_int8_tc
        return setting.value, setting.source

    assert resolved({}, {}) == (0, "default")
    assert resolved({}, {variable: ""}) == (0, "default")
    assert resolved({}, {variable: "0"}) == (0, "environment")
    assert resolved({}, {variable: "1"}) == (1, "environment")
    assert resolved({DECODE: "0"}, {variable: "1"}) == (0, "option")
    assert resolved({DECODE: "1"}, {variable: "2"}) == (1, "option"), "an overruled variable is not even read"


def test_unknown_names_and_other_types_are_refused() -> None:
    with pytest.raises(BadOption, match=r"^option ep\.cuda\.dsa_decode: is unknown; the dispatcher has ep\.cuda\."):
        resolve_options({"ep.cuda.dsa_decode": "1"}, {})
    for value in (1, None, b"1", np.zeros(2), 10**5000, ["1"] * 9999):
        with pytest.raises(BadOption, match="options are strings") as raised:
            resolve_options({DECODE: value}, {})  # type: ignore[dict-item]
        assert len(str(raised.value)) < 200
        assert str(raised.value).isprintable()
    for options in (5, 0, "abc", "", [(DECODE, "1")], np.zeros(2)):
        with pytest.raises(BadOption, match=r"^options: is .*pass a dict, or None"):
            resolve_options(options, {})  # type: ignore[arg-type]


def test_what_is_quoted_is_one_short_line() -> None:
    for options in ({"x\ny\x1b": "1"}, {"x" * 99_999: "1"}, {KNOB: "x" * 99_999}, {DECODE: "\x1b" * 999}, {5: "1"}):
        with pytest.raises(BadOption) as raised:
            resolve_options(options, {})  # type: ignore[arg-type]
        assert str(raised.value).isprintable()
        assert len(str(raised.value)) < 400


def test_the_environment_is_read_when_a_dispatcher_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """C11, flashinfer-ai/flashinfer#3975: a new object sees the new value, an old one keeps its own."""

    def splits(dispatcher: Dispatcher) -> int:
        choice = dispatcher.choose(rows=8, candidates=2048, device="cpu")
        assert choice.basis == "option"
        return choice.plan.splits

    monkeypatch.setenv("ORT_DSA_DECODE_INT8_TC", "1")
    monkeypatch.setenv("ORT_DSA_DECODE_INT8_TC_TILES_PER_SPLIT", "1")
    first = Dispatcher()
    monkeypatch.setenv("ORT_DSA_DECODE_INT8_TC_TILES_PER_SPLIT", "4")
    second = Dispatcher()
    monkeypatch.setenv("ORT_DSA_DECODE_INT8_TC_TILES_PER_SPLIT", "none")
    assert [one.options.tiles_per_split.value for one in (first, second, first)] == [1, 4, 1]
    assert [splits(one) for one in (first, second, first)] == [32, 8, 32]
    with pytest.raises(BadOption, match="ORT_DSA_DECODE_INT8_TC_TILES_PER_SPLIT"):
        Dispatcher()


def test_the_map_comes_from_the_argument_or_the_variable() -> None:
    assert resolve_splits(None, {}) is None
    assert resolve_splits(None, {"DSA_BENCH_SPLITS": ""}) is None
    assert resolve_splits(None, {"DSA_BENCH_SPLITS": "a.json"}) == Path("a.json")
    assert resolve_splits("b.json", {"DSA_BENCH_SPLITS": "a.json"}) == Path("b.json")
    with pytest.raises(BadOption, match=r"^splits: is empty"):
        resolve_splits("", {})

    class Bytes:
        def __fspath__(self) -> bytes:
            return b"a.json"

    for name in (b"a.json", 5, ["a.json"], Bytes(), np.zeros(2)):
        with pytest.raises(BadOption, match=r"^splits: is .*; pass a map's name as str or Path, or None"):
            resolve_splits(name, {})  # type: ignore[arg-type]
