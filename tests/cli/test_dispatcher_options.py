# SPDX-License-Identifier: MIT
"""`decode --option`, `prefill --option`: what the dispatcher takes is what is measured. Cases A5, C6 and C11."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.backends.cpu.backend import CpuBackend
from dsa_bench.dispatch.facts import launch_facts
from dsa_bench.dispatch.map_file import write_map
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.splits_map import MapCell, MapDevice, MapPolicy, MapRule, SplitsMap, SplitTable, Validation

Command = Callable[..., Any]
CPU = ("decode", "--rows", "4", "--context", "1024", "--candidates", "512", "--rounds", "2", "--backend", "cpu")
SWITCH = "ep.cuda.dsa_decode_int8_tc"
KNOB = "ep.cuda.dsa_decode_int8_tc_tiles_per_split"
PREFILL, UNION = "ep.cuda.dsa_prefill_int8_tc", "ep.cuda.dsa_prefill_int8_union"
PREFILL_CPU = ("prefill", "--rows", "16", *CPU[3:], "--selection", "overlap:0.95")
PLAN = ("decode", "--rows", "8", "--plan", "--sms", "132", "--resident", "3")


def measured(outcome: Any) -> list[tuple[str, int]]:
    assert outcome.code == 0, outcome.err
    return [(row["kernel"], row["splits"]) for row in json.loads(outcome.out)["rows"]]


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        ((f"{SWITCH}=0",), [("previous", 1)]),
        ((f"{SWITCH}=1", f"{KNOB}=2"), [("int8-tc", 4)]),
        ((f"{SWITCH}=0", f"{SWITCH}=1", f"{KNOB}=2"), [("previous", 1), ("int8-tc", 4)]),
        ((f"{SWITCH}=1", f"{KNOB}=1", f"{KNOB}=8"), [("int8-tc", 8), ("int8-tc", 1)]),
    ],
)
def test_each_option_value_is_measured_as_the_dispatcher_takes_it(
    options: tuple[str, ...], kernels: list[tuple[str, int]], command: Command
) -> None:
    outcome = command(*CPU, "--format", "json", "--option", *options)
    assert measured(outcome) == kernels
    assert "take the same launch" not in outcome.err
    repeated = [token for option in options for token in ("--option", option)]
    assert measured(command(*CPU, "--format", "json", *repeated)) == kernels


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        ((f"{PREFILL}=0",), ["previous"]),
        ((f"{PREFILL}=1",), ["int8-ws"]),
        ((f"{PREFILL}=1", f"{UNION}=0", f"{UNION}=1"), ["int8-ws", "int8-union"]),
        ((f"{PREFILL}=0", f"{PREFILL}=1", "ep.cuda.dsa_prefill_int8_ws=0"), ["previous", "int8-tc"]),
    ],
)
def test_prefill_measures_what_the_dispatcher_takes(
    options: tuple[str, ...], kernels: list[str], command: Command, tmp_path: Path
) -> None:
    record = tmp_path / "run.jsonl"
    outcome = command(*PREFILL_CPU, "--format", "json", "--record", str(record), "--option", *options)
    assert measured(outcome) == [(kernel, 1) for kernel in kernels]
    header = json.loads(record.read_text().splitlines()[0])
    assert set(kernels) <= header["kernel_hashes"].keys(), "whatever it took"


def test_two_sides_of_one_kernel_are_said_and_not_compared(command: Command) -> None:
    """C11, flashinfer-ai/flashinfer#3975: instead of 1.00x."""
    outcome = command(*CPU, "--candidates", "256", "--format", "json", "--option", f"{SWITCH}=0", f"{SWITCH}=1")
    assert measured(outcome) == [("previous", 1), ("previous", 1), ("int8-tc", 1)]
    assert (
        f"dsa-bench: {SWITCH}=0 and {SWITCH}=1 take the same launch, previous, for rows 4, context 1024, candidates "
        "256: it is measured once" in outcome.err.splitlines()
    )


def test_explain_says_which_gate_said_no(command: Command) -> None:
    outcome = command(*CPU, "--candidates", "256", "--explain", "--option", f"{SWITCH}=1")
    assert f"  {SWITCH}=1" in outcome.err.splitlines()
    assert "int8-tc decode refused by candidates: needs more than 256, found 256" in outcome.err
    assert f"{SWITCH}=1 (option)" in outcome.err


