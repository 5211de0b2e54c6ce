# SPDX-License-Identifier: MIT
"""The cases of prefill: those of decode, unsplit and some with more rows, and what prefill's kernels declare."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.request import UNION, UNION_EMULATION, WS, WS_EMULATION
from dsa_bench.oracle.cases.case import BOUND, Case, Limit, Setting, Tolerance
from dsa_bench.oracle.cases.neighbours import NEIGHBOUR_SINKS, NEIGHBOURS
from dsa_bench.oracle.cases.pairs import DEEP
from dsa_bench.oracle.cases.rows import model_like, row_inputs

ROWS = 9
"""From 8 queries on a call is prefill; 9 fill no power of two."""
MANY_ROWS = 128
SEED_HEADS = (2, 12, 24, 32)
SIGNED_CANCELLATION_ULPS = 2 * 4064 * 2.0**-12 / 2.0**-9
"""Each probability off by 2^-12, values of +-4064, in BF16's spacing at 127/256."""


def prefill_cases(decode: Iterable[Case]) -> list[Case]:
    """Every case of decode as prefill, lists and heads with more rows, and the ones that only prefill has."""
    return [_as_prefill(case) for case in (*decode, *_PREFILL_ONLY)]


def _as_prefill(case: Case) -> Case:
    settings = _MORE_ROWS.get(case.name, case.settings)
    kept = [limit for limit in case.limits if (limit.kernel, limit.backend) != ("previous", "cuda")]
    of_cpu = [limit for limit in kept if (limit.kernel, limit.backend) == ("int8-tc", "cpu")]
    kept += [replace(limit, kernel=kernel) for kernel in (WS, UNION) for limit in of_cpu]
    return replace(
        case,
        settings=tuple(Setting(label, partial(_prefill_inputs, build)) for label, build in settings),
        tiles_per_split=(0,),
        limits=(*kept, *_ONE_TILE.get(case.name, ()), *_ws_limits(case.name), *_bf16_limits(case.name)),
    )


def _prefill_inputs(build: Callable[[], SparseInputs]) -> SparseInputs:
    return replace(build(), op="prefill")


def _valid(valid: int) -> tuple[Setting, ...]:
    """The seed's sweep of heads, and more rows than a GPU has multiprocessors."""
    heads = [Setting(f"{heads} heads", partial(row_inputs, ROWS, valid, query_heads=heads)) for heads in SEED_HEADS]
    return *heads, Setting(f"{MANY_ROWS} rows", partial(row_inputs, MANY_ROWS, valid))


def _nine_rows(**knobs: int) -> tuple[Setting, ...]:
    return (Setting(f"{ROWS} rows", partial(row_inputs, ROWS, **knobs)),)


_MORE_ROWS: Mapping[str, tuple[Setting, ...]] = {
    **{f"valid-{valid}": _valid(valid) for valid in (1, 64, 65, 509)},
    **{f"list-{entries}": _nine_rows(valid=entries, entries=entries) for entries in (2048, 2112, 8192)},
    **{f"heads-{heads}": _nine_rows(valid=300, query_heads=heads) for heads in (8, 12, 24, 32)},
}

_PREFILL_ONLY = (
    Case(
        "groups",
        "every number of query heads on a KV head from 1 to 16",
        tuple(Setting(f"group {n}", partial(row_inputs, ROWS, 130, query_heads=2 * n)) for n in range(1, 17)),
        tolerance=BOUND,
    ),
    NEIGHBOURS,
    NEIGHBOUR_SINKS,
    Case(
        "model-like-128",
        "128 rows of data like a model's",
        (Setting(f"{MANY_ROWS} rows", partial(model_like, MANY_ROWS, 0)),),
        tolerance=Tolerance("rms over floor", 1.04),
        path="half",
    ),
)

_ONE_NUMBER = "one FP16 number holds a probability, so each is off by up to 2^-12"
_ONE_TILE: Mapping[str, tuple[Limit, ...]] = {
    "signed-cancellation": (
        Limit("int8-tc", _ONE_NUMBER, SIGNED_CANCELLATION_ULPS, backend="cuda"),
        Limit("emulation", _ONE_NUMBER, SIGNED_CANCELLATION_ULPS),
    ),
}
"""What `int8-tc` cannot hold without decode's residual."""

_HEADROOM = "FP16 holds the tail as subnormal numbers, below 4 bits of headroom"
_WS: Mapping[str, tuple[str, float]] = {
    "signed-cancellation": (_ONE_NUMBER, SIGNED_CANCELLATION_ULPS),
    "sink-20": (_HEADROOM, 4.0),
    "sink-24": (_HEADROOM, 100.0),
}
"""What `int8-ws` and `int8-union` cannot hold: the reason, and how many times the tolerance it may show (emulated)."""


def _ws_limits(case: str) -> tuple[Limit, ...]:
    if case not in _WS:
        return ()
    reason, times = _WS[case]
    on_gpu = (Limit(kernel, reason, times, "cuda") for kernel in (WS, UNION))
    return *on_gpu, *(Limit(kernel, reason, times) for kernel in (WS_EMULATION, UNION_EMULATION))


_COARSE = "keys, values and probabilities have BF16's 8 bits"
_BF16: Mapping[str, tuple[str, float]] = {
    "cancelling-products": ("a key of 16383 * 64 is 16384 * 64 in BF16", 128.0),
    "fine-cancellation": ("a key of 127 * (32768 + 2^-8) is 127 * 32768 in BF16", 16.0),
    "signed-cancellation": ("probabilities 0.5 +- 2^-14 are one BF16 number", 256.0),
    "tail-100": (DEEP, float("inf")),
    "rising-maximum": (DEEP, float("inf")),
    "vast-value-scale": ("a sum of dequantised values overflows FP32 before it is divided", float("inf")),
    "products-beyond-fp32": ("query * key overflows FP32", float("inf")),
    "negative-infinite-query": ("a score of minus infinity is taken for no candidate", float("inf")),
    "two-scales": (_COARSE, 2.5),
    **dict.fromkeys(("model-like-1", "model-like-8", "model-like-128"), (_COARSE, 3.0)),
    "huge-queries": ("keys in BF16 move logits of 10^9 by more than any bound can follow", 1.0),
    "sink-4": (_COARSE, 2.5),
    "sink-8": (_COARSE, 4.0),
    "sink-12": (_COARSE, 5.5),
    "sink-16": (_COARSE, 5.5),
    "sink-20": (_COARSE, 6.5),
    "sink-24": (_COARSE, 6.5),
    "single-channel-sink-16": (_COARSE, 18.0),
    "neighbour-sinks": (_COARSE, 5.5),
}
"""What `previous` cannot hold: the reason, and how many times the tolerance it may show (emulated; inf: not FP64's)."""


def _bf16_limits(case: str) -> tuple[Limit, ...]:
    if case not in _BF16:
        return ()
    reason, times = _BF16[case]
    blind = case == "huge-queries"
    return Limit("previous", reason, times, "cuda", blind), Limit("emulation-bf16", reason, times, blind=blind)
