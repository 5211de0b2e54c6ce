# SPDX-License-Identifier: MIT
"""The compiler itself, without a GPU: facts, errors, the worker process. Skipped where NVRTC is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from dsa_bench.jit import compiler, modules, worker
from dsa_bench.jit.target import TARGETS, Target
from dsa_bench.model.errors import BadInput, CannotMeasure, CompileFailed

SCALE = """#include "dsa/scale.cuh"
extern "C" __device__ const unsigned scale_smem_bytes = sizeof(Tile);
extern "C" __device__ const unsigned scale_threads = 128;
extern "C" __device__ const unsigned scale_zero = 0;
extern "C" __device__ const unsigned scale_wide_threads = 4294967295u;
extern "C" __global__ void __launch_bounds__(128) scale(float* x) {
  __shared__ float line[128];
  line[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = FACTOR * line[127 - threadIdx.x];
}
extern "C" __global__ void scale_wide(float* x) { *x = 0; }
"""
HEADER = """#pragma once
#include <cuda_bf16.h>
#ifndef FACTOR
#define FACTOR 2
#endif
struct Tile { __nv_bfloat16 values[64]; };
"""


def missing() -> str:
    try:
        compiler.toolchain()
    except CannotMeasure as error:
        return str(error)
    return ""


needs_nvrtc = pytest.mark.skipif(bool(missing()), reason=missing() or "installed")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSA_BENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "kernels"
    (folder / "dsa").mkdir(parents=True)
    (folder / "dsa/scale.cu").write_text(SCALE)
    (folder / "dsa/scale.cuh").write_text(HEADER)
    return folder


@needs_nvrtc
def test_every_target_has_its_facts(root: Path) -> None:
    rows = modules.resource_table(TARGETS, root)
    assert [(row.kernel, row.target) for row in rows[::2]] == [("scale", str(target)) for target in TARGETS]
    for row in rows[::2]:
        assert row.registers
        assert row.registers <= 32
        assert (row.static_smem_bytes, row.dynamic_smem_bytes, row.threads) == (512, 128, 128)
        assert (row.stack_bytes, row.spill_store_bytes, row.spill_load_bytes, row.reason) == (0, 0, 0, None)


@needs_nvrtc
def test_unreferenced_constants_survive_and_the_cache_answers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = modules.compile_modules(["dsa/scale"], Target(90, "a"), root=root)
    assert first.constants == {
        "scale_smem_bytes": 128,
        "scale_threads": 128,
        "scale_zero": 0,
        "scale_wide_threads": 2**32 - 1,
    }
    assert first.kernels["scale"].constants == {"smem_bytes": 128, "threads": 128, "zero": 0}
    assert first.kernels["scale_wide"].threads == 2**32 - 1
    assert first.kernel_hash == modules.module_hash("dsa/scale", root=root)
    monkeypatch.delattr(compiler, "compile_in_worker")
    assert modules.compile_modules(["dsa/scale"], Target(90, "a"), root=root) == [first]


@needs_nvrtc
def test_no_path_of_ours_is_in_the_code(root: Path, tmp_path: Path) -> None:
    (here,) = modules.compile_modules(["dsa/scale"], Target(80), root=root)
    (cached,) = (tmp_path / "cache").iterdir()
    cached.unlink()
    (there,) = modules.compile_modules(["dsa/scale"], Target(80), root=root.rename(tmp_path / "moved"))
    assert here.cubin == there.cubin
    assert str(tmp_path).encode() not in here.cubin


@needs_nvrtc
def test_defines_reach_the_kernel(root: Path) -> None:
    plain, tripled = (modules.compile_modules(["dsa/scale"], Target(80), d, root)[0] for d in (None, {"FACTOR": 3}))
    assert plain.cubin != tripled.cubin
    assert plain.kernel_hash != tripled.kernel_hash


@needs_nvrtc
@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "dsa/scale.cuh",
            "\n__device__ int f() { return undefined; }\n",
            r"dsa/scale\.cuh\(2\): error: identifier .undefined.",
        ),
        ("dsa/scale.cu", '#include "dsa/absent.cuh"\n', r"dsa/scale\.cu\(1\): catastrophic error: .*dsa/absent\.cuh"),
        (
            "dsa/scale.cu",
            '__global__ void f() { asm volatile("nonsense;"); }',
            r"ptxas application ptx input, line \d+; e",
        ),
        ("dsa/scale.cu", "__device__ int nothing();", r"no __global__"),
    ],
)
def test_the_first_error_is_one_line_with_its_place(root: Path, file: str, text: str, message: str) -> None:
    (root / file).write_text(text)
    with pytest.raises(CompileFailed, match=message) as failure:
        modules.compile_modules(["dsa/scale"], Target(80), root=root)
    assert "dsa/scale.cu" in str(failure.value)
    assert "\n" not in str(failure.value)


@needs_nvrtc
def test_a_failure_is_a_row_among_the_others(root: Path) -> None:
    (root / "bad.cu").write_text("?")
    bad, *good = modules.resource_table([Target(80)], root)
    assert (bad.module, bad.kernel, bad.registers) == ("bad", None, None)
    assert "bad.cu(1): error" in (bad.reason or "")
    assert [row.kernel for row in good] == ["scale", "scale_wide"]


@needs_nvrtc
def test_a_script_without_a_main_guard_compiles(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(modules.__file__).parents[2])!r})\n"
        "from pathlib import Path\nfrom dsa_bench.jit import modules, target\n"
        f"modules.compile_modules(['dsa/scale'], target.Target(80), root=Path({str(root)!r}))\nprint('once')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "once\n"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed with SIGSEGV; try another CUDA version"),
        ("import sys; print('lots\\nlast words', file=sys.stderr); sys.exit(3)", "last words"),
        ("import sys; sys.exit(3)", "ended with status 3"),
        ("import time; time.sleep(60)", "no end after 1 s"),
    ],
)
def test_a_dead_worker_is_a_message(root: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str) -> None:
    monkeypatch.setattr(compiler, "toolchain", lambda: compiler.Toolchain("13.0.88", Path("lib"), Path("include")))
    monkeypatch.setattr(compiler, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(worker, "_START", program)
    with pytest.raises(CompileFailed, match=rf"dsa/scale\.cu .* sm_90a with NVRTC 13\.0\.88.*{message}"):
        modules.compile_modules(["dsa/scale"], Target(90, "a"), root=root)


@pytest.mark.parametrize(("version", "asked"), [("12.8.93", False), ("12.9.41", True), ("13.0", True)])
def test_the_compilers_own_cache_is_not_asked(
    root: Path, monkeypatch: pytest.MonkeyPatch, version: str, asked: bool
) -> None:
    """Where an edit leaves a module's PTX as it was, NVRTC's cache (12.9 on) would give code without a report."""
    seen: list[worker.Request] = []

    def answer(request: worker.Request, timeout_s: float) -> worker.Reply:
        seen.append(request)
        return worker.Reply(None, "stop")

    monkeypatch.setattr(compiler, "toolchain", lambda: compiler.Toolchain(version, Path("lib"), Path("include")))
    monkeypatch.setattr(compiler, "compile_in_worker", answer)
    with pytest.raises(CompileFailed, match="stop"):
        modules.compile_modules(["dsa/scale"], Target(90, "a"), root=root)
    assert ("--no-cache" in seen[0].options) == asked


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ('k.cu(3): warning #177-D: variable "error" is: unused\n\nk.cu(9): error: real\n', "k.cu(9): error: real"),
        (
            "nvrtc: error: invalid value for --gpu-architecture (-arch)\n",
            "nvrtc: error: invalid value for --gpu-architecture (-arch)",
        ),
        ("ptxas fatal   : Ptx assembly aborted\n", "ptxas fatal   : Ptx assembly aborted"),
        ("NVRTC_ERROR_INTERNAL_ERROR", "NVRTC_ERROR_INTERNAL_ERROR"),
        ("", ""),
    ],
)
def test_first_error(log: str, line: str) -> None:
    assert compiler.first_error(log) == line


@needs_nvrtc
def test_a_target_that_the_compiler_does_not_know_is_bad_input_and_lists_those_it_does() -> None:
    compiler.refuse_unknown_targets([Target(90, "a"), Target(80)])
    with pytest.raises(BadInput, match=r"--target 99: NVRTC .* compiles for .*80, 86.*90"):
        compiler.refuse_unknown_targets([Target(90, "a"), Target(99)])
