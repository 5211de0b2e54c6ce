# SPDX-License-Identifier: MIT
"""`decode --splits` and `map verify` on the CPU backend, with times that are made up."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from map_doubles import DAMAGED, cell, splits_map, table

from dsa_bench.backends.cpu.backend import CpuBackend
from dsa_bench.dispatch.map_file import write_map
from dsa_bench.model.run import read_run
from dsa_bench.model.splits_map import MapDevice, MapPolicy, MapRule, SplitsMap

DECODE = ("decode", "--rows", "1", "2", "--context", "512", "--candidates", "512", "--backend", "cpu")
VERIFY = ("map", "verify", "--backend", "cpu")
US = {"1": 13.0, "2": 12.7, "4": 11.0, "8": 14.0}

Install = Callable[..., None]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, fake_timer: Any) -> Install:
    """`timed({splits: us})` on a CPU of 8 workers; other launches take 20 us."""
    monkeypatch.setattr("dsa_bench.backends.cpu.backend._workers", lambda: 8)

    def install(us: dict[int, float]) -> None:
        def time_us(name: str, seen: int, _: float) -> float:
            return us.get(int(name.rpartition("=")[2] or 0) if "=" in name else 0, 20.0) * (1 + 0.001 * (seen % 3))

        monkeypatch.setattr("dsa_bench.bench.select.WallTimer", lambda: fake_timer(time_us))

    return install


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> SplitsMap:
    """For 8 workers: 4 tiles per split at one row and 512 candidates; automatic is 2 there and 4 at two rows."""
    monkeypatch.setattr("dsa_bench.backends.cpu.backend._workers", lambda: 8)
    backend = CpuBackend()
    cells = (cell(1, 8, US, 4, auto=2), cell(2, 8, US, 4, auto=4))
    made = table(
        kernel_hash=backend.kernel_hash("int8-tc"), cta_slots=8, l2="none", cells=cells,
        rules=(MapRule((1, 1), (8, 8), 4),), policy=MapPolicy("wall", 16, 512, 0.01, 0.95),
    )  # fmt: skip
    device = backend.device
    backend.close()
    return splits_map(made, device=MapDevice(device.name, None, 8, None, None, device.runtime))


def written(path: Path, made: SplitsMap) -> str:
    write_map(path, made)
    return str(path)


def test_the_tuned_value_is_measured_beside_the_automatic_rule(
    command: Any, timed: Install, tuned: SplitsMap, tmp_path: Path
) -> None:
    """In the same rounds, each shape with its own value; where the map is silent it is the automatic rule's launch."""
    timed({4: 12.7, 2: 11.0})
    file, record = written(tmp_path / "splits.json", tuned), tmp_path / "r.jsonl"
    outcome = command(*DECODE, "--splits", file, "--record", str(record), "--format", "json")
    assert outcome.code == 0, outcome.err
    rows = [row for row in json.loads(outcome.out)["rows"] if row["kernel"] == "int8-tc"]
    assert [(row["rows"], row["tiles_per_split_requested"], row["rules"], row["splits"]) for row in rows] == [
        (1, [0], [], 4), (1, [4], ["map"], 2), (2, [0], ["map"], 2),
    ]  # fmt: skip
    assert read_run(record).header.plan["tuned"] == [["int8-tc", 4], ["int8-tc", 0]]
    text = command("report", str(record)).out
    assert "4 = map" in text
    assert "auto = map" in text


def test_the_automatic_rule_is_added_for_comparison(
    command: Any, timed: Install, tuned: SplitsMap, tmp_path: Path
) -> None:
    timed({})
    file = written(tmp_path / "splits.json", tuned)
    outcome = command(*DECODE, "--splits", file, "--tiles-per-split", "1", "4", "--explain", "--format", "json")
    rows = [row for row in json.loads(outcome.out)["rows"] if row["kernel"] == "int8-tc" and row["rows"] == 1]
    assert [(row["tiles_per_split_requested"], row["rules"]) for row in rows] == [([0], []), ([1], []), ([4], ["map"])]
    assert "int8-tc, the tuned map -> 2 splits of at most 4 tiles" in outcome.err


def test_a_map_for_another_device_is_one_warning(command: Any, timed: Install, tmp_path: Path) -> None:
    timed({})
    file = written(tmp_path / "h200.json", splits_map())
    outcome = command(*DECODE, "--splits", file, "--format", "json")
    assert outcome.code == 0
    assert outcome.err.count(f"warning: {file}: the map is not used: device name is NVIDIA H200") == 1
    rows = [row for row in json.loads(outcome.out)["rows"] if row["kernel"] == "int8-tc"]
    assert {(*row["tiles_per_split_requested"], *row["rules"]) for row in rows} == {(0, "map")}


@pytest.mark.parametrize(("data", "said"), DAMAGED)
@pytest.mark.parametrize("argv", [(*DECODE, "--splits"), VERIFY])
def test_a_named_bad_map_is_exit_2(
    command: Any, timed: Install, tmp_path: Path, argv: tuple[str, ...], data: bytes, said: str
) -> None:
    """C6, pytorch/pytorch#184096: before anything is measured, naming file and place."""
    timed({})
    path = tmp_path / "splits.json"
    path.write_bytes(data)
    outcome = command(*argv, str(path))
    assert outcome.code == 2
    assert outcome.error.startswith(f"dsa-bench: error: {path}: {said}")


