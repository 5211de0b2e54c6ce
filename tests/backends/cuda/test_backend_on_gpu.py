# SPDX-License-Identifier: MIT
"""The GPU backend around the kernels: copies, graphs, timers, ceilings, memory, processes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda.memory import allocate
from dsa_bench.bench.check import run_poisoned
from dsa_bench.bench.gpu_timers import EventsTimer, VisitGraphs
from dsa_bench.bench.rounds import pilot
from dsa_bench.bench.select import open_timer
from dsa_bench.bench.variant import Checked, Variant
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.jit.optional import load
from dsa_bench.model.errors import BadInput, CannotMeasure
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape

pytestmark = [pytest.mark.gpu, pytest.mark.timing]

SHAPE = SparseShape(8, 8192, 2048)


def variant(backend: Any, buffers: Any, kernel: str) -> Variant:
    plan = backend.geometry.plan(kernel, SHAPE, 0 if kernel == "int8-tc" else None)
    return Variant(kernel, buffers.launcher(plan), lambda: Checked("ok"), backend.device_kernels(plan), buffers.copies)


def test_cupti_and_events_agree_on_a_stream_that_is_not_the_default(backend: Any) -> None:
    """B8, pytorch/helion#2994: events go on the launch stream."""
    buffers = backend.load(sparse_inputs(SHAPE, DataSpec()), "warm")
    cupti, said = open_timer("cupti", backend, "cuda")
    assert said is None
    events, _ = open_timer("events", backend, "cuda")
    assert backend.stream.ptr != 0
    for kernel in ("previous", "int8-tc"):
        measured = variant(backend, buffers, kernel)
        by_events = [events.time(measured, 200).call_us for _ in range(5)]
        by_cupti = [cupti.time(measured, 200).call_us for _ in range(5)]
        assert np.median(by_cupti) == pytest.approx(np.median(by_events), rel=0.1)


def test_padded_shared_memory_leaves_fewer_ctas_resident_and_the_result_as_it_is(backend: Any) -> None:
    """The slots follow the driver's occupancy with the padding, and so does the automatic rule."""
    from dsa_bench.backends.cuda.backend import CudaBackend

    inputs = sparse_inputs(SHAPE, DataSpec())
    plain = backend.load(inputs, "warm")
    plan = backend.geometry.plan("int8-tc", SHAPE, 4)
    expected = run_poisoned(plain.launcher(plan), plain)
    kernel = backend._kernels["decode_int8_tc"]
    properties = load("cupy").cuda.runtime.getDeviceProperties(0)
    most = properties["sharedMemPerBlockOptin"] - kernel.facts.static_smem_bytes - kernel.facts.dynamic_smem_bytes
    padded = CudaBackend(pad_smem=most, stream=backend.stream)
    assert padded.device.resident_ctas == padded.geometry.slots.resident == 1
    assert padded.geometry.slots.ctas == padded.device.sm_count
    assert (backend.device.resident_ctas or 0) > 1
    buffers = padded.load(inputs, "warm")
    assert np.array_equal(run_poisoned(buffers.launcher(plan), buffers).view(np.uint16), expected.view(np.uint16))
    with pytest.raises(BadInput, match=f"ask for at most {most}"):
        CudaBackend(pad_smem=most + 1, stream=backend.stream)


READ_BY = """
import statistics, sys
from dsa_bench.backends.cuda.backend import CudaBackend
from dsa_bench.bench import profilers
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape

backend = CudaBackend()
reader = getattr(profilers, sys.argv[1])()
inputs = sparse_inputs(SparseShape(1, 1024, 512), DataSpec())
launch = backend.load(inputs, "warm").launcher(backend.geometry.plan("int8-tc", inputs.shape, 1))

def work():
    for call in range(200):
        launch(call)
    backend.synchronize()

work()
seen = reader.record(work)
for name in sorted({one.name for one in seen}):
    times = [one.end_ns - one.start_ns for one in seen if one.name == name]
    print(name, len(times), statistics.median(times))
"""


def test_libcupti_and_cupti_python_read_the_same(backend: Any, root: Path) -> None:
    """Each in a process of its own, as a process has one client: the same kernels, and times as close as runs are."""
    pytest.importorskip("cupti")
    read: list[dict[str, tuple[int, float]]] = []
    for reader in ("open_cupti_activity", "CuptiPython"):
        command = [sys.executable, "-c", READ_BY, reader]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        lines = (line.split() for line in done.stdout.splitlines())
        read.append({name: (int(count), float(median_ns)) for name, count, median_ns in lines})
    assert read[0].keys() == read[1].keys() == {"decode_int8_tc", "merge_partials"}
    for name, (count, median_ns) in read[0].items():
        assert count == read[1][name][0] == 200
        assert median_ns == pytest.approx(read[1][name][1], rel=0.05)


