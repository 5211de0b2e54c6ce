# SPDX-License-Identifier: MIT
"""Reading and writing runs. Oracle: what was written."""

import errno
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.model.errors import BadInput, CannotMeasure
from dsa_bench.model.record import Visit, line_content
from dsa_bench.model.run import RunWriter, complete_rounds, read_run

Edit = Callable[[list[str]], list[str]]


@pytest.fixture
def recorded(two_cells: Any, tmp_path: Path) -> Path:
    return two_cells.write(tmp_path / "r.jsonl")


def test_what_is_written_is_read(two_cells: Any, recorded: Path) -> None:
    read, written = read_run(recorded), two_cells.run()
    assert (read.header, read.checks, read.visits) == (written.header, written.checks, written.visits)
    assert read.whole_bytes == recorded.stat().st_size


@pytest.mark.parametrize("cut", [1, 2, 100])
def test_a_torn_last_line_is_left_out(recorded: Path, cut: int) -> None:
    """C10, ROCm/aiter#5263."""
    whole = recorded.read_bytes()
    recorded.write_bytes(whole[:-cut])
    run = read_run(recorded)
    assert len(run.visits) == 47
    assert run.whole_bytes == whole.rfind(b"\n", 0, -1) + 1
    with RunWriter(recorded, run) as writer:
        writer.append(run.visits[-1])
    assert read_run(recorded).visits == [*run.visits, run.visits[-1]]


def changed(line: int, **fields: Any) -> Edit:
    def edit(lines: list[str]) -> list[str]:
        lines[line - 1] = json.dumps(json.loads(lines[line - 1]) | fields)
        return lines

    return edit


def replaced(line: int, text: str) -> Edit:
    def edit(lines: list[str]) -> list[str]:
        lines[line - 1] = text
        return lines

    return edit


def broken_at_a_comma(lines: list[str]) -> list[str]:
    """Joined by commas again, the halves would be the line they were."""
    return [*lines[:4], *lines[4].split(",", 1), *lines[5:]]


@pytest.mark.parametrize(
    ("edit", "place", "said"),
    [
        (replaced(5, '{"kind":"visit"'), 5, "is not a line of JSON"),
        (replaced(5, ""), 5, "is not a line of JSON"),
        (replaced(5, "{}},{}"), 5, "is not a line of JSON"),
        (replaced(5, "[" * 100_000), 5, "is not a line of JSON"),
        (broken_at_a_comma, 5, "is not a line of JSON"),
        (replaced(5, "[]"), 5, "must be a JSON object"),
        (replaced(5, '{"kind":"footer"}'), 5, "has kind 'footer'"),
        (replaced(1, '{"schema":"other"}'), 1, "has kind None"),
        (changed(1, schema="dsa-bench/splits"), 1, "has schema 'dsa-bench/splits'"),
        (changed(1, schema_version=2), 1, "has schema_version 2"),
        (changed(1, schema_version=0), 1, "has schema_version 0"),
        (lambda lines: lines[1:], 1, "must be the header"),
        (lambda lines: [*lines, lines[0]], 54, "is a second header"),
        (changed(2, cell="[/tmp/x]"), 2, "does not name a shape"),
        (changed(3, kernel="int8-digits"), 3, "variant 'int8-tc/splits=16' is none of kernel 'int8-digits'"),
        (changed(3, kernel="int8"), 3, "is none of kernel 'int8'"),
        (changed(3, variant="int8-digits/splits=1"), 3, "is none of kernel 'int8-tc'"),
        (changed(2, rms_error=float("inf")), 2, "is not a line of JSON"),
        (replaced(4, '{"kind":"visit","round":NaN}'), 4, "NaN is not a number that JSON has"),
        (changed(4, attention_us=float("nan")), 4, "NaN is not a number"),
        (changed(4, attention_us=0.0), 4, "needs times of 1e-09 to 1e+15 us"),
        (changed(4, call_us=-1), 4, "needs times of 1e-09 to 1e+15 us"),
        (changed(4, attention_us=None), 4, "needs times of 1e-09 to 1e+15 us"),
        (changed(4, status="no_events"), 4, "has no time"),
        (changed(4, tiles=4), 4, "wrong fields tiles"),
        (changed(4, requested="4"), 4, "requested is '4'"),
        (lambda _: [], 1, None),
    ],
)  # fmt: skip
def test_damage_is_bad_input_with_its_place(recorded: Path, edit: Edit, place: int, said: str | None) -> None:
    """C6, pytorch/pytorch#184096, for records."""
    recorded.write_text("".join(f"{line}\n" for line in edit(recorded.read_text().splitlines())))
    with pytest.raises(BadInput) as failure:
        read_run(recorded)
    assert str(failure.value).startswith(f"{recorded}:{place}: " if said else f"{recorded}: holds no whole header")
    assert (said or "") in str(failure.value)
    assert "\n" not in str(failure.value)


