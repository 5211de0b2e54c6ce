# SPDX-License-Identifier: MIT
"""Which kernel a call may take: pure functions of its facts. A gate that says no is named, with what it found.

Source: seed 000, "Gates and switches". A kernel takes a call if every one of its gates passes; the kernels are asked in
the order of `GATES`, and `decode_grouped`, which takes every shape and buffer, answers for what is left.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from dsa_bench.dispatch.options import DispatchOptions, Setting
from dsa_bench.model.call import LaunchSite, LoadedKernel
from dsa_bench.model.errors import BadInput, CannotMeasure, Unsupported
from dsa_bench.model.request import DIGITS, UNION_CONTEXT, UNION_GROUP, UNION_KV_HEADS
from dsa_bench.splits.kernels import INT8_TC

KernelName = Literal[
    "int8-digits decode",
    "int8-tc decode",
    "int8-union prefill",
    "int8-ws prefill",
    "int8-tc prefill",
    "bf16 prefill",
    "decode_grouped",
    "none",
]
"""`none`: there is nothing to attend to, and an output that is not empty is zeroed."""
DEVICE_FUNCTION: dict[KernelName, str] = {
    "int8-digits decode": "decode_digits",
    "int8-tc decode": "decode_int8_tc",
    "int8-union prefill": "prefill_int8_union",
    "int8-ws prefill": "prefill_int8_ws_few",
    "int8-tc prefill": "prefill_int8_tc",
    "bf16 prefill": "prefill_bf16",
    "decode_grouped": "decode_grouped",
}
"""Of a kernel with several, the one under whose name a site tells of them all."""
HEAD_SIZE = 256
MAX_GROUP = 16
DECODE_ROWS = 8
DECODE_MIN_GROUP = 4
DECODE_MORE_CANDIDATES = 256
PREFILL_ROWS = 8
MAX_SCALE = 1.0
MAX_CANDIDATES = 2**20
"""Candidates up to which the integer sums of the tensor-core kernels are exact (kernels/dsa/int8_tc.cuh)."""
TENSOR_CORE_SM = 80
WS_SM = 90
WS_CANDIDATES = 512
"""Where `int8-ws` has the instructions that it is made for, and lists from which on it is measured to be the faster one
(decision 0035)."""
WS_CTAS_PER_SM = 3
"""CTAs of `int8-ws`, each a row and a KV head, that a multiprocessor of SM 9.0 holds (kernels/dsa/int8_ws.cuh).

`int8-union` has a quarter as many CTAs where rows share: of a call that `int8-ws` runs all at once at most 3/4 of one
for each multiprocessor, which holds 2. On an H200 all above that share gained on record (decision 0040)."""
CLUSTER_SM = 90
WIDE_BYTES = 16
OUT_BYTES = 8
WS_OUT_BYTES = 4
MAX_GRID_Y = 65535
GROUPED_HEADS_PER_CTA = 8


@dataclass(frozen=True, slots=True)
class CallFacts:
    """All that the gates may look at: sizes, the scale, addresses and the device; never a tensor's values.

    rows       query tokens of the call (sequence_length)      candidates  capacity of a row's list (max_selected)
    addresses  in bytes, by tensor: query, key, value, key_scale, value_scale, out and workspace
    site       the GPU and what is loaded on it; None on the CPU, where the gates of the device do not apply
    preferred  the decode kernel that the map gives a call of these sizes, or without a rule the automatic choice
    context    capacity of the cache; who asks for a choice gives it beside the facts
    sms        multiprocessors of the GPU, or of one that is planned for; 0 on the CPU. Who asks for a choice gives the
               host that has them
    """

    rows: int
    candidates: int
    query_heads: int
    kv_heads: int
    head_size: int
    scale: float
    addresses: Mapping[str, int]
    site: LaunchSite | None = None
    query_dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    cache_dtype: str = "int8"
    smooth_softmax: bool = False
    local_plus_selected: bool = False
    preferred: str = INT8_TC
    context: int = 0
    sms: int = 0

    @property
    def row_heads(self) -> int:
        """What is one CTA each in prefill: every row and KV head."""
        return self.rows * self.kv_heads

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.query_heads // self.kv_heads

    @property
    def grouped_decode(self) -> bool:
        """Whether the call is on the grouped decode path, which prefill kernels leave alone."""
        return (
            1 <= self.rows <= DECODE_ROWS
            and DECODE_MIN_GROUP <= self.group <= MAX_GROUP
            and self.candidates > DECODE_MORE_CANDIDATES
        )


@dataclass(frozen=True, slots=True)
class Gate:
    """What one gate of one kernel needed and found."""

    kernel: KernelName
    name: str
    needed: str
    found: str
    passed: bool

    def __str__(self) -> str:
        return f"{self.name}: needs {self.needed}, found {self.found}"


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel, and every gate of it and of the kernels that were asked before."""

    kernel: KernelName
    gates: tuple[Gate, ...]

    @property
    def refusals(self) -> tuple[Gate, ...]:
        """The gates that said no."""
        return tuple(gate for gate in self.gates if not gate.passed)