def test_options_that_do_not_go_with_a_map(command: Any, timed: Install, tuned: SplitsMap, tmp_path: Path) -> None:
    timed({})
    file = written(tmp_path / "splits.json", tuned)
    for argv, said in (
        (("--plan",), "--splits: what a map chooses depends on the device"),
        (("--kernels", "previous"), "chooses splits of int8-tc, and --kernels leaves it out"),
    ):
        outcome = command(*DECODE, "--splits", file, *argv)
        assert outcome.code == 2
        assert said in outcome.error
    assert command(*DECODE, "--splits", str(tmp_path)).code == 2


@pytest.mark.parametrize(
    ("us", "gain", "code"),
    [({4: 12.7, 2: 11.0}, "holds", 0), ({4: 11.0, 2: 11.0}, "gone", 1), ({4: 11.0, 2: 12.7}, "gone", 1)],
)
def test_verify_measures_each_rule_again(
    command: Any, timed: Install, tuned: SplitsMap, tmp_path: Path, us: dict[int, float], gain: str, code: int
) -> None:
    timed(us)
    file = written(tmp_path / "splits.json", tuned)
    outcome = command(*VERIFY, file)
    assert outcome.code == code, outcome.err
    lines = outcome.out.splitlines()
    rows, context, candidates, value, ratio, _, found = lines[1].split()
    assert (rows, context, candidates, value, found) == ("1", "512", "512", "4", gain)
    assert float(ratio) == pytest.approx(us[2] / us[4], abs=0.003)
    assert lines[2] == f"1 {gain}"
    if code:
        assert outcome.err.splitlines()[-1].startswith(
            f"dsa-bench: error: {file}: the gain is gone: rows 1, candidates"
        )
    (content,) = json.loads(command(*VERIFY, file, "--format", "json").out)["cells"]
    assert (content["gain"], content["rounds"]) == (gain, 16)


def test_verify_says_when_the_rounds_do_not(command: Any, timed: Install, tuned: SplitsMap, tmp_path: Path) -> None:
    """Two rounds give no interval: no gain is shown, and none is gone."""
    timed({4: 12.7, 2: 11.0})
    outcome = command(*VERIFY, written(tmp_path / "splits.json", tuned), "--rounds", "2")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == "1 inconclusive"


def test_verify_elsewhere_is_exit_3(command: Any, timed: Install, tuned: SplitsMap, tmp_path: Path) -> None:
    timed({})
    other = written(tmp_path / "h200.json", splits_map())
    outcome = command(*VERIFY, other)
    assert (outcome.code, outcome.out) == (3, "")
    assert "cannot be verified here: the map is not used: device name is NVIDIA H200 in the map and" in outcome.error
    changed = replace(tuned, tables=(replace(tuned.tables[0], kernel_hash="changed"),))
    outcome = command(*VERIFY, written(tmp_path / "old.json", changed))
    assert outcome.code == 3
    assert "kernel_hash is changed in the map" in outcome.error


def test_a_rule_whose_launch_is_wrong_now_is_no_gain(
    command: Any, timed: Install, tuned: SplitsMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    tampered_backend: Any,
) -> None:  # fmt: skip
    """C7: whatever its time would be."""

    def tamper(plan: Any, out: Any) -> None:
        if plan.split.splits == 2:
            out[0, 3, 5] = 99

    timed({4: 12.7, 2: 11.0})
    monkeypatch.setattr("dsa_bench.backends.cpu.backend.CpuBackend", lambda: tampered_backend(tamper))
    outcome = command(*VERIFY, written(tmp_path / "splits.json", tuned))
    assert outcome.code == 1
    assert "invalid" in outcome.out


def test_verify_where_nothing_is_right_any_more(
    command: Any, timed: Install, tuned: SplitsMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    tampered_backend: Any,
) -> None:  # fmt: skip
    def tamper(_: Any, out: Any) -> None:
        out[:] = 0

    timed({})
    monkeypatch.setattr("dsa_bench.backends.cpu.backend.CpuBackend", lambda: tampered_backend(tamper))
    outcome = command(*VERIFY, written(tmp_path / "splits.json", tuned))
    assert outcome.code == 1
    assert outcome.out.splitlines()[-1] == "1 invalid"


def test_verify_of_a_map_without_rules(command: Any, timed: Install, tuned: SplitsMap, tmp_path: Path) -> None:
    """The result is never empty; the device is asked for first, and for every table before one is measured."""
    timed({})
    here = replace(tuned, tables=(replace(tuned.tables[0], rules=()),))
    outcome = command(*VERIFY, written(tmp_path / "splits.json", here))
    assert (outcome.code, outcome.out) == (0, "nothing to verify\n")
    assert "no rule, so nothing to verify" in outcome.err
    outcome = command(*VERIFY, written(tmp_path / "empty.json", replace(tuned, tables=())))
    assert (outcome.code, outcome.out) == (0, "nothing to verify\n")
    outcome = command(*VERIFY, written(tmp_path / "h200.json", splits_map(table(rules=()))))
    assert outcome.code == 3
    assert "device name is NVIDIA H200 in the map and" in outcome.error
    stale = replace(tuned.tables[0], rules=(), kernel_hash="changed")
    outcome = command(*VERIFY, written(tmp_path / "half.json", replace(tuned, tables=(*tuned.tables, stale))))
    assert outcome.code == 3
    assert "kernel_hash is changed in the map" in outcome.error
