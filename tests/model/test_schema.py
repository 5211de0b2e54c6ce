# SPDX-License-Identifier: MIT
"""Oracle: JSON Schema as the jsonschema package reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.model.errors import BadInput
from dsa_bench.model.record import LATER_FIELDS, Check, Header, Visit, line_content
from dsa_bench.model.run import read_run
from dsa_bench.model.schema import misfitting_field, record_schema


def test_the_published_schema_is_the_dataclasses(root: Path) -> None:
    assert json.loads((root / "docs/schemas/record.schema.json").read_text()) == record_schema()


def test_every_written_line_validates(two_cells: Any, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(record_schema())
    validator.check_schema(record_schema())
    lines = [json.loads(line) for line in two_cells.write(tmp_path / "r.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"header", "check", "visit"}
    for line in lines:
        validator.validate(line)


WRONG_TYPES: list[tuple[type, dict[str, Any]]] = [
    (Visit, {"round": "0"}), (Visit, {"round": 0.0}), (Visit, {"round": True}), (Visit, {"control": 0}),
    (Visit, {"cell": None}), (Visit, {"requested": 4}), (Visit, {"requested": ["4"]}), (Visit, {"requested": [4.5]}),
    (Visit, {"requested": None}), (Visit, {"attention_us": "12"}), (Visit, {"attention_us": True}),
    (Visit, {"status": "fine"}), (Visit, {"status": ["ok"]}), (Visit, {"clocks": []}), (Visit, {"clocks": {"a": "b"}}),
    (Check, {"splits": 1.5}), (Check, {"rms_error": "0"}), (Check, {"status": None}), (Check, {"data_hash": 7}),
    (Check, {"gathered_bytes": 1.5}),
    (Header, {"argv": "decode"}), (Header, {"argv": [1]}), (Header, {"device": []}), (Header, {"dirty": "no"}),
    (Header, {"versions": {"numpy": 2}}), (Header, {"schema_version": True}), (Header, {"schema_version": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "change"), WRONG_TYPES)
def test_wrong_types_are_named(two_cells: Any, cls: type, change: dict[str, Any]) -> None:
    good = json.loads(json.dumps(line_content(next(line for line in two_cells.lines if type(line) is cls))))
    (name,) = change
    assert misfitting_field(cls, good) is None
    assert str(misfitting_field(cls, good | change)).startswith(f"{name} is ")
    assert misfitting_field(cls, good) is None, "a bad line must not spoil what is known of good ones"


@pytest.mark.parametrize("cls", [Visit, Check, Header])
def test_missing_and_unknown_fields_are_named(two_cells: Any, cls: type) -> None:
    good = json.loads(json.dumps(line_content(next(line for line in two_cells.lines if type(line) is cls))))
    for name in good.keys() - LATER_FIELDS.get(cls, frozenset()):
        assert misfitting_field(cls, {k: v for k, v in good.items() if k != name}) == f"wrong fields {name}"
    assert misfitting_field(cls, good | {"node_us": 1.0}) == "wrong fields node_us"


def test_lines_from_before_a_field_are_read_with_its_default(two_cells: Any, tmp_path: Path) -> None:
    path = two_cells.write(tmp_path / "r.jsonl")
    whole, later = path.read_text(), '"rules":[],"gathered_bytes":null,'
    assert later in whole
    path.write_text(whole.replace(later, ""))
    run = read_run(path)
    assert [(check.gathered_bytes, check.rules) for check in run.checks] == [(None, ())] * len(run.checks)
    jsonschema = pytest.importorskip("jsonschema")
    for line in path.read_text().splitlines():
        jsonschema.Draft202012Validator(record_schema()).validate(json.loads(line))
    path.write_text(whole.replace('"rules":[]', '"rules":["fa2",3]', 1))
    with pytest.raises(BadInput, match="rules is"):
        read_run(path)
