# SPDX-License-Identifier: MIT
"""Real tensors from files. Oracle: the tensors that were written."""

import builtins
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsa_bench.data.files import cell_inputs, inputs_source, read_inputs, read_scales, scales_source
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.errors import BadInput, CannotMeasure
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape

SHAPE = SparseShape(rows=3, context=50, candidates=7, query_heads=4, kv_heads=2, head_size=16)
INPUTS = sparse_inputs(SHAPE, DataSpec(seed=5))
TENSORS: dict[str, Any] = dict(INPUTS.tensors)
SCALES = (INPUTS.key_scale, INPUTS.value_scale)

Save = Callable[[Path, dict[str, Any]], Path]


def npz(folder: Path, tensors: dict[str, Any]) -> Path:
    np.savez(folder / "t.npz", **tensors)
    return folder / "t.npz"


def safetensors(folder: Path, tensors: dict[str, Any]) -> Path:
    pytest.importorskip("safetensors", reason="needs pip install 'dsa-bench[inputs]'")
    from safetensors.numpy import save_file

    save_file({name: np.asarray(tensor) for name, tensor in tensors.items()}, folder / "t.safetensors")
    return folder / "t.safetensors"


both = pytest.mark.parametrize("save", [npz, safetensors])


def bits(inputs: SparseInputs) -> dict[str, Any]:
    return {"scale": np.asarray(inputs.scale).tobytes()} | {name: x.tobytes() for name, x in inputs.tensors.items()}


@both
def test_what_was_written_is_read(save: Save, tmp_path: Path) -> None:
    inputs = read_inputs(str(save(tmp_path, TENSORS)))
    assert bits(inputs) == bits(replace(INPUTS, scale=0.25)), "1 / sqrt(16) where the file names no scale"
    assert inputs.shape == SHAPE
    assert all(getattr(inputs, name).flags.c_contiguous for name in TENSORS)
    scaled = read_inputs(str(save(tmp_path, {**TENSORS, "scale": np.array([0.1], np.float64)})))
    assert scaled.scale == float(np.float32(0.1)), "what a kernel is given"


@both
@pytest.mark.parametrize(
    "query", [INPUTS.query, INPUTS.query.view(np.uint16), INPUTS.query.astype(np.float32)], ids=["bf16", "bits", "fp32"]
)
def test_three_ways_to_write_bf16(save: Save, tmp_path: Path, query: Any) -> None:
    assert read_inputs(str(save(tmp_path, {**TENSORS, "query": query}))).query.tobytes() == INPUTS.query.tobytes()


def test_orders_in_memory_do_not_matter(tmp_path: Path) -> None:
    foreign = {
        "key": np.asfortranarray(INPUTS.key),
        "key_scale": INPUTS.key_scale.astype(">f4"),
        "selected": INPUTS.selected.astype(">i4"),
    }
    assert read_inputs(str(npz(tmp_path, TENSORS | foreign))).digest() == replace(INPUTS, scale=0.25).digest()


@pytest.mark.parametrize("shape", [(2, 16), (1, 2, 1, 16), (2, 1, 16), (32,), (1, 32)])
def test_scales_by_channel_in_other_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors = {name: TENSORS[name].reshape(shape) for name in ("key_scale", "value_scale")}
    for read, expected in zip(read_scales(str(npz(tmp_path, tensors)), SHAPE), SCALES, strict=True):
        np.testing.assert_array_equal(read, expected, strict=True)
    assert read_inputs(str(npz(tmp_path, TENSORS | tensors))).key_scale.shape == (2, 16)


def changed(name: str, at: tuple[int, ...], value: Any, dtype: Any = None) -> dict[str, Any]:
    tensor = TENSORS[name].astype(dtype or TENSORS[name].dtype)
    tensor[at] = value
    return {name: tensor}


@both
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": None}, "lacks key; needs query, key, value, key_scale, value_scale, selected"),
        ({"softmax_scale": np.array(1.0)}, "holds unknown softmax_scale; needs "),
        ({"query": INPUTS.query[0]}, "query: found bfloat16 [4, 16], needs bfloat16 [rows, query_heads, head_size]"),
        ({"query": INPUTS.query.astype(np.float16)}, "query: found float16 [3, 4, 16], needs bfloat16 [rows, "),
        (changed("query", (0, 1, 2), 0.1, np.float32), "query[0, 1, 2] is 0.100000001; no BF16 number; round it first"),
        (changed("query", (0, 1, 2), 3.4e38, np.float32), "query[0, 1, 2] is 3.39999995e+38; no BF16 number"),
        (changed("query", (2, 3, 4), np.nan), "query[2, 3, 4] is nan; the FP64 check needs finite numbers"),
        ({"key": INPUTS.key.view(np.uint8)}, "key: found uint8 [2, 50, 16], needs int8 [kv_heads, context, head_size="),
        ({"key": INPUTS.key[..., :8]}, "key: found int8 [2, 50, 8], needs int8 [kv_heads, context, head_size=16]"),
        ({"value": INPUTS.value[:, :49]}, "found int8 [2, 49, 16], needs int8 [kv_heads=2, context=50, head_size=16]"),
        ({"key_scale": np.ones((2, 16))}, "key_scale: found float64 [2, 16], needs float32 [kv_heads=2, head_size=16]"),
        ({"key_scale": INPUTS.key_scale[:1]}, "key_scale: found float32 [1, 16], needs float32 [kv_heads=2, "),
        ({"value_scale": np.float32([1])}, "value_scale: found float32 [1], needs float32 [kv_heads=2, head_size=16]"),
        ({"value_scale": INPUTS.value_scale.T}, "value_scale: found float32 [16, 2], needs float32 [kv_heads=2, "),
        (changed("value_scale", (1, 3), np.inf), "value_scale[1, 3] is inf; the FP64 check needs finite numbers"),
        ({"selected": INPUTS.selected.astype(np.int64)}, "selected: found int64 [3, 7], needs int32 [rows=3, cand"),
        ({"selected": INPUTS.selected[:2]}, "selected: found int32 [2, 7], needs int32 [rows=3, candidates]"),
        ({"selected": INPUTS.selected[:, :0]}, "its shape fits no call: --candidates 0: must be at least 1"),
        ({"query": INPUTS.query[:, :3]}, "its shape fits no call: --query-heads 3: must be a multiple of --kv-heads 2"),
        ({"scale": np.float32([1, 2])}, "scale: found float32 [2], needs one float32 number"),
        ({"scale": np.float32(0)}, "scale: found 0, needs a finite number above 0"),
        ({"scale": np.float32(np.nan)}, "scale: found nan, needs a finite number above 0"),
    ],
)
def test_bad_tensors(save: Save, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    tensors = {name: np.ascontiguousarray(x) for name, x in (TENSORS | change).items() if x is not None}
    file = save(tmp_path, {name: x.reshape(np.shape(change.get(name, x))) for name, x in tensors.items()})
    with pytest.raises(BadInput) as refusal:
        read_inputs(str(file))
    assert f"--inputs {file}: " in str(refusal.value)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["t.npz", "t.safetensors", "t.onnx", "t.onnx:node"])
