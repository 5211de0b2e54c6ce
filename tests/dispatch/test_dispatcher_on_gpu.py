# SPDX-License-Identifier: MIT
"""The dispatcher on a device: torch and CuPy arrays, the caller's stream, graphs, gates of the loaded code.

Oracle of results: FP64 over the same codes, within the bounds of oracle/tolerance.py.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from map_doubles import cell as map_cell

from dsa_bench.backends.cuda.launch import Kernel
from dsa_bench.backends.cuda.probe import missing_gpu
from dsa_bench.bench.profilers import open_profiler
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.dispatch.dispatcher import Dispatcher, PreparedCall
from dsa_bench.dispatch.map_file import write_map
from dsa_bench.jit.load import LoadedModule
from dsa_bench.jit.optional import load
from dsa_bench.model.errors import BadInput, CannotMeasure, WorkspaceTooSmall
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.splits_map import MapDevice, MapRule
from dsa_bench.oracle.attention import reference
from dsa_bench.oracle.tolerance import bf16_bound, digits_bound, fp16_bound, fp32_bound, union_bound, ws_bound

pytestmark = pytest.mark.gpu

DECODE = "ep.cuda.dsa_decode_int8_tc"
KNOB = "ep.cuda.dsa_decode_int8_tc_tiles_per_split"
PREFILL = "ep.cuda.dsa_prefill_int8_tc"
PREFILL_FAMILY = "ep.cuda.dsa_prefill_kernel"
DIGITS = "ep.cuda.dsa_decode_int8_digits"
ON = {DECODE: "1", PREFILL: "1", DIGITS: "0"}
BOUNDS = {
    "int8-digits decode": digits_bound, "int8-tc decode": fp16_bound, "int8-union prefill": union_bound,
    "int8-ws prefill": ws_bound, "int8-tc prefill": fp16_bound, "bf16 prefill": bf16_bound,
    "decode_grouped": fp32_bound,
}  # fmt: skip
POISON_BITS = 0x7F00
"""BF16 1.7e38, which no output takes."""
MANY = 200
"""Rows, with 2 KV heads, that `int8-ws` does not run all at once on 132 multiprocessors: they may share."""


@pytest.fixture(autouse=True)
def plain_environment() -> None:
    """These tests see the machine as it is."""


@pytest.fixture(scope="module")
def made() -> Iterator[dict[tuple[tuple[str, str], ...], Dispatcher]]:
    """Dispatchers by their options: each loads the kernels once for all tests."""
    missing = missing_gpu()
    if missing is not None:
        pytest.skip(missing)
    dispatchers: dict[tuple[tuple[str, str], ...], Dispatcher] = {}
    yield dispatchers
    for dispatcher in dispatchers.values():
        dispatcher.close()


@pytest.fixture
def with_options(made: Any) -> Callable[..., Dispatcher]:
    def get(**options: str) -> Dispatcher:
        key = tuple(sorted(options.items()))
        if key not in made:
            made[key] = Dispatcher({f"ep.cuda.{name}": value for name, value in options.items()})
        return made[key]

    return get


@pytest.fixture
def on(with_options: Callable[..., Dispatcher]) -> Dispatcher:
    """With `int8-tc` alone of decode's split kernels."""
    return with_options(dsa_decode_int8_tc="1", dsa_prefill_int8_tc="1", dsa_decode_int8_digits="0")


@pytest.fixture
def both(with_options: Callable[..., Dispatcher]) -> Dispatcher:
    """With either split kernel of decode; skipped where the device has no clusters."""
    dispatcher = with_options(dsa_decode_int8_tc="1", dsa_decode_int8_digits="1")
    if dispatcher.choose(rows=1, candidates=2048).kernel != "int8-digits decode":
        pytest.skip("int8-digits was not measured to be faster on such a device")
    return dispatcher


@pytest.fixture
def union(with_options: Callable[..., Dispatcher]) -> Dispatcher:
    """With prefill whose rows may share; skipped where the device has no such kernel."""
    dispatcher = with_options(dsa_prefill_int8_tc="1", dsa_prefill_int8_union="1")
    if dispatcher.choose(rows=MANY, candidates=2048).kernel != "int8-union prefill":
        pytest.skip("rows share on SM 9.0 alone, and on more than 133 multiprocessors more rows than these")
    return dispatcher


