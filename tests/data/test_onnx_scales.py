# SPDX-License-Identifier: MIT
"""The scales of a DynamicSparseAttention node. Oracle: the initialisers that the model was made with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsa_bench.data.files import read_scales, scales_source
from dsa_bench.model.errors import BadInput
from dsa_bench.model.shape import SparseShape

onnx = pytest.importorskip("onnx", reason="needs pip install 'dsa-bench[inputs]'")
helper = pytest.importorskip("onnx.helper")

SHAPE = SparseShape(rows=1, context=64, candidates=64, query_heads=4, kv_heads=2, head_size=16)
KEY = np.linspace(0.02, 0.06, 32, dtype=np.float32).reshape(1, 2, 1, 16)
VALUE = np.linspace(0.002, 0.03, 32, dtype=np.float32).reshape(1, 2, 1, 16)
BEFORE_SCALES = [*"qkvKV", "", "", *"iclt", "cos", "sin", "", "q_norm", "k_norm", ""]


def node(name: str, *scales: str, op: str = "DynamicSparseAttention", domain: str = "com.microsoft") -> Any:
    return helper.make_node(op, [*BEFORE_SCALES, *scales], [f"{name}/out"], name=name, domain=domain)


def save(path: Path, nodes: list[Any], initialisers: dict[str, Any], **how: Any) -> str:
    norms = {name: np.ones(16, np.float32) for name in ("q_norm", "k_norm", "cos", "sin")}
    tensors = [onnx.numpy_helper.from_array(tensor, name) for name, tensor in (norms | initialisers).items()]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [], [], tensors)), path, **how)
    return str(path)


def assert_scales(file: str, key: Any = KEY, value: Any = VALUE) -> None:
    for read, expected in zip(read_scales(file, SHAPE), (key, value), strict=True):
        np.testing.assert_array_equal(read, expected.reshape(2, 16), strict=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("key_scale", "value_scale"),
        ("model.layers.3.attn.k_scale", "model.layers.3.attn.v_scale"),
        ("/attn/k_cache_scale", "/attn/v_cache_scale"),
        ("KScale", "VScale"),
        ("onnx::DSA_71", "onnx::DSA_72"),
    ],
)
def test_scales_are_found_by_name_or_else_by_place(tmp_path: Path, key: str, value: str) -> None:
    """`qk_scale` beside them is no key scale; a norm of the same size, before the scales' place, is none either."""
    tensors = {value: VALUE, key: KEY, "qk_scale": np.float32([2]), "q_norm": np.ones(32, np.float32)}
    assert_scales(save(tmp_path / "m.onnx", [node("attn", key, value, "qk_scale")], tensors))


def test_initialisers_without_a_node(tmp_path: Path) -> None:
    tensors = {"key_scale": KEY, "value_scale": VALUE}
    other = node("attn", "key_scale", "value_scale", op="GroupQueryAttention")
    assert_scales(save(tmp_path / "m.onnx", [other], tensors))


def test_one_of_several_nodes_is_named(tmp_path: Path) -> None:
    names = ["/model/layers.3/attn/DSA", "/model/layers.7/attn/DSA"]
    tensors = {"3.k_scale": KEY, "3.v_scale": VALUE, "7.k_scale": 2 * KEY, "7.v_scale": 2 * VALUE}
    nodes = [node(names[0], "3.k_scale", "3.v_scale"), node(names[1], "7.k_scale", "7.v_scale"), node("bf16 cache")]
    file = save(tmp_path / "m.onnx", nodes, tensors)
    with pytest.raises(BadInput) as refusal:
        read_scales(file, SHAPE)
    assert str(refusal.value) == (
        f"--scales-from {file}: several nodes have scales; name one as {file}:NODE, from {names[0]}, {names[1]}"
    )
    assert_scales(f"{file}:{names[1]}", 2 * KEY, 2 * VALUE)
    assert scales_source(f"{file}:{names[0]}", SHAPE).digest != scales_source(f"{file}:{names[1]}", SHAPE).digest
    with pytest.raises(BadInput, match=f"the model has no such DynamicSparseAttention node, only {names[0]}"):
        read_scales(f"{file}:/model/layers.4/attn/DSA", SHAPE)
    with pytest.raises(BadInput, match=r"no scales found: .* \(the model has bf16 cache\)"):
        read_scales(f"{file}:bf16 cache", SHAPE)
    assert_scales(save(tmp_path / "m.onnx", nodes[1:], tensors), 2 * KEY, 2 * VALUE)


def test_a_node_without_a_name_goes_by_its_output(tmp_path: Path) -> None:
    nameless = node("attn", "k_scale", "v_scale")
    nameless.name = ""
    assert_scales(save(tmp_path / "m.onnx", [nameless], {"k_scale": KEY, "v_scale": VALUE}) + ":attn/out")


def test_external_data(tmp_path: Path) -> None:
    """Only the scales' part is read; without the file beside the model, one line says so."""
    how = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    tensors = {"k_scale": KEY, "v_scale": VALUE}
    file = save(tmp_path / "m.onnx", [node("attn", "k_scale", "v_scale")], tensors, **how)
    assert (tmp_path / "weights.bin").exists()
    assert_scales(file)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(BadInput, match=r"m\.onnx: cannot be read as \.onnx \(.*weights\.bin"):
        read_scales(file, SHAPE)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (
            {"k_scale": KEY.astype(np.float16), "v_scale": VALUE},
            r"key_scale: found float16 \[1, 2, 1, 16\], needs float",
        ),
        ({"k_scale": KEY, "v_scale": np.float32([1])}, r"value_scale: found float32 \[1\], needs float32 \[kv_heads=2"),
        (
            {"k_scale": np.full_like(KEY, -np.inf), "v_scale": VALUE},
            r"key_scale\[0, 0\] is -inf; the FP64 check needs finite numbers",
        ),
        ({"k_scale": KEY}, r"no scales found: needs initialisers named like key_scale and value_scale"),
        ({}, r"no scales found: .* that feed a DynamicSparseAttention node \(the model has attn\)"),
    ],
)
def test_bad_models(tmp_path: Path, tensors: dict[str, Any], said: str) -> None:
    file = save(tmp_path / "m.onnx", [node("attn", "k_scale", "v_scale")], tensors)
    with pytest.raises(BadInput, match=said):
        read_scales(file, SHAPE)
    with pytest.raises(BadInput, match=r"no scales found: .* \(the model has none\)"):
        read_scales(save(tmp_path / "m.onnx", [], tensors), SHAPE)
