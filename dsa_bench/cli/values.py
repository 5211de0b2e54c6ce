# SPDX-License-Identifier: MIT
"""Parsers of option values: ASCII digits only, and one line that says what was wrong."""

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import typer

INTEGER = re.compile(r"[0-9]+", re.ASCII)
MAX_DIGITS = 18
"""What surely fits 64 bits."""


def integer(text: str, minimum: int) -> int:
    """A decimal integer of ASCII digits, at least `minimum`: no sign, blank, underscore or other alphabet's digits."""
    if not INTEGER.fullmatch(text) or len(text) > MAX_DIGITS or int(text) < minimum:
        kind = "positive" if minimum == 1 else "non-negative" if minimum == 0 else f"{minimum} or larger, a"
        limit = f" of at most {MAX_DIGITS} digits" if len(text) > MAX_DIGITS else ""
        raise typer.BadParameter(f"{text!r} is not a {kind} decimal integer{limit}")
    return int(text)


def integer_list(minimum: int) -> Callable[[str], tuple[int, ...]]:
    """A parser of one token of a list option: integers separated by commas."""

    def parse(text: str) -> tuple[int, ...]:
        return tuple(integer(part, minimum) for part in str(text).split(","))

    return parse


def one_integer(minimum: int) -> Callable[[str], int]:
    return lambda text: integer(str(text), minimum)


def number(text: str, low: float, high: float, *, open_low: bool = False) -> float:
    """A finite decimal number in [low, high], or in (low, high] with `open_low`."""
    try:
        value = float(text) if re.fullmatch(r"[0-9.eE+-]+", text, re.ASCII) else math.nan
    except ValueError:
        value = math.nan
    if not (low <= value <= high) or math.isinf(value) or (open_low and value == low):
        rule = f"above {low:g}" if open_low else f"at least {low:g}"
        raise typer.BadParameter(
            f"{text!r} is not a number {rule}" + ("" if high == math.inf else f" and at most {high:g}")
        )
    return value


def one_number(low: float, high: float = math.inf, *, open_low: bool = False) -> Callable[[str], float]:
    return lambda text: number(str(text), low, high, open_low=open_low)


def percentage(text: str) -> float:
    """A share from a percentage with its sign, above 0% and at most 50%: 0.5 could mean either of two things."""
    if not str(text).endswith("%"):
        raise typer.BadParameter(f"{text!r} is not a percentage such as 0.5%")
    return number(str(text)[:-1], 0.0, 50.0, open_low=True) / 100


def share(text: str) -> float:
    """A share: percent with its sign (`2%`), or a number below 1 (`0.02`). A bare 1 or more could mean either."""
    text = str(text)
    digits = text.removesuffix("%")
    try:
        value = number(digits, 0, math.inf)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{text!r} is not a share such as 2% or 0.02") from error
    if digits == text and value >= 1:
        raise typer.BadParameter(f"{text!r} could be a ratio or percent; write {text}%, or a number below 1")
    return value if digits == text else value / 100


def file_name(text: str) -> Path:
    """A path; the empty text is none."""
    if not str(text):
        raise typer.BadParameter("needs the name of a file")
    return Path(text)


def one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas, whatever they are."""
    return tuple(str(text).split(","))


def name_list(choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    one = one_of(choices)
    return lambda text: tuple(one(part) for part in str(text).split(","))


def flatten(values: Any) -> Any:
    """The callback of a list option: one list of what its tokens held, each value once, in the order given."""
    if values is None:
        return None
    tokens = (cast("tuple[Any, ...]", part) if isinstance(part, tuple) else (part,) for part in values)
    flat = list(dict.fromkeys(itertools.chain.from_iterable(tokens)))
    if not flat:  # a variable that holds nothing but blanks
        raise typer.BadParameter("needs at least one value")
    return flat
