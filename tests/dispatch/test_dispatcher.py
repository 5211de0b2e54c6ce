# SPDX-License-Identifier: MIT
"""Whole calls on the CPU backend, and choices on fake devices. Oracle of results: FP64 over the same codes."""

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from map_doubles import cell as map_cell

from dsa_bench.backends.cpu.runtime import CpuRuntime
from dsa_bench.backends.cuda.launch import KernelLaunch
from dsa_bench.backends.cuda.sparse import SparseLauncher
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.dispatch import dispatcher as module
from dsa_bench.dispatch.dispatcher import ALIGNED, Dispatcher, PreparedCall
from dsa_bench.dispatch.explain_map import explain_launch
from dsa_bench.dispatch.gates import DEVICE_FUNCTION, CallFacts
from dsa_bench.dispatch.map_file import write_map
from dsa_bench.dispatch.tuned import MapWarning
from dsa_bench.model.call import LaunchSite, LoadedKernel
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import BadInput, Unsupported, WorkspaceTooSmall
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import DataSpec, Policy, SparseRequest
from dsa_bench.model.shape import SparseShape
from dsa_bench.model.splits_map import MapDevice, MapRule
from dsa_bench.oracle.attention import reference
from dsa_bench.oracle.tolerance import fp32_bound
from dsa_bench.splits.digits import cluster_counts
from dsa_bench.splits.geometry import CudaSparse
from dsa_bench.sweep.tuned import with_tuned

DECODE = "ep.cuda.dsa_decode_int8_tc"
KNOB = "ep.cuda.dsa_decode_int8_tc_tiles_per_split"
PREFILL = "ep.cuda.dsa_prefill_int8_tc"
UNION = "ep.cuda.dsa_prefill_int8_union"
DIGITS = "ep.cuda.dsa_decode_int8_digits"
ON = {DECODE: "1", PREFILL: "1"}


def prepare(dispatcher: Dispatcher, inputs: SparseInputs, out: Any = None, **changes: Any) -> PreparedCall:
    arrays: dict[str, Any] = inputs.tensors | {"out": np.zeros_like(inputs.query) if out is None else out}
    call: dict[str, Any] = {**arrays, "scale": inputs.scale, "stream": None}
    return dispatcher.prepare(**(call | changes))


@pytest.fixture
def inputs() -> SparseInputs:
    return sparse_inputs(SparseShape(8, 1024, 512), DataSpec())


@pytest.fixture
def dispatcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
    made = Dispatcher(ON)
    yield made
    made.close()


CLUSTERS = {"16": 7, "8": 15, "7": 15, "6": 17, "5": 22, "4": 30, "3": 39, "2": 66, "1": 132}
"""As an H200's driver counts."""


class FakeGpu:
    """A device whose facts are given. It launches nothing."""

    def __init__(self, name: str, sm: int, sm_count: int, resident: int, ptx: int | None = None) -> None:
        held = CLUSTERS if sm >= 90 else None
        self.device = DeviceFacts(
            "cuda", name, sm_count, f"{sm // 10}.{sm % 10}", driver="580.1", runtime="CUDA 13.2", clusters=held
        )
        self.geometry = CudaSparse(sm_count * resident, resident, cluster_counts(held))
        self._site = LaunchSite(
            sm, 232448, {function: LoadedKernel(ptx or sm, 75264) for function in DEVICE_FUNCTION.values()}
        )

    def site(self) -> LaunchSite:
        return self._site

    def kernel_hash(self, kernel: str) -> str:
        return "ab" * 8

    def union_bytes(self, variant: VariantPlan, shape: SparseShape) -> int:
        return 1000 * shape.rows if variant.kernel == "int8-union" else 0

    def close(self) -> None: ...


H200 = FakeGpu("NVIDIA H200", 90, 132, 3)
A100 = FakeGpu("NVIDIA A100", 80, 108, 2)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Dispatcher]:
    """`on(H200, options, splits)` is a dispatcher on a fake device."""

    def make(gpu: FakeGpu, options: dict[str, str] | None = None, splits: Any = None, **more: Any) -> Dispatcher:
        monkeypatch.setattr(module, "open_runtime", lambda _: gpu)
        monkeypatch.setattr("dsa_bench.dispatch.tuned._said", set())
        return Dispatcher(ON | (options or {}), splits, **more)

    return make


@pytest.mark.parametrize("rows", [1, 3, 8, 9])
@pytest.mark.parametrize(
    "options", [{}, {DECODE: "1"}, {DECODE: "1", KNOB: "3"}, {PREFILL: "1"}, {PREFILL: "1", UNION: "1"}]
)
def test_every_choice_computes_the_operator(rows: int, options: dict[str, str]) -> None:
    inputs = sparse_inputs(SparseShape(rows, 1024, 512), DataSpec(invalid_fraction=0.2))
    out = np.full_like(inputs.query, 7)
    dispatcher = Dispatcher(options)
    prepare(dispatcher, inputs, out).launch()
    dispatcher.close()
    oracle = reference(inputs)
    error = np.abs(out[oracle.rows].astype(np.float64) - oracle.out)
    assert (error <= fp32_bound(inputs, oracle.rows, oracle.out)).all()


