# SPDX-License-Identifier: MIT
"""Kernel launches whose configuration and argument table are built once: enqueueing one is a single driver call."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.base import Launch, ReadyCall
from dsa_bench.jit.load import LoadedModule
from dsa_bench.jit.optional import load
from dsa_bench.model.errors import BadInput, CannotMeasure, VariantRefused

PORTABLE_CLUSTER = 8
"""CTAs of a cluster that every device with clusters takes."""

Argument = Any
"""A NumPy scalar of the parameter's type, or a device array, passed as its pointer."""


class Kernel:
    """One kernel of a loaded module, its shared memory limit raised to what a launch takes.

    pad_smem  bytes that each launch takes beyond what the module publishes
    Raises BadInput if a block of the device has less shared memory.
    """

    def __init__(self, module: LoadedModule, name: str, pad_smem: int = 0) -> None:
        self._driver = load("cuda.bindings.driver")
        self._owner = module.function(name)  # keeps the module loaded
        self.name = name
        self.facts = module.compiled.kernels[name]
        self.function = self._driver.CUfunction(self._owner.ptr)
        self.dynamic_smem_bytes = self.facts.dynamic_smem_bytes + pad_smem
        if pad_smem:
            self._refuse_beyond_block(pad_smem)
        limit = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.check(self._driver.cuFuncSetAttribute(self.function, limit, self.dynamic_smem_bytes))
        if self.facts.constants.get("max_cluster", 0) > PORTABLE_CLUSTER:
            larger = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            self.check(self._driver.cuFuncSetAttribute(self.function, larger, 1))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.facts.constants["threads"]

    def ptx_target(self) -> int:
        """The PTX target that the loaded code was compiled for, 10 x major + minor."""
        attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PTX_VERSION
        return int(self.check(self._driver.cuFuncGetAttribute(attribute, self.function)))

    def resident_ctas(self) -> int:
        """CTAs that one multiprocessor holds at once, as the driver counts."""
        return self.check(
            self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                self.function, self.threads, self.dynamic_smem_bytes
            )
        )

    def active_clusters(self, size: int) -> int:
        """Clusters of `size` CTAs that the device holds at once, as the driver counts."""
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = size, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.threads, 1, 1
        config.sharedMemBytes = self.dynamic_smem_bytes
        config.attrs = [cluster_attribute(self._driver, size)]
        config.numAttrs = 1
        return int(self.check(self._driver.cuOccupancyMaxActiveClusters(self.function, config)))

    def _refuse_beyond_block(self, pad_smem: int) -> None:
        """A block's shared memory is static and dynamic together, up to what the device lets a kernel opt in to."""
        attribute = self._driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        most = self.check(self._driver.cuDeviceGetAttribute(attribute, self.check(self._driver.cuCtxGetDevice())))
        room = most - self.facts.static_smem_bytes - self.facts.dynamic_smem_bytes
        if pad_smem > room:
            raise BadInput(
                f"--pad-smem {pad_smem}: {self.name} then needs {most - room + pad_smem} bytes of shared memory, and a "
                f"block of this device has {most}; ask for at most {room}"
            )

    def check(self, result: tuple[Any, ...]) -> Any:
        """The value of a driver call. CannotMeasure naming the kernel and the driver's error."""
        status, *values = result
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise CannotMeasure(f"{self.name}: {status.name}; see dsa-bench env")
        return values[0] if values else None


class KernelLaunch:
    """A kernel with its grid and arguments on one stream. With `dependent`, it may start before the kernel ahead of it
    ends (programmatic dependent launch); it must then wait for that kernel itself. With `cluster`, so many CTAs that
    follow each other in x are one. With `cooperative`, all CTAs run at the same time, or the driver refuses the launch.
    With `smem_bytes`, it takes so much of its dynamic shared memory.

    name, ctas, threads  the kernel's name, its thread blocks, and the threads of one
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        arguments: Sequence[Argument],
        stream: Any,
        *,
        dependent: bool = False,
        cluster: int = 0,
        cooperative: bool = False,
        smem_bytes: int | None = None,
    ) -> None:
        driver = load("cuda.bindings.driver")
        self._kernel = kernel
        self.name = kernel.name
        self.threads = kernel.threads
        self.ctas = grid[0] * grid[1] * grid[2]
        self._arguments = list(arguments)  # keeps device memory alive
        self._values = [_parameter(argument) for argument in arguments]
        self._table = np.array([value.ctypes.data for value in self._values], np.uintp)
        self._config = driver.CUlaunchConfig()
        self._config.gridDimX, self._config.gridDimY, self._config.gridDimZ = grid
        self._config.blockDimX, self._config.blockDimY, self._config.blockDimZ = kernel.threads, 1, 1
        self._config.sharedMemBytes = kernel.dynamic_smem_bytes if smem_bytes is None else smem_bytes
        self._config.hStream = stream.ptr
        attributes: list[Any] = []
        if dependent:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if cluster:
            attributes.append(cluster_attribute(driver, cluster))
        if cooperative:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        self._config.attrs = attributes
        self._config.numAttrs = len(attributes)
        self._launch = driver.cuLaunchKernelEx
        self._address = int(self._table.ctypes.data)
        self._success = driver.CUresult.CUDA_SUCCESS

    def enqueue(self) -> None:
        """Enqueue; allocates and waits for nothing. VariantRefused if the driver does not take the launch."""
        (status,) = self._launch(self._config, self._kernel.function, self._address, 0)
        if status != self._success:
            raise VariantRefused(f"{self._kernel.name}: the driver refused the launch ({status.name})")


def cluster_attribute(driver: Any, size: int) -> Any:
    """The launch attribute that makes clusters of `size` CTAs in x."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = size, 1, 1
    return attribute


def rotating(calls: Sequence[Sequence[KernelLaunch]]) -> Launch:
    """Enqueues the launches of one call after another, each over another copy of the tensors, from the first again."""

    def launch(call: int) -> None:
        for kernel in calls[call % len(calls)]:
            kernel.enqueue()

    return launch


def ready_call(
    copies: Sequence[Sequence[KernelLaunch]], ctas: int, facts: Mapping[str, float] | None = None
) -> ReadyCall:
    """A call that rotates through copies of its tensors."""
    return ReadyCall(rotating(copies), ctas, tuple(kernel.name for kernel in copies[0]), len(copies), facts or {})


def wait_for(stream: Any) -> None:
    """Wait for a stream. CannotMeasure if a kernel failed: nothing on the device can be used after that."""
    runtime = load("cupy").cuda.runtime
    try:
        stream.synchronize()
    except runtime.CUDARuntimeError as error:
        raise CannotMeasure(f"a kernel failed on the device ({error}); compute-sanitizer can say where") from error


def _parameter(argument: Argument) -> NDArray[Any]:
    """The parameter's value in host memory, where the driver reads it."""
    return np.array(argument.data.ptr if hasattr(argument.data, "ptr") else argument)
