# SPDX-License-Identifier: MIT
"""Other people's arrays, read without importing the library they are of: NumPy, torch, CuPy, CUDA array interface."""

import math
from operator import index
from typing import Any, cast

import numpy as np

from dsa_bench.dispatch.arguments import scale_of
from dsa_bench.model.call import SparseCall, TensorView
from dsa_bench.model.errors import BadInput
from dsa_bench.model.shape import INT32_MAX, MAX_CANDIDATES
from dsa_bench.model.text import quoted, short

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
    """What an array says of itself.

    Raises BadInput for what is no array or says nothing that can be read, for what is more than its memory (a mask, a
    byte order that is not the machine's, objects), is not contiguous, or may not be written.
    """
    try:
        if isinstance(array, np.ndarray):
            return _of_numpy(name, cast("np.ndarray[Any, Any]", array))
        if hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):
            return _of_torch(name, array)
        return _of_interface(name, array)
    except BadInput:
        raise
    except Exception as error:  # whatever an array of another library, or a damaged one, raises
        kind = type(cast("object", array)).__name__
        raise BadInput(
            f"{name}: is {kind}, which does not say where and what it is ({quoted(error)}); "
            "pass a torch, CuPy or NumPy array"
        ) from error


def _of_numpy(name: str, array: "np.ndarray[Any, Any]") -> TensorView:
    if type(array) not in (np.ndarray, np.memmap):  # a MaskedArray has a mask, a matrix other shapes
        raise BadInput(
            f"{name}: is {type(array).__name__}, which is more than its memory; pass a plain array, such as "
            "numpy.asarray() of it or what is left without its mask"
        )
    _refuse_unwritable(name, not array.flags.writeable)
    _refuse_other_memory(name, array.dtype)
    where = (array.ctypes.data, "cpu", 0)
    return _view(name, array, array.shape, array.dtype.name, array.dtype.itemsize, array.flags.c_contiguous, *where)


def _of_torch(name: str, array: Any) -> TensorView:
    dtype, device = str(array.dtype).removeprefix("torch."), array.device
    where = (int(array.data_ptr()), str(device.type), int(device.index or 0))
    return _view(name, array, array.shape, dtype, int(array.dtype.itemsize), bool(array.is_contiguous()), *where)


def _of_interface(name: str, array: Any) -> TensorView:
    """Of the CUDA array interface, version 3."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise BadInput(f"{name}: is {type(array).__name__}; pass a torch, CuPy or NumPy array")
    address, read_only = interface["data"]
    _refuse_unwritable(name, bool(read_only))
    if interface.get("mask") is not None:
        raise BadInput(f"{name}: has a mask, which no kernel here reads; pass an array without one")
    stated = np.dtype(str(interface["typestr"]))
    own: Any = getattr(array, "dtype", None)  # CuPy's own, because the interface cannot spell BF16
    dtype: Any = own if hasattr(own, "name") and hasattr(own, "itemsize") else stated
    for one in (stated, dtype):
        _refuse_other_memory(name, one)
    if dtype.itemsize != stated.itemsize:
        raise BadInput(f"{name}: is {short(dtype)} to itself and {stated.str} to its interface; pass a whole array")
    shape, strides = tuple(map(index, interface["shape"])), interface.get("strides")
    dense = strides is None or _dense(shape, tuple(map(index, strides)), stated.itemsize)
    number = int(getattr(getattr(array, "device", None), "id", 0))
    return _view(
        name, array, shape, str(dtype.name), stated.itemsize, dense, 0 if address is None else index(address), "cuda",
        number,
    )  # fmt: skip


def _refuse_unwritable(name: str, read_only: bool) -> None:
    if read_only and name in ("out", "workspace"):
        raise BadInput(f"{name}: is read-only, and the call writes it; pass an array that may be written")


def _refuse_other_memory(name: str, dtype: Any) -> None:
    if not getattr(dtype, "isnative", True):
        raise BadInput(f"{name}: is {short(dtype)}, not in this machine's byte order; pass a copy that is")
    if getattr(dtype, "hasobject", False):
        raise BadInput(f"{name}: holds Python objects, which no kernel reads or writes; pass an array of numbers")


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


def _view(
    name: str, array: Any, shape: Any, dtype: str, item_bytes: int, dense: bool, address: int, device: str, number: int
) -> TensorView:
    sizes = tuple(int(size) for size in shape)
    if not dense:
        raise BadInput(f"{name}: is not contiguous (shape {list(sizes)}); pass a contiguous copy")
    if any(size < 0 for size in sizes) or address < 0:
        raise BadInput(f"{name}: says that it has shape {list(sizes)} at address {address}; pass a whole array")
    if device not in ("cpu", "cuda"):
        raise BadInput(f"{name}: is on {device}; pass arrays of the CPU or of one CUDA device")
    if name in ("query", "out") and dtype == "uint16":  # the bits of BF16, for libraries that don't have it
        dtype = "bfloat16"
    nbytes = math.prod(sizes) * ITEM_BYTES.get(dtype, item_bytes)
    return TensorView(name, sizes, dtype, address, nbytes, device, number, array)


def sparse_call(arrays: dict[str, Any], scale: object) -> SparseCall:
    """The call on these arrays, given by name. Raises BadInput naming the tensor, what was found and what is needed."""
    views = {name: view(name, array) for name, array in arrays.items()}
    for name, tensor in views.items():
        dtype, shape = _NEEDED[name]
        if tensor.dtype != dtype or len(tensor.shape) != shape.count(",") + 1:
            raise BadInput(f"{name}: is {short(tensor.dtype)} {list(tensor.shape)}, must be {dtype} {shape}")
        if tensor.address % ITEM_BYTES[dtype]:
            raise BadInput(f"{name}: starts at address {tensor.address:#x}, must be a multiple of {ITEM_BYTES[dtype]}")
    call = SparseCall(**views, scale=scale_of(scale))
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
        try:
            return index(protocol()[1])
        except (TypeError, LookupError) as error:
            raise BadInput(
                f"stream: its __cuda_stream__ gives no pointer ({quoted(error)}); pass a whole one"
            ) from error
    raise BadInput(
        f"stream: is {type(stream).__name__}; pass the stream that you work on, such as torch.cuda.current_stream() or "
        "cupy.cuda.get_current_stream()"
    )
