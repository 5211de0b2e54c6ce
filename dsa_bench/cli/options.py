# SPDX-License-Identifier: MIT
"""Options that more than one command takes, each declared once. Those with a value can come from DSA_BENCH_<NAME>."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dsa_bench.cli.values import (
    file_name,
    flatten,
    integer_list,
    name_and_value,
    name_list,
    names,
    one_integer,
    one_number,
    one_of,
    share,
)
from dsa_bench.model.dense import DENSE_KERNELS, ITEM_BYTES
from dsa_bench.model.dense_request import DEFAULT_RULES
from dsa_bench.model.errors import BadInput
from dsa_bench.model.hyper_request import MIX_KERNELS
from dsa_bench.model.request import (
    BACKENDS,
    DECODE_KERNELS,
    KERNEL_NAMES,
    KERNELS,
    L2_MODES,
    PREFILL_CHOICES,
    SPARSE_KERNELS,
    TIMERS,
)
from dsa_bench.report.formats import FORMATS
from dsa_bench.splits.dense import parse_rule
from dsa_bench.splits.registry import AUTO, RULE_NAMES


def _option(flag: str, parser: Callable[[str], Any], help: str, metavar: str) -> Any:
    variable = "DSA_BENCH_" + flag.removeprefix("--").replace("-", "_").upper()
    return typer.Option(flag, parser=parser, help=help, metavar=metavar, envvar=variable, show_envvar=False)


def list_option(flag: str, parser: Callable[[str], Any], help: str, metavar: str) -> Any:
    """An option of several values, also from DSA_BENCH_<NAME>."""
    option = _option(flag, parser, help, metavar)
    option.callback = flatten
    return option


def refuse_lone_device_facts(sms: int | None, resident: int | None, plan: bool, backend: str) -> None:
    """Raises BadInput unless --sms and --resident stand together, beside --plan and for a GPU."""
    if (sms is None) != (resident is None) or (sms is not None and not plan):
        raise BadInput("--sms, --resident: go together and with --plan, where they stand for the device's facts")
    if sms is not None and backend == "cpu":
        raise BadInput("--sms, --resident: are facts of a GPU, and --backend cpu has none")


def refuse_contradictions(options: Mapping[str, Any]) -> None:
    """Raises BadInput naming options of a command that measures which do not go together."""
    if options["resume"] and options["record"] is None:
        raise BadInput("--resume: needs --record FILE, the run to go on with")
    if not options["plan"]:
        return
    if options.get("splits") is not None:
        raise BadInput("--splits: what a map chooses depends on the device, and --plan asks none; leave one out")
    for name in ("record", "explain"):
        if options.get(name):
            raise BadInput(f"--plan: measures nothing, so --{name} has no use beside it; leave one out")
    if options["format"] not in ("table", "json"):
        raise BadInput(f"--format {options['format']}: --plan prints JSON, and only that")


def _scored_rules(text: str) -> tuple[str, ...]:
    """Rules of either operator."""
    for name in names(text):
        if name not in (AUTO, *RULE_NAMES):
            try:
                parse_rule(name)
            except BadInput as error:
                known = ", ".join((AUTO, *RULE_NAMES, *DEFAULT_RULES))
                raise typer.BadParameter(f"{name!r} is not one of {known}") from error
    return names(text)


Rows = Annotated[list[int], list_option("--rows", integer_list(1), "Query tokens in the launch.", "N...")]
Context = Annotated[list[int], list_option("--context", integer_list(1), "KV positions in the cache.", "N...")]
Candidates = Annotated[
    list[int], list_option("--candidates", integer_list(1), "Positions selected for each row.", "N...")
]
QueryHeads = Annotated[int, _option("--query-heads", one_integer(1), "Query heads.", "N")]
KvHeads = Annotated[int, _option("--kv-heads", one_integer(1), "KV heads.", "N")]
TilesPerSplit = Annotated[
    list[int],
    list_option(
        "--tiles-per-split", integer_list(0), "Targets of 64-candidate tiles per split; 0 = the automatic rule.", "N..."
    ),
]
Kernels = Annotated[
    list[str],
    list_option(
        "--kernels",
        name_list(KERNEL_NAMES),
        f"From {'; of prefill from '.join(', '.join(kernels) for kernels in KERNELS.values())}.",
        "NAME...",
    ),
]
DecodeKernels = Annotated[
    list[str] | None,
    list_option(
        "--kernels",
        name_list(DECODE_KERNELS),
        f"From {', '.join(DECODE_KERNELS)}. [default: all on a GPU, {' '.join(SPARSE_KERNELS)} on the CPU]",
        "NAME...",
    ),
]
PrefillKernels = Annotated[
    list[str], list_option("--kernels", name_list(PREFILL_CHOICES), f"From {', '.join(PREFILL_CHOICES)}.", "NAME...")
]
DispatcherOption = Annotated[
    list[str] | None,
    list_option(
        "--option",
        name_and_value,
        "Measure the kernel that the dispatcher takes when these options of its are set; several values of one are "
        "measured side by side (docs/dispatcher.md).",
        "NAME=VALUE...",
    ),
]
Hidden = Annotated[int, _option("--hidden", one_integer(1), "Channels of a branch, a multiple of 8.", "N")]
Branches = Annotated[int, _option("--branches", one_integer(1), "Branches of the residual stream: 4.", "N")]
Rank = Annotated[int, _option("--rank", one_integer(1), "Channels of the low-rank tensor, a multiple of 8.", "N")]
Gated = Annotated[int, _option("--gated", one_integer(1), "Channels that gate-mul writes, a multiple of 8.", "N")]
Width = Annotated[int, _option("--width", one_integer(1), "Channels that are projected, a multiple of 32.", "N")]
Capacity = Annotated[list[int], list_option("--capacity", integer_list(1), "Keys that the cache has room for.", "N...")]
Length = Annotated[
    list[int], list_option("--length", integer_list(0), "Live keys, in each capacity; the device reads it.", "N...")
]
Batch = Annotated[
    list[int], list_option("--batch", integer_list(1), "Batch entries; rows are batch x query heads.", "N...")
]
HeadSize = Annotated[int, _option("--head-size", one_integer(1), "Channels of queries and keys.", "N")]
ValueHeadSize = Annotated[int, _option("--value-head-size", one_integer(1), "Channels of values.", "N")]
Dtype = Annotated[
    list[str],
    list_option("--dtype", name_list((*ITEM_BYTES,)), f"From {', '.join(ITEM_BYTES)}.", "NAME..."),
]
DenseRules = Annotated[
    list[str] | None,
    list_option(
        "--rule",
        names,
        "off, fixed:N (N keys per split), seed-adaptive, adaptive, live. "
        f"[default: {' '.join(DEFAULT_RULES)}; off and what ONNX_GENAI_ATTN_SPLIT_CHUNK pins, where it is set]",
        "NAME...",
    ),
]
DenseKernels = Annotated[
    list[str], list_option("--kernels", name_list(DENSE_KERNELS), f"From {', '.join(DENSE_KERNELS)}.", "NAME...")
]
LiveCeiling = Annotated[
    bool | None,
    typer.Option("--ceiling/--no-ceiling", help="Measure a copy of the live bytes. [default: on a GPU]"),
]
MixKernels = Annotated[
    list[str], list_option("--kernels", name_list(MIX_KERNELS), f"From {', '.join(MIX_KERNELS)}.", "NAME...")
]
CopyCeiling = Annotated[
    bool | None,
    typer.Option("--ceiling/--no-ceiling", help="Measure a copy of each kernel's bytes. [default: on a GPU]"),
]
BackendName = Annotated[
    str, _option("--backend", one_of(BACKENDS), "auto takes the GPU if one works.", "|".join(BACKENDS))
]
TimerName = Annotated[
    str, _option("--timer", one_of(TIMERS), "auto takes cupti, else events; the CPU's is wall.", "|".join(TIMERS))
]
L2 = Annotated[str, _option("--l2", one_of(L2_MODES), "The GPU's L2 before each launch.", "|".join(L2_MODES))]
Rounds = Annotated[
    int | None,
    _option(
        "--rounds", one_integer(1), "Paired rounds of each cell, even. [default: 16, or what --budget allows]", "N"
    ),
]
PairedRounds = Annotated[int, _option("--rounds", one_integer(1), "Paired rounds of each cell, even.", "N")]
Budget = Annotated[
    float | None, _option("--budget", one_number(0, open_low=True), "Seconds for the rounds of all cells.", "SECONDS")
]
Seed = Annotated[int, _option("--seed", one_integer(0), "Seed of the synthetic data.", "N")]
QueryStd = Annotated[float, _option("--query-std", one_number(0, 1e30), "Standard deviation of the queries.", "X")]
KeyScaleMultiplier = Annotated[
    float, _option("--key-scale-multiplier", one_number(0, 1e30, open_low=True), "Factor on the key scales.", "X")
]
ValueScaleMultiplier = Annotated[
    float, _option("--value-scale-multiplier", one_number(0, 1e37, open_low=True), "Factor on the value scales.", "X")
]
InvalidFraction = Annotated[
    float, _option("--invalid-fraction", one_number(0, 1), "Share of each list replaced by invalid positions.", "X")
]
SELECTION_HELP = "sorted, random, blocks:N or overlap:F (docs/data.md)."
Selection = Annotated[str, _option("--selection", str, SELECTION_HELP, "KIND")]
EachSelection = Annotated[list[str], list_option("--selection", names, SELECTION_HELP, "KIND...")]
ScalesFrom = Annotated[
    str | None,
    _option("--scales-from", str, "Real scales: .onnx or .onnx:NODE, .npz, .safetensors (docs/inputs.md).", "FILE"),
]
Inputs = Annotated[
    str | None, _option("--inputs", str, "Real tensors, all of them: .npz, .safetensors (docs/inputs.md).", "FILE")
]
Format = Annotated[str, _option("--format", one_of(FORMATS), "Of the result on stdout.", "|".join(FORMATS))]
Record = Annotated[
    Path | None,
    _option(
        "--record",
        file_name,
        "Append every visit to this file (JSON Lines): a new one, or with --resume the run to go on with.",
        "FILE",
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", parser=file_name, help="Write here, aside and renamed, not to stdout.", metavar="FILE"
    ),
]


def _map(help: str) -> Any:
    """Not from DSA_BENCH_SPLITS, which is the dispatcher's."""
    return typer.Option("--splits", parser=file_name, help=help, metavar="FILE")


