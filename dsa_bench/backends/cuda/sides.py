# SPDX-License-Identifier: MIT
"""Two folders of kernels on one GPU, compiled side by side and launched on one stream."""

from collections.abc import Sequence
from pathlib import Path

from dsa_bench.backends.cuda.backend import MODULES, CudaBackend
from dsa_bench.backends.cuda.device import cuda_device
from dsa_bench.backends.cuda.probe import missing_gpu
from dsa_bench.backends.sides import SidesBackend
from dsa_bench.jit.interface import interface_differences
from dsa_bench.jit.modules import CompiledModule, compile_each
from dsa_bench.jit.sources import module_names
from dsa_bench.jit.target import Target, device_target
from dsa_bench.model.errors import BadInput, CannotMeasure
from dsa_bench.model.request import CEILINGS
from dsa_bench.model.shape import Op
from dsa_bench.model.sides import SIDES


def open_sides(op: Op, folders: tuple[Path, Path]) -> SidesBackend:
    """Both folders' kernels of an operator on device 0.

    Raises CannotMeasure without a GPU, BadInput for kernels that cannot be launched as this installation's.
    """
    missing = missing_gpu()
    if missing is not None:
        raise CannotMeasure(f"ab: compiles CUDA kernels and measures them on a GPU: {missing}")
    refuse_other_interfaces(op, folders, device_target(cuda_device().compute_capability or ""))
    a = CudaBackend(op, folders[0])
    return SidesBackend(a, CudaBackend(op, folders[1], a.stream))


def refuse_other_interfaces(op: Op, folders: Sequence[Path], target: Target) -> None:
    """Raises BadInput naming the side, and what of its kernels differs from what the launch wrappers are written for.

    A module that does not compile is left to its variants, which say so.
    """
    modules = list(dict.fromkeys(module for of_kernel in MODULES[op].values() for module in of_kernel))
    for side, folder in zip(SIDES, folders, strict=True):
        absent = [module for module in modules if module not in module_names(folder)]
        if absent:
            raise BadInput(f"ab: side {side} has no {absent[0]}.cu, which {op} needs; name a tree that has it")
    modules = [module for kernel, needed in MODULES[op].items() if kernel not in CEILINGS for module in needed]
    modules = list(dict.fromkeys(modules))
    ours = compile_each(modules, target)
    for side, folder in zip(SIDES, folders, strict=True):
        theirs = compile_each(modules, target, root=folder)
        for module in modules:
            one, other = ours[module], theirs[module]
            if isinstance(one, CompiledModule) and isinstance(other, CompiledModule):
                differences = list(interface_differences(one, other))
                if differences:
                    raise BadInput(
                        f"ab: side {side} cannot be launched by this dsa-bench: {'; '.join(differences)}; "
                        "run the dsa-bench of a revision that fits both"
                    )
