# SPDX-License-Identifier: MIT
"""Whole cells of `mix` and `gate` on the device: checked, timed, warm and cold."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dsa_bench.backends.cuda.probe import missing_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timing]
Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def needs_a_gpu() -> None:
    missing = missing_gpu()
    if missing is not None:
        pytest.skip(missing)


@pytest.mark.parametrize("l2", ["warm", "cold"])
def test_mix_is_right_and_has_a_share_of_the_copy(command: Command, l2: str) -> None:
    argv = ("mix", "--rows", "2048", "--rounds", "6", "--backend", "cuda", "--l2", l2, "--format", "json")
    outcome = command(*argv)
    assert outcome.code == 0, outcome.err
    rows = json.loads(outcome.out)["rows"]
    assert [row["status"] for row in rows] == ["ok"] * 7
    shares = [row["copy_share"] for row in rows if not row["kernel"].startswith("copy")]
    assert all(0.05 < share < 1.5 for share in shares)
    assert {row["l2"] for row in rows} == {l2}


@pytest.mark.parametrize("l2", ["warm", "cold"])
def test_gate_is_right_in_every_mode_and_timed_by_events(command: Command, l2: str) -> None:
    argv = ("gate", "--rows", "8", "--rounds", "6", "--backend", "cuda", "--l2", l2, "--format", "json")
    outcome = command(*argv)
    assert outcome.code == 0, outcome.err
    rows = json.loads(outcome.out)["rows"]
    assert [(row["status"], row["timer"]) for row in rows] == [("ok", "events")] * 3


@pytest.mark.parametrize("op", ["mix", "gate"])
def test_every_check_passes(command: Command, op: str) -> None:
    outcome = command("check", "--op", op, "--backend", "cuda", "--format", "json")
    assert outcome.code == 0, outcome.err
    rows = json.loads(outcome.out)["rows"]
    tried = {row["case"]: row["tried"] for row in rows}
    assert tried.get("sigmoids", 2**32) == 2**32
    assert tried.get("chain", 10_000) == 10_000