Splits = Annotated[
    Path | None,
    _map("Also measure what this tuned map chooses (docs/tuning.md); with --option, the dispatcher's map."),
]
MapBeside = Annotated[Path | None, _map("Also measure what this tuned map chooses (docs/tuning.md).")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the file that --record names.")]
Plan = Annotated[bool, typer.Option("--plan", help="Print what would be measured, as JSON, and measure nothing.")]
Explain = Annotated[bool, typer.Option("--explain", help="Say which kernel and geometry each cell takes and why.")]
Ceiling = Annotated[bool, typer.Option("--ceiling", help="Also measure a gather of the same bytes, and a copy.")]
Rules = Annotated[
    list[str] | None,
    list_option(
        "--rules",
        name_list(RULE_NAMES),
        f"Also measure the splits that these rules choose: {', '.join(RULE_NAMES)}.",
        "NAME...",
    ),
]
ScoredRules = Annotated[
    list[str] | None,
    list_option(
        "--rule",
        _scored_rules,
        f"From {', '.join((AUTO, *RULE_NAMES))}; of dense decode {', '.join((AUTO, *DEFAULT_RULES))} or fixed:N.",
        "NAME...",
    ),
]
Model = Annotated[
    Path | None, _option("--model", file_name, "Constants of the rule model, as `rule fit` wrote them.", "FILE")
]
PadSmem = Annotated[
    int,
    _option("--pad-smem", one_integer(0), "Add shared memory to int8-tc, so that fewer CTAs are resident.", "BYTES"),
]
RecordedResident = Annotated[
    int | None,
    _option("--resident", one_integer(1), "Resident CTAs per multiprocessor, if the record does not say.", "N"),
]
MaxRegret = Annotated[
    float | None,
    _option("--max-regret", share, "Exit 1 if a rule's mean regret is surely above this: 2% or 0.02.", "SHARE"),
]
RunFile = Annotated[Path, typer.Argument(help="A run that --record wrote.", metavar="RUN")]
PrefillCeiling = Annotated[
    bool | None,
    typer.Option("--ceiling/--no-ceiling", help="Measure a gather of the same bytes, and a copy. [default: on a GPU]"),
]
Dense = Annotated[
    bool | None,
    typer.Option(
        "--dense/--no-dense",
        help="Measure dense causal attention (torch) in the same rounds. [default: on a GPU, where torch is installed]",
    ),
]
Sms = Annotated[
    int | None, _option("--sms", one_integer(1), "With --plan: multiprocessors of the device to plan for.", "N")
]
Resident = Annotated[
    int | None, _option("--resident", one_integer(1), "With --plan: resident CTAs per multiprocessor.", "N")
]
