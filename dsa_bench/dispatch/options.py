# SPDX-License-Identifier: MIT
"""The options of the dispatcher: an explicit option wins over its environment variable, which wins over the default.

Names and grammar are those of seed 000, "Gates and switches" (`int8_ws`, `int8_union` and `int8_digits` are ours): a
switch is exactly "0" or "1", the knob a non-negative decimal integer; an empty variable is unset, an empty option is a
mistake.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dsa_bench.model.errors import BadOption
from dsa_bench.model.shape import INT32_MAX
from dsa_bench.model.text import quoted, short

Source = Literal["option", "environment", "default"]
_DIGITS = re.compile(r"[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name, the variable beside it, and whether it is a switch or a count up to `largest`."""

    name: str
    variable: str
    default: int
    largest: int = 1

    @property
    def is_switch(self) -> bool:
        return self.largest == 1


PREFILL_INT8_TC = Option("ep.cuda.dsa_prefill_int8_tc", "ORT_DSA_PREFILL_INT8_TC", 0)
PREFILL_INT8_WS = Option("ep.cuda.dsa_prefill_int8_ws", "ORT_DSA_PREFILL_INT8_WS", 1)
PREFILL_INT8_UNION = Option("ep.cuda.dsa_prefill_int8_union", "ORT_DSA_PREFILL_INT8_UNION", 0)
PREFILL_KERNEL = Option("ep.cuda.dsa_prefill_kernel", "ORT_DSA_PREFILL_KERNEL", 1)
DECODE_INT8_TC = Option("ep.cuda.dsa_decode_int8_tc", "ORT_DSA_DECODE_INT8_TC", 0)
TILES_PER_SPLIT = Option(
    "ep.cuda.dsa_decode_int8_tc_tiles_per_split", "ORT_DSA_DECODE_INT8_TC_TILES_PER_SPLIT", 0, INT32_MAX
)
DECODE_INT8_DIGITS = Option("ep.cuda.dsa_decode_int8_digits", "ORT_DSA_DECODE_INT8_DIGITS", 1)
OPTIONS = {
    option.name: option
    for option in (
        PREFILL_INT8_TC, PREFILL_INT8_WS, PREFILL_INT8_UNION, PREFILL_KERNEL, DECODE_INT8_TC, TILES_PER_SPLIT,
        DECODE_INT8_DIGITS,
    )
}  # fmt: skip
SPLITS_VARIABLE = "DSA_BENCH_SPLITS"


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of one option and where it came from."""

    option: Option
    value: int
    source: Source

    @property
    def found(self) -> str:
        """The value and who gave it: "1 (option)", "0 (default)", or the variable's name."""
        return f"{self.value} ({self.option.variable if self.source == 'environment' else self.source})"

    def __str__(self) -> str:
        return f"{self.option.name}={self.found}"


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """Every option, resolved."""

    prefill_int8_tc: Setting
    prefill_int8_ws: Setting
    prefill_int8_union: Setting
    prefill_kernel: Setting
    decode_int8_tc: Setting
    tiles_per_split: Setting
    decode_int8_digits: Setting

    @property
    def settings(self) -> tuple[Setting, ...]:
        return (
            self.prefill_int8_tc, self.prefill_int8_ws, self.prefill_int8_union, self.prefill_kernel,
            self.decode_int8_tc, self.tiles_per_split, self.decode_int8_digits,
        )  # fmt: skip


def resolve_options(
    explicit: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> DispatchOptions:
    """Resolve once; what the environment becomes afterwards is for the next one.

    Raises BadOption for a name that there is not, and for a value outside its grammar, naming where it came from.
    """
    if explicit is not None and not isinstance(explicit, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadOption(f"options: is {quoted(explicit)}, and options are names with strings; pass a dict, or None")
    given = dict(explicit or {})
    for name in given:
        if name not in OPTIONS:
            raise BadOption(f"option {short(name)}: is unknown; the dispatcher has {', '.join(OPTIONS)}")
    variables = os.environ if environment is None else environment
    return DispatchOptions(*(_resolve(option, given, variables) for option in OPTIONS.values()))


def _resolve(option: Option, given: Mapping[str, str], variables: Mapping[str, str]) -> Setting:
    if option.name in given:
        return Setting(option, _parse(option, given[option.name], f"option {option.name}"), "option")
    if text := variables.get(option.variable, ""):
        return Setting(option, _parse(option, text, f"environment variable {option.variable}"), "environment")
    return Setting(option, option.default, "default")


def _parse(option: Option, text: object, origin: str) -> int:
    if not isinstance(text, str):
        raise BadOption(f"{origin}: is {quoted(text)}, and options are strings; pass '0', '1' or the like")
    if option.is_switch:
        if text not in ("0", "1"):
            raise BadOption(f'{origin}: {quoted(text)} is not exactly "0" or "1"')
        return int(text)
    if not _DIGITS.fullmatch(text):
        raise BadOption(f"{origin}: {quoted(text)} is not a non-negative decimal integer; 0 is the automatic rule")
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(option.largest)) or int(digits) > option.largest:  # int() refuses very long text
        raise BadOption(f"{origin}: {short(text)} is above {option.largest}")
    return int(digits)


def resolve_splits(
    explicit: str | os.PathLike[str] | None = None, environment: Mapping[str, str] | None = None
) -> Path | None:
    """The file of the tuned map: the explicit one, else DSA_BENCH_SPLITS unless empty, else none.

    Raises BadOption for an explicit name that is empty or no text.
    """
    if explicit is not None:
        name: object = os.fspath(explicit) if isinstance(explicit, os.PathLike) else explicit
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadOption(f"splits: is {quoted(name)}; pass a map's name as str or Path, or None")
        if not name:
            raise BadOption("splits: is empty; name a map that `tune` wrote, or pass None")
        return Path(name)
    text = (os.environ if environment is None else environment).get(SPLITS_VARIABLE, "")
    return Path(text) if text else None
