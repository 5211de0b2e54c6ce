# SPDX-License-Identifier: MIT
"""Compiled modules in the current device's context."""

from dataclasses import dataclass
from typing import Any

from dsa_bench.jit.compiler import cuda_version
from dsa_bench.jit.modules import CompiledModule
from dsa_bench.jit.optional import load
from dsa_bench.model.errors import CannotMeasure

_NO_KERNEL_IMAGE = 209
_UNSUPPORTED_PTX = 222
_ADVICE = {
    _NO_KERNEL_IMAGE: "compile for the device's own architecture",
    _UNSUPPORTED_PTX: "install a newer driver, or the dsa-bench extra of the driver's CUDA version",
}

_loaded: list[Any] = []
"""Every module, for the life of the process. CUPTI knows a kernel by its handle, and the driver gives the handles of an
unloaded module to the next: its kernels would be recorded under the names of kernels that are gone."""


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """A module on a device, which stays there until the process ends."""

    compiled: CompiledModule
    module: Any

    def function(self, kernel: str) -> Any:
        """CuPy's function of one kernel; its `ptr` is the driver's CUfunction."""
        return self.module.get_function(kernel)


def load_module(compiled: CompiledModule) -> LoadedModule:
    """Load a module from memory. What the driver refuses is CannotMeasure, naming driver, run time and compiler."""
    cupy = load("cupy")
    module = cupy.cuda.Module()
    try:
        module.load(compiled.cubin)
    except RuntimeError as error:
        if (status := getattr(error, "status", None)) is None:  # CuPy's driver and run-time errors have one
            raise
        runtime = cupy.cuda.runtime
        raise CannotMeasure(
            f"the driver refused {compiled.name} for {compiled.target.sm} ({error}): driver for CUDA "
            f"{cuda_version(runtime.driverGetVersion())}, run time {cuda_version(runtime.runtimeGetVersion())}, "
            f"compiler {compiled.compiler}; {_ADVICE.get(status, 'see dsa-bench env')}"
        ) from error
    _loaded.append(module)
    return LoadedModule(compiled, module)
