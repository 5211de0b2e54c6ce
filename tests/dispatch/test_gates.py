# SPDX-License-Identifier: MIT
"""Which kernel a call takes. Cases D3, D7 and D8; every gate has a call that it alone refuses."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.dispatch.gates import (
    DEVICE_FUNCTION,
    GATES,
    WS_CTAS_PER_SM,
    CallFacts,
    KernelChoice,
    KernelName,
    choose_kernel,
)
from dsa_bench.dispatch.options import resolve_options
from dsa_bench.jit.target import parse_target
from dsa_bench.model.call import LaunchSite, LoadedKernel
from dsa_bench.model.errors import BadInput, CannotMeasure, Unsupported
from dsa_bench.model.request import UNION_CONTEXT, UNION_GROUP, UNION_KV_HEADS

ON = {"ep.cuda.dsa_decode_int8_tc": "1", "ep.cuda.dsa_prefill_int8_tc": "1"}
TENSORS = ("query", "key", "value", "key_scale", "value_scale", "selected", "out", "workspace")


def site(sm: int = 90, ptx: int = 90, smem_bytes: int = 75264, limit: int = 232448, **missing: str) -> LaunchSite:
    kernels: dict[str, LoadedKernel | str] = {name: LoadedKernel(ptx, smem_bytes) for name in DEVICE_FUNCTION.values()}
    return LaunchSite(sm, limit, kernels | missing)


def call(rows: int, candidates: int = 2048, **changes: Any) -> CallFacts:
    misaligned = {name: changes.pop(name) for name in TENSORS if name in changes}
    addresses = {name: 0x7F0000000000 + misaligned.get(name, 0) for name in TENSORS}
    fields: dict[str, Any] = {
        "rows": rows, "candidates": candidates, "query_heads": 24, "kv_heads": 2, "head_size": 256, "scale": 1 / 16,
        "addresses": addresses, "site": site(), "sms": 132,
    }  # fmt: skip
    return CallFacts(**(fields | changes))


def choice(facts: CallFacts, **options: str) -> KernelChoice:
    return choose_kernel(facts, resolve_options(ON | {f"ep.cuda.{name}": value for name, value in options.items()}, {}))


BASE: dict[KernelName, CallFacts] = {
    "int8-digits decode": call(1, preferred="int8-digits"),
    "int8-tc decode": call(8),
    "int8-union prefill": call(256, context=8192),
    "int8-ws prefill": call(128),
    "int8-tc prefill": call(128, site=site(80, 80)),  # which int8-ws leaves to it
    "bf16 prefill": call(128, scale=2.0),  # which both leave to it
}
ASKED: dict[KernelName, dict[str, str]] = {"int8-union prefill": {"dsa_prefill_int8_union": "1"}}
"""The options of a base call beside ON."""
NEXT: dict[KernelName, KernelName] = {
    "int8-digits decode": "int8-tc decode",
    "int8-tc decode": "decode_grouped", "int8-union prefill": "int8-ws prefill", "int8-ws prefill": "int8-tc prefill",
    "int8-tc prefill": "bf16 prefill", "bf16 prefill": "decode_grouped",
}  # fmt: skip


def with_kernel(kernel: KernelName, loaded: LoadedKernel | str) -> LaunchSite:
    base = BASE[kernel].site
    assert base is not None
    return replace(base, kernels={**base.kernels, DEVICE_FUNCTION[kernel]: loaded})


def device_cases(kernel: KernelName) -> dict[str, Any]:
    return {
        "kernel": {"site": with_kernel(kernel, "it did not compile")},
        "PTX": {"site": with_kernel(kernel, LoadedKernel(75, 75264))},
        "shared memory": {"site": with_kernel(kernel, LoadedKernel(90, 232449))},
    }


def misaligned_cases(**more: str) -> dict[str, Any]:
    """Each tensor that is read 16 bytes at a time, 8 bytes off."""
    return {f"{name} alignment": {name: 8, **more} for name in ("query", "key", "value", "key_scale", "value_scale")}


# For each kernel and gate the change of its base call that no other gate of the kernel refuses, and the kernel that
# answers then where it is not the next one. SM alone cannot be old while a kernel of PTX 80 runs; a gate is a gate.
ALONE: dict[KernelName, dict[str, Any]] = {
    "int8-digits decode": {
        "ep.cuda.dsa_decode_int8_tc": {"dsa_decode_int8_tc": "0", "answers": "decode_grouped"},
        "ep.cuda.dsa_decode_int8_digits": {"dsa_decode_int8_digits": "0"},
        "ep.cuda.dsa_decode_int8_tc_tiles_per_split": {"dsa_decode_int8_tc_tiles_per_split": "4"},
        "choice": {"preferred": "int8-tc"},
        "rows": {"rows": 9, "answers": "int8-ws prefill"},
        "group": {"query_heads": 34, "answers": "decode_grouped"},
        "head size": {"head_size": 128, "answers": "decode_grouped"},
        "scale": {"scale": 1.0000001, "answers": "decode_grouped"},
        "exact sums": {"candidates": 2**20 + 1, "answers": "decode_grouped"},
        "SM": {"site": site(89, 90)},
        **device_cases("int8-digits decode"),
        **misaligned_cases(answers="decode_grouped"),
        "out alignment": {"out": 8},
    },
    "int8-tc decode": {
        "ep.cuda.dsa_decode_int8_tc": {"dsa_decode_int8_tc": "0"},
        "rows": {"rows": 9, "answers": "int8-ws prefill"},
        "group": {"query_heads": 6, "answers": "int8-ws prefill"},
        "candidates": {"candidates": 256, "answers": "int8-tc prefill"},
        "head size": {"head_size": 128},
        "scale": {"scale": 1.0000001},
        "exact sums": {"candidates": 2**20 + 1},
        "SM": {"site": site(75, 80)},
        **device_cases("int8-tc decode"),
        **misaligned_cases(),
        "workspace alignment": {"workspace": 8},
    },
    "int8-union prefill": {
        "ep.cuda.dsa_prefill_int8_tc": {"dsa_prefill_int8_tc": "0", "answers": "bf16 prefill"},
        "ep.cuda.dsa_prefill_int8_ws": {"dsa_prefill_int8_ws": "0", "answers": "int8-tc prefill"},
        "ep.cuda.dsa_prefill_int8_union": {"dsa_prefill_int8_union": "0"},
        "ep.cuda.dsa_prefill_kernel": {"dsa_prefill_kernel": "0", "answers": "decode_grouped"},
        "rows": {"rows": 7, "query_heads": 2, "sms": 4, "answers": "decode_grouped"},
        "prefill path": {"rows": 8, "sms": 4, "dsa_decode_int8_tc": "0", "answers": "decode_grouped"},
        "group": {"query_heads": 26},
        "candidates": {"candidates": 511, "answers": "int8-tc prefill"},
        "context": {"context": 131073},
        "KV heads": {"kv_heads": 129, "query_heads": 129},
        "rows x KV heads": {"rows": 198},
        "head size": {"head_size": 128, "answers": "decode_grouped"},
        "scale": {"scale": 1.0000001, "answers": "bf16 prefill"},
        "exact sums": {"candidates": 2**20 + 1, "answers": "bf16 prefill"},
        "SM": {"site": site(100, 100), "answers": "int8-tc prefill"},
        **device_cases("int8-union prefill"),
        **misaligned_cases(answers="bf16 prefill"),
        "out alignment": {"out": 2, "answers": "bf16 prefill"},
        "workspace alignment": {"workspace": 8},
    },
    "int8-ws prefill": {
        "ep.cuda.dsa_prefill_int8_tc": {"dsa_prefill_int8_tc": "0", "answers": "bf16 prefill"},
        "ep.cuda.dsa_prefill_int8_ws": {"dsa_prefill_int8_ws": "0"},
        "ep.cuda.dsa_prefill_kernel": {"dsa_prefill_kernel": "0", "answers": "decode_grouped"},
        "rows": {"rows": 7, "query_heads": 2, "answers": "decode_grouped"},
        "prefill path": {"rows": 8, "dsa_decode_int8_tc": "0", "answers": "decode_grouped"},
        "group": {"query_heads": 34, "answers": "decode_grouped"},
        "candidates": {"candidates": 511},
        "head size": {"head_size": 128, "answers": "decode_grouped"},
        "scale": {"scale": 1.0000001, "answers": "bf16 prefill"},
        "exact sums": {"candidates": 2**20 + 1, "answers": "bf16 prefill"},
        "SM": {"site": site(89, 89)},
        **device_cases("int8-ws prefill"),
        **misaligned_cases(answers="bf16 prefill"),
        "out alignment": {"out": 2, "answers": "bf16 prefill"},
    },
    "int8-tc prefill": {
        "ep.cuda.dsa_prefill_int8_tc": {"dsa_prefill_int8_tc": "0"},
        "ep.cuda.dsa_prefill_kernel": {"dsa_prefill_kernel": "0", "answers": "decode_grouped"},
        "rows": {"rows": 7, "candidates": 256, "answers": "decode_grouped"},
        "prefill path": {"rows": 8, "dsa_decode_int8_tc": "0", "answers": "decode_grouped"},
        "group": {"query_heads": 34, "answers": "decode_grouped"},
        "head size": {"head_size": 128, "answers": "decode_grouped"},
        "scale": {"scale": 1.0000001},
        "exact sums": {"candidates": 2**20 + 1},
        "SM": {"site": site(75, 80), "answers": "decode_grouped"},
        **device_cases("int8-tc prefill"),
        **misaligned_cases(),
        "out alignment": {"out": 4},
    },
    "bf16 prefill": {
        "ep.cuda.dsa_prefill_kernel": {"dsa_prefill_kernel": "0"},
        "rows": {"rows": 7, "candidates": 256},
        "prefill path": {"rows": 8},
        "group": {"query_heads": 34},
        "head size": {"head_size": 128},
        "SM": {"site": site(75, 80)},
        **device_cases("bf16 prefill"),
    },
}
EACH_GATE = [(kernel, gate) for kernel, gates in ALONE.items() for gate in gates]


@pytest.mark.parametrize(("kernel", "name"), EACH_GATE, ids=[f"{kernel}: {gate}" for kernel, gate in EACH_GATE])
def test_each_gate_has_a_call_that_it_alone_refuses(kernel: KernelName, name: str) -> None:
    """With the gate removed the kernel takes the call, and this test fails."""
    change = dict(ALONE[kernel][name])
    answers = change.pop("answers", NEXT[kernel])
    asked = ASKED.get(kernel, {})
    options = asked | {option: change.pop(option) for option in list(change) if option.startswith("dsa_")}
    assert choice(BASE[kernel], **asked).kernel == kernel
    if kernel == "bf16 prefill":
        change = {"scale": 2.0, **change}
    facts = replace(BASE[kernel], **{field: value for field, value in change.items() if field not in TENSORS})
    moved = {tensor: facts.addresses[tensor] + change[tensor] for tensor in TENSORS if tensor in change}
    refused = choice(replace(facts, addresses={**facts.addresses, **moved}), **options)
    assert refused.kernel == answers
    assert [gate.name for gate in refused.refusals if gate.kernel == kernel] == [name]


def test_every_gate_is_in_the_list_above() -> None:
    assert {kernel: [rule.name for rule in rules] for kernel, rules in GATES.items()} == {
        kernel: sorted(gates, key=[rule.name for rule in GATES[kernel]].index) for kernel, gates in ALONE.items()
    }


def test_limits_of_int8_union_are_its_kernels(root: Path) -> None:
    """And 16-byte loads of the unions, which the workspace holds."""
    text = (root / "kernels/dsa/prefill_int8_union.cu").read_text()
    limits = {name: int(value) for name, value in re.findall(r"constexpr (?:int|unsigned) (kMax\w+) = (\d+);", text)}
    assert limits == {"kMaxGroup": UNION_GROUP, "kMaxContext": UNION_CONTEXT, "kMaxKvHeads": UNION_KV_HEADS}
    assert "unions 16-byte aligned" in text
    ws = (root / "kernels/dsa/int8_ws.cuh").read_text()
    assert f"constexpr int kResident = INT8_WS_WGMMA ? {WS_CTAS_PER_SM} : " in ws


@pytest.mark.parametrize(
    ("sizes", "kernel"),
    [
        ({"rows": 198}, "int8-ws prefill"), ({"rows": 199}, "int8-union prefill"),
        ({"rows": 99, "kv_heads": 4, "query_heads": 48}, "int8-ws prefill"),
        ({"rows": 100, "kv_heads": 4, "query_heads": 48}, "int8-union prefill"),
        ({"rows": 171, "sms": 114}, "int8-ws prefill"), ({"rows": 172, "sms": 114}, "int8-union prefill"),
    ],
)  # fmt: skip
def test_rows_share_where_int8_ws_does_not_run_all_at_once(sizes: dict[str, int], kernel: KernelName) -> None:
    chosen = choice(call(**{"context": 8192, **sizes}), dsa_prefill_int8_union="1")
    assert chosen.kernel == kernel
    of_union = [str(gate) for gate in chosen.refusals if gate.kernel == "int8-union prefill"]
    row_heads, sms = sizes["rows"] * sizes.get("kv_heads", 2), sizes.get("sms", 132)
    said = "rows x KV heads: needs more than 3 for each multiprocessor, which int8-ws runs at once, found "
    assert of_union == ([f"{said}{row_heads} on {sms} multiprocessors"] if kernel == "int8-ws prefill" else [])


def test_code_without_rows_that_share_leaves_all_to_int8_ws() -> None:
    """On SM 9.0 with code of older PTX the kernels of int8-union take no row, and cost two launches."""
    chosen = choice(call(256, site=site(90, 80)), dsa_prefill_int8_union="1")
    assert chosen.kernel == "int8-ws prefill"
    (gate,) = (gate for gate in chosen.refusals if gate.kernel == "int8-union prefill")
    assert str(gate) == "PTX: needs a loaded PTX target of at least 90, found 80"


@pytest.mark.parametrize("offset", [8, 4])
@pytest.mark.parametrize("name", ["query", "key", "value", "key_scale", "value_scale", "workspace"])
def test_decode_needs_every_wide_pointer_at_16_bytes(name: str, offset: int) -> None:
    """D7, vllm-project/vllm#45466: contiguous is not aligned."""
    refused = choice(call(8, **{name: offset}))
    assert refused.kernel == "decode_grouped"
    (gate,) = (gate for gate in refused.refusals if gate.kernel == "int8-tc decode")
    assert str(gate) == (f"{name} alignment: needs an address that is a multiple of 16, found address % 16 = {offset}")


