# SPDX-License-Identifier: MIT
"""Sparse attention for a program that has its own arrays, streams and graphs: choose once, launch at will."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dsa_bench.backends.base import Enqueue, Runtime
from dsa_bench.dispatch.arguments import context_of, device_of, scale_of, sizes_of
from dsa_bench.dispatch.arrays import sparse_call, stream_pointer, view
from dsa_bench.dispatch.choice import Choice, choose
from dsa_bench.dispatch.facts import Host
from dsa_bench.dispatch.gates import CallFacts
from dsa_bench.dispatch.options import PREFILL_INT8_UNION, DispatchOptions, resolve_options, resolve_splits
from dsa_bench.dispatch.tuned import TunedMap
from dsa_bench.model.call import SparseCall, TensorView
from dsa_bench.model.errors import BadInput, WorkspaceTooSmall
from dsa_bench.model.plan import SplitPlan
from dsa_bench.model.request import DIGITS, L2_MODES
from dsa_bench.model.shape import SparseShape, ceil_div
from dsa_bench.model.text import quoted

ALIGNED = {name: 0 for name in ("query", "key", "value", "key_scale", "value_scale", "selected", "out", "workspace")}
"""Addresses that satisfy every gate."""
FLOAT_BYTES = 4


def open_runtime(device: str) -> Runtime:
    """The runtime of "cpu" or "cuda". Raises CannotMeasure where there is no usable GPU."""
    if device == "cpu":
        from dsa_bench.backends.cpu.runtime import CpuRuntime

        return CpuRuntime()
    from dsa_bench.backends.cuda.runtime import CudaRuntime

    return CudaRuntime()


class PreparedCall:
    """One call, checked and built: `launch` enqueues it, as often as wanted, on the stream that it was prepared for.

    It keeps the arrays and the workspace alive; keep it as long as a graph that captured it.
    """

    __slots__ = ("_enqueues", "_kept", "choice")

    def __init__(self, choice: Choice, enqueues: Sequence[Enqueue], kept: tuple[Any, ...]) -> None:
        self.choice = choice
        self._enqueues = tuple(enqueues)
        self._kept = kept

    def launch(self) -> None:
        """Enqueue the raw launches and nothing else: no allocation, no synchronisation, safe in a graph capture."""
        for enqueue in self._enqueues:
            enqueue()

    def explain(self) -> str:
        """The kernel, each gate that said no and what it found, the splits and their basis, the map, the options."""
        return "\n".join(self.choice.explain())


class Dispatcher:
    """Takes each call to the kernel that its gates allow, with the splits of the knob, the tuned map or its own rule.

    options  by name, as strings (dsa_bench.dispatch.options); the environment and then the defaults answer for others
    splits   the tuned map's file; by default DSA_BENCH_SPLITS, or none
    strict   whether a malformed map is an error; else it is one warning, and the automatic rule decides
    l2       the L2 mode that the map must have been tuned for: cold in a model, whose weights pass between two calls

    Options, environment and map are read here and never again. Raises BadOption naming where a bad value came from.
    A dispatcher is used by one thread at a time.
    """

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        splits: str | os.PathLike[str] | None = None,
        *,
        strict: bool = False,
        l2: str = "cold",
    ) -> None:
        if not isinstance(l2, str) or l2 not in L2_MODES:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadInput(f"l2 {quoted(l2)}: must be one of {', '.join(L2_MODES)}")
        self.options: DispatchOptions = resolve_options(options)
        self._map = TunedMap(resolve_splits(splits), strict=strict)
        self._l2 = l2
        self._runtimes: dict[str, Runtime] = {}
        self._workspaces: dict[tuple[str, int], TensorView] = {}

    def prepare(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_scale: Any,
        value_scale: Any,
        selected: Any,
        out: Any,
        *,
        scale: float,
        stream: Any,
        workspace: Any = None,
        smooth_softmax: bool = False,
        local_plus_selected: bool = False,
    ) -> PreparedCall:
        """Check the arrays, choose, and build the launches over them. May allocate and compile, so not while capturing.

        query, out  [rows, query_heads, head_size] bf16 (or its bits as uint16)
        key, value  [kv_heads, context, head_size] int8         key_scale, value_scale  [kv_heads, head_size] float32
        selected    [rows, candidates] int32; an entry outside [0, context) is no candidate
        scale       the softmax scale, finite and not negative
        stream      where launches go; means nothing for NumPy arrays
        workspace   contiguous memory of at least workspace_bytes(), which no other stream uses meanwhile; by default
                    this dispatcher's own of the stream, which grows here and never in a launch

        Raises BadInput for arrays that are no such call, Unsupported for what no kernel here computes,
        WorkspaceTooSmall, CannotMeasure where the GPU cannot be used.
        """
        arrays = {
            "query": query, "key": key, "value": value, "key_scale": key_scale, "value_scale": value_scale,
            "selected": selected, "out": out,
        }  # fmt: skip
        call = sparse_call(arrays, scale)
        if call.query.index:
            raise BadInput(f"query: is on {call.query.device}:{call.query.index}; the kernels here are on device 0")
        place = call.query.device
        pointer = 0 if place == "cpu" else stream_pointer(stream)
        given = None if workspace is None else _given_workspace(workspace, call)
        runtime = self._runtime(place)
        addresses = {name: tensor.address for name, tensor in call.tensors.items()}
        facts = CallFacts(
            *_sizes(call), call.scale, {**addresses, "workspace": 0 if given is None else given.address},
            runtime.site(), smooth_softmax=smooth_softmax, local_plus_selected=local_plus_selected,
        )  # fmt: skip
        choice = self.choose_for(facts, call.key.shape[1], runtime)
        if choice.shape is None or choice.variant is None:
            enqueues = runtime.zero(call.out, pointer) if call.out.nbytes else []
            return PreparedCall(choice, enqueues, (call,))
        memory = None
        needed = _needed_bytes(choice, runtime)
        if needed:
            memory = self._own_workspace(place, pointer, needed) if given is None else given
            if memory.nbytes < needed:
                raise _too_small(memory.nbytes, needed, choice)
        enqueues = runtime.launches(choice.variant, choice.shape, call, memory, pointer)
        return PreparedCall(choice, enqueues, (call, memory))

    def choose(
        self, *, rows: int, candidates: int, query_heads: int = 24, kv_heads: int = 2, head_size: int = 256,
        context: int = 8192, scale: float = 1.0 / 16.0, device: str = "cuda",
    ) -> Choice:  # fmt: skip
        """What a call of these sizes gets, if its buffers are aligned. device: "cuda", or "cpu" for NumPy arrays.

        Raises BadInput for sizes, a scale or a device that are none, Unsupported and CannotMeasure as `prepare` does.
        """
        sizes, factor = sizes_of(rows, candidates, query_heads, kv_heads, head_size), scale_of(scale)
        capacity = context_of(context, sizes[0])
        runtime = self._runtime(device_of(device))
        sizes = (sizes[0], sizes[1] if capacity else 0, *sizes[2:])  # a cache without positions gives no candidate
        return self.choose_for(CallFacts(*sizes, factor, ALIGNED, runtime.site()), capacity, runtime)

    def workspace_bytes(
        self, *, rows: int, candidates: int, query_heads: int = 24, kv_heads: int = 2, head_size: int = 256,
        device: str = "cuda",
    ) -> int:  # fmt: skip
        """Bytes of workspace for calls of these sizes, whatever their alignment and scale; 0 where none is needed.

        Not monotonic in rows and candidates: for several shapes take the largest of their answers. Raises as `choose`.
        """
        sizes = sizes_of(rows, candidates, query_heads, kv_heads, head_size)
        needed = 0
        for addresses in (ALIGNED, {**ALIGNED, "out": 2}, {**ALIGNED, "query": 2, "key": 1}):
            runtime = self._runtime(device_of(device))
            facts = CallFacts(*sizes, 0.0, addresses, runtime.site())
            choice = self.choose_for(facts, max(sizes[0], 1), runtime)
            needed = max(needed, _needed_bytes(choice, runtime))
        return needed

    def close(self) -> None:
        """Give back the workspaces and the devices. No prepared call may run afterwards."""
        self._workspaces.clear()
        for runtime in self._runtimes.values():
            runtime.close()
        self._runtimes.clear()

    def choose_for(self, facts: CallFacts, context: int, host: Host) -> Choice:
        """What a call with these facts gets on a device; `context` is the capacity of its cache."""
        return choose(facts, context, self.options, host, self._map.tiles_per_split, self._l2)

    def _runtime(self, device: str) -> Runtime:
        if device not in self._runtimes:
            self._runtimes[device] = open_runtime(device)
        return self._runtimes[device]

    def _own_workspace(self, device: str, stream: int, needed: int) -> TensorView:
        """The stream's workspace, grown if it is too small; calls that were prepared before keep the one they have."""
        held = self._workspaces.get((device, stream))
        if held is None or held.nbytes < needed:
            held = self._workspaces[device, stream] = self._runtime(device).allocate(needed)
        return held


