# SPDX-License-Identifier: MIT
"""The Markdown report of several runs: the seed's tables, the hosts, and what it says of itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.model.run import read_run
from dsa_bench.report import published, seed_tables
from dsa_bench.report.hosts import host_lines, host_names
from dsa_bench.report.joined import Section, joined_report
from dsa_bench.report.recorded import Recorded, code, command, plain, recorded
from dsa_bench.report.render import to_markdown

H200 = "results/nvidia-h200"
WARM, COLD = "20261130T044321Z_fa1b1d1", "20261130T044415Z_fa1b1d1"


def cells(table: str | None) -> list[dict[str, str]]:
    """The lines of a Markdown table by heading."""
    assert table is not None
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.fixture
def of_record(root: Path) -> Callable[[str, str], Recorded]:
    def read(sweep: str, name: str) -> Recorded:
        path = root / H200 / sweep / f"{name}.jsonl"
        return recorded(name, f"{sweep}/{name}.jsonl", read_run(path))

    return read


def test_the_decode_table_is_the_seeds(of_record: Any) -> None:
    """Ours from the records, the document's only beside a warm run on its GPU, in columns that say so."""
    warm, cold = of_record("seed-decode", WARM), of_record("seed-decode", COLD)
    rows = cells(seed_tables.decode_table([warm, cold]))
    assert [(row["rows"], row["context"]) for row in rows[:6]] == [
        (str(rows), str(context)) for rows in (1, 8) for context in (2048, 8192, 32768)
    ]
    assert rows[0] == {
        "run": f"[{WARM}](seed-decode/{WARM}.jsonl)", "L2": "warm", "timer": "cupti", "rows": "1", "context": "2048",
        "previous": "11.62 us", "int8-tc": "4.80 us", "speedup": "2.42x", "interval": "2.41-2.42",
        "RMS error, both": "1.67e-3 / 1.73e-3", "document: previous": "31.1 us", "document: tensor core": "9.5 us",
        "document: speedup": "3.30x",
    }  # fmt: skip
    assert {row["L2"] for row in rows[6:]} == {"cold"}
    assert {row["document: previous"] for row in rows[6:]} == {"-"}


def test_tiles_per_split_are_of_the_split_kernel(of_record: Any) -> None:
    """B4, cloudrift-ai/emmy#324: a gather ceiling is asked for by tiles per split, too, and is another kernel."""
    rows = cells(seed_tables.tiles_table([of_record("seed-decode", WARM)]))
    assert [(row["tiles per split"], row["int8-tc"], row["document: tensor core"]) for row in rows] == [
        ("1", "10.86 us", "18.8 us"), ("2 (automatic)", "8.64 us", "13.2 us"), ("4", "8.64 us", "12.7 us"),
        ("8", "12.35 us", "17.7 us"), ("16", "20.97 us", "29.2 us"),
    ]  # fmt: skip


def test_prefill_and_fallback_tables(of_record: Any, root: Path) -> None:
    runs = [
        recorded(path.stem, path.name, read_run(path))
        for path in sorted((root / H200).rglob("*.jsonl"))
        if "829d8ad" in path.name or "fallback" in path.parent.name
    ]
    prefill = cells(seed_tables.prefill_table(runs))
    assert (prefill[-2]["int8-tc"], prefill[-2]["document: tensor core"]) == ("2733.3 us", "3.2 ms")
    assert {row["timer"] for row in prefill} == {"cupti", "events"}
    fallback = cells(seed_tables.fallback_table(runs))
    decode = next(row for row in fallback if (row["op"], row["data"]) == ("decode", "queries 8 times larger"))
    assert (decode["int8-tc"], decode["document: tensor core"]) == ("10.56 us", "240 us")
    assert decode["document: speedup"] == "3.3x slower"


def test_the_documents_ratios_are_its_own() -> None:
    """B6, google/benchmark#1482: a ratio of its rounded times is near what it prints, and is not what it prints."""
    for known in (*published.DECODE.values(), *published.PREFILL.values()):
        assert known.previous_us / known.tensor_core_us == pytest.approx(float(known.ratio.rstrip("x")), rel=0.015)
    assert published.DECODE[1, 2048].ratio == "3.30x"


@pytest.mark.parametrize(
    "change",
    [{"query_std": 2.0}, {"invalid_fraction": 0.5}, {"source": {"part": "inputs"}}, None],
)
def test_other_data_are_not_in_the_seeds_table(of_record: Any, change: dict[str, Any] | None) -> None:
    one = of_record("seed-decode", WARM)
    one.run.header.plan["data"] = change and one.run.header.plan["data"] | change
    assert seed_tables.decode_table([one]) is None


def test_cells_of_another_selection_are_not_in_the_seeds_table(of_record: Any) -> None:
    one = of_record("seed-decode", WARM)
    for table in one.tables:
        table.shape["selection"] = "random"
    assert seed_tables.decode_table([one]) is None


def test_sorted_cells_are_in_the_seeds_table_whatever_was_measured_first(of_record: Any) -> None:
    one = of_record("seed-decode", WARM)
    expected = seed_tables.decode_table([one])
    one.run.header.plan["selections"] = ["random", "sorted"]
    one.run.header.plan["data"] |= {"selection": "random"}
    assert seed_tables.decode_table([one]) == expected


