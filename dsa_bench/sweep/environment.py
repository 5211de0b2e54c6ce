# SPDX-License-Identifier: MIT
"""What this machine can measure with, what is missing and how to get it."""

import platform
import re
from collections.abc import Callable
from pathlib import Path

import dsa_bench
from dsa_bench.backends.cpu.backend import cpu_device
from dsa_bench.backends.cuda.device import cuda_device
from dsa_bench.backends.cuda.probe import missing_gpu
from dsa_bench.bench.clocks import open_clocks, power_cap_w
from dsa_bench.bench.profilers import open_profiler
from dsa_bench.jit.cache import configured_folder
from dsa_bench.jit.compiler import toolchain
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.sweep.header import package_versions, source_revision

_CUDA_LIBRARY = re.compile(r"/(lib(?:cuda|cudart|nvrtc|cupti)[^/]*\.so[^/\s]*)$", re.MULTILINE)


def environment() -> dict[str, str | None]:
    """Facts by name, each as text; None for what does not apply here. Changes nothing and creates nothing."""
    cpu = cpu_device()
    missing = missing_gpu()
    on_gpu: dict[str, Callable[[], str]] = {"gpu": _gpu, "clocks": _clocks, "cupti": lambda: open_profiler().name}
    return {
        "dsa-bench": dsa_bench.__version__ + _revision(),
        "python": f"{platform.python_version()} on {platform.platform()}",
        "cpu": f"{cpu.name}, {cpu.sm_count} workers",
        **({name: _told(fact) for name, fact in on_gpu.items()} if missing is None else {"gpu": f"none: {missing}"}),
        "compiler": _told(_compiler),
        "cache": str(configured_folder() or "a temporary folder of this user; set DSA_BENCH_CACHE to keep one"),
        "packages": ", ".join(f"{name} {version}" for name, version in package_versions().items() if name != "python"),
        "loaded": ", ".join(_loaded_libraries()) or None,
    }


def _told(fact: Callable[[], str]) -> str:
    """A fact, or what keeps it from being known."""
    try:
        return fact()
    except CannotMeasure as error:
        return f"missing: {error}"


def _revision() -> str:
    commit, dirty = source_revision()
    return f" ({commit[:12]}{', modified' if dirty else ''})" if commit else ""


def _gpu() -> str:
    device = cuda_device()
    l2_mib = (device.l2_bytes or 0) >> 20
    return (
        f"{device.name}, compute capability {device.compute_capability}, {device.sm_count} SMs, L2 {l2_mib} MiB, "
        f"memory {(device.memory_bytes or 0) >> 30} GiB, driver {device.driver}, run time {device.runtime}"
    )


def _clocks() -> str:
    clocks = open_clocks()
    if clocks is None:
        raise CannotMeasure("NVML cannot be used; pip install nvidia-ml-py")
    now, cap_w = clocks(), power_cap_w()
    return (
        f"SM {now['sm_mhz']:.0f} MHz, memory {now['memory_mhz']:.0f} MHz now, "
        f"{now['power_w']:.0f} W{'' if cap_w is None else f' of {cap_w:.0f} W'}, {now['temperature_c']:.0f} C"
    )


def _compiler() -> str:
    found = toolchain()
    return f"NVRTC {found.version} ({found.library}), headers of the same version ({found.include})"


def _loaded_libraries() -> list[str]:
    """CUDA libraries in this process: two run times of different versions would show here."""
    maps = Path("/proc/self/maps")
    return sorted(set(_CUDA_LIBRARY.findall(maps.read_text()))) if maps.exists() else []
