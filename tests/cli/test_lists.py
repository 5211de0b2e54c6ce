# SPDX-License-Identifier: MIT
"""Options with several values, on `decode --plan`."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

Command = Callable[..., Any]


def plan(command: Command, *argv: str) -> dict[str, Any]:
    outcome = command("decode", *argv, "--plan")
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def requested(command: Command, *argv: str) -> list[tuple[int, int]]:
    return [(config["rows"], config["tiles_per_split"]) for config in plan(command, *argv)["requested"]]


GRID = [("--rows", "1", "8"), ("--tiles-per-split", "0", "1", "2", "4"), ("--context", "2048")]


@pytest.mark.parametrize("order", list(itertools.permutations(GRID)))
def test_every_value_up_to_the_next_option_belongs_to_it(command: Command, order: list[tuple[str, ...]]) -> None:
    """A1, pallets/click#622: 2 x 4 configurations, whatever the order of the options."""
    document = plan(command, *itertools.chain(*order))
    found = {(config["rows"], config["tiles_per_split"], config["context"]) for config in document["requested"]}
    assert len(document["requested"]) == 8
    assert found == set(itertools.product((1, 8), (0, 1, 2, 4), (2048,)))


@pytest.mark.parametrize(
    "argv",
    [("--rows", "1", "8"), ("--rows", "1,8"), ("--rows", "1", "--rows", "8"), ("--rows=1", "--rows=8"), ("--rows=1,8",),
     ("--rows", "1", "1,8", "8"), ("--rows", "1", "--context", "8192", "--rows", "8")],
)  # fmt: skip
def test_ways_to_say_a_list(command: Command, argv: tuple[str, ...]) -> None:
    """A1, pallets/click#622: nothing is dropped; a value said twice is planned once."""
    assert requested(command, *argv) == [(1, 0), (8, 0)]


@pytest.mark.parametrize("value", ["1,8", "1 8", " 1  8 "])
def test_lists_come_from_the_environment(command: Command, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("DSA_BENCH_ROWS", value)
    assert requested(command) == [(1, 0), (8, 0)]
    assert requested(command, "--rows", "3") == [(3, 0)]


def test_an_empty_variable_is_unset_and_an_option_wins(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A5, vllm-project/vllm#28159: even over a variable that would be invalid."""
    default = requested(command)
    monkeypatch.setenv("DSA_BENCH_ROWS", "")
    monkeypatch.setenv("DSA_BENCH_ROUNDS", "")
    assert requested(command) == default
    monkeypatch.setenv("DSA_BENCH_ROWS", "many")
    assert requested(command, "--rows", "3") == [(3, 0)]


def test_planned_geometry_for_given_device_facts(command: Command) -> None:
    """D4, Dao-AILab/flash-attention#2901: the planner's own worked value for an H200."""
    document = plan(command, "--rows", "8", "--tiles-per-split", "0", "2", "--sms", "132", "--resident", "3")
    (cell,) = document["effective"]
    assert document["cta_slots"] == 396
    assert cell["variants"][1] == {
        "name": "int8-tc/splits=16", "kernel": "int8-tc", "requested": [0, 2], "rules": [], "tiles_per_split": 2,
        "splits": 16, "ctas": 256,
    }  # fmt: skip
    assert plan(command, "--rows", "8")["effective"] is None
    assert plan(command, "--rows", "8", "--backend", "cpu")["effective"][0]["variants"][0]["splits"] == 1


def test_the_plan_takes_a_capacity_beyond_32_bits_of_offset(command: Command) -> None:
    """D6, vllm-project/vllm#47671."""
    assert plan(command, "--rows", "1", "--context", "4194305")["requested"][0]["context"] == 4_194_305


def test_the_estimate_grows_with_the_work(command: Command) -> None:
    few, many = (plan(command, "--backend", "cpu", "--rounds", rounds)["estimate_s"] for rounds in ("2", "200"))
    assert 0 < few < many
    assert plan(command, "--budget", "30")["estimate_s"] == pytest.approx(30, abs=2)