@pytest.fixture
def cupy(made: Any) -> Any:
    return load("cupy")


@pytest.fixture
def stream(cupy: Any) -> Any:
    return cupy.cuda.Stream(non_blocking=True)


def inputs_of(rows: int, candidates: int = 2048, **spec: Any) -> SparseInputs:
    return sparse_inputs(SparseShape(rows, 8192, candidates), DataSpec(**spec))


def on_cupy(cupy: Any, inputs: SparseInputs) -> dict[str, Any]:
    """The call's tensors in CuPy, BF16 as bits, with a poisoned output."""
    arrays = {
        name: cupy.asarray(np.ascontiguousarray(array.view(np.uint16) if name == "query" else array))
        for name, array in inputs.tensors.items()
    }
    arrays["out"] = cupy.full(inputs.query.shape, POISON_BITS, np.uint16)
    cupy.cuda.runtime.deviceSynchronize()
    return arrays


def check(call: PreparedCall, inputs: SparseInputs, bits: np.ndarray) -> None:
    """Every element written, and the oracle's rows within the kernel's bound."""
    assert not (bits == POISON_BITS).any(), f"{call.choice.kernel} left {(bits == POISON_BITS).sum()} elements"
    out = bits.view(inputs.query.dtype).astype(np.float64)
    assert call.choice.shape is not None
    inputs = replace(inputs, op=call.choice.shape.op)  # the bounds differ
    oracle = reference(inputs)
    bound = BOUNDS[call.choice.kernel](inputs, oracle.rows, oracle.out)
    assert (np.abs(out[oracle.rows] - oracle.out) <= bound).all(), call.choice.kernel


def captured(call: PreparedCall, cupy: Any, stream: Any) -> Any:
    """A graph of one launch: the capture fails if anything in the launch allocates or waits."""
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        call.launch()
        return stream.end_capture()


def replay(graph: Any, cupy: Any, stream: Any) -> None:
    """Launch and wait, once what was written to its inputs on other streams has landed."""
    cupy.cuda.runtime.deviceSynchronize()
    graph.launch(stream)
    stream.synchronize()


def kernels_seen(cupy: Any, call: PreparedCall) -> list[str]:
    """The device kernels of one launch: by CUPTI, or where that cannot be used as the launches were built."""
    try:
        profiler = open_profiler()
    except CannotMeasure:
        return [enqueue.__self__._kernel.name for enqueue in call._enqueues]

    def work() -> None:
        call.launch()
        cupy.cuda.runtime.deviceSynchronize()

    activities = sorted(profiler.record(work), key=lambda one: one.start_ns)
    return [one.name for one in activities if "memset" not in one.name.lower()]