def test_numbers_beyond_a_float_are_refused(recorded: Path) -> None:
    """E5, sharkdp/hyperfine#642: 1e999 is JSON, and infinity once it is read."""
    recorded.write_text(recorded.read_text().replace("0.00167", "1e999", 1))
    with pytest.raises(BadInput, match=r"jsonl:2: an RMS error is a finite number"):
        read_run(recorded)


def test_bytes_that_are_no_text_are_bad_input(recorded: Path) -> None:
    recorded.write_bytes(recorded.read_bytes() + b"\xff\xfe\n")
    with pytest.raises(BadInput, match=r"jsonl:54: is not a line of JSON"):
        read_run(recorded)
    with pytest.raises(BadInput, match=r"cannot be read \(Is a directory\)"):
        read_run(recorded.parent)


def test_100_000_visits_load_in_two_seconds(two_cells: Any, recorded: Path) -> None:
    visit = json.dumps(line_content(next(line for line in two_cells.lines if isinstance(line, Visit))))
    with recorded.open("a") as file:
        file.writelines(f"{visit}\n" for _ in range(100_000))
    start_s = time.process_time()
    contents = [json.loads(line) for line in recorded.read_text().splitlines()]
    yardstick_s = time.process_time() - start_s
    run = read_run(recorded)
    spent_s = time.process_time() - start_s - yardstick_s
    assert len(run.visits) + 5 == len(contents) == 100_053
    assert spent_s < max(2.0, 3 * yardstick_s), "a busy machine slows even processor time, of both alike"


def test_a_new_run_never_overwrites(recorded: Path, tmp_path: Path) -> None:
    before = recorded.read_bytes()
    with pytest.raises(BadInput, match="exists; add --resume"):
        RunWriter(recorded)
    assert recorded.read_bytes() == before
    with pytest.raises(BadInput, match="cannot be written"):
        RunWriter(recorded / "below-a-file.jsonl")
    RunWriter(tmp_path / "new" / "folder" / "r.jsonl").__exit__(None, None, None)
    assert (tmp_path / "new/folder/r.jsonl").read_bytes() == b""


