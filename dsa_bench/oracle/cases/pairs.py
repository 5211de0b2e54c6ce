# SPDX-License-Identifier: MIT
"""Cases of two candidates, A and B, whose result follows from a few numbers; every other position holds noise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import exp, tanh
from typing import NamedTuple

import numpy as np

from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.oracle.cases.case import Case, Limit, Setting

ROWS, QUERY_HEADS, KV_HEADS, HEAD_SIZE = 2, 24, 2, 256
CONTEXT, CANDIDATES = 520, 512
A, B = 17, 400
"""Positions of the two in the cache."""
SLOTS: dict[str, dict[int, int]] = {
    "one tile": {3: A, 60: B},
    "three tiles": {3: A, 188: B},
    "three tiles, B first": {3: B, 188: A},
}
"""Where the two stand in the list, first and last of three tiles of 64."""
EVERY_SLOT = {
    "one full tile": {slot: (A, B)[slot % 2] for slot in range(64)},
    "full list": {slot: (A, B)[slot % 2] for slot in range(CANDIDATES)},
}


class Channel(NamedTuple):
    """One channel of the query and the key: all others of the query are 0."""

    query: float
    key_scale: float
    a: int
    b: int


def pair_inputs(
    channels: Sequence[Channel],
    values: tuple[int, int],
    value_scale: float,
    scale: float = 1 / 16,
    slots: Mapping[int, int] = SLOTS["one tile"],
) -> SparseInputs:
    """A list of 512 entries that are no candidates, but for `slots`: list entry -> position."""
    rng = np.random.default_rng(0)
    cache = (KV_HEADS, CONTEXT, HEAD_SIZE)
    key, value = rng.integers(-127, 128, (2, *cache)).astype(np.int8)
    query = np.zeros((ROWS, QUERY_HEADS, HEAD_SIZE), BF16)
    key_scale = np.ones((KV_HEADS, HEAD_SIZE), np.float32)
    key[:, [A, B]] = 0
    for at, channel in enumerate(channels):
        query[:, :, at] = channel.query
        key_scale[:, at] = channel.key_scale
        key[:, A, at], key[:, B, at] = channel.a, channel.b
    value[:, A], value[:, B] = values
    selected = rng.choice([-1, CONTEXT, 2**31 - 1, -(2**31)], (ROWS, CANDIDATES)).astype(np.int32)
    for slot, position in slots.items():
        selected[:, slot] = position
    value_scales = np.full((KV_HEADS, HEAD_SIZE), value_scale, np.float32)
    return SparseInputs(query, key, value, key_scale, value_scales, selected, scale)


def _settings(
    build: Callable[..., SparseInputs], slots: Mapping[str, Mapping[int, int]] = SLOTS
) -> tuple[Setting, ...]:
    return tuple(Setting(label, partial(build, slots=entries)) for label, entries in slots.items())


def _weight(gap: float) -> float:
    """The weight of the candidate that leads by `gap` nats."""
    return 1 / (1 + exp(-gap))


def _tail(
    name: str, shows: str, query: float, value_scale: float, codes: tuple[int, int], path: str, key: int = -1
) -> Case:
    """B lies query * -key / 16 nats below A, and its value is what the output shows: the larger by far."""
    build = partial(pair_inputs, [Channel(query, 1.0, 0, key)], codes, value_scale)
    below = exp(query * key / 16)
    expected = value_scale * (codes[0] + codes[1] * below) / (1 + below)
    return Case(name, shows, _settings(build), expected=expected, path=path)


def _on_fp32(reason: str) -> tuple[Limit, ...]:
    """Limits of the kernels that compute in plain FP32: `previous`, and what stands for `int8-tc` on the CPU."""
    kernels = ("int8-tc", "int8-digits")
    return Limit("previous", reason), *(Limit(kernel, reason, backend="cpu") for kernel in kernels)


DEEP = "FP32 probabilities underflow 87 nats below the maximum, and their last bits 16 nats later"
FLOAT_VALUE_SCALE = float(np.nextafter(np.float32(2**16), np.float32(np.inf)))
FINE_PAIR = [Channel(1, 32768 + 2**-8, 127, 0), Channel(-1, 32768, 127, 0)]
EDGE = 30.765625 + 2**-7 - 2**-16
"""A product that FP16 rounds to 30.765625, off by almost half a spacing. 0.52 / 16 times that is the last below 1."""

CORNERS = (
    Case(
        "cancelling-products",
        "32768 and -32766 round to 32768 and -32768 in FP16, and a gap of 16 nats is gone",
        _settings(
            partial(pair_inputs, [Channel(2, 16384, 64, -64), Channel(-2, 16383, 64, -64)], (1, 0), 1.0)
        ),
        expected=_weight(16),
        path="digits",
    ),
    Case(
        "fine-cancellation",
        "products of 32768 + 2^-8 and -32768: a gap of a quarter nat is in the last of the products' 24 bits",
        _settings(partial(pair_inputs, FINE_PAIR * 8, (1, 0), 1.0)),
        expected=_weight(8 * 127 * 2**-8 / 16),
        path="digits",
    ),
    Case(
        "signed-cancellation",
        "probabilities 0.5 +- 2^-14 are one FP16 number, and values of +-4064 cancel",
        _settings(partial(pair_inputs, [Channel(2**-8, 1.0, 1, 0)], (127, -127), 32.0)),
        expected=4064 * tanh(2**-13),
        path="half",
    ),
    Case(
        "common-logit",
        "8290560 and 8290560.5 times log2(e) are one FP32 number",
        _settings(partial(pair_inputs, [Channel(255, 256, 127, 127), Channel(0.5, 1.0, 1, 0)], (1, 0), 1.0, 1.0)),
        expected=_weight(0.5),
        path="digits",
    ),
    Case(
        "common-logit-scaled",
        "the same at the softmax scale 1/16",
        _settings(partial(pair_inputs, [Channel(255, 256, 127, 127), Channel(0.5, 1.0, 1, 0)], (1, 0), 1.0)),
        expected=_weight(1 / 32),
        path="digits",
    ),
    Case(
        "tiny-value-scale",
        "value_scale * 2^-15 is zero before the accumulator is applied; the result is a BF16 subnormal",
        _settings(partial(pair_inputs, [Channel(16, 1.0, 1, 0)], (100, 100), 2.0**-135)),
        expected=100 * 2.0**-135,
        path="half",
    ),
    Case(
        "softmax-scale",
        "a scale of 2^30 with key scales of 2^-30: beyond the scales that int8-tc is chosen for",
        _settings(partial(pair_inputs, [Channel(1, 2.0**-30, 1, 0)], (1, 0), 1.0, 2.0**30)),
        expected=_weight(1),
    ),
    _tail("tail-18", "p = e^-18 is zero in FP16 unless scaled", 288, 2.0**16, (0, 100), "digits"),
    _tail("value-scale", "the same of a small query; value_scale is exactly 2^16",
          2.25, 2.0**16, (0, 100), "half", -128),
    _tail("value-scale-above", "the next value_scale after 2^16", 2.25, FLOAT_VALUE_SCALE, (0, 100), "digits", -128),
    _tail("tail-20", "a depth of exactly 20 nats: the last that FP16 holds as a normal number",
          320, 2.0**28, (0, 1), "digits"),
    _tail("tail-20-above", "a depth of 20.125 nats", 322, 2.0**28, (0, 1), "single"),
    _tail("tail-30", "p = e^-30 is zero in FP16 even times 2^15, and value_scale brings it back",
          480, 2.0**60, (0, 1), "single"),
    replace(
        _tail("tail-100", "p = e^-100 is below FP32's normal numbers, and value_scale brings it back",
              1600, 2.0**100, (0, 1), "single"),
        limits=_on_fp32(DEEP),
    ),
    replace(
        _tail("rising-maximum", "a sum that the maximum leaves 100 nats behind is lost while it is rescaled",
              1600, 2.0**100, (0, 1), "single"),
        settings=_settings(
            partial(pair_inputs, [Channel(1600, 1.0, 0, -1)], (0, 1), 2.0**100),
            {"three tiles, B first": SLOTS["three tiles, B first"]},
        ),
        limits=_on_fp32(DEEP),
    ),
    Case(
        "vast-value-scale",
        "a sum of many values times value_scale is infinite before it is divided",
        _settings(partial(pair_inputs, [Channel(1, 1.0, 1, 1)], (127, 127), 2.0**120), EVERY_SLOT),
        expected=127 * 2.0**120,
        path="single",
        limits=(Limit("previous", "a split's sum times value_scale overflows FP32", backend="cuda"),),
    ),
    Case(
        "query-budget",
        "the largest sum of |q'| that stays: eps is at most 0.125 nats, and here 0.062",
        _settings(partial(pair_inputs, [Channel(1, EDGE, 1, 0)], (1, 0), 1.0)),
        expected=_weight(EDGE / 16),
        path="half",
    ),
    Case(
        "query-budget-above",
        "the next FP16 number",
        _settings(partial(pair_inputs, [Channel(1, EDGE + 2**-6, 1, 0)], (1, 0), 1.0)),
        expected=_weight((EDGE + 2**-6) / 16),
        path="digits",
    ),
    Case(
        "products-beyond-fp32",
        "finite query and key scales whose product is not",
        _settings(partial(pair_inputs, [Channel(2.0**100, 2.0**100, 1, 0)], (1, 0), 1.0)),
        expected=1.0,
        path="digits",
        limits=_on_fp32("query * key_scale overflows FP32"),
    ),
)  # fmt: skip


def _unusual(slots: Mapping[int, int], **elements: tuple[tuple[int | slice, ...], float]) -> SparseInputs:
    """An ordinary pair with one element of some tensors replaced."""
    inputs = pair_inputs([Channel(16, 1.0, 1, 0), Channel(0.0, 1.0, 3, 5)], (20, 10), 1.0, slots=slots)
    for tensor, (place, value) in elements.items():
        getattr(inputs, tensor)[place] = value
    return inputs


def _not_finite(
    name: str, tensor: str, place: tuple[int | slice, ...], value: float, path: str, *limits: Limit
) -> Case:
    build = partial(_unusual, **{tensor: (place, value)})
    shows = f"{value} in one element of {tensor}: the class of each output element is that of FP64 attention"
    return Case(name, shows, _settings(build), expected=10 + 10 * _weight(1), path=path, limits=limits)


NOT_FINITE = (
    _not_finite("infinite-query", "query", (0, 3, 1), np.inf, "digits"),
    _not_finite(
        "negative-infinite-query", "query", (0, 3, 1), -np.inf, "digits",
        Limit("previous", "a score of minus infinity is taken for no candidate", backend="cuda"),
    ),
    _not_finite("nan-query", "query", (1, 13, 200), np.nan, "digits"),
    _not_finite("infinite-key-scale", "key_scale", (1, 1), np.inf, "digits"),
    _not_finite("nan-key-scale", "key_scale", (1, 200), np.nan, "digits"),
    _not_finite("infinite-value-scale", "value_scale", (0, 9), np.inf, "single"),
    _not_finite("negative-infinite-value-scale", "value_scale", (1, 9), -np.inf, "single"),
    _not_finite("nan-value-scale", "value_scale", (1, 255), np.nan, "single"),
)  # fmt: skip