@pytest.mark.parametrize(
    ("options", "rows", "candidates", "kernels"),
    [
        ({}, 8, 2048, ["decode_grouped", "merge_partials"]),
        ({"dsa_decode_int8_tc": "0"}, 1, 2048, ["decode_grouped", "merge_partials"]),
        ({"dsa_decode_int8_tc": "1", "dsa_decode_int8_digits": "0"}, 8, 2048, ["decode_int8_tc", "merge_partials"]),
        ({"dsa_decode_int8_tc": "1"}, 1, 257, ["decode_int8_tc", "merge_partials"]),
        ({"dsa_decode_int8_tc": "1"}, 4, 256, ["decode_grouped", "merge_partials"]),
        ({"dsa_decode_int8_tc": "1", "dsa_decode_int8_tc_tiles_per_split": "4"}, 8, 2048,
         ["decode_int8_tc", "merge_partials"]),
        ({}, 128, 2048, ["prefill_bf16"]),
        ({"dsa_prefill_int8_tc": "1", "dsa_prefill_int8_ws": "0"}, 128, 2048, ["prefill_int8_tc"]),
        ({"dsa_prefill_int8_tc": "1"}, 128, 2048, ["prefill_int8_ws_few"]),
        ({"dsa_prefill_int8_tc": "1", "dsa_prefill_int8_union": "1"}, 128, 2048, ["prefill_int8_ws_few"]),
        ({"dsa_prefill_int8_tc": "1", "dsa_prefill_int8_union": "1"}, MANY, 2048,
         ["prefill_unite", "prefill_int8_union", "prefill_int8_ws"]),
        ({"dsa_prefill_int8_tc": "1"}, 8, 256, ["prefill_int8_tc"]),
        ({"dsa_prefill_int8_tc": "1"}, 300, 512, ["prefill_int8_ws"]),
        ({"dsa_prefill_int8_tc": "1", "dsa_prefill_kernel": "0"}, 128, 2048, ["decode_grouped", "merge_partials"]),
        ({"dsa_prefill_int8_tc": "1", "dsa_decode_int8_tc": "0"}, 8, 2048, ["decode_grouped", "merge_partials"]),
    ],
)  # fmt: skip
def test_each_option_value_launches_the_expected_kernels(
    options: dict[str, str], rows: int, candidates: int, kernels: list[str],
    with_options: Callable[..., Dispatcher], cupy: Any, stream: Any,
) -> None:  # fmt: skip
    inputs = inputs_of(rows, candidates)
    arrays = on_cupy(cupy, inputs)
    if "int8_ws" in kernels[-1] and cupy.cuda.Device().compute_capability != "90":
        kernels = ["prefill_int8_tc"]
    call = with_options(**options).prepare(**arrays, scale=inputs.scale, stream=stream)
    assert kernels_seen(cupy, call) == kernels, call.explain()
    stream.synchronize()
    check(call, inputs, arrays["out"].get())
    if "dsa_decode_int8_tc_tiles_per_split" in options:
        assert (call.choice.basis, call.choice.plan.splits) == ("option", 8)


@pytest.mark.parametrize(
    ("rows", "candidates", "kernels"),
    [(1, 2048, ["decode_digits_few"]), (2, 2048, ["decode_digits_few_long"]), (4, 2048, ["decode_digits"]),
     (8, 2048, ["decode_digits_resident"]), (8, 8192, ["decode_digits_resident"]), (1, 500, ["decode_digits_few"]),
     (1, 448, ["decode_int8_tc", "merge_partials"])],
)  # fmt: skip
def test_digits_run_where_they_are_faster(
    rows: int, candidates: int, kernels: list[str], both: Dispatcher, cupy: Any, stream: Any
) -> None:
    inputs = inputs_of(rows, candidates)
    arrays = on_cupy(cupy, inputs)
    call = both.prepare(**arrays, scale=inputs.scale, stream=stream)
    assert kernels_seen(cupy, call) == kernels, call.explain()
    stream.synchronize()
    check(call, inputs, arrays["out"].get())


@pytest.mark.parametrize("rows", [1, 8])
def test_digits_by_a_map_in_every_geometry(
    rows: int, both: Dispatcher, make_map: Any, make_table: Any, cupy: Any, stream: Any, tmp_path: Any
) -> None:
    """A map's value is the cluster that it is asked for, eager and captured alike, whatever the list holds."""
    runtime: Any = both._runtimes["cuda"]
    device, inputs = runtime.device, inputs_of(rows)
    seen: set[int] = set()
    for target in (1, 3, 5, 8, 32):
        arrays = on_cupy(cupy, inputs)
        table = make_table(
            kernel="int8-digits", kernel_hash=runtime.kernel_hash("int8-digits"), cta_slots=device.sm_count,
            clusters=device.clusters, rules=(MapRule((rows, rows), (32, 32), target),),
            cells=(map_cell(rows, 32, {str(target): 9.0}, target, auto=target),),
        )  # fmt: skip
        here = (device.name, device.compute_capability, device.sm_count, device.l2_bytes, device.driver, device.runtime)
        write_map(tmp_path / "splits.json", make_map(table, device=MapDevice(*here)))
        chooser = Dispatcher({DECODE: "1", DIGITS: "1"}, tmp_path / "splits.json")
        chooser._runtimes["cuda"] = runtime
        call = chooser.prepare(**arrays, scale=inputs.scale, stream=stream)
        assert (call.choice.kernel, call.choice.basis) == ("int8-digits decode", "map"), call.explain()
        seen.add(call.choice.plan.splits)
        call.launch()
        stream.synchronize()
        eager = arrays["out"].get()
        check(call, inputs, eager)
        graph = captured(call, cupy, stream)
        arrays["out"].fill(POISON_BITS)
        arrays["selected"][:, 65:] = -1
        replay(graph, cupy, stream)
        shorter = replace(inputs, selected=arrays["selected"].get())
        check(call, shorter, arrays["out"].get())
    assert len(seen) == 5


