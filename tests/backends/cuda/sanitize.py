# SPDX-License-Identifier: MIT
"""Every kernel once at each of its edges, on exact allocations: a program for compute-sanitizer, not a test.

`python tests/backends/cuda/sanitize.py [--tools memcheck ...] [--ops decode ...] [--kernels int8-digits ...]` runs the
tools over itself, all at once, prints one line for each and leaves with 1 if any of them reports an error. `--kernels`
keeps to some of decode's and prefill's kernels, `--small` to one list for all of these: racecheck needs a second and
more for a launch that waits at mbarriers. `--plain` runs the launches without a tool, with `--each-arrives` those of
kernels compiled as racecheck gets them (kernels/common/arrivals.cuh).
"""

import argparse
import functools
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from dense_runs import launch_dense

from dsa_bench.backends.cuda import backend as cuda
from dsa_bench.backends.cuda.backend import CudaBackend
from dsa_bench.backends.cuda.hyper import DeviceGate, DeviceMix, open_launcher
from dsa_bench.backends.cuda.memory import download_bf16, upload
from dsa_bench.backends.cuda.sparse import DeviceInputs, Paths
from dsa_bench.bench.check import compare, run_poisoned
from dsa_bench.data.hyper import gate_inputs, mix_inputs
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.hyper import LAUNCH_MODES, SIGMOIDS, GateShape, MixShape
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import DECODE_KERNELS, DIGITS, PREFILL_CHOICES, UNION, WS, DataSpec
from dsa_bench.model.shape import SparseShape, ceil_div
from dsa_bench.oracle import hyper as oracle
from dsa_bench.oracle.attention import reference
from dsa_bench.oracle.cases.catalog import PREFILL_CASES
from dsa_bench.splits.digits import ALL_HEADS, FEW_HEADS

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PREFILL = ("gather", *PREFILL_CHOICES)
KERNELS = tuple(dict.fromkeys((*PREFILL, *DECODE_KERNELS, "copy")))


class Cases(NamedTuple):
    """Of decode and prefill.

    candidates  entries of a list
    invalid     shares of these that are no candidate's
    heads       query heads and head size; prefill, whose head size is 256, takes those of `prefill_heads`
    """

    candidates: Sequence[int] = (1, 65, 509, 2112)
    invalid: Sequence[float] = (0.0, 0.4, 1.0)
    heads: Sequence[tuple[int, int]] = ((24, 256), (8, 256), (24, 40))
    prefill_heads: Sequence[int] = (24, 2, 32)


ALL = Cases()
SMALL = Cases((509,), (0.2,), ((24, 256),), (24,))
"""With more that is no candidate's, the first entries of neighbours would not look alike to `int8-union`."""


def launch_mix() -> int:
    """PreMix and ScaledSilu in both forms, at whole and broken CTAs, and the comparison of the sigmoids."""
    launcher = open_launcher("mix")
    checked = 0
    for shape, form in itertools.product((MixShape(1, 8, rank=8), MixShape(3), MixShape(13, 520, rank=1032)), SIGMOIDS):
        inputs = mix_inputs(shape)
        tensors = DeviceMix.upload(inputs)
        launcher.pre_mix(form, shape, tensors).enqueue()
        launcher.scaled_silu(form, shape, tensors).enqueue()
        launcher.stream.synchronize()
        rows = oracle.checked_rows(shape.rows)
        for out, judged in ((tensors.mixed, oracle.mixed), (tensors.activated, oracle.activated)):
            expected, bound = judged(inputs, rows)
            assert (np.abs(download_bf16(out)[rows].astype(np.float64) - expected.out) <= bound).all(), shape.key
            checked += 1
    for reads in (1, 8):  # broken CTAs of either copy
        source = np.random.default_rng(0).integers(0, 2**32, (reads, 4 * 300), np.uint32)
        target = upload(np.zeros(4 * 300, np.uint32))
        launcher.copy(upload(source), target).enqueue()
        launcher.stream.synchronize()
        assert np.array_equal(target.get(), np.bitwise_xor.reduce(source))
        checked += 1
    count, lowest = upload(np.zeros(1, np.uint64)), upload(np.full(1, 2**32 - 1, np.uint32))
    launcher.sigmoid_differences(0x3F000000, 100_000, count, lowest).enqueue()
    launcher.stream.synchronize()
    assert int(count.get()[0]) == 0
    return checked + 1


