# SPDX-License-Identifier: MIT
"""Named tensors from .npz and .safetensors files, and a node's scales from .onnx models."""

import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from dsa_bench.model.errors import BadInput, CannotMeasure, DsaBenchError
from dsa_bench.model.text import first_line

Tensors = dict[str, NDArray[Any]]
Held = tuple[list[str], Tensors]
"""The names of all tensors of a file, and those tensors that were wanted and are there."""

SCALES = ("key_scale", "value_scale")
OPERATOR = ("com.microsoft", "DynamicSparseAttention")
FIRST_SCALE_INPUT = 17
"""The operator's inputs before it, query to head_sink, are no scales."""
FP32_OF_ONNX = 1
_KEY_SCALE = re.compile(r"(?<![a-z])k(ey)?(_cache)?_?scale", re.IGNORECASE)
_VALUE_SCALE = re.compile(r"(?<![a-z])v(alue)?(_cache)?_?scale", re.IGNORECASE)
_NODE_OF_MODEL = re.compile(r"(.+?\.onnx):(.+)")


def read_tensors(where: str, file: str, wanted: Collection[str]) -> Held:
    """`wanted` tensors of a .npz or .safetensors file. Raises BadInput starting with `where`."""
    readers: dict[str, Callable[[Path], Held]] = {
        ".npz": lambda path: _npz(path, wanted),
        ".safetensors": lambda path: _safetensors(path, wanted),
    }
    return _read(where, file, readers)


def read_scale_tensors(where: str, file: str, channels: int) -> Held:
    """The same for key_scale and value_scale; .onnx and .onnx:NODE too, whose scales have `channels` numbers each."""
    match = _NODE_OF_MODEL.fullmatch(file)
    model, node = match.groups() if match else (file, None)
    readers: dict[str, Callable[[Path], Held]] = {
        ".onnx": lambda path: _onnx_scales(where, path, node, channels),
        ".npz": lambda path: _npz(path, SCALES),
        ".safetensors": lambda path: _safetensors(path, SCALES),
    }
    return _read(where, model, readers)


def _read(where: str, file: str, readers: dict[str, Callable[[Path], Held]]) -> Held:
    path = Path(file)
    if path.suffix not in readers:
        raise BadInput(f"{where}: its name must end in {' or '.join(readers)}")
    if not os.path.isfile(path):
        raise BadInput(f"{where}: {'is a folder' if os.path.isdir(path) else 'no such file'}")
    try:
        return readers[path.suffix](path)
    except ImportError as error:
        raise CannotMeasure(
            f"{where}: cannot import what reads it ({first_line(error)}): pip install 'dsa-bench[inputs]'"
        ) from error
    except DsaBenchError:
        raise
    except Exception as error:  # each library has its own for a file that is not what its name says
        raise BadInput(f"{where}: cannot be read as {path.suffix} ({first_line(error)})") from error


def _npz(path: Path, wanted: Collection[str]) -> Held:
    with path.open("rb") as stream, NpzFile(stream, allow_pickle=False) as archive:
        twice = [name for name in wanted if archive.files.count(name) > 1]
        if twice:
            raise ValueError(f"{twice[0]} is in it twice")
        return archive.files, {name: np.asarray(archive[name]) for name in wanted if name in archive.files}


def _safetensors(path: Path, wanted: Collection[str]) -> Held:
    from safetensors import safe_open

    opened: Any = safe_open(path, framework="np")
    with opened as file:
        held = list(file.keys())
        return held, {name: file.get_tensor(name) for name in wanted if name in held}


def _onnx_scales(where: str, path: Path, wanted: str | None, channels: int) -> Held:
    """Scales of the node `wanted`, else of the one node that has some, else initialisers called like them.

    Weights that lie outside the model's file stay there, but for the scales.
    """
    import onnx
    from onnx import numpy_helper

    graph: Any = onnx.load(path, load_external_data=False).graph
    initialisers: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
    nodes = {node.name or node.output[0]: node for node in graph.node if (node.domain, node.op_type) == OPERATOR}
    if wanted is not None and wanted not in nodes:
        raise BadInput(f"{where}: the model has no such {OPERATOR[1]} node, only {_listed(nodes)}")
    asked = nodes if wanted is None else {wanted: nodes[wanted]}
    pairs = {name: pair for name, node in asked.items() if (pair := _scales_of_node(node, initialisers, channels))}
    if not pairs and wanted is None and initialisers.keys() >= set(SCALES):
        pairs = {"": SCALES}
    if len(pairs) > 1:
        raise BadInput(f"{where}: several nodes have scales; name one as {path}:NODE, from {_listed(pairs)}")
    if not pairs:
        raise BadInput(
            f"{where}: no scales found: needs initialisers named like key_scale and value_scale, or k_scale and "
            f"v_scale, that feed a {OPERATOR[1]} node (the model has {_listed(asked)}); or name them just so"
        )
    (pair,) = pairs.values()
    folder = str(path.parent)
    return [*SCALES], {
        name: numpy_helper.to_array(initialisers[at], folder) for name, at in zip(SCALES, pair, strict=True)
    }


def _scales_of_node(node: Any, initialisers: dict[str, Any], channels: int) -> tuple[str, str] | None:
    """The node's inputs that are its (key, value) scales: by name, else two of the right type, size and place."""
    fed = [name for name in node.input if name in initialisers]
    keys, values = ([*filter(pattern.search, fed)] for pattern in (_KEY_SCALE, _VALUE_SCALE))
    if len(keys) == len(values) == 1:
        return keys[0], values[0]
    late = [initialisers[name] for name in node.input[FIRST_SCALE_INPUT:] if name in initialisers]
    fitting = [
        tensor.name
        for tensor in late
        if tensor.data_type == FP32_OF_ONNX and np.prod(tensor.dims, dtype=np.int64) == channels
    ]
    return (fitting[0], fitting[1]) if len(fitting) == 2 else None


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "none"
