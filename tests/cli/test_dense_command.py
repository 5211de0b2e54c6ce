# SPDX-License-Identifier: MIT
"""`dsa-bench dense`, and what other commands make of its records, on the CPU backend."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
SMALL = ("--query-heads", "4", "--kv-heads", "2", "--head-size", "16", "--value-head-size", "8")
CELL = ("dense", "--capacity", "512", "--length", "300", *SMALL, "--backend", "cpu", "--rounds", "2")
TUNE = ("tune", "--op", "dense", "--capacity", "256", "512", "--chunk", "128", "512", *SMALL, "--backend", "cpu")
EXPLAIN = ("--rows", "4", "--capacity", "512", *SMALL, "--backend", "cpu")


def test_a_table_for_each_kernel_with_its_geometry(command: Command) -> None:
    outcome = command(*CELL)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "previous, capacity 512, length 300, heads 4/2 x 16/8, f16"
    assert lines[1].split()[:7] == ["rule", "grid", "chunk", "alive", "waves", "time", "speedup"]
    assert lines[1].split()[-4:] == ["fixed:256", "read/s", "RMS", "err"]
    assert lines[4].split()[:6] == ["seed-adaptive", "=", "adaptive", "4x4", "128", "3"]
    assert "fast, capacity 512, length 300, heads 4/2 x 16/8, f16" in lines
    assert outcome.err == "dsa-bench: cell 1 of 1: capacity 512, length 300\n"


def test_machine_formats_hold_geometry_bytes_and_ratios(command: Command) -> None:
    argv = (*CELL, "--batch", "1", "2", "--dtype", "f16", "f32", "--rule", "off", "fixed:256", "live")
    document = json.loads(command(*argv, "--format", "json").out)
    assert document["schema"] == "dsa-bench/dense-table"
    rows = document["rows"]
    assert len(rows) == 2 * 2 * 2 * 3
    assert {row["status"] for row in rows} == {"ok"}
    one = next(row for row in rows if (row["kernel"], row["batch"], row["dtype"]) == ("fast", 2, "f32"))
    assert (one["rules"], one["splits"], one["alive"], one["ctas"], one["part"]) == (["off"], 1, 1, 8, "fast")
    assert one["live_bytes"] == 2 * 2 * 300 * (16 + 8) * 4
    assert one["live_gbps"] == pytest.approx(one["live_bytes"] / one["time_us"] / 1e3)
    assert one["previous_ratio"] > 0
    assert one["fixed_ratio"] > 0
    live = next(row for row in rows if row["rules"] == ["live"])
    assert (live["variant"], live["chunk"], live["alive"]) == ("previous/splits=4,chunk=live", 128, 3)
    assert len(command(*CELL, "--format", "csv").out.splitlines()) == 1 + 2 * 4
    assert command(*CELL, "--format", "markdown").out.startswith("| capacity | length | kernel | rule | grid |")


def test_a_record_is_read_by_the_other_commands(command: Command, tmp_path: Path) -> None:
    record = str(tmp_path / "run.jsonl")
    measured = command(*CELL, "--rounds", "6", "--record", record)
    assert command("report", record).out == measured.out
    assert command(*CELL, "--rounds", "6", "--record", record, "--resume").out == measured.out
    assert command("compare", record, record).code == 0
    drawn = command("plot", record, "-o", str(tmp_path))
    assert [Path(line).name for line in drawn.out.splitlines()] == [
        "run-dense.svg", "run-dense.png", "run-drift.svg", "run-drift.png",
    ]  # fmt: skip
    assert "### Dense decode" in command("report", record, "--full").out
    regret = command("regret", record, "--rule", "auto", "off", "fixed:256")
    assert regret.out.splitlines()[0].split()[:5] == ["rows", "capacity", "length", "kernel", "rule"]
    assert "auto: mean regret" in regret.out
    league = command("rule", "score", record).out
    assert [line.split()[0] for line in sorted(league.splitlines()[1:6])] == sorted(
        ["off", "fixed:256", "seed-adaptive", "adaptive", "live"]
    )
    assert "fa2 is not scored" in command("regret", record, "--rule", "fa2").out
    assert command("rule", "fit", record).code == 2
    refused = command("regret", record, "--resident", "4")
    assert (refused.code, "--resident: has no use beside" in refused.error) == (2, True)


def test_the_environment_pins_the_chunk_unless_rules_are_named(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_GENAI_ATTN_SPLIT_CHUNK", "100")
    outcome = command(*CELL, "--kernels", "fast", "--format", "json")
    assert [row["rules"] for row in json.loads(outcome.out)["rows"]] == [["off"], ["fixed:100"]]
    assert "ONNX_GENAI_ATTN_SPLIT_CHUNK pins the chunk: the rules are off and fixed:100" in outcome.err
    named = command(*CELL, "--kernels", "fast", "--format", "json", "--rule", "live")
    assert [row["rules"] for row in json.loads(named.out)["rows"]] == [["live"]]
    monkeypatch.setenv("ONNX_GENAI_ATTN_SPLIT_CHUNK", "0")
    refused = command(*CELL)
    assert (refused.code, "ONNX_GENAI_ATTN_SPLIT_CHUNK=0: must be a positive number" in refused.error) == (2, True)


def test_a_plan_and_an_explanation_need_no_device(command: Command) -> None:
    plan = json.loads(command("dense", "--plan", "--backend", "cuda").out)
    assert [(cell["capacity"], cell["length"]) for cell in plan["requested"]] == [(4096, 24), (4096, 520), (4096, 2600)]
    assert plan["kernels"] == ["previous", "fast", "copy/kv"]
    launches = {one["name"]: one for one in plan["effective"][2]["variants"]}
    assert launches["fast/splits=32,chunk=128"]["rules"] == ["seed-adaptive", "adaptive"]
    assert launches["fast/splits=32,chunk=128"]["requested"] == [0]
    assert (launches["fast/splits=16,chunk=256"]["alive"], launches["fast/splits=16,chunk=256"]["ctas"]) == (11, 256)
    assert plan["estimate_s"] > 0
    explained = command(*CELL, "--explain", "--kernels", "fast").err
    assert "fast/splits=4,chunk=128: 4 splits of 128 keys, 3 alive, 16 CTAs, by seed-adaptive = adaptive" in explained
    assert "the chunk read from the live length" in explained


def test_chunks_are_tuned_mapped_and_exported(command: Command, tmp_path: Path) -> None:
    record, file = str(tmp_path / "run.jsonl"), str(tmp_path / "splits.json")
    tuned = command(*TUNE, "--record", record, "-o", file)
    assert tuned.code == 0
    assert "dense fast, heads 4/2 x 16/8, f16, L2 none: 2 cells" in tuned.err
    again = command("tune", "--op", "dense", "--from", record)
    assert again.out == Path(file).read_text()
    (table,) = json.loads(again.out)["tables"]
    assert (table["op"], table["kernel"], table["dtype"], table["query_heads"]) == ("dense", "fast", "f16", 4)
    assert [(cell["rows"], cell["capacity"], cell["length"], cell["auto"]) for cell in table["cells"]] == [
        (4, 256, 256, 128), (4, 512, 512, 128),
    ]  # fmt: skip
    assert all(set(rule) == {"rows", "capacity", "chunk"} for rule in table["rules"])
    assert command("map", "validate", file).out.strip().endswith(f"cells 2, rules {len(table['rules'])}")
    assert "rows  capacity  chunk" in command("map", "show", file).out or not table["rules"]
    assert command("map", "diff", file, file).out.strip() == "no difference"
    assert json.loads(command("map", "merge", file, file).out) == json.loads(again.out)
    exported = command("map", "export", "env", file)
    setting = exported.out.splitlines()[-1]
    assert setting.startswith(("export ONNX_GENAI_ATTN_SPLIT_CHUNK=", "unset ONNX_GENAI_ATTN_SPLIT_CHUNK"))
    ort = command("map", "export", "ort", file)
    assert (ort.code, "use map export env" in ort.error) == (2, True)
    explained = command("map", "explain", file, *EXPLAIN)
    assert explained.out.startswith(("hit: rows 4, capacity 512:", "miss: rows 4, capacity 512:"))
    assert json.loads(command("map", "explain", file, *EXPLAIN, "--format", "json").out)["capacity"] == 512
    measured = command(*CELL, "--kernels", "fast", "--splits", file, "--format", "json")
    assert [row for row in json.loads(measured.out)["rows"] if "map" in row["rules"]]


def a_map(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A map whose one rule gives capacity 512 the whole row: splitting is made slow."""
    from dsa_bench.backends.cpu import dense

    right = dense.attention_split

    def slow(*arguments: Any) -> Any:
        import time

        time.sleep(0.002)
        return right(*arguments)

    monkeypatch.setattr(dense, "attention_split", slow)
    file = str(tmp_path / "splits.json")
    assert command(*TUNE, "-o", file).code == 0
    return file