def test_a_call_is_launched_again_on_new_values(inputs: SparseInputs, dispatcher: Dispatcher) -> None:
    out = np.zeros_like(inputs.query)
    call = prepare(dispatcher, inputs, out)
    call.launch()
    first = out.copy()
    inputs.value[:] = inputs.value[::-1].copy()
    call.launch()
    assert not np.array_equal(out.view(np.uint16), first.view(np.uint16))


def test_the_choice_does_not_look_at_values(inputs: SparseInputs, dispatcher: Dispatcher) -> None:
    """Eager and captured launches agree: capacity and rows decide, not how many entries count."""
    full = prepare(dispatcher, inputs).choice
    inputs.selected[:] = -1
    inputs.selected[:, 100] = 5
    inputs.query[:] = 3e38
    assert prepare(dispatcher, inputs).choice == full


def test_bits_of_bf16_do_for_libraries_without_it(inputs: SparseInputs, dispatcher: Dispatcher) -> None:
    out, bits = np.zeros_like(inputs.query), np.zeros(inputs.query.shape, np.uint16)
    prepare(dispatcher, inputs, out).launch()
    prepare(dispatcher, inputs, bits, query=inputs.query.view(np.uint16)).launch()
    assert np.array_equal(out.view(np.uint16), bits)


def misaligned(array: np.ndarray, offset: int) -> np.ndarray:
    """A contiguous copy of an array whose address is `offset` bytes past a multiple of 64."""
    memory = np.zeros(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


@pytest.mark.parametrize("name", ["query", "key", "value", "key_scale", "value_scale", "workspace"])
def test_a_misaligned_view_falls_back_and_is_named(name: str, inputs: SparseInputs, dispatcher: Dispatcher) -> None:
    """D7 through the caller: `x[1:]` of a flat buffer is contiguous."""
    whole = {**inputs.tensors, "workspace": np.zeros(1 << 22, np.uint8)}
    aligned = {tensor: misaligned(array, 0) for tensor, array in whole.items()}
    out = np.zeros_like(inputs.query)
    assert prepare(dispatcher, inputs, out, **aligned).choice.kernel == "int8-tc decode"
    call = prepare(dispatcher, inputs, out, **(aligned | {name: misaligned(whole[name], 8)}))
    assert call.choice.kernel == "decode_grouped"
    assert f"int8-tc decode refused by {name} alignment" in call.explain()
    assert "found address % 16 = 8" in call.explain()
    call.launch()
    oracle = reference(inputs)
    error = np.abs(out[oracle.rows].astype(np.float64) - oracle.out)
    assert (error <= fp32_bound(inputs, oracle.rows, oracle.out)).all()


class Torchlike:
    """What is used of a torch tensor, over NumPy memory."""

    def __init__(self, array: np.ndarray, dtype: str, device: str = "cpu", index: int | None = None) -> None:
        self.array, self.shape, self.dtype = array, array.shape, SimpleNamespace(itemsize=array.itemsize)
        self.dtype = type("dtype", (), {"__str__": lambda _: f"torch.{dtype}", "itemsize": array.itemsize})()
        self.device = SimpleNamespace(type=device, index=index)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)


def test_torch_tensors_of_the_cpu_are_read_in_place(inputs: SparseInputs, dispatcher: Dispatcher) -> None:
    names = {"query": "bfloat16", "out": "bfloat16", "key": "int8", "value": "int8", "selected": "int32"}
    out = np.zeros_like(inputs.query)
    tensors = {
        name: Torchlike(array, names.get(name, "float32")) for name, array in {**inputs.tensors, "out": out}.items()
    }
    dispatcher.prepare(**tensors, scale=inputs.scale, stream=None).launch()  # type: ignore[arg-type]
    expected = np.zeros_like(inputs.query)
    prepare(dispatcher, inputs, expected).launch()
    assert np.array_equal(out.view(np.uint16), expected.view(np.uint16))