def test_each_stream_has_its_own_mailboxes_whatever_workspace_is_given(both: Dispatcher, cupy: Any) -> None:
    """Launches that shared some would wait for each other's splits."""
    inputs, calls, outs = inputs_of(8), [], []
    for _ in range(2):
        arrays = on_cupy(cupy, inputs)
        workspace = cupy.zeros(both.workspace_bytes(rows=8, candidates=2048), np.uint8)
        stream = cupy.cuda.Stream(non_blocking=True)
        calls.append(both.prepare(**arrays, scale=inputs.scale, stream=stream, workspace=workspace))
        outs.append((stream, workspace, arrays["out"]))
    assert not any(call.choice.variant.clustered for call in calls)
    for _ in range(200):  # side by side
        for call in calls:
            call.launch()
    cupy.cuda.runtime.deviceSynchronize()
    for call, (_, workspace, out) in zip(calls, outs, strict=True):
        check(call, inputs, out.get())
        assert not workspace.any()


def test_digits_of_a_misaligned_output_go_to_int8_tc(both: Dispatcher, cupy: Any, stream: Any) -> None:
    """D7: int8-tc stores two bytes at a time, and its partials fit the workspace that was asked for up front."""
    inputs = inputs_of(1)
    arrays = on_cupy(cupy, inputs)
    arrays["workspace"] = cupy.zeros(both.workspace_bytes(rows=1, candidates=2048), np.uint8)
    memory = cupy.full(arrays["out"].size + 8, POISON_BITS, np.uint16)
    moved = memory[4 : 4 + arrays["out"].size].reshape(arrays["out"].shape)
    cupy.cuda.runtime.deviceSynchronize()
    call = both.prepare(**(arrays | {"out": moved}), scale=inputs.scale, stream=stream)
    assert call.choice.kernel == "int8-tc decode"
    assert "int8-digits decode refused by out alignment" in call.explain()
    call.launch()
    stream.synchronize()
    check(call, inputs, moved.get())


@pytest.mark.parametrize("rows", [1, 8])
def test_eager_and_captured_launches_agree(rows: int, on: Dispatcher, cupy: Any, stream: Any) -> None:
    inputs = inputs_of(rows)
    arrays = on_cupy(cupy, inputs)
    call = on.prepare(**arrays, scale=inputs.scale, stream=stream)
    call.launch()
    stream.synchronize()
    eager = arrays["out"].get()
    check(call, inputs, eager)
    graph = captured(call, cupy, stream)
    arrays["out"].fill(POISON_BITS)
    replay(graph, cupy, stream)
    assert np.array_equal(arrays["out"].get(), eager)


def test_a_graph_sees_new_lists_and_takes_the_same_launch(on: Dispatcher, cupy: Any, stream: Any) -> None:
    """Live lengths change between replays: what depends on values is decided on the device."""
    inputs = inputs_of(4)
    arrays = on_cupy(cupy, inputs)
    call = on.prepare(**arrays, scale=inputs.scale, stream=stream)
    graph = captured(call, cupy, stream)
    for keep in (2048, 65, 1, 0):
        inputs.selected[:, keep:] = -1
        arrays["selected"].set(inputs.selected)
        arrays["out"].fill(POISON_BITS)
        replay(graph, cupy, stream)
        check(call, inputs, arrays["out"].get())