def launch_gate() -> int:
    """gate-mul and both projections in every launch mode, at whole and broken tiles of rows and outputs."""
    launcher = open_launcher("gate")
    shapes = (GateShape(1), GateShape(5, rank=8), GateShape(8), GateShape(129, 96, 160, 168), GateShape(9, 32, 32, 8))
    checked = 0
    for shape, mode in itertools.product(shapes, LAUNCH_MODES):
        inputs = gate_inputs(shape)
        tensors = DeviceGate.upload(inputs)
        for launch in launcher.pair(mode, shape, tensors):
            launch.enqueue()
        launcher.stream.synchronize()
        x, rows = download_bf16(tensors.x), oracle.checked_rows(shape.rows)
        expected, bound = oracle.projected(x, inputs.weight, rows)
        found = download_bf16(tensors.out)[rows].astype(np.float64)
        assert (np.abs(found - expected.out) <= bound).all(), f"{shape.key}, {mode}"
        checked += 1
    return checked


def launch_moves(backend: CudaBackend) -> int:
    """`int8-union` where its references move behind the first tile."""
    settings = [setting for setting in PREFILL_CASES["neighbour-sinks"].settings if "fourth tile, 16" in setting.label]
    assert len(settings) == 2
    for setting in settings:
        inputs = setting.build()
        plan, buffers = backend.geometry.plan(UNION, inputs.shape, None), backend.load(inputs, "warm")
        assert buffers.paths(plan) == {"union": inputs.shape.row_heads, "two": 0, "four": 0, "single": 0}, setting.label
        oracle = reference(inputs)
        bound = backend.bound(UNION, inputs, oracle.rows, oracle.out)
        outcome = compare(run_poisoned(buffers.launcher(plan), buffers), oracle.out, bound, oracle.rows)
        assert outcome.status == "ok", f"{setting.label}: {outcome.reason}"
    return len(settings)


