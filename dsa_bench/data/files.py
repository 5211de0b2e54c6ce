# SPDX-License-Identifier: MIT
"""Real tensors in place of synthetic ones: all of a call's inputs, or its key and value scales (docs/inputs.md)."""

import hashlib
import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsa_bench.data.formats import SCALES, Tensors, read_scale_tensors, read_tensors
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.errors import BadInput
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.request import DataSource, DataSpec
from dsa_bench.model.shape import SparseShape

FP32 = np.dtype(np.float32)
CHANNELS = ("kv_heads", "head_size")
LAYOUT: dict[str, tuple[np.dtype[Any], tuple[str, ...]]] = {
    "query": (BF16, ("rows", "query_heads", "head_size")),
    "key": (np.dtype(np.int8), ("kv_heads", "context", "head_size")),
    "value": (np.dtype(np.int8), ("kv_heads", "context", "head_size")),
    "key_scale": (FP32, CHANNELS),
    "value_scale": (FP32, CHANNELS),
    "selected": (np.dtype(np.int32), ("rows", "candidates")),
}
"""Type and axes of every tensor of a file of inputs. `scale`, one number, may be left out."""

Scales = tuple[NDArray[np.float32], NDArray[np.float32]]


def cell_inputs(shape: SparseShape, spec: DataSpec) -> SparseInputs:
    """One cell's tensors, whatever their source. Raises BadInput if its file is no longer what it was when named."""
    source = spec.source
    if source is None:
        return sparse_inputs(shape, spec)
    if source.part == "inputs":
        inputs = replace(read_inputs(source.file), op=shape.op)
        _refuse_change(source, inputs.digest())
        return inputs
    scales = read_scales(source.file, shape)
    _refuse_change(source, _digest(scales))
    key_scale = _times(scales[0], spec.key_scale_multiplier, "--key-scale-multiplier")
    value_scale = _times(scales[1], spec.value_scale_multiplier, "--value-scale-multiplier")
    return replace(sparse_inputs(shape, spec), key_scale=key_scale, value_scale=value_scale)


def inputs_source(file: str) -> tuple[DataSource, SparseShape]:
    """A file of inputs as a source, and the shape of its one cell."""
    inputs = read_inputs(file)
    return DataSource("inputs", file, inputs.digest()), inputs.shape


def scales_source(file: str, shape: SparseShape) -> DataSource:
    """A file of scales that fit `shape` as a source."""
    return DataSource("scales", file, _digest(read_scales(file, shape)))


def read_inputs(file: str) -> SparseInputs:
    """All tensors of LAYOUT. Raises BadInput naming the file, the tensor, what was found and what is needed."""
    where = f"--inputs {file}"
    names, tensors = read_tensors(where, file, [*LAYOUT, "scale"])
    missing, unknown = LAYOUT.keys() - tensors.keys(), set(names) - LAYOUT.keys() - {"scale"}
    if missing or unknown:
        what = f"lacks {', '.join(sorted(missing))}" if missing else f"holds unknown {', '.join(sorted(unknown))}"
        raise BadInput(f"{where}: {what}; needs {', '.join(LAYOUT)} and takes scale")
    sizes: dict[str, int] = {}
    fitting: dict[str, Any] = {name: _fitting(where, name, tensors, sizes) for name in LAYOUT}
    inputs = SparseInputs(**fitting, scale=_softmax_scale(where, tensors.get("scale"), sizes["head_size"]))
    try:
        _ = inputs.shape
    except BadInput as error:
        raise BadInput(f"{where}: its shape fits no call: {error}") from error
    return inputs


def read_scales(file: str, shape: SparseShape) -> Scales:
    """(key_scale, value_scale), each [kv_heads, head_size] of `shape`."""
    where = f"--scales-from {file}"
    _, tensors = read_scale_tensors(where, file, shape.kv_heads * shape.head_size)
    if missing := [name for name in SCALES if name not in tensors]:
        raise BadInput(f"{where}: lacks {', '.join(missing)}; needs {' and '.join(SCALES)}")
    sizes = {axis: getattr(shape, axis) for axis in CHANNELS}
    key_scale, value_scale = (_fitting(where, name, tensors, sizes) for name in SCALES)
    return key_scale, value_scale