@pytest.mark.parametrize("content", [None, b"", b"plain text, no archive\n" * 9, b"PK\x03\x04 and no more"])
def test_files_that_are_not_what_their_name_says(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name.partition(":")[0]
    if path.suffix != ".npz":
        pytest.importorskip(path.suffix[1:], reason="needs pip install 'dsa-bench[inputs]'")
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=r"no such file|cannot be read as|has no such|no scales found") as refusal:
        read_scales(str(tmp_path / name), SHAPE)
    assert str(refusal.value).startswith(f"--scales-from {tmp_path / name}: ")
    assert "\n" not in str(refusal.value)


def test_other_names_and_folders(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--inputs t.pt: its name must end in .npz or .safetensors"):
        read_inputs("t.pt")
    with pytest.raises(BadInput, match=r"its name must end in .onnx or .npz or .safetensors"):
        read_scales("", SHAPE)
    (tmp_path / "t.npz").mkdir()
    with pytest.raises(BadInput, match="is a folder"):
        read_inputs(str(tmp_path / "t.npz"))


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    file = npz(tmp_path, TENSORS | {"query": np.array([{}], object)})
    with pytest.raises(BadInput, match=r"cannot be read as .npz \(Object arrays cannot be loaded"):
        read_inputs(str(file))


@pytest.mark.parametrize(("name", "package"), [("t.onnx", "onnx"), ("t.safetensors", "safetensors")])
def test_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    def absent(wanted: str, *rest: Any) -> Any:
        if wanted.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named '{wanted}'", name=wanted)
        return imported(wanted, *rest)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", absent)
    (tmp_path / name).touch()
    with pytest.raises(CannotMeasure, match=rf"No module named '{package}'.*pip install 'dsa-bench\[inputs\]'"):
        read_scales(str(tmp_path / name), SHAPE)


def test_a_checkpoint_may_hold_more_than_scales(tmp_path: Path) -> None:
    file = str(npz(tmp_path, TENSORS | {"embedding": np.zeros(3)}))
    assert read_scales(file, SHAPE)[0].tobytes() == INPUTS.key_scale.tobytes()
    with pytest.raises(BadInput, match="lacks value_scale; needs key_scale and value_scale"):
        read_scales(str(npz(tmp_path, {"key_scale": INPUTS.key_scale})), SHAPE)


def test_scales_replace_the_synthetic_ones_and_nothing_else(tmp_path: Path) -> None:
    source = scales_source(str(npz(tmp_path, TENSORS)), SHAPE)
    drawn = sparse_inputs(SHAPE, DataSpec(seed=6))
    inputs = cell_inputs(SHAPE, DataSpec(seed=6, source=source))
    assert bits(inputs) == bits(replace(drawn, key_scale=INPUTS.key_scale, value_scale=INPUTS.value_scale))
    louder = cell_inputs(SHAPE, DataSpec(seed=6, key_scale_multiplier=2.0, source=source))
    assert bits(louder) == bits(replace(inputs, key_scale=2 * INPUTS.key_scale))
    wide = scales_source(str(npz(tmp_path, TENSORS | {"value_scale": 1e9 * INPUTS.value_scale})), SHAPE)
    with pytest.raises(BadInput, match=r"--value-scale-multiplier 1e\+37: takes a scale of the file beyond FP32"):
        cell_inputs(SHAPE, DataSpec(value_scale_multiplier=1e37, source=wide))


def test_a_source_is_the_tensors_and_not_the_file(tmp_path: Path) -> None:
    source, shape = inputs_source(str(npz(tmp_path, TENSORS)))
    scales = scales_source(source.file, shape)
    assert cell_inputs(shape, DataSpec(source=source)).digest() == source.digest
    npz(tmp_path, dict(reversed(TENSORS.items())))
    assert inputs_source(source.file) == (source, SHAPE)
    npz(tmp_path, TENSORS | {"key_scale": 2 * INPUTS.key_scale})
    for changed_source in (source, scales):
        with pytest.raises(BadInput, match=r"t\.npz: its tensors changed since the run began"):
            cell_inputs(shape, DataSpec(source=changed_source))