@dataclass(frozen=True, slots=True)
class GateRule:
    """A gate before a call: what it is called, what it needs, what it reads, and whether that will do.

    on_gpu  whether it asks about the device, and so applies on a GPU only
    """

    name: str
    needed: str
    read: Callable[[CallFacts, DispatchOptions], object]
    passes: Callable[[CallFacts, DispatchOptions], bool]
    on_gpu: bool = False


def _switch(read: Callable[[DispatchOptions], Setting], name: str) -> GateRule:
    return GateRule(name, "1", lambda _, options: read(options).found, lambda _, options: read(options).value == 1)


def _aligned(tensor: str, width: int) -> GateRule:
    return GateRule(
        f"{tensor} alignment",
        f"an address that is a multiple of {width}",
        lambda call, _: f"address % {width} = {call.addresses[tensor] % width}",
        lambda call, _: call.addresses[tensor] % width == 0,
    )


def _site(call: CallFacts) -> LaunchSite:
    assert call.site is not None
    return call.site


def _loaded(call: CallFacts, function: str) -> LoadedKernel | str:
    return _site(call).kernels.get(function, "it is not loaded here")


def _least_sm(least: int) -> GateRule:
    return GateRule("SM", f"at least {least}", lambda c, _: _site(c).sm, lambda c, _: _site(c).sm >= least, True)


_SM = _least_sm(TENSOR_CORE_SM)
_WS_SM = GateRule("SM", f"{WS_SM}", lambda c, _: _site(c).sm, lambda c, _: _site(c).sm == WS_SM, True)


def _device(kernel: KernelName, sm: GateRule = _SM, least: int = TENSOR_CORE_SM) -> tuple[GateRule, ...]:
    """The gates of a tensor-core kernel on the GPU and on its loaded code. least: the PTX target that it needs."""
    function = DEVICE_FUNCTION[kernel]

    def loaded(call: CallFacts, _: DispatchOptions) -> object:
        kernel = _loaded(call, function)
        return "loaded" if isinstance(kernel, LoadedKernel) else kernel

    def ptx(call: CallFacts, _: DispatchOptions) -> object:
        kernel = _loaded(call, function)
        return kernel.ptx if isinstance(kernel, LoadedKernel) else "no kernel"

    def smem(call: CallFacts, _: DispatchOptions) -> object:
        kernel = _loaded(call, function)
        needed = f"{kernel.smem_bytes} bytes" if isinstance(kernel, LoadedKernel) else "no kernel"
        return f"{needed}, {_site(call).smem_opt_in_bytes} bytes allowed"

    def new_enough(call: CallFacts, _: DispatchOptions) -> bool:
        kernel = _loaded(call, function)
        return not isinstance(kernel, LoadedKernel) or kernel.ptx >= least

    def fits(call: CallFacts, _: DispatchOptions) -> bool:
        kernel = _loaded(call, function)
        return not isinstance(kernel, LoadedKernel) or kernel.smem_bytes <= _site(call).smem_opt_in_bytes

    return (
        sm,
        GateRule(
            "kernel", f"{function} loaded", loaded, lambda c, _: isinstance(_loaded(c, function), LoadedKernel), True
        ),
        # An image of older PTX runs on a newer GPU with the older architecture's bodies, which are empty here.
        GateRule("PTX", f"a loaded PTX target of at least {least}", ptx, new_enough, True),
        GateRule("shared memory", "a block that the device allows", smem, fits, True),
    )


def _most_heads(most: int) -> GateRule:
    needed = f"at most {most} query heads per KV head"
    return GateRule("group", needed, lambda c, _: c.group, lambda c, _: c.group <= most)