def test_a_failed_write_leaves_whole_lines(two_cells: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C10, ROCm/aiter#5263: the disk is full in the middle of a line."""
    path = tmp_path / "r.jsonl"
    with RunWriter(path) as writer:
        for line in two_cells.lines[:3]:
            writer.append(line)
        monkeypatch.setattr(writer, "_file", FullFile(writer._file))
        with pytest.raises(CannotMeasure, match=r"writing failed \(No space left on device\)"):
            writer.append(two_cells.lines[3])
    assert len(path.read_text().splitlines()) == 3
    assert read_run(path).checks == [two_cells.lines[1], two_cells.lines[2]]


class FullFile:
    """Takes a write into its buffer and can neither flush it nor close with it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, _: str) -> None: ...

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        self._file.close()
        self.flush()


def test_only_whole_last_attempts_count(maker: Any) -> None:
    times = {"previous": [1.0] * 4, "int8-tc/splits=1": [2.0] * 4, "control": [3.0] * 4}
    run = maker.header().check("previous").check("int8-tc/splits=1").rounds(times, "previous").run()
    assert [index for _, index, _ in complete_rounds(run)] == [0, 1, 2, 3]
    again = [visit._replace(attempt=1, attention_us=9.0) for visit in run.visits if visit.round == 2]
    run.visits.extend(again)
    assert next(visits for _, index, visits in complete_rounds(run) if index == 2) == again
    run.visits.pop()
    assert [index for _, index, _ in complete_rounds(run)] == [0, 1, 3]
    del run.visits[0]
    random.Random(0).shuffle(run.visits)
    assert sorted(index for _, index, _ in complete_rounds(run)) == [1, 3]


def test_a_variant_that_failed_its_check_is_not_waited_for(maker: Any) -> None:
    maker.header().check("previous").check("int8-tc/splits=1", status="wrong_result", reason="x")
    run = maker.rounds({"previous": [1.0], "control": [1.0]}, "previous").run()
    assert [index for _, index, _ in complete_rounds(run)] == [0]


def test_a_second_writer_of_a_record_is_refused(two_cells: Any, tmp_path: Path) -> None:
    """F4, triton-lang/triton#11512: two appends to one file would lose lines."""
    path = two_cells.write(tmp_path / "r.jsonl")
    before = read_run(path)
    with RunWriter(path, before) as writer:
        with pytest.raises(BadInput, match="another process is writing it"):
            RunWriter(path, read_run(path))
        writer.append(before.visits[0])
    with pytest.raises(BadInput, match="another process is writing it"):
        RunWriter(path, before)
    with RunWriter(path, read_run(path)) as writer:
        writer.append(before.visits[0])
    assert len(read_run(path).visits) == len(before.visits) + 2


def test_a_record_is_a_regular_file(two_cells: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="is no regular file"):
        RunWriter(tmp_path / "pipe", two_cells.run())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"attention_us":100.0', '"attention_us":' + "1" * 400),
        ('"attention_us":100.0', '"attention_us":1e308'),
        ('"attention_us":100.0', '"attention_us":1e-300'),
        ('"call_us":101.0', '"call_us":5e-324'),
        ('"rounding_floor":0.00166', '"rounding_floor":' + "1" * 400),
        ("rows=1,", "rows=" + "1" * 5000 + ","),
    ],
)
def test_numbers_that_no_measurement_gives_are_refused(two_cells: Any, tmp_path: Path, old: str, new: str) -> None:
    path = two_cells.write(tmp_path / "r.jsonl")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(BadInput, match=r"r.jsonl:[0-9]+: "):
        read_run(path)


@pytest.mark.parametrize(
    "clusters",
    [7, [], {"16": "7"}, {"16": 7.0}, {"16": True}, {"16": -1}, {"x": 7}, {"-3": 7}, {" 7 ": 7}, {"1_0": 7}, {"１": 7},
     {"0": 7}, {"016": 7}, {"": 7}],
)  # fmt: skip
def test_clusters_that_are_no_counts_by_size_are_refused(recorded: Path, clusters: Any) -> None:
    header, *lines = recorded.read_text().splitlines()
    content = json.loads(header)
    content["device"]["clusters"] = clusters
    recorded.write_text("".join(f"{line}\n" for line in (json.dumps(content), *lines)))
    with pytest.raises(BadInput, match=r"r\.jsonl:1: device\.clusters is .* no counts by size") as refused:
        read_run(recorded)
    assert "\n" not in str(refused.value)
    content["device"]["clusters"] = {"16": 0, "1": 132}
    recorded.write_text(f"{json.dumps(content)}\n")
    assert read_run(recorded).header.device["clusters"] == {"16": 0, "1": 132}
