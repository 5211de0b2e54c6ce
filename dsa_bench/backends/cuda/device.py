# SPDX-License-Identifier: MIT
"""Facts of the GPU in use: the first one that CUDA_VISIBLE_DEVICES leaves."""

from dsa_bench.jit.compiler import compiler_version, cuda_version
from dsa_bench.jit.optional import load
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import CannotMeasure


def cuda_device() -> DeviceFacts:
    """Facts of device 0. CannotMeasure where a package is missing or the run time cannot use the device."""
    cupy = load("cupy")
    runtime = cupy.cuda.runtime
    try:
        properties = runtime.getDeviceProperties(0)
        return DeviceFacts(
            backend="cuda",
            name=properties["name"].decode(),
            sm_count=properties["multiProcessorCount"],
            compute_capability=f"{properties['major']}.{properties['minor']}",
            l2_bytes=properties["l2CacheSize"],
            memory_bytes=properties["totalGlobalMem"],
            driver=driver_version() or f"for CUDA {cuda_version(runtime.driverGetVersion())}",
            runtime=f"CUDA {cuda_version(runtime.runtimeGetVersion())}",
            compiler=compiler_version(),
        )
    except runtime.CUDARuntimeError as error:
        raise CannotMeasure(f"the CUDA run time cannot use the device ({error}); see dsa-bench env") from error


def smem_opt_in_bytes() -> int:
    """Shared memory that a block of device 0 may have at most, once its kernel has asked for it."""
    return _attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", "shared memory")


def warps_per_sm() -> int:
    """Warps that a multiprocessor of device 0 holds at most."""
    return _attribute("MAX_THREADS_PER_MULTIPROCESSOR", "threads") // 32


def _attribute(name: str, what: str) -> int:
    driver = load("cuda.bindings.driver")
    status, *value = driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), 0)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CannotMeasure(f"the driver does not tell the device's {what} ({status.name}); see dsa-bench env")
    return int(value[0])


def driver_version() -> str | None:
    """The driver's own version, such as 580.65.06; None where NVML is missing."""
    try:
        nvml = load("pynvml")
        nvml.nvmlInit()
        return str(nvml.nvmlSystemGetDriverVersion())
    except Exception:
        return None
