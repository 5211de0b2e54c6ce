# SPDX-License-Identifier: MIT
"""One compilation in a process of its own, which NVRTC may take down. Request and reply are pickles on the pipes."""

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsa_bench.jit.optional import load

_START = "import sys; sys.path[:] = sys.argv[1:]; from dsa_bench.jit.worker import serve; serve()"


@dataclass(frozen=True, slots=True)
class Request:
    """A translation unit; its headers travel in memory, so no path of ours reaches the compiler."""

    name: str
    text: str
    headers: Mapping[str, str]
    options: Sequence[str]


@dataclass(frozen=True, slots=True)
class Reply:
    """The machine code, None where the compiler refused, and the compiler's log."""

    cubin: bytes | None
    log: str


@dataclass(frozen=True, slots=True)
class Death:
    """The worker ended without a reply: by a signal (negative status) or with an error."""

    status: int
    stderr: str


def compile_in_worker(request: Request, timeout_s: float) -> Reply | Death:
    """Run one request in a fresh interpreter. Not multiprocessing: that would run the user's main script again."""
    done = subprocess.run(
        [sys.executable, "-c", _START, *sys.path], input=pickle.dumps(request), capture_output=True, timeout=timeout_s
    )
    if done.returncode:
        return Death(done.returncode, done.stderr.decode(errors="replace").strip())
    return pickle.loads(done.stdout)


def serve() -> None:
    """The worker's side. Whatever else prints to stdout goes to stderr."""
    request: Request = pickle.load(sys.stdin.buffer)
    with os.fdopen(os.dup(1), "wb") as pipe:
        os.dup2(2, 1)
        pickle.dump(compile_here(request), pipe)


def compile_here(request: Request) -> Reply:
    """Compile with the NVRTC of this process."""
    nvrtc = load("cuda.bindings.nvrtc")

    def call(function: Any, *args: Any) -> Any:
        status, *values = function(*args)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"{function.__name__}: {status.name}")
        return values[0] if values else None

    def read(size: Any, fill: Any) -> bytes:
        buffer = bytes(call(size, program))
        call(fill, program, buffer)
        return buffer

    texts = [text.encode() for text in request.headers.values()]
    names = [name.encode() for name in request.headers]
    program = call(nvrtc.nvrtcCreateProgram, request.text.encode(), request.name.encode(), len(names), texts, names)
    options = [option.encode() for option in request.options]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0 \n").decode(errors="replace")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return Reply(None, log or status.name)
    return Reply(read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), log)
