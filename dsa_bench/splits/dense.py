# SPDX-License-Identifier: MIT
"""Rules that share a dense row's keys out over splits: capacity and rows in, a plan out, total and free of the length.

The live length is not among the arguments: a launch that is captured once is replayed while it grows.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from dsa_bench.model.dense import MIN_LIVE_CHUNK, DenseKernel, DensePlan, DenseShape
from dsa_bench.model.dense_request import AUTO_RULE, DEFAULT_RULES, OFF, DenseVariant
from dsa_bench.model.errors import BadInput
from dsa_bench.model.shape import ceil_div
from dsa_bench.splits.geometry import AUTOMATIC, TUNED

TARGET_CTAS = 512
"""CTAs of a launch, about one wave of the document's kernel on 132 SMs (seed 004: ATTN_SPLIT_TARGET_BLOCKS)."""
MIN_CHUNK = MIN_LIVE_CHUNK
"""Keys below which a split is not worth its CTA (seed 004: ATTN_SPLIT_MIN_CHUNK)."""
MAX_SPLITS = 64
"""Splits that the workspace and the kernels that merge them are made for (seed 004: ATTN_SPLIT_MAX_SPLITS)."""
CHUNK_VARIABLE = "ONNX_GENAI_ATTN_SPLIT_CHUNK"
"""The environment variable that pins the chunk, as in seed 004."""
RULES = DEFAULT_RULES
"""Every rule by the name that asks for it; fixed takes any positive chunk."""
FIXED_NAME = re.compile(r"fixed:0*([1-9][0-9]{0,17})", re.ASCII)

DenseRule = Callable[[int, int], DensePlan]
"""(capacity [keys], rows [rows]) -> plan. No launch for zero of either."""

NO_LAUNCH = DensePlan(0, 0)


def off(capacity: int, rows: int) -> DensePlan:
    """One CTA a row: the monolithic kernel."""
    return DensePlan(1, capacity) if capacity > 0 and rows > 0 else NO_LAUNCH


def fixed(capacity: int, rows: int, chunk: int) -> DensePlan:
    """Splits of about `chunk` keys: S = clamp(ceil(capacity / chunk), 1, 64), then chunk = ceil(capacity / S).

    Blind to: rows, the device. Source: seed 004, what it replaces (256) and what its variable pins.
    Raises ValueError for a chunk that is not positive.
    """
    if chunk < 1:
        raise ValueError(f"a chunk of {chunk} keys")
    return _shared(capacity, rows, ceil_div(capacity, chunk))


def seed_adaptive(capacity: int, rows: int) -> DensePlan:
    """The document's formula: S = clamp(min(ceil(512 / rows), ceil(capacity / 128)), 1, 64).

    The chunk is ceil(capacity / S).
    It promises 128 keys per split, and for capacities just above a multiple of 128 gives fewer: 129 is 2 x 65.
    Blind to: the device, the live length. Source: seed 004, attention_split_geometry.
    """
    if capacity <= 0 or rows <= 0:
        return NO_LAUNCH
    return _shared(capacity, rows, min(ceil_div(TARGET_CTAS, rows), ceil_div(capacity, MIN_CHUNK)))


def adaptive(capacity: int, rows: int) -> DensePlan:
    """The document's formula with its promise kept: floor(capacity / 128), so chunk >= 128 wherever S >= 2.

    Blind to: the device, the live length: 2600 keys in a capacity of 32768 leave 3 of 32 splits alive.
    """
    if capacity <= 0 or rows <= 0:
        return NO_LAUNCH
    return _shared(capacity, rows, min(ceil_div(TARGET_CTAS, rows), capacity // MIN_CHUNK))


def live(capacity: int, rows: int) -> DensePlan:
    """The launch of `adaptive`; the device gives a split max(128, ceil(T / S)) keys.

    So no split idles while T >= 128 * S, and the capacity does not matter. Blind to: the device.
    """
    plan = adaptive(capacity, rows)
    return DensePlan(plan.splits, MIN_CHUNK, live=True) if plan.splits > 1 else plan


def parse_rule(name: str) -> DenseRule:
    """The rule of a name: one of RULES, or fixed:N. BadInput for any other."""
    plain: dict[str, DenseRule] = {OFF: off, AUTO_RULE: seed_adaptive, "adaptive": adaptive, "live": live}
    if name in plain:
        return plain[name]
    if match := FIXED_NAME.fullmatch(name):
        chunk = int(match[1])
        return lambda capacity, rows: fixed(capacity, rows, chunk)
    raise BadInput(f"--rule {name}: must be off, fixed:N with N keys per split, seed-adaptive, adaptive or live")


def chunk_of(capacity: int, splits: int) -> int | None:
    """The chunk N with which fixed:N launches so many splits: ceil(capacity / splits) where that does, else the largest
    that does; None where none does. The same for equal launches."""
    if capacity < 1 or not 1 <= splits <= MAX_SPLITS:
        return None
    largest = capacity if splits == 1 else ceil_div(capacity, splits - 1) - 1
    asked = (chunk for chunk in (ceil_div(capacity, splits), largest) if chunk > 0)
    return next((chunk for chunk in asked if fixed(capacity, 1, chunk).splits == splits), None)


def requested_chunk(name: str) -> int | None:
    """What a rule's name asks for in place of a chunk: N of fixed:N, 0 for the automatic rule; None for any other."""
    match = FIXED_NAME.fullmatch(name)
    return int(match[1]) if match else AUTOMATIC if name == AUTO_RULE else None


def dense_variants(
    kernels: Iterable[DenseKernel], rules: Iterable[str], shape: DenseShape, tuned: int | None = None
) -> list[DenseVariant]:
    """The launches of a cell, kernel by kernel, each once with all the rules that choose it.

    tuned  a map's chunk, 0 for the automatic rule; measured as the rule `map`
    Raises BadInput for a name that is no rule's.
    """
    asked = [(name, parse_rule(name), requested_chunk(name)) for name in rules]
    if tuned is not None:
        asked.append((TUNED, parse_rule(f"fixed:{tuned}" if tuned else AUTO_RULE), tuned))
    found: dict[str, tuple[DensePlan, list[str], list[int]]] = {}
    for name, rule, chunk in asked:
        plan = rule(shape.capacity, shape.rows)
        _, names, chunks = found.setdefault(plan.name, (plan, [], []))
        names.append(name)
        chunks += [] if chunk is None or chunk in chunks else [chunk]
    return [
        DenseVariant(kernel, plan, tuple(chunks), tuple(names))
        for kernel in kernels
        for plan, names, chunks in found.values()
    ]


def pinned_name(environment: Mapping[str, str]) -> str | None:
    """The name of the rule that ONNX_GENAI_ATTN_SPLIT_CHUNK pins: fixed:N. None where it is unset or empty.

    Raises BadInput for anything but a positive decimal integer of at most 18 ASCII digits.
    """
    said = environment.get(CHUNK_VARIABLE, "")
    if not said:
        return None
    if not re.fullmatch(r"0*[1-9][0-9]{0,17}", said, re.ASCII):
        raise BadInput(
            f"{CHUNK_VARIABLE}={said}: must be a positive number of keys per split, of at most 18 digits; unset it for "
            "the rule"
        )
    return f"fixed:{int(said)}"


def _shared(capacity: int, rows: int, splits: int) -> DensePlan:
    """ceil(capacity / S) keys for each of S = clamp(splits, 1, MAX_SPLITS)."""
    if capacity <= 0 or rows <= 0:
        return NO_LAUNCH
    splits = min(max(splits, 1), MAX_SPLITS)
    return DensePlan(splits, ceil_div(capacity, splits))
