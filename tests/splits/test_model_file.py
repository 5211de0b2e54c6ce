# SPDX-License-Identifier: MIT
"""A fitted model on disk."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.model.errors import BadInput
from dsa_bench.splits.model_file import SplitModel, read_model

MODEL = SplitModel(
    created="2026-01-02T03:04:05Z", kernel="int8-tc", kernel_hash="1" * 16, device="H200", sm_count=132,
    resident_ctas=3, l2="warm", timer="cupti", fixed_us=3.5, tile_us=1.0, slowdown=(1.0, 1.5), merge_us=0.0,
    wave_us=4.0, cells=20, points=140, rms_error=0.02, largest_error=0.1, held_out={"both": None},
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text(MODEL.to_json())
    assert read_model(file) == MODEL
    assert read_model(file).costs.slowdown == (1.0, 1.5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "dsa-bench/splits"}, "schema"), ({"schema_version": 99}, "schema_version"),
        ({"tile_us": "1"}, "tile_us"), ({"tile_us": -1.0}, "not negative"), ({"slowdown": [1.0, "2"]}, "slowdown"),
        ({"slowdown": []}, "start at 1"), ({"slowdown": [1.0, 0.5]}, "never fall"), ({"extra": 1}, "extra"),
        ({"fixed_us": None}, "fixed_us"), ({"slowdown": None}, "slowdown"), ({"fixed_us": float("nan")}, "finite"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    file = tmp_path / "model.json"
    file.write_text(json.dumps(json.loads(MODEL.to_json()) | change))
    with pytest.raises(BadInput, match=said) as raised:
        read_model(file)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", "3", '"' * 3])
def test_text_that_is_no_model(tmp_path: Path, content: str) -> None:
    file = tmp_path / "model.json"
    file.write_text(content)
    with pytest.raises(BadInput, match="--model"):
        read_model(file)
    with pytest.raises(BadInput, match="cannot be read"):
        read_model(tmp_path)