def changed(**arrays: Any) -> Any:
    return lambda inputs: {name: make(inputs) for name, make in arrays.items()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed(selected=lambda i: i.selected.astype(np.int64)), r"^selected: is int64 \[8, 512\], must be int32 \["),
        (changed(query=lambda i: i.query.astype(np.float16)), r"^query: is float16 .*must be bfloat16 \[rows, "),
        (changed(key=lambda i: i.key[0]), r"^key: is int8 \[1024, 256\], must be int8 \[kv_heads, context, head_size"),
        (changed(value=lambda i: i.value[:, :9]), r"^value: is not contiguous \(shape \[2, 9, 256\]\)"),
        (changed(value=lambda i: i.value[:, :9].copy()), r"^value: is \[2, 9, 256\], must be \[2, 1024, 256\]"),
        (changed(key_scale=lambda i: i.key_scale[:, :8].copy()), r"^key_scale: is \[2, 8\], must be \[2, 256\]"),
        (changed(out=lambda i: np.zeros((8, 24, 8), BF16)), r"^out: is \[8, 24, 8\], must be \[8, 24, 256\]"),
        (changed(query=lambda i: i.query.tolist()), "^query: is list; pass a torch, CuPy or NumPy array"),
        (changed(query=lambda i: np.zeros((8, 23, 256), BF16), out=lambda i: np.zeros((8, 23, 256), BF16)),
         "^query: has 23 heads, must be a multiple of the 2 KV heads"),
        (changed(key=lambda i: i.key[:, :7].copy(), value=lambda i: i.value[:, :7].copy()),
         "^query: has 8 rows, must be at most the 7 positions"),
        (changed(key_scale=lambda i: misaligned(i.key_scale, 2)), "^key_scale: starts at .* must be a multiple of 4"),
        (changed(key=lambda i: Torchlike(i.key, "int8", "cuda", 1)), "^key: is on cuda:1 and query on cpu:0"),
        (changed(key=lambda i: Torchlike(i.key, "int8", "xpu")), "^key: is on xpu"),
        (changed(workspace=lambda i: np.zeros(4, np.float32)[::2]), "^workspace: is not contiguous"),
        (changed(workspace=lambda i: misaligned(np.zeros(64, np.uint8), 1)), "^workspace: starts at"),
        (changed(workspace=lambda i: Torchlike(np.zeros(9), "uint8", "cuda")), "^workspace: is on cuda:0"),
        (changed(scale=lambda i: float("nan")), "^scale nan"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_call_are_one_line(
    change: Any, said: str, inputs: SparseInputs, dispatcher: Dispatcher
) -> None:
    with pytest.raises(BadInput, match=said) as raised:
        prepare(dispatcher, inputs, **change(inputs))
    assert "\n" not in str(raised.value)


def test_an_output_that_may_not_be_written_is_refused(inputs: SparseInputs, dispatcher: Dispatcher) -> None:
    out = np.zeros_like(inputs.query)
    out.flags.writeable = False
    with pytest.raises(BadInput, match=r"^out: is read-only"):
        prepare(dispatcher, inputs, out)


def test_unsupported_calls_name_what_is_missing(inputs: SparseInputs, dispatcher: Dispatcher) -> None:
    for flag in ("smooth_softmax", "local_plus_selected"):
        with pytest.raises(Unsupported, match=flag.replace("_", ".")):
            prepare(dispatcher, inputs, **{flag: True})


@pytest.mark.parametrize("empty", ["rows", "candidates", "context", "all heads"])
def test_nothing_to_attend_to_is_zeros_and_no_kernel(empty: str, dispatcher: Dispatcher) -> None:
    """D3, sgl-project/sglang#38952: an idle rank launches no grid of zero."""
    rows, candidates, context, kv_heads = 4, 512, 64, 2
    rows, candidates, context, kv_heads = (
        (0, 512, 64, 2) if empty == "rows" else (4, 0, 64, 2) if empty == "candidates"
        else (4, 512, 0, 2) if empty == "context" else (4, 512, 64, 0)
    )  # fmt: skip
    out = np.full((rows, 12 * kv_heads, 256), 7, BF16)
    call = dispatcher.prepare(
        np.zeros((rows, 12 * kv_heads, 256), BF16), np.zeros((kv_heads, context, 256), np.int8),
        np.zeros((kv_heads, context, 256), np.int8), np.ones((kv_heads, 256), np.float32),
        np.ones((kv_heads, 256), np.float32), np.zeros((rows, candidates), np.int32), out, scale=1.0, stream=None,
    )  # fmt: skip
    assert (call.choice.kernel, call.choice.plan.splits) == ("none", 0)
    call.launch()
    assert not out.astype(np.float32).any()
    assert dispatcher.workspace_bytes(rows=0, candidates=512, device="cpu") == 0


@pytest.mark.parametrize(
    ("gpu", "rows", "candidates", "tiles_per_split", "splits"),
    [
        (H200, 8, 2048, 2, 16), (H200, 1, 2048, 1, 32), (H200, 8, 2112, 2, 17), (H200, 4, 4096, 2, 32),
        (H200, 8, 8192, 8, 16), (H200, 1, 8192, 4, 32), (A100, 8, 2048, 4, 8),
    ],
)  # fmt: skip
def test_the_automatic_rule_gets_the_right_inputs(
    gpu: FakeGpu, rows: int, candidates: int, tiles_per_split: int, splits: int, on: Callable[..., Dispatcher]
) -> None:
    """D4, Dao-AILab/flash-attention#2901: KV heads and not query heads; through the real caller, on two SM counts.

    1 row of 8192: the rule says 1 tile per split, and the cap of 32 splits makes 4 of it.
    """
    chosen = on(gpu, {DIGITS: "0"}).choose(rows=rows, candidates=candidates)
    assert (chosen.kernel, chosen.basis) == ("int8-tc decode", "rule")
    assert (chosen.plan.tiles_per_split, chosen.plan.splits) == (tiles_per_split, splits)


def test_the_knob_wins_over_the_map_and_the_map_over_the_rule(
    on: Callable[..., Dispatcher], make_map: Any, tmp_path: Any
) -> None:
    path = tmp_path / "splits.json"
    write_map(path, make_map())
    for options, rows, basis, splits, said in (
        ({}, 4, "map", 16, f"map: hit, 2 tiles per split for rows 4, tiles 32 of {path}"),
        ({}, 3, "map", 16, "map: hit"),
        ({}, 8, "rule", 16, f"map: miss, no rule for rows 8, tiles 32 of {path}"),
        ({}, 1, "rule", 32, "map: miss"),
        ({KNOB: "4"}, 4, "option", 8, "map: not asked, the knob is set"),
        ({KNOB: "0"}, 4, "map", 16, "map: hit"),
    ):
        chosen = on(H200, {DIGITS: "0", **options}, path).choose(rows=rows, candidates=2048)
        assert (chosen.basis, chosen.plan.splits) == (basis, splits)
        assert said in chosen.found
    assert on(H200, {}, None).choose(rows=4, candidates=2048).found == "map: none"


BOTH: dict[str, str] = {}
ALONE = {DIGITS: "0"}


@pytest.mark.parametrize(
    ("gpu", "options", "rows", "kernel", "splits"),
    [
        (H200, BOTH, 1, "int8-digits decode", 16), (H200, BOTH, 8, "int8-digits decode", 8),
        (H200, ALONE, 1, "int8-tc decode", 32),
        (H200, {DIGITS: "1", DECODE: "0"}, 1, "decode_grouped", 32),
        (H200, {KNOB: "4"}, 1, "int8-tc decode", 8), (A100, BOTH, 1, "int8-tc decode", 32),
        (H200, BOTH, 128, "int8-ws prefill", 1), (H200, {UNION: "1"}, 256, "int8-union prefill", 1),
        (H200, {UNION: "1"}, 128, "int8-ws prefill", 1), (A100, {UNION: "1"}, 256, "int8-tc prefill", 1),
    ],
)  # fmt: skip
def test_without_a_map_int8_digits_runs_where_it_was_measured_to_be_faster(
    gpu: FakeGpu, options: dict[str, str], rows: int, kernel: str, splits: int, on: Callable[..., Dispatcher]
) -> None:
    chosen = on(gpu, options).choose(rows=rows, candidates=2048)
    assert (chosen.kernel, chosen.plan.splits) == (kernel, splits)
    if kernel == "int8-digits decode":
        assert chosen.basis == "rule"
        together = {1: "clusters of 16 with 4 query heads", 8: "8 splits, all CTAs resident, with 12 query heads"}
        assert f"measured to be faster here; {together[rows]} a CTA" in chosen.explain()[0]
    elif gpu is A100:
        assert any(
            "int8-digits decode refused by choice" in line and "found int8-tc" in line for line in chosen.explain()
        )


def digits_table(make_table: Any, *rules: MapRule, **changes: Any) -> Any:
    cells = tuple(map_cell(rows, 32, {"1": 11.0, "3": 9.0}, 3) for rows in (1, 8))
    facts = {"kernel": "int8-digits", "cta_slots": 132, "clusters": CLUSTERS}
    return make_table(**{**facts, "cells": cells, "rules": rules or (MapRule((8, 8), (32, 32), 3),), **changes})


def test_a_rule_of_the_map_takes_either_kernel(
    on: Callable[..., Dispatcher], make_map: Any, make_table: Any, tmp_path: Any
) -> None:
    """Kernel and geometry together: rows 8 to a cluster of 8, rows 2 to 4 to int8-tc, rows 1 to neither."""
    path = tmp_path / "splits.json"
    write_map(path, make_map(make_table(), digits_table(make_table)))
    for options, rows, kernel, basis, splits in (
        (BOTH, 8, "int8-digits decode", "map", 8), (BOTH, 4, "int8-tc decode", "map", 16),
        (BOTH, 1, "int8-digits decode", "rule", 16), (ALONE, 8, "int8-tc decode", "rule", 16),
        ({**BOTH, KNOB: "1"}, 8, "int8-tc decode", "option", 32),
    ):  # fmt: skip
        chosen = on(H200, options, path).choose(rows=rows, candidates=2048)
        assert (chosen.kernel, chosen.basis, chosen.plan.splits) == (kernel, basis, splits)
    assert (
        f"map: hit, 3 tiles per split for rows 8, tiles 32 of {path}"
        in on(H200, BOTH, path).choose(rows=8, candidates=2048).explain()[-2]
    )
    unaligned = {**ALIGNED, "out": 8}
    facts = CallFacts(8, 2048, 24, 2, 256, 1 / 16, unaligned, H200.site())
    chosen = on(H200, BOTH, path).choose_for(facts, 8192, H200)  # type: ignore[arg-type]
    assert (chosen.kernel, [str(gate.name) for gate in chosen.refusals]) == ("int8-tc decode", ["out alignment"])


@pytest.mark.parametrize("tables", ["int8-tc", "both", "digits of another kernel", "none"])
def test_explain_and_a_measured_map_say_what_the_dispatcher_takes(
    tables: str, on: Callable[..., Dispatcher], make_map: Any, make_table: Any, tmp_path: Any
) -> None:
    path, changed = tmp_path / "splits.json", {"kernel_hash": "cd" * 8} if tables.startswith("digits") else {}
    of_digits = digits_table(make_table, **changed)
    made = make_map(make_table(), of_digits) if tables != "int8-tc" else make_map()
    made = replace(made, tables=()) if tables == "none" else made
    write_map(path, made)
    shapes = tuple(SparseShape(rows, 8192, 2048) for rows in range(1, 9))
    request = SparseRequest(shapes, ("previous", "int8-tc", "int8-digits"), policy=Policy(l2="cold"))
    tuned = with_tuned(request, H200, str(path), made, lambda _: None).tuned  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)
        for shape, target in zip(shapes, tuned, strict=True):
            chosen = on(H200, BOTH, path).choose(rows=shape.rows, candidates=2048)
            explained = explain_launch(str(path), made, H200, shape, "cold")  # type: ignore[arg-type]
            assert chosen.variant is not None
            taken = (chosen.variant.kernel, chosen.plan.splits)
            assert (explained.kernel, explained.splits) == taken
            assert (target.kernel, H200.geometry.plan(*target[:1], shape, target.value).split.splits) == taken
            assert (explained.outcome == "hit") == (chosen.basis == "map") == (target.value > 0)