@pytest.mark.parametrize("offset", [8, 4])
@pytest.mark.parametrize("name", ["query", "key", "value", "key_scale", "value_scale"])
def test_prefill_needs_what_it_reads_wide_at_16_bytes(name: str, offset: int) -> None:
    """D7, and the query, which the kernel here reads wide. The BF16 kernel has scalar loads."""
    refused = choice(call(256, **{name: offset}), dsa_prefill_int8_union="1")
    assert refused.kernel == "bf16 prefill"
    for kernel in ("int8-union prefill", "int8-ws prefill", "int8-tc prefill"):
        assert [gate.name for gate in refused.refusals if gate.kernel == kernel] == [f"{name} alignment"]


def test_prefill_needs_the_output_at_8_bytes_or_at_4() -> None:
    """D7, Comfy-Org/comfy-kitchen#115: each pointer at its own width."""
    ampere = site(80, 80)
    assert choice(call(128, out=8, site=ampere)).kernel == "int8-tc prefill"
    assert choice(call(128, out=4, site=ampere)).kernel == "bf16 prefill"
    assert choice(call(128, selected=4, workspace=4, site=ampere)).kernel == "int8-tc prefill"
    assert choice(call(128, out=4, selected=4, workspace=4)).kernel == "int8-ws prefill"
    assert choice(call(128, out=2)).kernel == "bf16 prefill"
    assert choice(call(8, out=2, selected=4)).kernel == "int8-tc decode"