def test_cold_rotates_enough_copies_and_is_slower_than_warm(backend: Any) -> None:
    inputs = sparse_inputs(SHAPE, DataSpec())
    warm, cold = backend.load(inputs, "warm"), backend.load(inputs, "cold")
    distinct = np.unique(inputs.selected[inputs.selected >= 0]).size * 2 * 256 * 2
    assert warm.copies == 1
    assert (cold.copies - 1) * distinct < 2 * backend.device.l2_bytes <= cold.copies * distinct
    timer = EventsTimer(backend.stream, backend.synchronize)
    cold_variant = variant(backend, cold, "int8-tc")
    launches = pilot([cold_variant], timer)["int8-tc"]
    assert launches % cold.copies == 0
    timer.forget()
    cold_us = timer.time(cold_variant, launches).call_us
    timer.forget()
    assert cold_us > timer.time(variant(backend, warm, "int8-tc"), launches).call_us


def test_a_captured_launch_gives_the_bits_of_an_eager_one(backend: Any) -> None:
    buffers = backend.load(sparse_inputs(SHAPE, DataSpec()), "cold")
    for kernel in ("previous", "int8-tc"):
        measured = variant(backend, buffers, kernel)
        eager = run_poisoned(measured.launch, buffers).view(np.uint16)
        graph = VisitGraphs(backend.stream).graph(measured, 1)
        captured = run_poisoned(lambda _, graph=graph: graph.launch(backend.stream), buffers).view(np.uint16)
        assert np.array_equal(eager, captured)


def test_the_copy_ceiling_copies(backend: Any) -> None:
    source, target = allocate((16 * 100_003,), np.uint8), allocate((16 * 100_003,), np.uint8)
    source.set(np.random.default_rng(0).integers(0, 256, source.size, np.uint8))
    backend._launcher.copy(source, target).enqueue()
    backend.synchronize()
    assert np.array_equal(source.get(), target.get())


def test_memory_that_is_not_there_is_said_so(backend: Any) -> None:
    with pytest.raises(CannotMeasure, match="MiB of GPU memory are not there"):
        allocate((1 << 45,), np.uint8)


def test_import_then_fork_then_measure(backend: Any, root: Any) -> None:
    """F6, pytorch/pytorch#138453: importing and parsing leave the driver alone, so a forked child can use it."""
    program = """
import os
import dsa_bench.cli.main as cli
line = ["decode", "--rows", "1", "--context", "512", "--candidates", "128", "--rounds", "2", "--backend", "cuda",
        "--timer", "events", "--format", "csv"]
cli.run([*line, "--plan"])
child = os.fork()
if child == 0:
    os._exit(cli.run(line))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert cli.run(line) == 0
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("timer", ["cupti", "events"])
def test_one_side_against_itself_is_never_called_different(backend: Any, root: Any, timer: str) -> None:
    """A null-against-null run: one launch under three names, in a process that has only this timer."""
    program = f"""
from dsa_bench.backends.cuda.backend import CudaBackend
from dsa_bench.bench.rounds import Stop, pilot, round_slots, take_rounds
from dsa_bench.bench.select import open_timer
from dsa_bench.bench.variant import Variant
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.stats.verdict import judge

shape = SparseShape(8, 8192, 2048)
backend = CudaBackend()
buffers = backend.load(sparse_inputs(shape, DataSpec()), "warm")
plan = backend.geometry.plan("int8-tc", shape, 0)
launch = buffers.launcher(plan)
variants = [Variant(name, launch, lambda: None, backend.device_kernels(plan)) for name in ("a", "b", "c")]
timer, _ = open_timer("{timer}", backend, "cuda")
samples = list(take_rounds(round_slots(variants, "a", pilot(variants, timer)), timer, Stop(16)))
times = {{}}
for sample in samples:
    times.setdefault((sample.variant, sample.control), {{}})[sample.round] = sample.timing.attention_us
reference = times.pop(("a", False))
for (name, control), other in sorted(times.items()):
    judgement = judge([other[index] for index in range(16)], [reference[index] for index in range(16)])
    print(name, control, judgement.verdict.value, judgement.ratio)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    verdicts = [line.split()[2] for line in done.stdout.splitlines()]
    assert len(verdicts) == 3, done.stdout
    assert set(verdicts) <= {"same", "inconclusive"}, done.stdout
