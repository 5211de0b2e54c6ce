# SPDX-License-Identifier: MIT
"""NVRTC: which compiler and headers there are, and one module compiled for one target."""

import functools
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsa_bench.jit.optional import install_hint, load
from dsa_bench.jit.sources import Sources
from dsa_bench.jit.target import Target
from dsa_bench.jit.worker import Death, Request, compile_in_worker
from dsa_bench.model.errors import BadInput, CannotMeasure, CompileFailed

FLAGS = ("--std=c++17", "--ptxas-options=-v")
"""Options of every compilation. -v reports the resources; it changes the bytes of the CUBIN, so it is always on."""

CACHES_SINCE = (12, 9)
"""NVRTC from which it keeps a cache of its own. What it takes from there comes without a report of the resources."""
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The compiler that was loaded and the headers of the same CUDA version."""

    version: str
    library: Path
    include: Path

    @property
    def release(self) -> tuple[int, int]:
        """(13, 0) of "13.0.88"."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class Binary:
    """Machine code, the compiler's log and the name of the source."""

    source: str
    log: str
    cubin: bytes


@functools.cache
def toolchain() -> Toolchain:
    """Find compiler and headers without a driver. A part that is missing, or two CUDA versions, is CannotMeasure."""
    pathfinder, nvrtc = load("cuda.pathfinder"), load("cuda.bindings.nvrtc")
    try:
        library = Path(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path)
        _, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:  # DynamicLibNotFoundError is one
        raise CannotMeasure(
            f"the CUDA run-time compiler (nvidia-cuda-nvrtc) is missing: {install_hint('cuda')}"
        ) from error
    found = f"the compiler is NVRTC {major}.{minor} ({library})"
    package = "nvidia-cuda-runtime-cu12" if major == 12 else "nvidia-cuda-runtime"
    remedy = f"pip install '{package}=={major}.{minor}.*'"
    include = _header_folder(pathfinder)
    if include is None:
        raise CannotMeasure(f"{found}, but the CUDA headers are missing: {remedy}")
    if (headers := _header_version(include)) != f"{major}.{minor}":
        raise CannotMeasure(f"{found}, but the headers are CUDA {headers} ({include}): {remedy}")
    return Toolchain(_wheel_version(library, f"{major}.{minor}"), library, include)


def compiler_version() -> str:
    """Version of the loaded NVRTC, "13.0.88" from a wheel or "13.0" from elsewhere."""
    return toolchain().version


def refuse_unknown_targets(targets: Sequence[Target]) -> None:
    """Raises BadInput for an architecture that this NVRTC cannot compile for, listing those that it can."""
    nvrtc = load("cuda.bindings.nvrtc")
    version = compiler_version()
    _, count = nvrtc.nvrtcGetNumSupportedArchs()
    _, numbers = nvrtc.nvrtcGetSupportedArchs()
    known = sorted(numbers[:count])
    for target in targets:
        if target.number not in known:
            raise BadInput(f"--target {target}: NVRTC {version} compiles for {', '.join(map(str, known))}")


def compile_sources(sources: Sources, target: Target, defines: Mapping[str, int | str]) -> Binary:
    """Compile one module in a worker process. CompileFailed carries the compiler's first error on one line."""
    tools = toolchain()
    options = [
        f"--gpu-architecture={target.sm}",
        *FLAGS,
        *(["--no-cache"] if tools.release >= CACHES_SINCE else []),
        f"--include-path={tools.include}",
        *(f"--define-macro={name}={value}" for name, value in sorted(defines.items())),
    ]
    where = f"{sources.name} does not compile for {target.sm} with NVRTC {tools.version}"
    try:
        reply = compile_in_worker(Request(sources.name, sources.text, sources.headers, options), TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise CompileFailed(f"{where}: no end after {TIMEOUT_S:.0f} s") from error
    if isinstance(reply, Death):
        raise CompileFailed(f"{where}: {_cause(reply)}")
    if reply.cubin is None:
        raise CompileFailed(f"{where}: {first_error(reply.log)}")
    return Binary(sources.name, reply.log, reply.cubin)


def first_error(log: str) -> str:
    """The first error line of NVRTC or ptxas ("dsa/merge.cu(2): error: ..."), else the first line."""
    match = re.search(r"^(?:[^\n]*[:;] |ptxas )(?:catastrophic )?(?:error|fatal)\b[^:\n]*:.*$", log, re.MULTILINE)
    return (match[0] if match else log.strip().partition("\n")[0]).strip()


def _cause(death: Death) -> str:
    if death.status < 0:
        return f"the compiler crashed with {signal.Signals(-death.status).name}; try another CUDA version"
    return death.stderr.rpartition("\n")[2] or f"the compiler's process ended with status {death.status}"


def _header_folder(pathfinder: Any) -> Path | None:
    folder = pathfinder.find_nvidia_header_directory("cudart")
    return Path(folder) if folder and (Path(folder) / "cuda.h").is_file() else None


def _header_version(include: Path) -> str:
    match = re.search(r"^#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text(errors="replace"), re.MULTILINE)
    return cuda_version(int(match[1])) if match else "of unknown version"


def cuda_version(number: int) -> str:
    """13000 -> "13.0", the way CUDA numbers drivers, run times and headers; 0 where there is none."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else "none"


def _wheel_version(library: Path, loaded: str) -> str:
    """The loaded version, made exact by the metadata of the wheel that the library lies in, if it is one."""
    for folder in library.parents:
        for info in folder.glob("nvidia_cuda_nvrtc*.dist-info"):
            version = info.name.removesuffix(".dist-info").rpartition("-")[2]
            if version.startswith(f"{loaded}."):
                return version
    return loaded