def launch_prefill(backend: CudaBackend, kernels: Sequence[str], cases: Cases) -> int:
    """Prefill with these kernels, on lists with and without whole tiles of invalid entries, and every path; for
    `int8-union` also 9 rows that share most candidates, of which it must have taken 8 together once, and sinks."""
    checked, united = 0, 0
    several = (3, 9) if UNION in kernels else (3,)
    for candidates, query_heads, invalid, rows in itertools.product(
        cases.candidates, cases.prefill_heads, cases.invalid, several
    ):
        shape = SparseShape(rows, candidates + 70, candidates, query_heads, 2, op="prefill")
        selection = "overlap:0.95" if rows == 9 else "sorted"
        inputs = sparse_inputs(shape, DataSpec(seed=candidates, invalid_fraction=invalid, selection=selection))
        inputs.selected[1, candidates // 4 : candidates // 2] = -1
        oracle = reference(inputs)
        buffers = backend.load(inputs, "warm")
        plans = [backend.geometry.plan(kernel, shape, None) for kernel in PREFILL if kernel in kernels]
        plans += [replace(plan, ctas=10**6) for plan in plans if plan.kernel == WS]  # its function for many CTAs
        for plan in plans:
            if plan.kernel == "gather":
                buffers.launcher(plan)(0)
                backend.synchronize()
                continue
            out = run_poisoned(buffers.launcher(plan), buffers)
            bound = backend.bound(plan.kernel, inputs, oracle.rows, oracle.out)
            outcome = compare(out, oracle.out, bound, oracle.rows)
            assert outcome.status == "ok", f"{shape.key}, {plan.kernel}: {outcome.reason}"
            checked += 1
        for plan in plans:
            for forced in range(len(backend.path_names(plan.kernel))):
                taken = buffers.paths(plan, forced) or {}
                united = max(united, taken.get("union", 0) // shape.kv_heads)
                checked += 1
    if UNION in kernels and backend.device.compute_capability == "9.0":
        assert united == 8, f"int8-union took {united} of 9 rows together"
        checked += launch_moves(backend)
    tail = sparse_inputs(
        SparseShape(3, 700, 509, op="prefill"), DataSpec(seed=2, query_std=5.6, value_scale_multiplier=1.2e7)
    )
    for kernel in {"int8-tc", WS, UNION}.intersection(kernels):
        taken = backend.load(tail, "warm").paths(backend.geometry.plan(kernel, tail.shape, None))
        assert taken is not None
        assert taken["single"], f"no CTA of {kernel} met a tail"
        checked += 1
    return checked


def digit_plans(backend: CudaBackend, shape: SparseShape) -> list[VariantPlan]:
    """Geometries of `int8-digits`: its own, others in clusters with few and all heads, and others without."""
    plans = [backend.geometry.plan(DIGITS, shape, None)]
    clustered = itertools.product((FEW_HEADS, ALL_HEADS), (16, 8, 6), (True,)) if backend.clusters else ()
    for heads, splits, cluster in (*clustered, *((ALL_HEADS, splits, False) for splits in (1, 3, 9, 17))):
        ctas = shape.row_heads * ceil_div(shape.group, heads) * splits
        plans.append(VariantPlan(DIGITS, (), SplitPlan(shape.tiles, splits), ctas, heads=heads, clustered=cluster))
    return plans


def launch_decode(backend: CudaBackend, kernels: Sequence[str], cases: Cases) -> int:
    """Decode with these kernels and every split."""
    checked = 0
    for candidates, (query_heads, head_size), invalid in itertools.product(
        cases.candidates, cases.heads, cases.invalid
    ):
        shape = SparseShape(2, candidates + 70, candidates, query_heads, 2, head_size)
        inputs = sparse_inputs(shape, DataSpec(seed=candidates, invalid_fraction=invalid))
        oracle = reference(inputs)
        buffers = backend.load(inputs, "warm")
        for kernel, splits in itertools.product(("previous", "int8-tc"), {1, 3, shape.tiles}):
            if kernel not in kernels or (kernel == "int8-tc" and head_size != 256):
                continue
            requested = (1,) if kernel == "int8-tc" else ()
            plan = VariantPlan(kernel, requested, SplitPlan(shape.tiles, splits), shape.row_heads * splits)
            out = run_poisoned(buffers.launcher(plan), buffers)
            outcome = compare(out, oracle.out, backend.bound(kernel, inputs, oracle.rows, oracle.out), oracle.rows)
            assert outcome.status == "ok", f"{shape.key}, {kernel}, {splits} splits: {outcome.reason}"
            checked += 1
        for plan in digit_plans(backend, shape) if head_size == 256 and DIGITS in kernels else ():
            out = run_poisoned(buffers.launcher(plan), buffers)
            outcome = compare(out, oracle.out, backend.bound(DIGITS, inputs, oracle.rows, oracle.out), oracle.rows)
            assert outcome.status == "ok", f"{shape.key}, {plan}: {outcome.reason}"
            for forced in range(2):
                out = upload(np.zeros(inputs.query.shape, np.uint16))
                (call,) = backend.calls(plan, inputs, [DeviceInputs.upload(inputs)], out, Paths(forced))
                for launch in call:
                    launch.enqueue()
                backend.synchronize()
                checked += 1
        for forced in range(3) if head_size == 256 and "int8-tc" in kernels else ():
            buffers.paths(VariantPlan("int8-tc", (1,), SplitPlan(shape.tiles, 2), shape.row_heads * 2), forced)
            checked += 1
        for kernel in {"gather", "copy"}.intersection(kernels) if head_size == 256 else ():
            buffers.launcher(backend.geometry.plan(kernel, shape, 1 if kernel == "gather" else None))(0)
            backend.synchronize()
        assert np.isfinite(oracle.out).all()
    return checked


OPERATORS: dict[str, Callable[[Sequence[str], Cases], int]] = {
    "decode": lambda kernels, cases: launch_decode(CudaBackend(), kernels, cases),
    "prefill": lambda kernels, cases: launch_prefill(CudaBackend("prefill"), kernels, cases),
    "dense": lambda *_: launch_dense(CudaBackend()),
    "mix": lambda *_: launch_mix(),
    "gate": lambda *_: launch_gate(),
}
"""What launches the kernels of an operator; gives the number of checked launches."""


def let_each_arrive() -> None:
    """Compile the kernels for racecheck (kernels/common/arrivals.cuh)."""
    cuda.compile_each = functools.partial(cuda.compile_each, defines={"EACH_ARRIVES": 1})


def sanitize(tool: str, ops: Sequence[str], kernels: Sequence[str], small: bool) -> bool:
    """Run one tool over this program; whether it found nothing."""
    command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--print-limit", "8"]
    program = [sys.executable, __file__, "--plain", "--ops", *ops, "--kernels", *kernels]
    program += ["--small"] if small else []
    program += ["--each-arrives"] if tool == "racecheck" else []
    done = subprocess.run([*command, *program], capture_output=True, text=True, check=False)
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", done.stdout)
    launched = re.search(r"^\d+ launches checked$", done.stdout, re.MULTILINE)
    clean = (
        done.returncode == 0 and bool(launched and summary) and bool(re.search(r": 0 (errors|hazards)", summary[-1]))
    )
    launched_by = ", ".join((*ops, *(() if set(kernels) == set(KERNELS) else kernels)))
    launched_by += ", small" if small else ""
    said = f"{summary[-1] if summary else 'no summary'}, {launched[0] if launched else 'not finished'}"
    print(f"{tool:<10} {'clean' if clean else 'NOT CLEAN'}: {launched_by}: {said}", flush=True)
    if not clean:
        print(done.stdout[-4000:] + done.stderr[-2000:])
    return clean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--ops", nargs="+", choices=list(OPERATORS), default=list(OPERATORS))
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--each-arrives", action="store_true")
    options = parser.parse_args()
    if options.plain:
        if options.each_arrives:
            let_each_arrive()
        checked = sum(OPERATORS[op](options.kernels, SMALL if options.small else ALL) for op in options.ops)
        print(f"{checked} launches checked")
        return 0
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda tool: sanitize(tool, options.ops, options.kernels, options.small), options.tools)
        return int(not all(list(found)))


if __name__ == "__main__":
    sys.exit(main())
