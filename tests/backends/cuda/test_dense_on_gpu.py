# SPDX-License-Identifier: MIT
"""The dense line on a GPU: right for both masks, captured like any launch, timed as a whole, recorded by name."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dsa_bench.bench.gpu_timers import CuptiTimer, EventsTimer, VisitGraphs
from dsa_bench.bench.profilers import open_profiler
from dsa_bench.bench.variant import Checked, Variant
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.sdpa import dense_bound, dense_reference
from dsa_bench.sweep.dense_line import choose_dense

pytestmark = pytest.mark.gpu

SQUARE = SparseShape(512, 512, 64, op="prefill")
ENDS_THE_CONTEXT = SparseShape(64, 512, 64, op="prefill")
BOTH = pytest.mark.parametrize("shape", [SQUARE, ENDS_THE_CONTEXT], ids=["square", "ends the context"])


@pytest.fixture(scope="module")
def profiler(backend: Any) -> Any:
    """Opened before torch is imported, as the command does."""
    return open_profiler()


@pytest.fixture(scope="module")
def dense(backend: Any, profiler: Any) -> Any:
    pytest.importorskip("torch")
    from dsa_bench.backends.cuda.torch_sdpa import TorchDense

    return TorchDense(backend.stream)


@BOTH
def test_every_implementation_that_runs_is_right(dense: Any, shape: SparseShape) -> None:
    inputs = sparse_inputs(shape, DataSpec())
    oracle = dense_reference(inputs)
    bound = dense_bound(inputs, oracle)
    buffers = dense.load(inputs)
    ran: list[str] = []
    for implementation in buffers.implementations:
        try:
            launch = buffers.launcher(implementation)
        except VariantRefused as refusal:
            print(refusal)
            continue
        launch(0)
        off = np.abs(buffers.output()[oracle.rows].astype(np.float64) - oracle.out)
        assert (off <= bound).all(), implementation
        ran.append(implementation)
    buffers.close()
    print(f"{shape.key}: {', '.join(ran)}")
    assert {"flash", "math"} <= set(ran)


@BOTH
def test_a_captured_call_gives_the_bits_of_an_eager_one(backend: Any, dense: Any, shape: SparseShape) -> None:
    buffers = dense.load(sparse_inputs(shape, DataSpec()))
    for implementation in ("cudnn", "flash"):
        try:
            launch = buffers.launcher(implementation)
        except VariantRefused:
            continue
        launch(0)
        eager = buffers.output().view(np.uint16)
        graph = VisitGraphs(backend.stream).graph(Variant(implementation, launch, lambda: Checked("ok"), None), 3)
        with dense._on_stream():  # torch lets only inference mode write to what it made
            buffers._out.zero_()
        graph.launch(backend.stream)
        backend.synchronize()
        assert np.array_equal(buffers.output().view(np.uint16), eager), implementation
    buffers.close()


@pytest.mark.timing
def test_cupti_counts_all_kernels_of_a_call_and_agrees_with_events(backend: Any, dense: Any, profiler: Any) -> None:
    shape = SparseShape(2048, 2048, 64, op="prefill")
    buffers = dense.load(sparse_inputs(shape, DataSpec()))
    cupti = CuptiTimer(profiler, backend.stream, backend.synchronize)
    line = choose_dense(sparse_inputs(shape, DataSpec()), buffers, cupti)
    assert line.launch is not None, line.outcome.reason
    variant = Variant(line.name, line.launch, lambda: line.outcome, None)
    events = EventsTimer(backend.stream, backend.synchronize)
    one = cupti.time(variant, 1)
    by_cupti = np.median([cupti.time(variant, 10).call_us for _ in range(5)])
    by_events = np.median([events.time(variant, 10).call_us for _ in range(5)])
    print(line.name, one, by_cupti, by_events, cupti._activities)
    assert by_cupti == pytest.approx(by_events, rel=0.1)
    assert one.attention_us <= one.call_us
    cupti.forget()
    events.forget()
    buffers.close()


@pytest.mark.parametrize("timer", ["cupti", "events"])
def test_a_prefill_table_has_a_dense_line(backend: Any, dense: Any, root: Any, timer: str) -> None:
    """In a process of its own, as a user runs it: the timer first, then torch."""
    line = ("prefill", "--rows", "64", "512", "--context", "512", "--candidates", "64", "--rounds", "6",
            "--backend", "cuda", "--timer", timer, "--format", "json", "--dense")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "dsa_bench", *line], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout)["rows"] if row["kernel"] == "dense"]
    assert [row["rows"] for row in rows] == [64, 512]
    assert {row["status"] for row in rows} == {"ok"}, done.stderr
    assert all(row["variant"].startswith("dense/") and row["time_us"] > 0 for row in rows)
