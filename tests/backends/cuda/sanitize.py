# SPDX-License-Identifier: MIT
"""Every kernel once at each of its edges, on exact allocations: a program for compute-sanitizer, not a test.

`python tests/backends/cuda/sanitize.py [memcheck racecheck initcheck synccheck]` runs the tools over itself, prints one
line for each and leaves with 1 if any of them reports an error. `--plain` runs the launches without a tool.
"""

import itertools
import re
import subprocess
import sys

import numpy as np
from dense_runs import launch_dense

from dsa_bench.backends.cuda.backend import CudaBackend
from dsa_bench.bench.check import compare, run_poisoned
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.attention import reference

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
CANDIDATES = (1, 65, 509, 2112)
HEADS = ((24, 256), (8, 256), (24, 40))


def launch_everything() -> int:
    """Every kernel of decode, prefill and dense decode; the number of launches whose result was checked."""
    decode = CudaBackend()
    return launch_decode(decode) + launch_prefill(CudaBackend("prefill")) + launch_dense(decode)


def launch_prefill(backend: CudaBackend) -> int:
    """Both kernels of prefill, on lists with and without whole tiles of invalid entries, and every path."""
    checked = 0
    for candidates, query_heads, invalid in itertools.product(CANDIDATES, (24, 2, 32), (0.0, 0.4, 1.0)):
        shape = SparseShape(3, candidates + 70, candidates, query_heads, 2, op="prefill")
        inputs = sparse_inputs(shape, DataSpec(seed=candidates, invalid_fraction=invalid))
        inputs.selected[1, candidates // 4 : candidates // 2] = -1
        oracle = reference(inputs)
        buffers = backend.load(inputs, "warm")
        for kernel in ("previous", "int8-tc", "gather"):
            plan = backend.geometry.plan(kernel, shape, None)
            if kernel == "gather":
                buffers.launcher(plan)(0)
                backend.synchronize()
                continue
            out = run_poisoned(buffers.launcher(plan), buffers)
            outcome = compare(out, oracle.out, backend.bound(kernel, inputs, oracle.rows, oracle.out), oracle.rows)
            assert outcome.status == "ok", f"{shape.key}, {kernel}: {outcome.reason}"
            checked += 1
        for forced in range(3):
            buffers.paths(backend.geometry.plan("int8-tc", shape, None), forced)
            checked += 1
    tail = sparse_inputs(
        SparseShape(3, 700, 509, op="prefill"), DataSpec(seed=2, query_std=5.6, value_scale_multiplier=1.2e7)
    )
    taken = backend.load(tail, "warm").paths(backend.geometry.plan("int8-tc", tail.shape, None))
    assert taken is not None
    assert taken["single"], "no CTA met a tail"
    return checked + 1


def launch_decode(backend: CudaBackend) -> int:
    """Decode with every kernel and split."""
    checked = 0
    for candidates, (query_heads, head_size), invalid in itertools.product(CANDIDATES, HEADS, (0.0, 0.4, 1.0)):
        shape = SparseShape(2, candidates + 70, candidates, query_heads, 2, head_size)
        inputs = sparse_inputs(shape, DataSpec(seed=candidates, invalid_fraction=invalid))
        oracle = reference(inputs)
        buffers = backend.load(inputs, "warm")
        for kernel, splits in itertools.product(("previous", "int8-tc"), {1, 3, shape.tiles}):
            if kernel == "int8-tc" and head_size != 256:
                continue
            requested = (1,) if kernel == "int8-tc" else ()
            plan = VariantPlan(kernel, requested, SplitPlan(shape.tiles, splits), shape.row_heads * splits)
            out = run_poisoned(buffers.launcher(plan), buffers)
            outcome = compare(out, oracle.out, backend.bound(kernel, inputs, oracle.rows, oracle.out), oracle.rows)
            assert outcome.status == "ok", f"{shape.key}, {kernel}, {splits} splits: {outcome.reason}"
            checked += 1
        for forced in range(3) if head_size == 256 else ():
            buffers.paths(VariantPlan("int8-tc", (1,), SplitPlan(shape.tiles, 2), shape.row_heads * 2), forced)
            checked += 1
        for kernel in ("gather", "copy") if head_size == 256 else ():
            buffers.launcher(backend.geometry.plan(kernel, shape, 1 if kernel == "gather" else None))(0)
            backend.synchronize()
        assert np.isfinite(oracle.out).all()
    return checked


def sanitize(tool: str) -> bool:
    """Run one tool over this program; whether it found nothing."""
    command = [
        "compute-sanitizer",
        "--tool",
        tool,
        "--report-api-errors",
        "no",
        "--print-limit",
        "3",
        sys.executable,
        __file__,
        "--plain",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", done.stdout)
    launched = re.search(r"^\d+ launches checked$", done.stdout, re.MULTILINE)
    clean = (
        done.returncode == 0 and bool(launched and summary) and bool(re.search(r": 0 (errors|hazards)", summary[-1]))
    )
    said = f"{summary[-1] if summary else 'no summary'}, {launched[0] if launched else 'not finished'}"
    print(f"{tool:<10} {'clean' if clean else 'NOT CLEAN'}: {said}", flush=True)
    if not clean:
        print(done.stdout[-4000:] + done.stderr[-2000:])
    return clean


if __name__ == "__main__":
    if sys.argv[1:] == ["--plain"]:
        print(f"{launch_everything()} launches checked")
    else:
        results = [sanitize(tool) for tool in sys.argv[1:] or TOOLS]
        sys.exit(not all(results))