@pytest.mark.parametrize(
    ("option", "variable", "value", "source"),
    [
        (None, "0", 0, "environment"), (None, "1", 1, "environment"), (None, "", 0, "default"),
        ("1", "2", 1, "option"), ("0", "1", 0, "option"),
    ],
)  # fmt: skip
def test_the_plan_says_where_a_value_came_from(
    option: str | None, variable: str, value: int, source: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A5, vllm-project/vllm#28159."""
    monkeypatch.setenv("ORT_DSA_DECODE_INT8_TC", variable)
    options = [f"{KNOB}=2", *([] if option is None else [f"{SWITCH}={option}"])]
    document = json.loads(command(*PLAN, "--option", *options).out)
    (side,) = document["sides"]
    assert {"name": SWITCH, "value": value, "source": source} in side
    assert {"name": KNOB, "value": 2, "source": "option"} in side
    assert document["effective"][0]["variants"][0]["kernel"] == ("int8-tc" if value else "previous")


@pytest.mark.parametrize(("device", "kernel"), [((), "int8-digits"), (("--sms", "108"), "int8-tc")])
def test_the_plan_for_an_h200_takes_what_an_h200_does(device: tuple[str, ...], kernel: str, command: Command) -> None:
    document = json.loads(command(*PLAN, *device, "--option", f"{SWITCH}=1").out)
    assert document["effective"][0]["variants"][0]["kernel"] == kernel


@pytest.mark.parametrize(("sms", "kernels"), [("132", ["int8-ws", "int8-union"]), ("80", ["int8-union"] * 2)])
def test_the_plan_lets_rows_share_where_the_device_would(sms: str, kernels: list[str], command: Command) -> None:
    """And what is asked for by its name whatever the rows."""
    plan = ("prefill", "--rows", "128", "256", "--plan", "--sms", sms, "--resident", "3")

    def planned(*asked: str) -> list[list[str]]:
        cells = json.loads(command(*plan, "--no-ceiling", *asked).out)["effective"]
        return [[variant["kernel"] for variant in cell["variants"]] for cell in cells]

    both = ("--option", f"{PREFILL}=1", f"{UNION}=1")
    assert planned(*both) == [[kernel] for kernel in kernels]
    for cell, kernel in zip(json.loads(command(*plan, *both).out)["effective"], kernels, strict=True):
        (choice,) = cell["choices"]
        assert (choice["option"], choice["variant"]) == (f"{PREFILL}=1,{UNION}=1", kernel)
        refused = "int8-union prefill: rows x KV heads: needs more than 3 for each multiprocessor"
        assert any(text.startswith(refused) for text in choice["refused"]) == (kernel == "int8-ws")
    assert planned("--kernels", "int8-ws", "int8-union") == [["int8-ws", "int8-union"]] * 2


@pytest.mark.parametrize("text", ["false", "on", "t", " 1 ", "01", "2"])
def test_a_bad_variable_is_named(text: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_DSA_DECODE_INT8_TC", text)
    outcome = command(*PLAN, "--option", f"{KNOB}=2")
    assert outcome.code == 2
    assert f"environment variable ORT_DSA_DECODE_INT8_TC: {text!r}" in outcome.error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--option", f"{SWITCH}="), f"option {SWITCH}: '' is not exactly"),
        (("--option", SWITCH), f"--option: '{SWITCH}' is not NAME=VALUE"),
        (("--option", "=1"), "--option: '=1' is not NAME=VALUE"),
        (("--option",), "--option: needs at least one value"),
        (("--option", "dsa_decode_int8_tc=1"), "option dsa_decode_int8_tc: is unknown; the dispatcher has ep.cuda."),
        (("--option", f"{KNOB}=-1"), "non-negative decimal integer"),
        (("--option", f"{SWITCH}=1", "--kernels", "previous"), "--kernels: is the dispatcher's to choose"),
        (("--option", f"{SWITCH}=1", "--tiles-per-split", "2"), "--tiles-per-split: is the dispatcher's to choose"),
        (("--option", f"{SWITCH}=1", "--rows", "9"), "takes bf16 prefill for op=decode,rows=9"),
    ],
)
def test_bad_options_are_one_line_and_exit_2(arguments: tuple[str, ...], said: str, command: Command) -> None:
    for more in ((), ("--plan",)):
        outcome = command("decode", "--backend", "cpu", *arguments, *more)
        assert outcome.code == 2
        assert said in outcome.error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--option", f"{UNION}=on"), f"option {UNION}: 'on' is not exactly"),
        (("--option", f"{PREFILL}=1", "--kernels", "int8-ws"), "--kernels: is the dispatcher's to choose"),
        (("--option", f"{SWITCH}=1", "--rows", "8"), "takes int8-tc decode for op=prefill,rows=8"),
        (("--option", "ep.cuda.dsa_prefill_kernel=0"), "takes decode_grouped for op=prefill,rows=128"),
        (
            ("--query-heads", "34", "--kv-heads", "2", "--option", f"{PREFILL}=1"),
            "measure (group: needs at most 16 query heads per KV head, found 17)",
        ),
    ],
)
def test_bad_options_of_prefill_are_one_line_and_exit_2(
    arguments: tuple[str, ...], said: str, command: Command
) -> None:
    for more in ((), ("--plan",)):
        outcome = command("prefill", "--backend", "cpu", *arguments, *more)
        assert outcome.code == 2
        assert said in outcome.error