def test_a_rule_is_shown_explained_pinned_over_and_verified(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = a_map(command, tmp_path, monkeypatch)
    assert json.loads(Path(file).read_text())["tables"][0]["rules"] == [
        {"rows": [4, 4], "capacity": [256, 512], "chunk": 512}
    ]
    assert "   4   256-512    512" in command("map", "show", file).out
    hit = command("map", "explain", file, *EXPLAIN).out
    assert hit.startswith("hit: rows 4, capacity 512: 512 keys per split, 1 split\n")
    assert "rule: rows 4, capacity 256-512: 512 keys per split" in hit
    other = command("map", "explain", file, *EXPLAIN, "--dtype", "f32").out
    assert "dtype is f16 in the map and f32 here" in other
    sparse = command("map", "explain", file, "--rows", "4", "--candidates", "512", "--backend", "cpu").out
    assert sparse.splitlines()[-1] == "  op is dense in the map and decode here"
    verified = command("map", "verify", file, "--backend", "cpu")
    assert verified.out.splitlines()[0].split()[:4] == ["rows", "capacity", "length", "chunk"]
    assert verified.out.splitlines()[-1] == "2 holds"
    assert command("map", "export", "env", file).out.endswith("export ONNX_GENAI_ATTN_SPLIT_CHUNK=512\n")
    monkeypatch.setenv("ONNX_GENAI_ATTN_SPLIT_CHUNK", "128")
    assert command("map", "explain", file, *EXPLAIN).out.startswith("pinned: rows 4, capacity 512: 128 keys per split")


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("dense", "--capacity", "0"), 2, "'0' is not a positive decimal integer"),
        (("dense", "--capacity", "100", "--length", "101"), 2, "--length 101: must be at most --capacity 100"),
        (("dense", "--kv-heads", "3"), 2, "--query-heads 16: must be a multiple of --kv-heads 3"),
        (("dense", "--dtype", "f8"), 2, "'f8' is not one of f32, f16, bf16"),
        (("dense", "--capacity", "1073741824"), 2, "--capacity 1073741824: must be at most"),
        (("dense", "--length", "-1"), 2, "'-1' is not a non-negative decimal integer"),
        (("dense", "--batch", "0"), 2, "'0' is not a positive decimal integer"),
        (("dense", "--rule", "fixed:0"), 2, "--rule fixed:0: must be off, fixed:N"),
        (("dense", "--query-std", "2e4"), 2, "--query-std 20000: must be at most 1.509e+04 with --dtype f16"),
        (("dense", "--rule", "fa2"), 2, "--rule fa2: must be off, fixed:N"),
        (("dense", "--kernels", "int8-tc"), 2, "'int8-tc' is not one of previous, fast"),
        (("dense", "--rounds", "3"), 2, "--rounds 3: must be even"),
        (("dense", "--timer", "cupti", "--backend", "cpu"), 2, "--timer cupti: times GPU kernels"),
        (("dense", "--ceiling", "--backend", "cpu"), 2, "--ceiling: measures GPU kernels, and --backend cpu"),
        (("dense", "--ceiling"), 3, "--ceiling: measures GPU kernels, and no GPU is used here"),
        (("dense", "--backend", "cuda"), 3, "--backend cuda: "),
        (("dense", "--resume"), 2, "--resume: needs --record FILE"),
        (("dense", "--plan", "--record", "x.jsonl"), 2, "--plan: measures nothing"),
        (("dense", "--plan", "--format", "csv"), 2, "--format csv: --plan prints JSON"),
        (("dense", "--plan", "--splits", "x.json"), 2, "--splits: what a map chooses depends on the device"),
        (("dense", "--splits", "no-such-file.json"), 2, "no-such-file.json: cannot be read"),
        (("tune", "--op", "dense", "--rows", "4"), 2, "--rows: has no use with --op dense"),
        (("tune", "--capacity", "4096"), 2, "--capacity: has no use with --op decode"),
        (("tune", "--op", "dense", "--chunk", "0"), 2, "'0' is not a positive decimal integer"),
        (
            ("tune", "--op", "dense", "--capacity", "64", "--length", "65"),
            2,
            "--length 65: must be at most --capacity 64",
        ),
        (("check", "--op", "dense", "--case", "toy-row"), 2, "--kernels, --case: choose among checks of sparse"),
        (("regret", "x.jsonl", "--rule", "fixed:0"), 2, "'fixed:0' is not one of auto"),
    ],
)
def test_bad_input_is_one_line(command: Command, argv: tuple[str, ...], code: int, message: str) -> None:
    outcome = command(*argv)
    assert outcome.code == code
    assert message in outcome.error