_HEAD_SIZE = GateRule("head size", f"{HEAD_SIZE}", lambda c, _: c.head_size, lambda c, _: c.head_size == HEAD_SIZE)
_SCALE = GateRule("scale", f"at most {MAX_SCALE:g}", lambda c, _: f"{c.scale:g}", lambda c, _: c.scale <= MAX_SCALE)
_LONGEST_LIST = GateRule(
    "exact sums", f"at most {MAX_CANDIDATES} candidates",
    lambda c, _: c.candidates, lambda c, _: c.candidates <= MAX_CANDIDATES,
)  # fmt: skip
_SHARED_HEADS = _most_heads(MAX_GROUP)
_PREFILL_PATH = (
    _switch(lambda options: options.prefill_kernel, "ep.cuda.dsa_prefill_kernel"),
    GateRule("rows", f"at least {PREFILL_ROWS}", lambda c, _: c.rows, lambda c, _: c.rows >= PREFILL_ROWS),
    GateRule(
        "prefill path", "a call that is not on the grouped decode path",
        lambda c, _: "the grouped decode path" if c.grouped_decode else "another",
        lambda c, _: not c.grouped_decode,
    ),
)  # fmt: skip

_PREFILL_INT8 = _switch(lambda options: options.prefill_int8_tc, "ep.cuda.dsa_prefill_int8_tc")
_PREFILL_WS = (_PREFILL_INT8, _switch(lambda options: options.prefill_int8_ws, "ep.cuda.dsa_prefill_int8_ws"))
_WS_CANDIDATES = GateRule(
    "candidates", f"at least {WS_CANDIDATES}",
    lambda c, _: c.candidates, lambda c, _: c.candidates >= WS_CANDIDATES,
)  # fmt: skip
_DECODE_INT8 = _switch(lambda options: options.decode_int8_tc, "ep.cuda.dsa_decode_int8_tc")
_DECODE_ROWS = GateRule("rows", f"1 to {DECODE_ROWS}", lambda c, _: c.rows, lambda c, _: 1 <= c.rows <= DECODE_ROWS)
_READ_WIDE = tuple(_aligned(name, WIDE_BYTES) for name in ("query", "key", "value", "key_scale", "value_scale"))
"""Prefill's query as well, which the seed's list leaves out: ours is read 16 bytes at a time."""

GATES: dict[KernelName, tuple[GateRule, ...]] = {
    "int8-digits decode": (
        _DECODE_INT8, _switch(lambda options: options.decode_int8_digits, "ep.cuda.dsa_decode_int8_digits"),
        GateRule(
            "ep.cuda.dsa_decode_int8_tc_tiles_per_split", "0, as a value asks for int8-tc",
            lambda _, options: options.tiles_per_split.found, lambda _, options: options.tiles_per_split.value == 0,
        ),
        GateRule(
            "choice", f"{DIGITS} by the map, or where it was measured to be faster",
            lambda c, _: c.preferred, lambda c, _: c.preferred == DIGITS,
        ),
        # On no GPU without clusters was it measured: SM 90 on.
        _DECODE_ROWS, _SHARED_HEADS, _HEAD_SIZE, _SCALE, _LONGEST_LIST,
        *_device("int8-digits decode", _least_sm(CLUSTER_SM), CLUSTER_SM), *_READ_WIDE, _aligned("out", WIDE_BYTES),
    ),
    "int8-tc decode": (
        _DECODE_INT8, _DECODE_ROWS,
        GateRule(
            "group", f"{DECODE_MIN_GROUP} to {MAX_GROUP} query heads per KV head",
            lambda c, _: c.group, lambda c, _: DECODE_MIN_GROUP <= c.group <= MAX_GROUP,
        ),
        GateRule(
            "candidates", f"more than {DECODE_MORE_CANDIDATES}",
            lambda c, _: c.candidates, lambda c, _: c.candidates > DECODE_MORE_CANDIDATES,
        ),
        _HEAD_SIZE, _SCALE, _LONGEST_LIST, *_device("int8-tc decode"),
        *_READ_WIDE, _aligned("workspace", WIDE_BYTES),
    ),
    "int8-union prefill": (
        *_PREFILL_WS, _switch(lambda options: options.prefill_int8_union, "ep.cuda.dsa_prefill_int8_union"),
        *_PREFILL_PATH, _most_heads(UNION_GROUP), _WS_CANDIDATES,
        GateRule(
            "context", f"at most {UNION_CONTEXT}",
            lambda c, _: c.context, lambda c, _: c.context <= UNION_CONTEXT,
        ),
        GateRule(
            "KV heads", f"at most {UNION_KV_HEADS}",
            lambda c, _: c.kv_heads, lambda c, _: c.kv_heads <= UNION_KV_HEADS,
        ),
        GateRule(
            "rows x KV heads", f"more than {WS_CTAS_PER_SM} for each multiprocessor, which int8-ws runs at once",
            lambda c, _: f"{c.row_heads} on {c.sms} multiprocessors", lambda c, _: c.row_heads > WS_CTAS_PER_SM * c.sms,
        ),
        # Code of older PTX has no rows that share: int8-ws would do all the work behind two launches for nothing.
        _HEAD_SIZE, _SCALE, _LONGEST_LIST, *_device("int8-union prefill", _WS_SM, WS_SM),
        *_READ_WIDE, _aligned("out", WS_OUT_BYTES), _aligned("workspace", WIDE_BYTES),
    ),
    "int8-ws prefill": (
        *_PREFILL_WS, *_PREFILL_PATH, _SHARED_HEADS, _WS_CANDIDATES, _HEAD_SIZE, _SCALE, _LONGEST_LIST,
        *_device("int8-ws prefill", _WS_SM), *_READ_WIDE, _aligned("out", WS_OUT_BYTES),
    ),
    "int8-tc prefill": (
        _PREFILL_INT8, *_PREFILL_PATH, _SHARED_HEADS, _HEAD_SIZE, _SCALE, _LONGEST_LIST, *_device("int8-tc prefill"),
        *_READ_WIDE, _aligned("out", OUT_BYTES),
    ),
    "bf16 prefill": (*_PREFILL_PATH, _SHARED_HEADS, _HEAD_SIZE, *_device("bf16 prefill")),
}  # fmt: skip
"""The gates of every kernel but the last resort, in the order in which the kernels are asked."""