@pytest.mark.parametrize("field", ["kernel_hash", "clusters", "cta_slots"])
def test_each_kernel_has_its_own_facts_that_must_match(
    field: str, on: Callable[..., Dispatcher], make_map: Any, make_table: Any, tmp_path: Any
) -> None:
    """A table of int8-digits that does not hold is one warning and leaves the rules of int8-tc in force."""
    wrong: dict[str, Any] = {"kernel_hash": "cd" * 8, "clusters": {**CLUSTERS, "16": 8}, "cta_slots": 131}
    path = tmp_path / "splits.json"
    write_map(path, make_map(make_table(), digits_table(make_table, **{field: wrong[field]})))
    dispatcher = on(H200, BOTH, path)
    with pytest.warns(MapWarning, match=f"its table of int8-digits is not used: {field} is"):
        assert dispatcher.choose(rows=8, candidates=2048).basis == "rule"
    chosen = dispatcher.choose(rows=4, candidates=2048)
    assert (chosen.kernel, chosen.basis, chosen.plan.splits) == ("int8-tc decode", "map", 16)


def test_a_map_of_int8_tc_alone_is_no_mistake_and_keeps_its_rules(
    on: Callable[..., Dispatcher], make_map: Any, tmp_path: Any
) -> None:
    path = tmp_path / "splits.json"
    write_map(path, make_map())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dispatcher = on(H200, BOTH, path)
        assert dispatcher.choose(rows=4, candidates=2048).basis == "map"
        assert dispatcher.choose(rows=1, candidates=2048).kernel == "int8-digits decode"


