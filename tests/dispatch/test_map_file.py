# SPDX-License-Identifier: MIT
"""Maps on disk: what is refused, and where; what is written, and how. Oracle of the schema: the jsonschema package."""

import copy
import errno
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from map_doubles import DAMAGED

from dsa_bench.dispatch.map_file import map_text, read_map, splits_schema, write_map
from dsa_bench.model.documents import Misfit
from dsa_bench.model.errors import BadInput, CannotMeasure
from dsa_bench.model.splits_map import MapRule, NullSummary, RegretSummary, Validation

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def content(make_map: Any) -> dict[str, Any]:
    return json.loads(map_text(make_map()))


def test_what_is_written_is_read(make_map: Any, make_table: Any, tmp_path: Path) -> None:
    summary = RegretSummary(20, 0.018, 0.01, None, 0.148, 4, 32)
    validation = Validation(summary, None, summary, NullSummary(20, 0.998, 8, 8, 0))
    made = make_map(make_table(validation=validation), make_table(l2="warm", rules=()))
    path = tmp_path / "splits.json"
    write_map(path, made)
    assert read_map(path) == made
    assert path.read_text() == map_text(made)
    assert path.read_text().endswith("}\n")
    assert list(tmp_path.iterdir()) == [path]
    path.chmod(0o444)
    tmp_path.chmod(0o555)  # F5, Aider-AI/aider#2865: a read-only folder still loads
    assert read_map(path) == made
    tmp_path.chmod(0o755)