@pytest.mark.parametrize("rows", [8, 128])
@pytest.mark.parametrize(
    ("sm", "ptx", "reason"), [(90, 90, None), (90, 75, "PTX"), (75, 75, "SM"), (120, 120, None), (80, 80, None)]
)
def test_the_sm_and_the_loaded_ptx_are_two_gates(rows: int, sm: int, ptx: int, reason: str | None) -> None:
    """D8, tile-ai/tilelang#2852, NVIDIA/cutlass#3524: integers, and at least."""
    of_prefill: KernelName = "int8-ws prefill" if sm == 90 else "int8-tc prefill"
    fast: KernelName = "int8-tc decode" if rows == 8 else of_prefill
    chosen = choice(call(rows, site=site(sm, ptx)))
    refusals = [gate for gate in chosen.refusals if gate.kernel == fast]
    assert (chosen.kernel == fast) == (reason is None)
    assert (refusals[0].name if refusals else None) == reason


@pytest.mark.parametrize("spelling", ["9.0", "sm_90a", "10.3", "12.0", "sm_120f", "8.6"])
def test_a_device_passes_however_its_architecture_is_spelled(spelling: str) -> None:
    """D8."""
    number = parse_target(spelling).number
    assert choice(call(8, site=site(number, number))).kernel == "int8-tc decode"