def test_int8_digits_needs_no_workspace_and_what_may_run_in_its_place_has_its_own(
    on: Callable[..., Dispatcher],
) -> None:
    """An output that is not aligned goes to int8-tc, whose partials must fit what was allocated up front."""
    both, alone = on(H200, BOTH), on(H200, ALONE)
    assert both.workspace_bytes(rows=1, candidates=2048) == alone.workspace_bytes(rows=1, candidates=2048) > 0


def test_the_cpu_backend_takes_int8_digits_by_the_map_alone(make_map: Any, make_table: Any, tmp_path: Any) -> None:
    inputs = sparse_inputs(SparseShape(8, 4096, 2048), DataSpec(invalid_fraction=0.2))
    backend = CpuRuntime()
    device, hashed = backend.device, backend.kernel_hash("int8-digits")
    backend.close()
    path, out = tmp_path / "splits.json", np.full_like(inputs.query, 7)
    made = digits_table(make_table, kernel_hash=hashed, cta_slots=device.sm_count, l2="none", clusters=None)
    write_map(path, make_map(made, device=MapDevice(device.name, None, device.sm_count, None, None, device.runtime)))
    dispatcher = Dispatcher({DECODE: "1"}, path)
    call = prepare(dispatcher, inputs, out)
    assert (call.choice.kernel, call.choice.basis, call.choice.plan.splits) == ("int8-digits decode", "map", 11)
    call.launch()
    assert dispatcher.choose(rows=1, candidates=2048, device="cpu").kernel == "int8-tc decode"
    dispatcher.close()
    oracle = reference(inputs)
    error = np.abs(out[oracle.rows].astype(np.float64) - oracle.out)
    assert (error <= fp32_bound(inputs, oracle.rows, oracle.out)).all()