def test_torch_tensors_and_a_torch_graph(on: Dispatcher, cupy: Any) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    inputs = inputs_of(8)
    arrays = on_cupy(cupy, inputs)
    tensors = {
        name: torch.from_numpy(np.array(array.view(np.int16) if name == "query" else array)).cuda()
        for name, array in inputs.tensors.items()
    }
    tensors["query"] = tensors["query"].view(torch.bfloat16)
    tensors["out"] = torch.full_like(tensors["query"], 1.7e38)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    workspace = torch.empty(on.workspace_bytes(rows=8, candidates=2048), dtype=torch.uint8, device="cuda")
    call = on.prepare(**tensors, scale=inputs.scale, stream=side, workspace=workspace)
    assert call.choice.kernel == "int8-tc decode"
    call.launch()
    side.synchronize()
    bits = tensors["out"].view(torch.int16).cpu().numpy().view(np.uint16)
    check(call, inputs, bits)
    on_cupy_call = on.prepare(**arrays, scale=inputs.scale, stream=cupy.cuda.Stream.null)
    on_cupy_call.launch()
    cupy.cuda.runtime.deviceSynchronize()
    assert np.array_equal(arrays["out"].get(), bits)
    tensors["out"].fill_(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        call.launch()
    graph.replay()
    torch.cuda.synchronize()
    assert np.array_equal(tensors["out"].view(torch.int16).cpu().numpy().view(np.uint16), bits)


@pytest.mark.parametrize("name", ["query", "key", "value", "key_scale", "value_scale", "workspace"])
@pytest.mark.parametrize("offset", [4, 8])
def test_a_misaligned_buffer_falls_back_and_is_right(
    name: str, offset: int, on: Dispatcher, cupy: Any, stream: Any
) -> None:
    """D7, vllm-project/vllm#45466."""
    inputs = inputs_of(8)
    arrays = on_cupy(cupy, inputs)
    arrays["workspace"] = cupy.zeros(on.workspace_bytes(rows=8, candidates=2048), np.uint8)
    memory = cupy.zeros(arrays[name].nbytes + 256, np.uint8)
    moved = memory[offset : offset + arrays[name].nbytes].view(arrays[name].dtype).reshape(arrays[name].shape)
    moved[...] = arrays[name]
    cupy.cuda.runtime.deviceSynchronize()
    call = on.prepare(**(arrays | {name: moved}), scale=inputs.scale, stream=stream)
    assert call.choice.kernel == "decode_grouped"
    assert f"int8-tc decode refused by {name} alignment" in call.explain()
    call.launch()
    stream.synchronize()
    check(call, inputs, arrays["out"].get())


@pytest.mark.parametrize("name", ["query", "key", "value", "key_scale", "value_scale", "out"])
def test_a_misaligned_prefill_falls_back_and_is_right(name: str, on: Dispatcher, cupy: Any, stream: Any) -> None:
    """D7. The BF16 kernel reads such a cache byte by byte."""
    inputs = inputs_of(32)
    arrays = on_cupy(cupy, inputs)
    memory = cupy.zeros(arrays[name].nbytes + 256, np.uint8)
    offset = 2 if name == "out" else 4
    moved = memory[offset : offset + arrays[name].nbytes].view(arrays[name].dtype).reshape(arrays[name].shape)
    moved[...] = arrays[name]
    cupy.cuda.runtime.deviceSynchronize()
    call = on.prepare(**(arrays | {name: moved}), scale=inputs.scale, stream=stream)
    assert call.choice.kernel == "bf16 prefill"
    for kernel in ("int8-ws prefill", "int8-tc prefill"):
        assert f"{kernel} refused by {name} alignment" in call.explain()
    call.launch()
    stream.synchronize()
    check(call, inputs, (moved if name == "out" else arrays["out"]).get())


def test_what_is_loaded_has_this_devices_ptx(on: Dispatcher, made: Any) -> None:
    on.choose(rows=8, candidates=2048)
    site = on._runtimes["cuda"].site()
    assert site is not None
    loaded = {name: getattr(kernel, "ptx", kernel) for name, kernel in site.kernels.items()}
    assert {
        "decode_grouped",
        "decode_int8_tc",
        "prefill_bf16",
        "prefill_int8_tc",
        "prefill_int8_ws_few",
        "prefill_int8_union",
    } <= loaded.keys()
    assert set(loaded.values()) == {site.sm}


def test_a_module_of_only_compute_75_ptx_reports_75_and_is_refused(made: Any, cupy: Any, stream: Any) -> None:
    """D8 and seed 000: the driver compiles such an image for any newer GPU, and the kernel's body is an empty stub."""
    nvrtc = load("cuda.bindings.nvrtc")

    def call(function: Any, *arguments: Any) -> Any:
        status, *values = function(*arguments)
        assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, f"{function.__name__}: {status.name}"
        return values[0] if values else None

    source = b'extern "C" __global__ void decode_int8_tc() {}'
    program = call(nvrtc.nvrtcCreateProgram, source, b"stub.cu", 0, [], [])
    call(nvrtc.nvrtcCompileProgram, program, 1, [b"--gpu-architecture=compute_75"])
    ptx = bytes(call(nvrtc.nvrtcGetPTXSize, program))
    call(nvrtc.nvrtcGetPTX, program, ptx)
    assert b".target sm_75" in ptx
    module = cupy.cuda.Module()
    module.load(ptx)
    facts = SimpleNamespace(dynamic_smem_bytes=0, static_smem_bytes=0, threads=128, constants={"threads": 128})
    stub: Any = SimpleNamespace(kernels={"decode_int8_tc": facts})
    kernel = Kernel(LoadedModule(stub, module), "decode_int8_tc")
    assert kernel.ptx_target() == 75

    dispatcher = Dispatcher(ON)
    dispatcher.choose(rows=8, candidates=2048)
    runtime: Any = dispatcher._runtimes["cuda"]
    runtime._backends["decode"]._kernels["decode_int8_tc"] = kernel
    runtime.__dict__.pop("_site", None)  # the facts were read before
    inputs = inputs_of(8)
    arrays = on_cupy(cupy, inputs)
    refused = dispatcher.prepare(**arrays, scale=inputs.scale, stream=stream)
    assert refused.choice.kernel == "decode_grouped"
    assert "int8-tc decode refused by PTX: needs a loaded PTX target of at least 80, found 75" in refused.explain()
    refused.launch()
    stream.synchronize()
    check(refused, inputs, arrays["out"].get())
    dispatcher.close()


@pytest.mark.timing
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_a_prepared_call_costs_its_raw_launches(rows: int, on: Dispatcher, cupy: Any, stream: Any) -> None:
    """At most 10 us of host time beyond them."""
    inputs = inputs_of(rows)
    call = on.prepare(**on_cupy(cupy, inputs), scale=inputs.scale, stream=stream)
    enqueues = call._enqueues

    def raw() -> None:
        for enqueue in enqueues:
            enqueue()

    def time_us(work: Callable[[], None]) -> float:
        samples: list[float] = []
        for _ in range(50):
            stream.synchronize()  # a full queue would make the host wait
            start = time.perf_counter()
            for _ in range(20):
                work()
            samples.append((time.perf_counter() - start) / 20 * 1e6)
        stream.synchronize()
        return statistics.median(samples)

    time_us(raw)
    raw_us, prepared_us = time_us(raw), time_us(call.launch)
    print(f"raw {raw_us:.2f} us, prepared {prepared_us:.2f} us")
    assert prepared_us - raw_us < 10


def test_each_stream_has_its_own_workspace(on: Dispatcher, cupy: Any) -> None:
    inputs = inputs_of(8)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    arrays = [on_cupy(cupy, inputs) for _ in streams]
    calls = [on.prepare(**mine, scale=inputs.scale, stream=one) for mine, one in zip(arrays, streams, strict=True)]
    assert len({call._kept[1].address for call in calls}) == 2
    for _ in range(200):  # side by side
        for call in calls:
            call.launch()
    cupy.cuda.runtime.deviceSynchronize()
    for call, mine in zip(calls, arrays, strict=True):
        check(call, inputs, mine["out"].get())


def test_a_callers_workspace_is_checked(on: Dispatcher, cupy: Any, stream: Any) -> None:
    inputs = inputs_of(8)
    arrays = on_cupy(cupy, inputs)
    needed = on.workspace_bytes(rows=8, candidates=2048)
    with pytest.raises(WorkspaceTooSmall, match=r"workspace: holds 1 splits, .* or ask for 32 tiles per split"):
        on.prepare(**arrays, scale=inputs.scale, stream=stream, workspace=cupy.empty(8 * 24 * 258 * 4, np.uint8))
    call = on.prepare(**arrays, scale=inputs.scale, stream=stream, workspace=cupy.empty(needed, np.uint8))
    call.launch()
    stream.synchronize()
    check(call, inputs, arrays["out"].get())
    with pytest.raises(BadInput, match="pass the stream that you work on"):
        on.prepare(**arrays, scale=inputs.scale, stream=None)


def test_nothing_to_attend_to_is_zeros(on: Dispatcher, cupy: Any, stream: Any) -> None:
    """D3. Also under capture, where the zeros are a memset."""
    inputs = inputs_of(4)
    arrays = on_cupy(cupy, inputs)
    arrays["selected"] = cupy.zeros((4, 0), np.int32)
    call = on.prepare(**arrays, scale=inputs.scale, stream=stream)
    assert call.choice.kernel == "none"
    graph = captured(call, cupy, stream)
    graph.launch(stream)
    stream.synchronize()
    assert not arrays["out"].get().any()


ALIKE = "overlap:0.95"


def space(union: Dispatcher, cupy: Any, rows: int) -> Any:
    return cupy.full(union.workspace_bytes(rows=rows, candidates=2048), 0xFF, np.uint8)


def shared(workspace: Any, rows: int) -> list[int]:
    """1 for each row that shared its tiles in the last launch, else 0: what is behind the unions in the workspace."""
    taken = workspace.get()[-2 * rows :].reshape(rows, 2)
    assert (taken[:, 0] == taken[:, 1]).all(), "of either KV head"
    return taken[:, 0].tolist()


def test_rows_that_select_alike_share_and_the_others_are_those_of_int8_ws(
    union: Dispatcher, on: Dispatcher, cupy: Any, stream: Any
) -> None:
    rows = MANY + 2
    inputs = inputs_of(rows, selection=ALIKE)
    inputs.selected[9] = -1
    arrays, alone = on_cupy(cupy, inputs), on_cupy(cupy, inputs)
    workspace = space(union, cupy, rows)
    call = union.prepare(**arrays, scale=inputs.scale, stream=stream, workspace=workspace)
    before = on.prepare(**alone, scale=inputs.scale, stream=stream)
    assert (call.choice.kernel, before.choice.kernel) == ("int8-union prefill", "int8-ws prefill")
    call.launch()
    before.launch()
    stream.synchronize()
    taken = [1] * 8 + [0] * 4 + [1] * (MANY - 12) + [0] * 2
    assert shared(workspace, rows) == taken
    out, of_ws = arrays["out"].get(), alone["out"].get()
    check(call, inputs, out)
    check(before, inputs, of_ws)
    same = [np.array_equal(one, other) for one, other in zip(out, of_ws, strict=True)]
    assert all(same[row] for row in range(rows) if not taken[row])
    assert not all(same), "rows that share add their candidates in another order"


def test_a_graph_sees_which_rows_share(union: Dispatcher, cupy: Any, stream: Any) -> None:
    """The launches are the same, whatever the lists are."""
    inputs, apart, half = inputs_of(MANY, selection=ALIKE), inputs_of(MANY), MANY // 2
    arrays, workspace = on_cupy(cupy, inputs), space(union, cupy, MANY)
    call = union.prepare(**arrays, scale=inputs.scale, stream=stream, workspace=workspace)
    graph = captured(call, cupy, stream)
    alike = inputs.selected.copy()
    for lists, taken in (
        (alike, [1] * MANY), (apart.selected, [0] * MANY), (np.where(np.arange(2048) < 65, alike, -1), [1] * MANY),
        (np.concatenate([apart.selected[:half], alike[half:]]), [0] * half + [1] * half),
        (np.full_like(alike, -1), None), (alike, [1] * MANY),
    ):  # fmt: skip
        inputs.selected[:] = lists
        arrays["selected"].set(inputs.selected)
        arrays["out"].fill(POISON_BITS)
        replay(graph, cupy, stream)
        check(call, inputs, arrays["out"].get())
        assert taken is None or shared(workspace, MANY) == taken
    of_graph = arrays["out"].get()
    call.launch()
    stream.synchronize()
    assert np.array_equal(arrays["out"].get(), of_graph)


def test_two_streams_share_no_unions(union: Dispatcher, cupy: Any) -> None:
    """Side by side, one with rows that share and one without, and of another number."""
    cells = [inputs_of(MANY, selection=ALIKE), inputs_of(MANY + 4), inputs_of(MANY, selection=ALIKE, seed=7)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in cells]
    arrays = [on_cupy(cupy, inputs) for inputs in cells]
    calls = [
        union.prepare(**mine, scale=inputs.scale, stream=one)
        for inputs, mine, one in zip(cells, arrays, streams, strict=True)
    ]
    assert len({call._kept[1].address for call in calls}) == len(cells)
    for _ in range(200):
        for call in calls:
            call.launch()
    cupy.cuda.runtime.deviceSynchronize()
    for call, inputs, mine in zip(calls, cells, arrays, strict=True):
        check(call, inputs, mine["out"].get())


def test_calls_of_one_stream_follow_each_other_in_its_workspace(union: Dispatcher, cupy: Any, stream: Any) -> None:
    """Prefill's unions and decode's partials alike; a call keeps the workspace that it was prepared with."""
    prepared: list[tuple[PreparedCall, SparseInputs, Any]] = []
    for rows, selection in ((MANY, ALIKE), (8, "sorted"), (MANY + 60, ALIKE), (MANY + 4, "sorted")):
        inputs = inputs_of(rows, selection=selection)
        arrays = on_cupy(cupy, inputs)
        prepared.append((union.prepare(**arrays, scale=inputs.scale, stream=stream), inputs, arrays["out"]))
    kernels = [call.choice.kernel for call, *_ in prepared]
    assert kernels == ["int8-union prefill", "decode_grouped", "int8-union prefill", "int8-union prefill"]
    for _ in range(50):
        for call, *_ in prepared:
            call.launch()
    stream.synchronize()
    for call, inputs, out in prepared:
        check(call, inputs, out.get())


@pytest.mark.parametrize(
    ("name", "offset", "kernel"),
    [("workspace", 8, "int8-ws prefill"), ("selected", 4, "int8-union prefill"), ("out", 4, "int8-union prefill")],
)
def test_alignment_of_what_rows_share(
    name: str, offset: int, kernel: str, union: Dispatcher, cupy: Any, stream: Any
) -> None:
    """D7: unions are read 16 bytes at a time, lists wherever they are."""
    inputs = inputs_of(MANY, selection=ALIKE)
    arrays = on_cupy(cupy, inputs)
    arrays["workspace"] = space(union, cupy, MANY)
    memory = cupy.zeros(arrays[name].nbytes + 256, np.uint8)
    moved = memory[offset : offset + arrays[name].nbytes].view(arrays[name].dtype).reshape(arrays[name].shape)
    moved[...] = arrays[name]
    cupy.cuda.runtime.deviceSynchronize()
    arrays[name] = moved
    call = union.prepare(**arrays, scale=inputs.scale, stream=stream)
    assert call.choice.kernel == kernel
    call.launch()
    stream.synchronize()
    check(call, inputs, arrays["out"].get())
    if kernel == "int8-union prefill":
        assert shared(arrays["workspace"], MANY) == [1] * MANY


def test_a_workspace_that_the_unions_do_not_fit_is_refused(union: Dispatcher, cupy: Any, stream: Any) -> None:
    inputs = inputs_of(MANY, selection=ALIKE)
    arrays, workspace = on_cupy(cupy, inputs), space(union, cupy, MANY)
    needed = workspace.nbytes
    with pytest.raises(WorkspaceTooSmall, match=f"holds {needed - 1} bytes, the unions of {MANY} rows need {needed}; "):
        union.prepare(**arrays, scale=inputs.scale, stream=stream, workspace=workspace[:-1])
