# SPDX-License-Identifier: MIT
"""Device memory: one exact allocation for each tensor, so that a read past its end is a fault and not a neighbour."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsa_bench.jit.optional import load
from dsa_bench.model.errors import OutOfDeviceMemory
from dsa_bench.model.inputs import BF16

Device = Any
"""A CuPy array. BF16 tensors are held as uint16, the type that CuPy has."""
NULL = np.uint64(0)
"""A null pointer, as an argument of a kernel."""


def allocate(shape: tuple[int, ...], dtype: Any) -> Device:
    """An uninitialised device array of its own cudaMalloc. OutOfDeviceMemory if it is not there."""
    cupy = load("cupy")
    dtype = np.dtype(np.uint16) if dtype == BF16 else np.dtype(dtype)
    size = max(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, 1)
    try:
        memory = cupy.cuda.Memory(size)
    except (cupy.cuda.runtime.CUDARuntimeError, MemoryError) as error:
        free, total = cupy.cuda.runtime.memGetInfo()
        raise OutOfDeviceMemory(
            f"{size / 2**20:.0f} MiB of GPU memory are not there ({free / 2**20:.0f} of {total / 2**20:.0f} MiB free); "
            "free some, or ask for fewer rows, a shorter context or --l2 warm"
        ) from error
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def upload(host: NDArray[Any]) -> Device:
    """A device copy of a host array, there when this returns.

    A copy from pageable memory may return before it has reached the device, and launches on a non-blocking stream do
    not wait for the stream that it is on.
    """
    device = allocate(host.shape, host.dtype)
    overwrite(device, host)
    return device


def uploaded(host: NDArray[Any], copies: int) -> Device:
    """Copies of a tensor on the device, behind each other: [copies, ...]. There when this returns."""
    device = allocate((copies, *host.shape), host.dtype)
    for copy in range(copies):
        overwrite(device[copy], host)
    return device


def overwrite(device: Device, host: NDArray[Any]) -> None:
    """Give a device array the numbers of a host array; there when this returns."""
    device.set(np.ascontiguousarray(host.view(np.uint16) if host.dtype == BF16 else host))
    load("cupy").cuda.get_current_stream().synchronize()


def free_bytes() -> int:
    """Memory of the device that nobody holds."""
    free, _ = load("cupy").cuda.runtime.memGetInfo()
    return free


def download_bf16(device: Device) -> NDArray[np.generic]:
    """A host copy of a BF16 tensor."""
    return device.get().view(BF16)
