# SPDX-License-Identifier: MIT
"""Whether a GPU can be used here, found out without raising."""

import ctypes
import importlib.util


def missing_gpu() -> str | None:
    """What is missing for the GPU backend and what brings it; None where nothing is.

    Loads the driver library, and only that: a process that has not asked for a GPU never gets here.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1) was found; install the driver, then pip install 'dsa-bench[cuda13]'"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver sees no device; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    absent = [name for name in ("cupy", "cuda") if importlib.util.find_spec(name) is None]
    if absent:
        return (
            f"the Python packages of the GPU backend are missing ({', '.join(absent)}); pip install 'dsa-bench[cuda13]'"
        )
    return None