def partial_bytes(shape: SparseShape, plan: SplitPlan) -> int:
    """Bytes of every split's partial: acc [rows, query_heads, splits, head_size], then m and l, all FP32."""
    return shape.rows * shape.query_heads * plan.splits * (shape.head_size + 2) * FLOAT_BYTES


def _needed_bytes(choice: Choice, runtime: Runtime) -> int:
    """Workspace of a choice: of decode its partials, but those of `int8-digits`, which a runtime keeps itself; of
    prefill what rows leave each other that share candidates."""
    if choice.shape is None or choice.variant is None:
        return 0
    if choice.shape.op == "prefill":
        return runtime.union_bytes(choice.variant, choice.shape)
    return 0 if choice.variant.kernel == DIGITS else partial_bytes(choice.shape, choice.plan)


def _sizes(call: SparseCall) -> tuple[int, int, int, int, int]:
    """rows, candidates, query heads, KV heads, head size; a cache without positions gives no candidate."""
    rows, query_heads, head_size = call.query.shape
    kv_heads, context, _ = call.key.shape
    return rows, call.selected.shape[1] if context else 0, query_heads, kv_heads, head_size


def _given_workspace(array: Any, call: SparseCall) -> TensorView:
    given = view("workspace", array)
    if (given.device, given.index) != (call.query.device, call.query.index):
        raise BadInput(
            f"workspace: is on {given.device}:{given.index} and query on {call.query.device}:{call.query.index}; "
            "allocate it where the call runs"
        )
    if given.address % FLOAT_BYTES:
        raise BadInput(f"workspace: starts at address {given.address:#x}, must be a multiple of {FLOAT_BYTES}")
    return given


def _too_small(held_bytes: int, needed: int, choice: Choice) -> WorkspaceTooSmall:
    shape, plan, variant = choice.shape, choice.plan, choice.variant
    assert shape is not None
    assert variant is not None
    if shape.op == "prefill":
        return WorkspaceTooSmall(
            f"workspace: holds {held_bytes} bytes, the unions of {shape.rows} rows need {needed}; allocate these, or "
            f"set {PREFILL_INT8_UNION.name}=0"
        )
    of_one_split = partial_bytes(shape, SplitPlan(plan.tiles, 1))
    held = held_bytes // of_one_split
    target = f", tiles_per_split={variant.requested[0]}" if variant.requested else ""
    fewer = f" or ask for {ceil_div(plan.tiles, held)} tiles per split" if held and variant.requested else ""
    return WorkspaceTooSmall(
        f"workspace: holds {held} splits, the plan needs {plan.splits} "
        f"(rows={shape.rows}, tiles={plan.tiles}{target}); allocate {needed} bytes{fewer}"
    )