def test_the_published_schema_is_the_dataclasses(root: Path, content: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert json.loads((root / "docs/schemas/splits.schema.json").read_text()) == splits_schema()
    validator = jsonschema.Draft202012Validator(splits_schema())
    validator.check_schema(splits_schema())
    validator.validate(content)
    for change, said in TYPES:
        if "is 2.0" in said:  # an integer to JSON Schema
            continue
        changed = copy.deepcopy(content)
        change(changed)
        assert not validator.is_valid(json.loads(json.dumps(changed))), changed


def set_at(pointer: str, value: Any) -> Change:
    def change(document: Any) -> None:
        *parents, last = pointer.strip("/").split("/")
        for part in parents:
            document = document[int(part) if isinstance(document, list) else part]
        document[int(last) if isinstance(document, list) else last] = value

    return change


def without(pointer: str) -> Change:
    def change(document: Any) -> None:
        *parents, last = pointer.strip("/").split("/")
        for part in parents:
            document = document[int(part) if isinstance(document, list) else part]
        del document[last]

    return change


def rule_of(value: int) -> dict[str, Any]:
    return {"rows": [4, 8], "tiles": [32, 32], "tiles_per_split": value}


RULE = "/tables/0/rules/0"
CELL = "/tables/0/cells/0"
TYPES = [
    (set_at(f"{RULE}/tiles_per_split", value), f'{RULE}/tiles_per_split is {said}, must be an integer of at least 1')
    for value, said in (
        ("4", '"4"'), (4.5, "4.5"), (-1, "-1"), (0, "0"), (None, "null"), (True, "true"), ([], "a list")
    )
] + [
    (set_at(f"{RULE}/rows", [1]), f"{RULE}/rows is a list of 1, must be one of 2"),
    (set_at(f"{RULE}/rows", [1, 2.0]), f"{RULE}/rows/1 is 2.0, must be an integer"),
    (set_at(f"{RULE}/rows", "1-2"), f'{RULE}/rows is "1-2", must be a list'),
    (set_at(f"{RULE}/splits", 4), f"{RULE}/splits is no field"),
    (without(f"{RULE}/tiles"), f"{RULE} lacks the field 'tiles'"),
    (without("/tables/0/kv_heads"), "/tables/0 lacks the field 'kv_heads'"),
    (set_at(f"{CELL}/us/1", "11"), f'{CELL}/us/1 is "11", must be a finite number'),
    (set_at(f"{CELL}/us/1", 0), f"{CELL}/us/1 is 0, must be a finite number"),
    (set_at(f"{CELL}/us", [11.9]), f"{CELL}/us is a list, must be an object"),
    (set_at(f"{CELL}/ratio", [1, 1, None]), f"{CELL}/ratio/2 is null, must be a finite number"),
    (set_at("/tables/0/op", "prefill"), '/tables/0/op is "prefill", must be "decode"'),
    (set_at("/tables/0/l2", "lukewarm"), '/tables/0/l2 is "lukewarm", must be "cold" or "warm" or "none"'),
    (set_at("/tables", {}), "/tables is an object, must be a list"),
    (set_at("/device", None), "/device is null, must be an object"),
    (set_at("/device/sm_count", 2**60), "/device/sm_count is 1152921504606846976, must be an integer"),
    (set_at("/device/sm_count", 2**53),
     "/device/sm_count is 9007199254740992, must be an integer of at least 1 and at most 9007199254740991"),
    (set_at("/tables/0/policy/margin", 1.5),
     "/tables/0/policy/margin is 1.5, must be a finite number of at least 0 and at most 1"),
    (set_at(f"{CELL}/us/1", 10**400), f"{CELL}/us/1 is 1000000000"),
    (set_at("/schema_version", 0), "/schema_version is 0, older than the 1 that is read here"),
    (set_at("/schema_version", 99), "/schema_version is 99, newer than the 1 that is read here"),
    (set_at("/schema_version", "1"), '/schema_version is "1", must be 1'),
    (set_at("/schema", "dsa-bench/record"), "/schema is 'dsa-bench/record', must be 'dsa-bench/splits'"),
]  # fmt: skip
MEANING = [
    (set_at(f"{CELL}/us", {"04": 1.0}), f"{CELL}/us/04 is no tiles per split"),
    (set_at(f"{CELL}/us", {"a/b": 1.0}), f"{CELL}/us/a~1b is no tiles per split"),
    (set_at("/tables/0/kernel", "foo"), "/tables/0/kernel is 'foo', must be int8-tc or int8-digits"),
    (set_at("/tables/0/kernel", "fast"), "/tables/0/kernel is 'fast', must be int8-tc or int8-digits"),
    (set_at(f"{CELL}/best", 7), f"{CELL}/best is 7, which is not among the measured values"),
    (set_at(f"{CELL}/ties", [3, 9]), f"{CELL}/ties/1 is 9, which is not among the measured values"),
    (set_at(f"{CELL}/ties", [4, 3]), f"{CELL}/ties must be sorted"),
    (set_at(f"{CELL}/ties", [2]), f"{CELL}/ties must be sorted"),
    (set_at(f"{CELL}/auto_us", 12.0), f"{CELL}/auto_us is 12, but us has 11.9 for 1"),
    (set_at(f"{CELL}/ratio", [0.8, 0.9, 1.0]), f"{CELL}/ratio 0.8 must lie between its ends 0.9 and 1"),
    (set_at(f"{CELL}/rows", 2), "/tables/0/cells/1 rows 2, tiles 32: cells must be sorted, each shape once"),
    (set_at(f"{CELL}/rows", 3), "/tables/0/cells/1 rows 2, tiles 32: cells must be sorted"),
    (set_at(f"{RULE}/rows", [4, 2]), f"{RULE}/rows starts at 4, after its end 2"),
    (set_at(f"{RULE}/rows", [2, 9]), f"{RULE} reaches beyond the measured cells: none has rows 9"),
    (set_at(f"{RULE}/tiles", [16, 32]), f"{RULE} reaches beyond the measured cells: none has rows 2, tiles 16"),
    (set_at(f"{RULE}/tiles_per_split", 8), f"{RULE}/tiles_per_split is 8, which was not measured at rows 2, tiles 32"),
    (lambda document: document["tables"][0]["rules"].insert(0, rule_of(2)),
     "/tables/0/rules/1 stands after a rule that starts later"),
    (lambda document: document["tables"][0]["rules"].append(rule_of(3)),
     "/tables/0/rules/1 overlaps /tables/0/rules/0"),
    (lambda document: document["tables"].append(document["tables"][0]),
     "/tables/1 is for the same launches as /tables/0 (decode int8-tc, heads 24/2, head size 256, L2 cold)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), [*TYPES, *MEANING])
def test_what_does_not_fit_is_named_with_its_place(
    content: dict[str, Any], tmp_path: Path, change: Change, said: str
) -> None:
    """C6, pytorch/pytorch#184096."""
    change(content)
    path = tmp_path / "splits.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput) as refused:
        read_map(path)
    assert str(refused.value).startswith(f"{path}: {said}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("data", "said"), DAMAGED)
def test_damaged_files_are_named_with_the_place(tmp_path: Path, data: bytes, said: str) -> None:
    """C6, KernelTuner/kernel_tuner#194."""
    path = tmp_path / "splits.json"
    path.write_bytes(data)
    with pytest.raises(BadInput) as refused:
        read_map(path)
    assert str(refused.value).startswith(f"{path}: {said}")


def test_every_cut_of_a_map_is_refused(make_map: Any, tmp_path: Path) -> None:
    """C6: whatever a torn write leaves."""
    data = map_text(make_map()).encode().rstrip()
    path = tmp_path / "splits.json"
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        with pytest.raises(BadInput, match="is not JSON"):
            read_map(path)


@pytest.mark.parametrize(("old", "new", "said"), [
    ('"tiles_per_split": 2', '"tiles_per_split": 2, "tiles_per_split": 4', f"{RULE}/tiles_per_split is given twice"),
    ('"tiles_per_split": 2', '"tiles_per_split": NaN', f"{RULE}/tiles_per_split is NaN"),
    ('"1": 11.9', '"1": NaN', f"{CELL}/us/1 is NaN".replace("NaN", "nan")),
    ('"1": 11.9', '"1": 1e999', f"{CELL}/us/1 is inf"),
    ('"1": 11.9', '"1": 11.9, "1": 9.9', f"{CELL}/us/1 is given twice"),
    ('"created"', '"created": "", "created"', "/created is given twice"),
])  # fmt: skip
def test_what_json_readers_let_pass(make_map: Any, tmp_path: Path, old: str, new: str, said: str) -> None:
    """C6: duplicate keys with different values; numbers that JSON does not have."""
    path = tmp_path / "splits.json"
    path.write_text(map_text(make_map()).replace(old, new, 1))
    with pytest.raises(BadInput) as refused:
        read_map(path)
    assert str(refused.value).lower().startswith(f"{path}: {said}".lower())


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path, "Is a directory"), (tmp_path / "none.json", "No such file")):
        with pytest.raises(BadInput, match=said):
            read_map(path)


def test_a_map_that_contradicts_itself_is_not_written(make_map: Any, make_table: Any, tmp_path: Path) -> None:
    path = tmp_path / "splits.json"
    with pytest.raises(Misfit):
        write_map(path, make_map(make_table(rules=(MapRule((1, 9), (32, 32), 2),))))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_map(make_map: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C10, TrenTorch/TrenTorch#157: a full disk leaves the old file byte for byte, and nothing beside it."""
    path = tmp_path / "splits.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotMeasure, match="No space left on device"):
        write_map(path, make_map())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_leave_one_whole_map(make_map: Any, tmp_path: Path) -> None:
    """F4, openml/automlbenchmark#691."""
    path = tmp_path / "splits.json"
    maps = [replace(make_map(), generator=f"writer {number}") for number in range(4)]
    threads = [threading.Thread(target=lambda m=made: [write_map(path, m) for _ in range(20)]) for made in maps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_map(path) in maps
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_devices_stay_what_they_are(make_map: Any, tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    write_map(link, make_map())
    assert link.is_symlink()
    assert read_map(target) == make_map()
    write_map(Path("/dev/null"), make_map())
    assert Path("/dev/null").is_char_device()


def test_folders_that_take_no_map(make_map: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a folder"):
        write_map(tmp_path, make_map())
    with pytest.raises(BadInput, match="does not exist"):
        write_map(tmp_path / "none" / "splits.json", make_map())


@pytest.mark.parametrize(
    "change",
    [set_at("/schema_version", 10**4000), set_at("/schema", [[["x" * 9999]]]), set_at("/x" * 1 + "y" * 99_999, 1),
     set_at(f"{CELL}/us/{'1' * 99_999}", 1.0), set_at("/schema", "\x1b" * 999)],
)  # fmt: skip
def test_whatever_a_file_holds_the_error_is_one_short_line(
    change: Change, content: dict[str, Any], tmp_path: Path
) -> None:
    change(content)
    path = tmp_path / "splits.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput) as raised:
        read_map(path)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


def test_a_schema_too_deep_to_quote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "splits.json"
    for depth in range(100, 1000, 50):
        path.write_text('{"schema":' + "[" * depth + "]" * depth + "}")
        with pytest.raises(BadInput):
            read_map(path)


def test_a_name_that_no_file_can_have_is_bad_input() -> None:
    with pytest.raises(BadInput, match=r"^a\\x00b: cannot be read"):
        read_map(Path("a\0b"))