@pytest.mark.parametrize("data", [b"", b'{"schema":1,"entries":[', b"\xff\xfe", b"[]"])
def test_a_bad_map_is_exit_2_naming_file_and_place(data: bytes, command: Command, tmp_path: Path) -> None:
    """C6, pytorch/pytorch#184096."""
    path = tmp_path / "splits.json"
    path.write_bytes(data)
    for options in ((), ("--option", f"{SWITCH}=1")):
        outcome = command(*CPU, "--splits", str(path), *options)
        assert outcome.code == 2
        assert str(path) in outcome.error
    assert command(*CPU, "--splits", str(tmp_path)).code == 2


@pytest.fixture
def map_of_this_machine(tmp_path: Path) -> Path:
    """Rows 4 with 8 tiles: 2 tiles per split."""
    backend = CpuBackend()
    shape = SparseShape(4, 1024, 512)
    facts = launch_facts(backend, "int8-tc", shape, "none")
    device = backend.device
    backend.close()
    us = {"2": 10.0, "8": 12.0}
    table = SplitTable(
        "decode", "int8-tc", facts.kernel_hash, facts.cta_slots, 64, 32, 256, 12, 2, "none",
        MapPolicy("wall", 16, 1024, 0.01, 0.95), (MapCell(4, 8, 8, 12.0, us, 2, (0.8, 0.79, 0.81), ()),),
        (MapRule((4, 4), (8, 8), 2),), Validation(None, None, None, None),
    )  # fmt: skip
    path = tmp_path / "splits.json"
    made_on = MapDevice(device.name, None, device.sm_count, None, device.driver, device.runtime)
    write_map(path, SplitsMap("2026-01-02T03:04:05Z", "dsa-bench 0.1.0", made_on, (table,)))
    return path


def test_a_map_of_another_machine_is_a_line_of_the_command(
    command: Command, map_of_this_machine: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """And no warning of Python's, which quotes its own source and which a user's settings may hide."""
    path = map_of_this_machine.with_name("elsewhere.json")
    path.write_text(map_of_this_machine.read_text().replace('"sm_count": ', '"sm_count": 9'))
    monkeypatch.setenv("DSA_BENCH_SPLITS", str(path))
    outcome = command(*CPU, "--option", f"{SWITCH}=1")
    assert outcome.code == 0, outcome.err
    (said,) = [line for line in outcome.err.splitlines() if "sm_count" in line]
    assert said.startswith(f"dsa-bench: warning: {path}: the map is not used: ")
    assert not recwarn.list


def test_the_map_sets_the_splits(command: Command, map_of_this_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = (*CPU, "--format", "json", "--option", f"{SWITCH}=1", "--explain")
    by_option = command(*run, "--splits", str(map_of_this_machine))
    assert measured(by_option) == [("int8-tc", 4)]
    assert "by map: 2 tiles per split tuned" in by_option.err
    assert f"map: hit, 2 tiles per split for rows 4, tiles 8 of {map_of_this_machine}" in by_option.err
    monkeypatch.setenv("DSA_BENCH_SPLITS", str(map_of_this_machine))
    assert measured(command(*run)) == [("int8-tc", 4)]
    missed = command(*run, "--rows", "2")
    assert "map: miss, no rule for rows 2, tiles 8" in missed.err
    assert command(*CPU).code == 0, "a map in the environment is no matter of a plain decode"


def test_a_record_goes_on_with_its_own_options_only(command: Command, tmp_path: Path) -> None:
    record = ("--record", str(tmp_path / "run.jsonl"))
    assert command(*CPU, *record, "--option", f"{SWITCH}=0").code == 0
    assert command(*CPU, *record, "--resume", "--option", f"{SWITCH}=0").code == 0
    outcome = command(*CPU, *record, "--resume", "--option", f"{SWITCH}=1")
    assert outcome.code == 2
    assert "was measured differently (plan.sides.0.4.value was 0, now 1)" in outcome.error
