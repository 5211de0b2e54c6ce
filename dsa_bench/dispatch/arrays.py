# SPDX-License-Identifier: MIT
"""Other people's arrays, read without importing the library they are of: NumPy, torch, CuPy, CUDA array interface."""

import math
from typing import Any, cast

import numpy as np

from dsa_bench.model.call import SparseCall, TensorView
from dsa_bench.model.errors import BadInput
from dsa_bench.model.shape import INT32_MAX, MAX_CANDIDATES

ITEM_BYTES = {"bfloat16": 2, "int8": 1, "int32": 4, "float32": 4}
_NEEDED = {
    "query": ("bfloat16", "[rows, query_heads, head_size]"),
    "key": ("int8", "[kv_heads, context, head_size]"),
    "value": ("int8", "[kv_heads, context, head_size]"),
    "key_scale": ("float32", "[kv_heads, head_size]"),
    "value_scale": ("float32", "[kv_heads, head_size]"),
    "selected": ("int32", "[rows, candidates]"),
    "out": ("bfloat16", "[rows, query_heads, head_size]"),
}


def view(name: str, array: Any) -> TensorView:
    """What an array says of itself. Raises BadInput for what is no array, is not contiguous or may not be written."""
    if isinstance(array, np.ndarray):
        tensor = cast("np.ndarray[Any, Any]", array)
        if name in ("out", "workspace") and not tensor.flags.writeable:
            raise BadInput(f"{name}: is read-only, and the call writes it; pass an array that may be written")
        return _view(name, tensor, tensor.dtype.name, tensor.ctypes.data, tensor.flags.c_contiguous, "cpu", 0)
    if hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):  # torch
        device = array.device
        dtype = str(array.dtype).removeprefix("torch.")
        return _view(name, array, dtype, array.data_ptr(), array.is_contiguous(), str(device.type), device.index or 0)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise BadInput(f"{name}: is {type(array).__name__}; pass a torch, CuPy or NumPy array")
    address, read_only = interface["data"]
    if read_only and name in ("out", "workspace"):
        raise BadInput(f"{name}: is read-only, and the call writes it; pass an array that may be written")
    dtype: Any = getattr(array, "dtype", None)  # CuPy's own, because the interface cannot spell BF16
    spelled = dtype.name if hasattr(dtype, "name") else np.dtype(interface["typestr"]).name
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    dense = strides is None or _dense(shape, strides, np.dtype(interface["typestr"]).itemsize)
    return _view(
        name,
        array,
        str(spelled),
        int(address or 0),
        dense,
        "cuda",
        int(getattr(getattr(array, "device", None), "id", 0)),
    )


def _dense(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> bool:
    """Whether the elements follow each other in row-major order without gaps."""
    if 0 in shape:
        return True
    expected = item_bytes
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _view(name: str, array: Any, dtype: str, address: int, dense: bool, device: str, index: int) -> TensorView:
    shape = tuple(int(size) for size in array.shape)
    if not dense:
        raise BadInput(f"{name}: is not contiguous (shape {list(shape)}); pass a contiguous copy")
    if device not in ("cpu", "cuda"):
        raise BadInput(f"{name}: is on {device}; pass arrays of the CPU or of one CUDA device")
    if name in ("query", "out") and dtype == "uint16":  # the bits of BF16, for libraries that don't have it
        dtype = "bfloat16"
    item_bytes = ITEM_BYTES[dtype] if dtype in ITEM_BYTES else int(array.dtype.itemsize)
    return TensorView(name, shape, dtype, address, math.prod(shape) * item_bytes, device, index, array)


def sparse_call(arrays: dict[str, Any], scale: float) -> SparseCall:
    """The call on these arrays, given by name. Raises BadInput naming the tensor, what was found and what is needed."""
    views = {name: view(name, array) for name, array in arrays.items()}
    for name, tensor in views.items():
        dtype, shape = _NEEDED[name]
        if tensor.dtype != dtype or len(tensor.shape) != shape.count(",") + 1:
            raise BadInput(f"{name}: is {tensor.dtype} {list(tensor.shape)}, must be {dtype} {shape}")
        if tensor.address % ITEM_BYTES[dtype]:
            raise BadInput(f"{name}: starts at address {tensor.address:#x}, must be a multiple of {ITEM_BYTES[dtype]}")
    call = SparseCall(**views, scale=float(scale))
    _refuse_other_places(call)
    _refuse_other_shapes(call)
    return call


def _refuse_other_places(call: SparseCall) -> None:
    first = call.query
    for name, tensor in call.tensors.items():
        if (tensor.device, tensor.index) != (first.device, first.index):
            raise BadInput(
                f"{name}: is on {tensor.device}:{tensor.index} and query on {first.device}:{first.index}; "
                "pass all arrays of one device"
            )


def _refuse_other_shapes(call: SparseCall) -> None:
    rows, query_heads, head_size = call.query.shape
    kv_heads, context, _ = call.key.shape
    candidates = call.selected.shape[1]
    wanted = {
        "key": (kv_heads, context, head_size), "value": (kv_heads, context, head_size),
        "key_scale": (kv_heads, head_size), "value_scale": (kv_heads, head_size),
        "selected": (rows, candidates), "out": (rows, query_heads, head_size),
    }  # fmt: skip
    for name, shape in wanted.items():
        found = call.tensors[name].shape
        if found != shape:
            raise BadInput(f"{name}: is {list(found)}, must be {list(shape)} to go with query and key")
    if query_heads and (not kv_heads or query_heads % kv_heads):
        raise BadInput(f"query: has {query_heads} heads, must be a multiple of the {kv_heads} KV heads of key")
    if rows > context > 0:
        raise BadInput(f"query: has {rows} rows, must be at most the {context} positions of key, whose last they are")
    for name, size, limit in (("key", context, INT32_MAX), ("selected", candidates, MAX_CANDIDATES)):
        if size > limit:
            raise BadInput(f"{name}: holds {size} positions, must be at most {limit}, the kernels' limit")


def stream_pointer(stream: Any) -> int:
    """The driver's pointer of a stream: an integer, CuPy's, torch's, or anything with the CUDA stream protocol."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    for name in ("ptr", "cuda_stream"):  # CuPy, torch
        if isinstance(pointer := getattr(stream, name, None), int):
            return pointer
    protocol: Any = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1])
    raise BadInput(
        f"stream: is {type(stream).__name__}; pass the stream that you work on, such as torch.cuda.current_stream() or "
        "cupy.cuda.get_current_stream()"
    )