def test_padding_and_other_gpus_have_no_document_column(of_record: Any) -> None:
    """E9, chrishayuk/larql#370."""
    one = of_record("seed-decode", WARM)
    one.run.header.device["name"] = "NVIDIA A100"
    assert "document" not in (seed_tables.decode_table([one]) or "")
    one.run.header.plan["pad_smem"] = 20480
    assert seed_tables.decode_table([one]) is None


@pytest.mark.parametrize("resident", [3, 1])
def test_the_documents_regret_stands_beside_its_20_shapes_only(sweep: Any, resident: int) -> None:
    times = {(rows, candidates): {16: 10.0, 8: 10.4 + rows / 10} for rows, candidates in sorted(published.SPLIT_SHAPES)}
    run = sweep(times, auto=8, noise=0.001, name="NVIDIA H200", resident_ctas=resident).run()
    run.visits[:] = [visit._replace(l2="warm", timer="cupti") for visit in run.visits]
    (row,) = (row for row in cells(seed_tables.regret_table([recorded("r", "r", run)])) if row["rule"] == "auto")
    assert row["shapes"] == "20"
    assert row["document: mean"] == {3: "1.80%", 1: "0.40%"}[resident]
    assert row["document: max"] == {3: "14.80%", 1: "2.40%"}[resident]
    fewer = sweep(dict(list(times.items())[:19]), auto=8, name="NVIDIA H200").run()
    fewer.visits[:] = [visit._replace(l2="warm") for visit in fewer.visits]
    assert "document" not in (seed_tables.regret_table([recorded("r", "r", fewer)]) or "")


def test_hosts_are_blocks_and_runs_name_theirs(of_record: Any, maker: Any) -> None:
    """E9: two machines are never one."""
    gpu, cpu = of_record("seed-decode", WARM), recorded("cpu", "cpu.jsonl", maker.header().check("previous").run())
    lines = host_lines([gpu, cpu])
    assert len(lines) == len(host_names([gpu, cpu, gpu])) == 2
    for fact in ("NVIDIA H200, 132 SMs", "driver 580.159.04", "CUDA 13.2", "compiler 13.0.88", "torch 2.11.0",
                 "SM clock, MHz 1980 (1980 to 1980)"):  # fmt: skip
        assert fact in lines[0]
    assert "CPU, 2 workers" in lines[1]
    assert "Clocks were not read." in lines[1]
    report = joined_report("R", [Section(None, [gpu, cpu])], whole_tables=True)
    assert "The runs were taken on 2 different hosts" in report
    assert to_markdown(list(gpu.tables)) in report


def test_what_is_wrong_with_a_run_is_said(maker: Any) -> None:
    maker.header(dirty=True, commit="0123456789").check("previous").check("int8-tc/splits=16")
    off = [10.0, 10.4] * 4
    maker.rounds({"previous": [10.0] * 8, "int8-tc/splits=16": [None] * 8, "control": [10.4, 10.5] * 4}, "previous")
    bad = recorded("bad", "bad.jsonl", maker.run())
    empty = recorded("empty", "empty.jsonl", type(maker)().header().run())
    no_rule = type(maker)().header().check("previous", 8).rounds({"previous": off, "control": off}, "previous", 8)
    text = joined_report(
        "R", [Section(None, [bad, empty, recorded("none", "n.jsonl", no_rule.run())])], whole_tables=False
    )
    assert "[bad](bad.jsonl): the null control was off in rows 1, context 8192" in text
    assert "[bad](bad.jsonl): its source tree held changes that were not committed." in text
    assert "0123456, changed" in text
    assert "[bad](bad.jsonl): int8-tc/splits=16 has no time in rows 1, context 8192" in text
    assert "below resolution: 0 us in 0." in text
    assert "[empty](empty.jsonl): no cell was measured." in text
    assert "[none](n.jsonl): the split kernel was not measured at any tiles per split" in text


def test_data_is_never_markup(maker: Any) -> None:
    """A8, arm/metis#39."""
    name = "GPU [/tmp/x] <b> `a` *c* | d\x1b"
    maker.header(device={"backend": "cpu", "name": name, "sm_count": 2}, argv=("decode", "--inputs", "a|b`c"))
    one = recorded("run[h200]", "run[h200].jsonl", maker.check("previous").run())
    text = joined_report("R", [Section(None, [one])], whole_tables=False)
    assert "GPU \\[/tmp/x\\] \\<b\\> \\`a\\` \\*c\\* | d\\\\x1b" in text
    assert "[run\\[h200\\]](run%5Bh200%5D.jsonl)" in text
    assert "`` dsa-bench decode --inputs 'a\\|b`c' ``" in text
    assert plain("a_b") == "a_b"
    assert code("x") == "`x`"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ("decode", "--rows", "1", "--record", "/tmp/x.jsonl", "--resume", "--l2", "cold"),
            "decode --rows 1 --l2 cold",
        ),
        (("decode", "--record=/tmp/x.jsonl", "--rows", "8"), "decode --rows 8"),
        (("tune", "-o", "splits.json", "--budget", "30"), "tune --budget 30"),
        ((), ""),
    ],
)
def test_the_command_is_without_the_places_of_its_results(maker: Any, argv: tuple[str, ...], said: str) -> None:
    assert command(maker.header(argv=argv).run()) == f"`{f'dsa-bench {said}'.rstrip()}`"
