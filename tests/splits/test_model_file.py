# SPDX-License-Identifier: MIT
"""A fitted model on disk."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.model.errors import BadInput
from dsa_bench.splits.model_file import SplitModel, read_model

MODEL = SplitModel(
    created="2026-01-02T03:04:05Z", kernel="int8-tc", kernel_hash="1" * 16, device="H200", sm_count=132,
    resident_ctas=3, l2="warm", timer="cupti", fixed_us=3.5, tile_us=1.0, slowdown=(1.0, 1.5), merge_us=0.0, cta_us=0.0,
    wave_us=4.0, cells=20, points=140, rms_error=0.02, largest_error=0.1, held_out={"both": None},
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text(MODEL.to_json())
    assert read_model(file) == MODEL
    assert read_model(file).costs.slowdown == (1.0, 1.5)


def test_the_last_bits_of_a_fit_are_not_written() -> None:
    found = {"mean": 0.004, "bounds": [0.0038, 0.0041]}
    fit = replace(MODEL, fixed_us=3.0742040381194258, slowdown=(1.0, 1.5217078087901938), held_out=found)
    elsewhere = replace(
        fit,
        fixed_us=3.0742040381194236,
        slowdown=(1.0, 1.5217078087901934),
        held_out={"mean": 0.004 * (1 + 1e-15), "bounds": [0.0038, 0.0041 * (1 + 1e-15)]},
    )
    assert elsewhere != fit
    assert elsewhere.to_json() == fit.to_json()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "dsa-bench/splits"}, "schema"),
        ({"schema_version": 1}, "schema_version 1; .* fit again with `rule fit`"),
        ({"tile_us": "1"}, "tile_us"), ({"tile_us": -1.0}, "not negative"), ({"slowdown": [1.0, "2"]}, "slowdown"),
        ({"slowdown": []}, "start at 1"), ({"slowdown": [1.0, 0.5]}, "never fall"), ({"extra": 1}, "extra"),
        ({"fixed_us": None}, "fixed_us"), ({"slowdown": None}, "slowdown"), ({"fixed_us": float("nan")}, "finite"),
        ({"fixed_us": 10**400}, "fixed_us 1000.*at most 1e"), ({"tile_us": 1e16}, "tile_us 1e.16: .*at most 1e"),
        ({"wave_us": 10**4000}, "wave_us 1000.*at most"), ({"schema_version": 10**4000}, "schema_version 1000"),
        ({"merge_us": 10**16}, "merge_us"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    file = tmp_path / "model.json"
    file.write_text(json.dumps(json.loads(MODEL.to_json()) | change))
    with pytest.raises(BadInput, match=said) as raised:
        read_model(file)
    assert str(file) in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", "3", '"' * 3])
def test_text_that_is_no_model(tmp_path: Path, content: str) -> None:
    file = tmp_path / "model.json"
    file.write_text(content)
    with pytest.raises(BadInput, match="--model"):
        read_model(file)
    with pytest.raises(BadInput, match="cannot be read"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (MODEL.to_json().replace('"tile_us"', '"tile_us": 2.0, "tile_us"').encode(), r": /tile_us is given twice"),
        (MODEL.to_json().replace('"both": null', '"a": [{"b": 1, "b": 2}]').encode(), "/held_out/a/0/b is given twice"),
        (MODEL.to_json().encode("utf-16"), "byte 0 is not UTF-8 text"),
        (MODEL.to_json().encode("utf-8-sig"), "line 1 column 1 is not JSON"),
        (MODEL.to_json().replace("H200", "\xe9").encode("latin-1"), "is not UTF-8 text"),
    ],
)  # fmt: skip
def test_text_that_readers_could_differ_about_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    file = tmp_path / "model.json"
    file.write_bytes(data)
    with pytest.raises(BadInput, match=said):
        read_model(file)


def test_integers_are_used_as_numbers(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text(json.dumps(json.loads(MODEL.to_json()) | {"fixed_us": 10**15, "tile_us": 2}))
    costs = read_model(file).costs
    assert (costs.fixed_us, costs.tile_us) == (1e15, 2.0)
    assert type(costs.fixed_us) is float