def _fitting(where: str, name: str, tensors: Tensors, sizes: dict[str, int]) -> Any:
    """The tensor if its type is right, its axes agree with the `sizes` known so far, and every number is finite."""
    dtype, axes = LAYOUT[name]
    found = tensors[name]
    tensor = found.astype(found.dtype.newbyteorder("="), order="C", copy=False)
    if name == "query":
        tensor = _as_bf16(where, tensor)
    if name in SCALES:
        tensor = _by_channel(tensor, sizes)
    held = dict(zip(axes, tensor.shape, strict=False))
    known = {axis: sizes[axis] for axis in axes if axis in sizes}
    if tensor.dtype != dtype or tensor.ndim != len(axes) or held | known != held:
        needed = ", ".join(f"{axis}={known[axis]}" if axis in known else axis for axis in axes)
        raise BadInput(f"{where}: {name}: found {tensor.dtype.name} {[*found.shape]}, needs {dtype.name} [{needed}]")
    sizes.update(held)
    if dtype in (BF16, FP32):
        _refuse_elements(where, name, tensor, ~np.isfinite(tensor), "the FP64 check needs finite numbers")
    return tensor


def _as_bf16(where: str, query: NDArray[Any]) -> NDArray[Any]:
    """BF16 itself, its bits (UINT16, or the two-byte void that NumPy stores it as), or FP32 that holds BF16 numbers."""
    if query.dtype == np.uint16 or query.dtype.str == "|V2":
        return query.view(BF16)
    if query.dtype != np.float32:
        return query
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = query.astype(BF16)
    inexact = rounded.astype(np.float32) != query
    _refuse_elements(where, "query", query, inexact, "no BF16 number; round it first, as .to(torch.bfloat16) does")
    return rounded


def _by_channel(scale: NDArray[Any], sizes: dict[str, int]) -> NDArray[Any]:
    """[kv_heads, head_size], where the axes differ from it by some of length 1 or are one."""
    channels = tuple(sizes[axis] for axis in CHANNELS)
    long = [size for size in scale.shape if size != 1]
    as_channels = long == [size for size in channels if size != 1] or long == [math.prod(channels)]
    return scale.reshape(channels) if as_channels else scale


def _softmax_scale(where: str, scale: NDArray[Any] | None, head_size: int) -> float:
    """One number, as FP32, which is what kernels take; 1 / sqrt(head_size) if none is given, as the operator has it."""
    if scale is None:
        return float(np.float32(1.0 / math.sqrt(head_size)))
    if scale.size != 1 or scale.dtype.kind not in "fiu":
        raise BadInput(f"{where}: scale: found {scale.dtype.name} {[*scale.shape]}, needs one float32 number")
    with np.errstate(over="ignore"):
        value = float(scale.astype(np.float32).item())
    if not 0.0 < value < math.inf:
        raise BadInput(f"{where}: scale: found {scale.item():g}, needs a finite number above 0")
    return value


def _refuse_elements(where: str, name: str, tensor: NDArray[Any], bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        at = tuple(int(index) for index in np.argwhere(bad)[0])
        raise BadInput(f"{where}: {name}{[*at]} is {float(tensor[at]):.9g}; {why}")


def _times(scale: NDArray[np.float32], multiplier: float, option: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        product = (scale.astype(np.float64) * multiplier).astype(np.float32)
    if not np.isfinite(product).all():
        raise BadInput(f"{option} {multiplier:g}: takes a scale of the file beyond FP32's range; choose a smaller one")
    return product


def _digest(scales: Scales) -> str:
    return hashlib.sha256(b"".join(scale.tobytes() for scale in scales)).hexdigest()[:16]


def _refuse_change(source: DataSource, digest: str) -> None:
    if digest != source.digest:
        raise BadInput(f"{source.file}: its tensors changed since the run began; name a file that nothing writes to")