def test_without_a_gpu_the_gates_of_the_device_do_not_apply() -> None:
    chosen = choice(call(8, site=None))
    assert chosen.kernel == "int8-tc decode"
    assert {"SM", "PTX", "kernel", "shared memory"}.isdisjoint(gate.name for gate in chosen.gates)


@pytest.mark.parametrize(
    ("rows", "query_heads", "candidates", "kernel"),
    [
        (1, 24, 257, "int8-tc decode"), (1, 24, 256, "decode_grouped"), (8, 24, 257, "int8-tc decode"),
        (8, 24, 256, "int8-tc prefill"), (9, 24, 2048, "int8-ws prefill"), (4, 8, 2048, "int8-tc decode"),
        (4, 6, 2048, "decode_grouped"), (4, 32, 2048, "int8-tc decode"), (4, 34, 2048, "decode_grouped"),
        (8, 2, 2048, "int8-ws prefill"), (128, 2, 1, "int8-tc prefill"), (128, 34, 2048, "decode_grouped"),
        (128, 24, 512, "int8-ws prefill"), (128, 24, 511, "int8-tc prefill"),
    ],
)  # fmt: skip
def test_the_paths(rows: int, query_heads: int, candidates: int, kernel: str) -> None:
    """Seed 000, "Gates and switches": grouped decode first, prefill from 8 rows, the rest to the CUDA cores."""
    assert choice(call(rows, candidates, query_heads=query_heads)).kernel == kernel