def test_a_pinned_chunk_has_a_limit_that_is_said(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_GENAI_ATTN_SPLIT_CHUNK", "9" * 18)
    assert command("dense", "--plan").code == 0
    monkeypatch.setenv("ONNX_GENAI_ATTN_SPLIT_CHUNK", "9" * 19)
    outcome = command("dense", "--plan")
    assert (outcome.code, "a positive number of keys per split, of at most 18 digits" in outcome.error) == (2, True)


def test_options_of_the_other_operator_are_refused(command: Command, tmp_path: Path) -> None:
    record, file = str(tmp_path / "run.jsonl"), str(tmp_path / "splits.json")
    assert command(*TUNE, "--chunk", "9" * 18, "--record", record, "-o", file).code == 0
    outcome = command("tune", "--from", record, "--op", "decode")
    assert (outcome.code, f"--op decode: {record} is a run of 'dense'" in outcome.error) == (2, True)
    assert "--context: has no use with a run of dense" in command("tune", "--from", record, "--context", "512").error
    for option in (("--dtype", "bf16"), ("--head-size", "64"), ("--value-head-size", "64")):
        outcome = command("map", "explain", file, "--rows", "4", "--candidates", "512", *option)
        assert (outcome.code, f"{option[0]}: has no use with --candidates" in outcome.error) == (2, True)
    Path(record).write_text(Path(record).read_text().replace('"splits":2,', '"splits":999,'))
    outcome = command("tune", "--from", record)
    assert (outcome.code, "says 999 splits, which no launch has" in outcome.error) == (2, True)


def test_a_wrong_result_is_exit_1(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dsa_bench.backends.cpu import dense

    right = dense.attention_combine

    def wrong(partials: Any) -> Any:
        out = right(partials)
        out[0] = 50
        return out

    monkeypatch.setattr(dense, "attention_combine", wrong)
    record = tmp_path / "run.jsonl"
    outcome = command(*CELL, "--kernels", "fast", "--record", str(record))
    assert outcome.code == 1
    assert "fast/splits=2,chunk=256: wrong result: out[" in outcome.out
    assert ", 0] is 50, the FP64 reference" in outcome.out
    assert "error: wrong result: fast/splits=2,chunk=256 (fast, capacity 512, length 300" in outcome.err
    assert command("report", str(record)).code == 0


def test_checks(command: Command) -> None:
    outcome = command("check", "--op", "dense", "--backend", "cpu", "--format", "json")
    document = json.loads(outcome.out)
    assert (outcome.code, document["schema"]) == (0, "dsa-bench/dense-check")
    assert {row["status"] for row in document["rows"]} == {"ok"}
    assert {"document f32", "masked bf16", "length 0", "600 rows"} <= {row["case"] for row in document["rows"]}