def choose_kernel(call: CallFacts, options: DispatchOptions) -> KernelChoice:
    """The first kernel whose gates all pass.

    Raises BadInput for a scale that is none, Unsupported for what no kernel here computes, CannotMeasure if the last
    resort is needed and is not loaded.
    """
    _refuse_unsupported(call)
    if not call.rows * call.query_heads * call.kv_heads * call.head_size * call.candidates:
        found = f"rows {call.rows}, heads {call.query_heads}/{call.kv_heads}, candidates {call.candidates}"
        return KernelChoice("none", (Gate("decode_grouped", "work", "rows, heads and candidates", found, False),))
    checked: list[Gate] = []
    for kernel, rules in GATES.items():
        of_kernel = [
            Gate(kernel, rule.name, rule.needed, str(rule.read(call, options)), rule.passes(call, options))
            for rule in rules
            if call.site is not None or not rule.on_gpu
        ]
        checked += of_kernel
        if all(gate.passed for gate in of_kernel):
            return KernelChoice(kernel, tuple(checked))
    _refuse_beyond_grouped(call)
    return KernelChoice("decode_grouped", tuple(checked))


def _refuse_unsupported(call: CallFacts) -> None:
    if not (math.isfinite(call.scale) and call.scale >= 0):
        raise BadInput(f"scale {call.scale}: must be finite and not negative")
    if call.smooth_softmax:
        raise Unsupported("smooth softmax: no kernel here computes it; compute this call elsewhere")
    if call.local_plus_selected:
        raise Unsupported("local-plus-selected attention: the kernels here read selected entries only; list them all")
    types = {"query": call.query_dtype, "out": call.out_dtype}
    for name, dtype in types.items():
        if dtype != "bfloat16":
            raise Unsupported(f"{name} is {dtype}: the kernels here take bfloat16; convert it")
    if call.cache_dtype != "int8":
        raise Unsupported(f"key and value are {call.cache_dtype}: the kernels here read an int8 cache")


def _refuse_beyond_grouped(call: CallFacts) -> None:
    kernel = None if call.site is None else _loaded(call, DEVICE_FUNCTION["decode_grouped"])
    if isinstance(kernel, str):
        raise CannotMeasure(f"decode_grouped, which takes what the others refuse: {kernel}")
    asked = f"{call.query_heads} query heads on {call.kv_heads} KV heads, head size {call.head_size}"
    if call.head_size > HEAD_SIZE:
        raise Unsupported(f"{asked}: every kernel here stops at a head size of {HEAD_SIZE}")
    if call.kv_heads * -(-call.group // GROUPED_HEADS_PER_CTA) > MAX_GRID_Y:
        raise Unsupported(f"{asked}: a launch holds at most {MAX_GRID_Y} blocks of heads; split the heads")