def test_each_switch_changes_its_own_kernel() -> None:
    def kernels(**options: str) -> tuple[str, str]:
        return choice(call(8), **options).kernel, choice(call(256), **options).kernel

    assert kernels() == ("int8-tc decode", "int8-ws prefill")
    assert kernels(dsa_decode_int8_tc="0") == ("decode_grouped", "int8-ws prefill")
    assert kernels(dsa_prefill_int8_union="1") == ("int8-tc decode", "int8-union prefill")
    assert kernels(dsa_prefill_int8_union="1", dsa_prefill_int8_ws="0") == ("int8-tc decode", "int8-tc prefill")
    assert kernels(dsa_prefill_int8_ws="0") == ("int8-tc decode", "int8-tc prefill")
    assert kernels(dsa_prefill_int8_tc="0") == ("int8-tc decode", "bf16 prefill")
    assert kernels(dsa_prefill_kernel="0") == ("int8-tc decode", "decode_grouped")
    defaults = resolve_options({}, {})
    assert choose_kernel(call(8), defaults).kernel == "decode_grouped"
    assert choose_kernel(call(256), defaults).kernel == "bf16 prefill"


def test_a_large_scale_leaves_the_tensor_cores_int8() -> None:
    for rows, kernel in ((8, "decode_grouped"), (128, "bf16 prefill")):
        assert choice(call(rows, scale=2.0**30)).kernel == kernel
        assert choice(call(rows, scale=0.0)).kernel != kernel
        for scale in (float("nan"), float("inf"), -1.0):
            with pytest.raises(BadInput, match="must be finite and not negative"):
                choice(call(rows, scale=scale))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"smooth_softmax": True}, "smooth softmax"), ({"local_plus_selected": True}, "local-plus-selected"),
        ({"query_dtype": "float16"}, "query is float16"), ({"out_dtype": "float32"}, "out is float32"),
        ({"cache_dtype": "bfloat16"}, "key and value are bfloat16"), ({"head_size": 257}, "a head size of 256"),
        ({"kv_heads": 65536, "query_heads": 65536}, "at most 65535 blocks of heads"),
    ],
)  # fmt: skip
def test_what_no_kernel_computes_is_unsupported(change: dict[str, Any], said: str) -> None:
    for rows in (4, 128):
        with pytest.raises(Unsupported, match=said):
            choice(call(rows, **change), dsa_prefill_kernel="0")


def test_a_last_resort_that_is_not_there_cannot_answer() -> None:
    with pytest.raises(CannotMeasure, match="decode_grouped, which takes what the others refuse: it did not compile"):
        choice(call(8, site=site(decode_grouped="it did not compile")), dsa_decode_int8_tc="0")


@pytest.mark.parametrize(
    "change", [{"rows": 0}, {"candidates": 0}, {"kv_heads": 0}, {"query_heads": 0}, {"rows": 0, "kv_heads": 0}]
)
def test_nothing_to_do_is_no_launch(change: dict[str, int]) -> None:
    """D3, Dao-AILab/flash-attention#2503."""
    for rows in (8, 128):
        assert choice(replace(call(rows), **change)).kernel == "none"
