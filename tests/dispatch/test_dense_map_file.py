# SPDX-License-Identifier: MIT
"""Tables of dense decode in a map: read, refused with their place, looked up, matched and exported."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from map_doubles import facts, splits_map, table

from dsa_bench.dispatch.look_up import DenseLaunchFacts, MapTable, applicable
from dsa_bench.dispatch.map_file import map_text, parse_map, splits_schema
from dsa_bench.dispatch.map_merge import merge_maps
from dsa_bench.model.dense_map import DenseMapCell, DenseMapPolicy, DenseMapRule, DenseTable, DenseValidation
from dsa_bench.model.documents import Misfit
from dsa_bench.report.map_export import environment_lines, exported_ops, single_value
from dsa_bench.report.maps import differences, show_text

US = {"128": 8.0, "256": 9.0, "512": 11.0}


def dense_table(**changes: Any) -> DenseTable:
    """16 and 32 rows in a capacity of 4096; 512 is best for 32 rows, where it is the rule."""
    many = {"128": 13.0, "256": 11.0, "512": 9.0}
    fields: dict[str, Any] = {
        "op": "dense", "kernel": "fast", "kernel_hash": "cd" * 8, "cta_slots": 528, "max_splits": 64, "dtype": "f16",
        "head_size": 192, "value_head_size": 128, "query_heads": 16, "kv_heads": 16, "l2": "cold",
        "policy": DenseMapPolicy("cupti", 16, 0.01, 0.95),
        "cells": (
            DenseMapCell(16, 4096, 4096, 128, 8.0, US, 128, (1.0, 1.0, 1.0), ()),
            DenseMapCell(32, 4096, 4096, 128, 13.0, many, 512, (0.69, 0.68, 0.7), ()),
        ),
        "rules": (DenseMapRule((32, 32), (4096, 4096), 512),),
        "validation": DenseValidation(None, None, None, None),
    }  # fmt: skip
    return DenseTable(**(fields | changes))


def dense_facts(**changes: Any) -> DenseLaunchFacts:
    fields: dict[str, Any] = {
        "op": "dense", "kernel": "fast", "kernel_hash": "cd" * 8, "device": "NVIDIA H200", "compute_capability": "9.0",
        "sm_count": 132, "cta_slots": 528, "dtype": "f16", "head_size": 192, "value_head_size": 128, "query_heads": 16,
        "kv_heads": 16, "l2": "cold", "driver": "580.1", "runtime": "CUDA 13.2",
    }  # fmt: skip
    return DenseLaunchFacts(**(fields | changes))


BOTH = splits_map(table(), dense_table())


def test_both_operators_are_in_one_file() -> None:
    text = map_text(BOTH)
    assert parse_map(text.encode()) == BOTH
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(splits_schema()).validate(json.loads(text))
    assert json.loads(text)["tables"][1]["rules"] == [{"rows": [32, 32], "capacity": [4096, 4096], "chunk": 512}]


@pytest.mark.parametrize(
    ("change", "place", "said"),
    [
        (lambda one: one.update(op="prefill"), "/tables/1/op", "is \"prefill\", must be \"decode\" or \"dense\""),
        (lambda one: one.pop("op"), "/tables/1", "lacks the field 'op'"),
        (lambda one: one.update(op=3), "/tables/1/op", "is 3, must be"),
        (lambda one: one.update(dtype="f8"), "/tables/1/dtype", "is \"f8\", must be"),
        (lambda one: one.update(tile=64), "/tables/1/tile", "is no field"),
        (lambda one: one["cells"][0].update(length=4097), "/tables/1/cells/0/length", "is 4097, and the capacity"),
        (lambda one: one.update(kv_heads=5), "/tables/1/query_heads", "is 16, no multiple of kv_heads 5"),
        (lambda one: one["cells"][1].update(rows=33), "/tables/1/cells/1/rows", "is 33, no multiple of the 16"),
        (lambda one: one["cells"][0].update(capacity=2**30), "/tables/1/cells/0/capacity", "must be at most 10737"),
        (lambda one: one["cells"].reverse(), "/tables/1/cells/1", "rows 16, capacity 4096: cells must be sorted"),
        (lambda one: one["rules"][0].update(chunk=300), "/tables/1/rules/0/chunk", "is 300, which was not measured"),
        (lambda one: one["rules"][0].update(chunk=0), "/tables/1/rules/0/chunk", "is 0, must be"),
        (lambda one: one["rules"][0].update(capacity=[4096, 8192]), "/tables/1/rules/0", "reaches beyond the measured"),
        (lambda one: one["rules"][0].update(capacity=[4096, 512]), "/tables/1/rules/0/capacity", "starts at 4096"),
        (lambda one: one["rules"].append(dict(one["rules"][0])), "/tables/1/rules/1", "overlaps"),
        (lambda one: one["cells"][0]["us"].update({"x": 1.0}), "/tables/1/cells/0/us/x", "is no keys per split"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused_with_their_place(change: Callable[[Any], Any], place: str, said: str) -> None:
    content = json.loads(map_text(BOTH))
    change(content["tables"][1])
    with pytest.raises(Misfit) as caught:
        parse_map(json.dumps(content).encode())
    assert (caught.value.place, said in str(caught.value)) == (place, True), caught.value


def test_a_chunk_that_launches_what_was_measured_is_one_of_its_values() -> None:
    """4000 keys a split are 2 splits of 2048 keys, and so are 2048."""
    one = dense_table()
    cells = (
        one.cells[0],
        DenseMapCell(32, 4096, 4096, 128, 12.0, {"128": 12.0, "2048": 9.0}, 2048, (0.7, 0.7, 0.7), ()),
    )
    made = splits_map(dense_table(cells=cells, rules=(DenseMapRule((32, 32), (4096, 4096), 4000),)))
    assert parse_map(map_text(made).encode()) == made


def test_only_the_kernel_whose_chunks_are_tuned_has_tables() -> None:
    with pytest.raises(Misfit, match="is 'int8-tc', must be fast") as refused:
        map_text(splits_map(dense_table(kernel="int8-tc")))
    assert refused.value.place == "/tables/0/kernel"


def test_every_fact_must_match_and_the_operator_first() -> None:
    holding, said = applicable(BOTH, dense_facts())
    assert said == []
    assert holding is not None
    assert (holding.value(32, 4096), holding.value(16, 4096), holding.value(32, 4095)) == (512, None, None)
    assert applicable(BOTH, facts())[0] is not None
    changes: dict[str, Any] = {
        "dtype": "bf16", "head_size": 64, "value_head_size": 64, "query_heads": 8, "kv_heads": 8, "cta_slots": 1,
        "kernel_hash": "x", "l2": "warm", "sm_count": 1, "device": "NVIDIA A100", "compute_capability": "8.0",
    }  # fmt: skip
    for name, value in changes.items():
        found, said = applicable(BOTH, dense_facts(**{name: value}))
        assert found is None
        assert len(said) == 1
        assert str(value) in said[0]
    _, said = applicable(splits_map(table()), dense_facts())
    assert said == ["the map is not used: op is decode in the map and dense here; the automatic rule decides"]


def test_it_is_shown_compared_and_merged() -> None:
    shown = show_text(BOTH)
    assert "dense fast, heads 16/16 x 192/128, f16, L2 cold, 528 CTA slots" in shown
    assert "rows  capacity  chunk     cell" in shown
    assert "2 cells, 16 rounds, cupti, every key live; a rule gains more than 1.00%" in shown
    short = dense_table(cells=tuple(replace(cell, length=520) for cell in dense_table().cells))
    assert "2 cells, 16 rounds, cupti, length 520; a rule gains" in show_text(splits_map(short))
    other = splits_map(table(), dense_table(rules=(), dtype="f16"))
    assert differences(("a", BOTH), ("b", other)) == [
        "dense fast, heads 16/16 x 192/128, f16, L2 cold: rows 32, capacity 4096: 512 -> auto"
    ]
    assert merge_maps([("a", splits_map(dense_table())), ("b", splits_map(table()))]) == BOTH
    assert MapTable(dense_table()).table.subject != MapTable(dense_table(dtype="f32")).table.subject


def test_one_value_of_each_operator_is_exported() -> None:
    assert exported_ops(BOTH) == ["decode", "dense"]
    chosen = single_value(BOTH, "dense")
    assert (chosen.value, chosen.cells) == (256, 2)  # 12.5 % and 22 %; 128: 0 and 44 %
    assert environment_lines(chosen, "NVIDIA H200").splitlines()[-1] == "export ONNX_GENAI_ATTN_SPLIT_CHUNK=256"
    only = splits_map(dense_table(cells=(dense_table().cells[0],), rules=()))
    automatic = single_value(only, "dense")
    assert automatic.value == 0
    assert environment_lines(automatic, "x").splitlines()[-1] == "unset ONNX_GENAI_ATTN_SPLIT_CHUNK"
    assert "keys per split" in chosen.said