def test_a_map_never_serves_prefill(on: Callable[..., Dispatcher], make_map: Any, tmp_path: Any) -> None:
    """C4, vllm-project/vllm#52192."""
    path = tmp_path / "splits.json"
    write_map(path, make_map())
    chosen = on(H200, {}, path).choose(rows=4096, candidates=2048)
    assert (chosen.kernel, chosen.basis, chosen.plan.splits) == ("int8-ws prefill", "rule", 1)


def test_another_devices_map_is_one_warning_and_the_rule(
    on: Callable[..., Dispatcher], make_map: Any, tmp_path: Any
) -> None:
    """C2, vllm-project/vllm#28349: a miss is visible, with the file and the field."""
    path = tmp_path / "splits.json"
    write_map(path, make_map())
    dispatcher = on(A100, {}, path)
    with pytest.warns(MapWarning, match="device name is NVIDIA H200 in the map and NVIDIA A100 here") as caught:
        chosen = [dispatcher.choose(rows=rows, candidates=2048) for rows in (4, 3, 8)]
    assert len(caught) == 1
    assert {one.basis for one in chosen} == {"rule"}
    assert f"map: mismatch in {path}" in chosen[0].found


def test_the_l2_mode_must_be_the_maps(on: Callable[..., Dispatcher], make_map: Any, tmp_path: Any) -> None:
    path = tmp_path / "splits.json"
    write_map(path, make_map())
    with pytest.warns(MapWarning, match="l2 is cold in the map and warm here"):
        assert on(H200, {}, path, l2="warm").choose(rows=4, candidates=2048).basis == "rule"
    with pytest.raises(BadInput, match=r"^l2 'hot'"):
        Dispatcher(l2="hot")


