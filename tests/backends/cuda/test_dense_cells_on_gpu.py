# SPDX-License-Identifier: MIT
"""Whole cells of `dense` on the device: checked, timed, warm and cold."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dsa_bench.backends.cuda.probe import missing_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timing]
Command = Callable[..., Any]
RULES = 4
"""Launches of a kernel: `adaptive` is `seed-adaptive` at these capacities."""


@pytest.fixture(autouse=True)
def needs_a_gpu() -> None:
    missing = missing_gpu()
    if missing is not None:
        pytest.skip(missing)


@pytest.mark.parametrize("l2", ["warm", "cold"])
def test_every_rule_is_right_and_has_a_share_of_the_copy(command: Command, l2: str) -> None:
    argv = ("dense", "--length", "2600", "--rounds", "6", "--backend", "cuda", "--l2", l2, "--format", "json")
    outcome = command(*argv)
    assert outcome.code == 0, outcome.err
    rows = json.loads(outcome.out)["rows"]
    assert [row["status"] for row in rows] == ["ok"] * 2 * (RULES + 1)
    ours = [row for row in rows if row["kernel"] == "fast"]
    assert all(0.05 < row["copy_share"] < 1.5 and row["previous_ratio"] > 1 for row in ours)
    adaptive = next(row for row in ours if "seed-adaptive" in row["rules"])
    assert (adaptive["splits"], adaptive["ctas"], adaptive["alive"]) == (32, 512, 21)
    assert 0 < adaptive["occupancy"] < 1
    assert adaptive["waves"] > 0
    assert {row["l2"] for row in rows} == {l2}


def test_every_type_is_measured(command: Command) -> None:
    argv = ("dense", "--capacity", "512", "--length", "300", "--dtype", "f32", "bf16", "--rounds", "2")
    rows = json.loads(command(*argv, "--backend", "cuda", "--format", "json").out)["rows"]
    assert {(row["dtype"], row["status"]) for row in rows} == {("f32", "ok"), ("bf16", "ok")}


def test_every_check_passes(command: Command) -> None:
    """`fast` refuses the odd head sizes; `previous` takes them."""
    outcome = command("check", "--op", "dense", "--backend", "cuda", "--format", "json")
    assert outcome.code == 0, outcome.err
    rows = json.loads(outcome.out)["rows"]
    assert {(row["case"], row["variant"].partition("/")[0]) for row in rows if row["status"] != "ok"} == {
        ("odd head sizes", "fast")
    }


def test_a_map_is_tuned_and_holds(command: Command, tmp_path: Any) -> None:
    file = tmp_path / "splits.json"
    argv = ("--capacity", "4096", "--batch", "1", "--chunk", "128", "256", "512", "--backend", "cuda", "-o", str(file))
    outcome = command("tune", "--op", "dense", *argv)
    assert outcome.code == 0, outcome.err
    explained = command("map", "explain", str(file), "--rows", "16", "--capacity", "4096", "--backend", "cuda")
    assert explained.out.startswith(("hit", "miss"))
    assert command("map", "verify", str(file), "--backend", "cuda").code in (0, 1)