@pytest.mark.parametrize("text", ["", '{"schema":1,"tables":[', "[]", "{}"])
def test_a_malformed_map_is_one_warning_unless_strict(text: str, on: Callable[..., Dispatcher], tmp_path: Any) -> None:
    """C6, pytorch/pytorch#184096: inside a program a bad map is a miss; once per process and file."""
    path = tmp_path / "splits.json"
    path.write_text(text)
    with pytest.warns(MapWarning, match=str(path)):
        dispatcher = on(H200, {}, path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dispatcher(splits=path)
        chosen = dispatcher.choose(rows=4, candidates=2048)
    assert chosen.basis == "rule"
    assert f"map: not usable, {path}" in chosen.found
    with pytest.raises(BadInput, match=str(path)):
        Dispatcher(splits=path, strict=True)


def test_explain_names_each_gate_and_its_value(on: Callable[..., Dispatcher]) -> None:
    chosen = on(FakeGpu("NVIDIA H200", 90, 132, 3, ptx=75)).choose(rows=8, candidates=2048)
    assert chosen.kernel == "decode_grouped"
    lines = chosen.explain()
    assert "  int8-tc decode refused by PTX: needs a loaded PTX target of at least 80, found 75" in lines
    assert "  int8-tc decode passes SM: needs at least 80, found 90" in chosen.explain(passed=True)
    assert f"{DECODE}=1 (option)" in lines[-1]


def test_a_workspace_that_is_too_small_says_what_fits(inputs: SparseInputs, dispatcher: Dispatcher) -> None:
    options = ON | {KNOB: "1"}
    of_one_split = 8 * 24 * (256 + 2) * 4
    eight = Dispatcher(options)
    assert eight.workspace_bytes(rows=8, candidates=512, device="cpu") == 8 * of_one_split
    with pytest.raises(WorkspaceTooSmall) as raised:
        prepare(eight, inputs, workspace=np.zeros(3 * of_one_split + 5, np.uint8))
    assert str(raised.value) == (
        "workspace: holds 3 splits, the plan needs 8 (rows=8, tiles=8, tiles_per_split=1); "
        f"allocate {8 * of_one_split} bytes or ask for 3 tiles per split"
    )
    prepare(Dispatcher(ON | {KNOB: "3"}), inputs, workspace=np.zeros(3 * of_one_split + 5, np.uint8)).launch()
    prepare(eight, inputs, workspace=np.zeros(8 * of_one_split, np.uint8)).launch()


@pytest.mark.parametrize("gpu", [H200, A100])
@pytest.mark.parametrize("candidates", [1, 256, 512, 2048, 8192])
def test_the_workspace_is_large_enough_for_either_decode_kernel(
    gpu: FakeGpu, candidates: int, on: Callable[..., Dispatcher]
) -> None:
    for rows in range(1, 10):
        largest = on(gpu).workspace_bytes(rows=rows, candidates=candidates)
        plans = [on(gpu, {DECODE: switch}).choose(rows=rows, candidates=candidates) for switch in ("0", "1")]
        needed = [
            0 if plan.shape is None or plan.shape.op == "prefill" else module.partial_bytes(plan.shape, plan.plan)
            for plan in plans
        ]
        assert largest >= max(needed)


def test_rows_that_share_have_a_workspace_of_their_stream(on: Callable[..., Dispatcher], inputs: SparseInputs) -> None:
    """As partials of decode have: up front, grown in `prepare`, never two streams'."""

    class Gpu(FakeGpu):
        given: list[Any]

        def launches(self, variant: Any, shape: Any, call: Any, workspace: Any, stream: int) -> list[Any]:
            self.given.append((variant.kernel, stream, workspace))
            return []

        def allocate(self, nbytes: int) -> Any:
            return SimpleNamespace(address=1 << 20, nbytes=nbytes, owner=None)

    gpu = Gpu("a GPU for which few rows are many", 90, 3, 3)
    gpu.given = []
    dispatcher = on(gpu, {UNION: "1"})
    assert dispatcher.workspace_bytes(rows=16, candidates=512) == 16_000
    assert dispatcher.workspace_bytes(rows=16, candidates=512, query_heads=26) == 0
    assert dispatcher.workspace_bytes(rows=9, candidates=512, kv_heads=1, query_heads=12) == 0
    assert on(gpu).workspace_bytes(rows=16, candidates=512) == 0

    def prepared(rows: int, stream: int, **more: Any) -> PreparedCall:
        many = sparse_inputs(SparseShape(rows, 1024, 512), DataSpec())
        bf16 = {"query": "bfloat16", "out": "bfloat16"}
        tensors = {
            name: Torchlike(array, bf16.get(name, array.dtype.name), "cuda", 0)
            for name, array in {**many.tensors, "out": np.zeros_like(many.query)}.items()
        }
        return dispatcher.prepare(**(tensors | more), scale=many.scale, stream=stream)  # type: ignore[arg-type]

    prepared(16, 1)
    prepared(16, 2)
    prepared(32, 1)
    prepared(12, 1)
    assert [(kernel, stream) for kernel, stream, _ in gpu.given] == [
        ("int8-union", 1), ("int8-union", 2), ("int8-union", 1), ("int8-union", 1),
    ]  # fmt: skip
    first, other, grown, again = (workspace for _, _, workspace in gpu.given)
    assert first is not other
    assert again is grown is not first
    assert [one.nbytes for one in (first, other, grown)] == [16_000, 16_000, 32_000]

    own = misaligned(np.zeros(16_000, np.uint8), 0)
    call = prepared(16, 1, workspace=Torchlike(own, "uint8", "cuda", 0))
    assert call.choice.kernel == "int8-union prefill"
    assert gpu.given[-1][2].address == own.ctypes.data
    call = prepared(16, 1, workspace=Torchlike(misaligned(own, 8), "uint8", "cuda", 0))
    assert call.choice.kernel == "int8-ws prefill"
    assert "int8-union prefill refused by workspace alignment" in call.explain()
    assert gpu.given[-1][2] is None
    with pytest.raises(WorkspaceTooSmall) as raised:
        prepared(16, 1, workspace=Torchlike(own[:15_999], "uint8", "cuda", 0))
    assert str(raised.value) == (
        f"workspace: holds 15999 bytes, the unions of 16 rows need 16000; allocate these, or set {UNION}=0"
    )


def test_explain_says_when_rows_share_and_why_they_cannot(on: Callable[..., Dispatcher]) -> None:
    taken, *others = on(H200, {UNION: "1"}).choose(rows=256, candidates=2048, context=32768).explain()
    assert taken == (
        "int8-union prefill, 1 split of at most 32 tiles, 512 CTAs, by rule: four rows in one CTA per KV head where "
        "their lists are alike, else one CTA per row and KV head, unsplit"
    )
    assert not any(line.startswith("  int8-union prefill refused") for line in others)
    for gpu, options, sizes, said in (
        (H200, {}, {}, f"{UNION}: needs 1, found 0 (default)"),
        (A100, {UNION: "1"}, {}, "SM: needs 90, found 80"),
        (H200, {UNION: "1"}, {"context": 131073}, "context: needs at most 131072, found 131073"),
        (H200, {UNION: "1"}, {"query_heads": 26}, "group: needs at most 12 query heads per KV head, found 13"),
        (H200, {UNION: "1"}, {"rows": 128}, "rows x KV heads: needs more than 3 for each multiprocessor, which int8-ws "
         "runs at once, found 256 on 132 multiprocessors"),
    ):  # fmt: skip
        chosen = on(gpu, options).choose(**{"rows": 256, "candidates": 2048, **sizes})
        assert f"  int8-union prefill refused by {said}" in chosen.explain()


def test_explain_does_not_say_of_the_cpu_that_rows_share() -> None:
    dispatcher = Dispatcher({PREFILL: "1", UNION: "1"})
    taken, *_ = dispatcher.choose(rows=128, candidates=2048, context=32768, device="cpu").explain()
    dispatcher.close()
    assert taken.startswith("int8-union prefill, 1 split of ")
    assert taken.endswith(" by rule: one CTA per row and KV head, unsplit")


class FakeDriver:
    """The launch calls of cuda.bindings.driver; counts what it is given."""

    class CUresult:
        CUDA_SUCCESS = 0

    class CUlaunchAttributeID:
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6

    def __init__(self) -> None:
        self.launched: list[tuple[str, int]] = []

    def CUlaunchConfig(self) -> Any:
        return SimpleNamespace()

    def CUlaunchAttribute(self) -> Any:
        return SimpleNamespace(id=None, value=SimpleNamespace())

    def cuLaunchKernelEx(self, config: Any, function: str, arguments: int, extra: int) -> tuple[int]:
        self.launched.append((function, config.hStream))
        return (0,)


def test_a_prepared_call_costs_its_raw_launches(monkeypatch: pytest.MonkeyPatch, inputs: SparseInputs) -> None:
    """At most 10 us of host time beyond them; the wrapper itself is some 0.1 us. Nothing else reaches the driver."""
    driver = FakeDriver()
    monkeypatch.setattr("dsa_bench.backends.cuda.launch.load", lambda _: driver)
    facts = SimpleNamespace(
        dynamic_smem_bytes=0, constants={"head_size": 256, "max_group": 16, "tile": 128, "threads": 128}
    )
    kernels: Any = {
        name: SimpleNamespace(name=name, function=name, facts=facts, threads=128, dynamic_smem_bytes=0)
        for name in ("decode_int8_tc", "merge_partials")
    }

    class Gpu(FakeGpu):
        raw: list[KernelLaunch]

        def launches(self, variant: Any, shape: Any, call: Any, workspace: Any, stream: int) -> list[Any]:
            from dsa_bench.backends.cuda.runtime import Foreign, Pointer, sparse_launches
            from dsa_bench.backends.cuda.workspaces import Mailboxes

            launcher = SparseLauncher(kernels, Pointer(stream), programmatic=True, sms=132)
            assert Foreign.of(call.query).data.ptr == call.query.address
            self.raw = sparse_launches(launcher, variant, shape, call, workspace, Mailboxes())
            return [one.enqueue for one in self.raw]

        def allocate(self, nbytes: int) -> Any:
            return SimpleNamespace(address=1 << 20, nbytes=nbytes, owner=None)

    gpu = Gpu("NVIDIA H200", 90, 132, 3)
    monkeypatch.setattr(module, "open_runtime", lambda _: gpu)
    tensors = {
        name: Torchlike(array, {"query": "bfloat16", "out": "bfloat16"}.get(name, array.dtype.name), "cuda", 0)
        for name, array in {**inputs.tensors, "out": np.zeros_like(inputs.query)}.items()
    }
    stream = SimpleNamespace(cuda_stream=0x5A)
    call = Dispatcher({**ON, DIGITS: "0"}).prepare(**tensors, scale=inputs.scale, stream=stream)  # type: ignore[arg-type]
    call.launch()
    assert driver.launched == [("decode_int8_tc", 0x5A), ("merge_partials", 0x5A)]
    first, second = (launch.enqueue for launch in gpu.raw)

    def raw() -> None:
        first()
        second()

    def time_us(work: Callable[[], None]) -> float:
        samples: list[float] = []
        for _ in range(50):
            start = time.perf_counter()
            for _ in range(100):
                work()
            samples.append((time.perf_counter() - start) / 100 * 1e6)
        return statistics.median(samples)

    assert time_us(call.launch) - time_us(raw) < 10


@pytest.mark.parametrize(
    "stream",
    [7, SimpleNamespace(ptr=7), SimpleNamespace(cuda_stream=7), SimpleNamespace(__cuda_stream__=lambda: (0, 7))],
)
def test_a_stream_is_whatever_library_it_is_of(stream: Any) -> None:
    from dsa_bench.dispatch.arrays import stream_pointer

    assert stream_pointer(stream) == 7
    for bad in (None, True, "7"):
        with pytest.raises(BadInput, match=r"^stream: is "):
            stream_pointer(bad)


def test_arrays_with_a_cuda_array_interface() -> None:
    from dsa_bench.dispatch.arrays import view

    def array(typestr: str = "|i1", strides: Any = None, read_only: bool = False, **more: Any) -> Any:
        interface = {"data": (4096, read_only), "shape": (2, 3, 4), "typestr": typestr, "strides": strides}
        return SimpleNamespace(__cuda_array_interface__=interface, shape=(2, 3, 4), **more)

    key = view("key", array(strides=(12, 4, 1)))
    assert (key.dtype, key.address, key.nbytes, key.device, key.index) == ("int8", 4096, 24, "cuda", 0)
    assert view("key", array(device=SimpleNamespace(id=1))).index == 1
    assert view("query", array("<u2")).dtype == "bfloat16"
    assert view("query", array("<V2", dtype=np.dtype(BF16))).dtype == "bfloat16"
    with pytest.raises(BadInput, match=r"^key: is not contiguous"):
        view("key", array(strides=(24, 4, 1)))
    with pytest.raises(BadInput, match=r"^out: is read-only"):
        view("out", array("<u2", read_only=True))
