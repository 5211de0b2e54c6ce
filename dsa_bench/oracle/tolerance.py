# SPDX-License-Identifier: MIT
"""How far a kernel's output may lie from the FP64 oracle: first-order bounds whose terms can be argued.

docs/numerics.md derives them. In short, for one head with exact weights p and logits that are off by at most `delta`:

the odds of any set of candidates change by a factor of at most r = exp(2 delta), so its weight P by at most
(sqrt(r) - 1) / (sqrt(r) + 1) = tanh(delta / 2), whatever P is. A set that the heaviest candidate is not in weighs at
most w, all the others together, and at most r * w afterwards, so its weight changes by at most w * exp(2 delta); a set
that it is in, by as much as its complement. Values lie within +-v_max, so the output moves by at most

    2 * v_max * min(tanh(delta / 2), w * exp(2 delta)).

The second is the sharper one where one candidate dominates: with a gap of `gap` nats to the next of n candidates
w <= n * exp(-gap). It still says something where logits are so large that rounding moves them by many nats.
"""

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.oracle.attention import F64
from dsa_bench.oracle.digits import fixed_point
from dsa_bench.oracle.survey import Look, Survey, key_rounding, survey

U_BF16 = 2.0**-8
"""Unit roundoff of BF16 (8 significant bits, to nearest)."""
U_FP16 = 2.0**-11
U_FP32 = 2.0**-24
FP32_MAX = float(np.finfo(np.float32).max)
SMALLEST_BF16 = 2.0**-133
CODE_MAX = 128
"""Largest magnitude of an INT8 code."""
QUERY_BUDGET = 0.125
"""nats: what rounding query * key_scale to FP16 may do to a logit of a CTA that stays on the fast path of `int8-tc`."""
QUERY_LOAD = 128 * 2.0**-11 * 1.04
"""nats: what it does at most, for each unit of scale * sum |fp16(query * key_scale)|."""
LARGE_VALUE_SCALE = 2.0**16
"""From here on a probability that FP16 flushes could show in the output, so `int8-tc` leaves its fast path."""


def largest_output(inputs: SparseInputs) -> F64:
    """[query_heads, head_size]: what no output exceeds, the largest code times the channel's value_scale."""
    return CODE_MAX * np.abs(inputs.value_scale.astype(np.float64)).repeat(inputs.shape.group, axis=0)


def logit_magnitude(inputs: SparseInputs, rows: NDArray[np.int64]) -> F64:
    """[rows, query_heads]: scale * 128 * sum_d |query * key_scale|, above the size of any partial sum of a logit."""
    return inputs.scale * CODE_MAX * np.abs(_folded(inputs, rows)).sum(axis=-1)


def query_error(inputs: SparseInputs, rows: NDArray[np.int64]) -> F64:
    """[rows, query_heads] nats: eps = scale * 128 * sum_d |q - fp16(q)| for q = query * key_scale.

    Bounds what rounding q to FP16 does to a logit, whatever the keys are; infinite or NaN beyond FP16's range.
    """
    folded = _folded(inputs, rows)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = folded.astype(np.float32).astype(np.float16).astype(np.float64)
        return inputs.scale * CODE_MAX * np.abs(folded - rounded).sum(axis=-1)


def query_load(inputs: SparseInputs, rows: NDArray[np.int64]) -> F64:
    """[rows, query_heads]: scale * sum_d |fp16(q)| * QUERY_LOAD / QUERY_BUDGET, what `int8-tc` compares with 1.

    It is above query_error / QUERY_BUDGET (docs/numerics.md); infinite or NaN beyond FP16's range.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = _folded(inputs, rows).astype(np.float32).astype(np.float16).astype(np.float64)
        return inputs.scale * np.abs(rounded).sum(axis=-1) * (QUERY_LOAD / QUERY_BUDGET)


def fp32_bound(inputs: SparseInputs, rows: NDArray[np.int64], out: F64, look: Look = survey) -> F64:
    """Bound on |kernel - oracle| for FP32 arithmetic and a BF16 store, [len(rows), query_heads, head_size].

    store   the result is rounded to BF16 once: U_BF16 * |out|, or half the smallest subnormal
    logit   folding, product, head_size additions, scaling, subtraction of the maximum and the argument of exp each
            round once: delta = (head_size + 6) * U_FP32 * logit_magnitude; infinite where a partial sum may overflow
    sums    numerator and denominator add `candidates` terms each, and exp is good to 2^-22:
            (2 * candidates + 8) * U_FP32 * v_max
    """
    delta = _or_overflow(inputs, rows, _accumulation(inputs, rows, U_FP32))
    known = look(inputs, rows, "query") if (np.tanh(delta / 2) > U_BF16).any() else None
    return _bound(inputs, out, _weight_error(delta, known) + _sums(inputs, U_FP32))


def fp16_bound(inputs: SparseInputs, rows: NDArray[np.int64], out: F64, look: Look = survey) -> F64:
    """Bound for the arithmetic of `int8-tc`: tensor cores, and probabilities as one FP16 number, in decode as two.

    accumulation  tensor cores may truncate where FP32 arithmetic rounds: the terms of fp32_bound with twice the unit
    query         one FP16 number: Q' = fp16(query * key_scale) shifts logits by what `Survey.shift` finds on the row's
                  own keys. That holds for a row and KV head whose query_load is at most 1 in every head.
                  Else four INT8 digits: each channel is off by at most one unit of at most 2^-30 / 0.99 of the largest
                  one, and the sums are exact integers that are rounded to FP32 a few times:
                  scale * max |query * key_scale| * (head_size * 128 * 2^-30 / 0.99 + 10 U_FP32) + 10 U_FP32 * max |x|
    probability   decode: p * 2^15 in two FP16 parts keeps 22 bits, or an absolute 2^-25 where the residual is
                  subnormal: (2^-22 + candidates * 2^-40) * v_max. Prefill: one FP16 number keeps 11, and flushes by the
                  same 2^-25: (2^-11 + candidates * 2^-40) * v_max. The row sum keeps the unrounded p, so the error does
                  not cancel. FP32 probabilities, which deep tails get, are better than that.
    """
    known = look(inputs, rows, "query")
    shape = inputs.shape
    with np.errstate(invalid="ignore", over="ignore"):
        digits = _digit_error(inputs, rows, known)
        half = known.shift + _accumulation(inputs, rows, 2 * U_FP32)
        delta = np.where(_on_half_path(inputs, rows), half, digits)
    probability = (2.0**-22 if inputs.op == "decode" else U_FP16) + shape.candidates * 2.0**-40
    return _bound(inputs, out, _weight_error(delta, known) + _sums(inputs, 2 * U_FP32) + probability)


def digits_bound(inputs: SparseInputs, rows: NDArray[np.int64], out: F64, look: Look = survey) -> F64:
    """Bound for the arithmetic of `int8-digits`: integer sums, and probabilities as integers of 32 bits.

    query         as the digits of fp16_bound, for every head
    probability   p * 2^32 to the nearest integer: candidates * 2^-33 * v_max. The row sum keeps the unrounded p, so the
                  error does not cancel. FP32 probabilities, which large value scales get, are better than that
    sums          numerator and denominator as in fp32_bound: sums of integers are exact, and rounded twice a step
    """
    known = look(inputs, rows, "query")
    with np.errstate(invalid="ignore", over="ignore"):
        delta = _digit_error(inputs, rows, known)
    return _bound(inputs, out, _weight_error(delta, known) + _sums(inputs, U_FP32) + inputs.shape.candidates * 2.0**-33)


def ws_bound(inputs: SparseInputs, rows: NDArray[np.int64], out: F64, look: Look = survey) -> F64:
    """Bound for the arithmetic of `int8-ws`: digits of the query, and probabilities as one FP16 number.

    query         two digits shift logits by at most two_digit_error, where that is at most QUERY_BUDGET in every head
                  of a row and KV head; else four, as in fp16_bound. Integer sums are rounded to FP32 a few times
    probability   FP16 holds at least 2^11 of the largest: that much of the reference, which lies up to 5 bits below the
                  maximum, as FP16 ends at 65504. It keeps 11 bits, and flushes by 2^-25 / 2^11:
                  (2^-11 + candidates * 2^-36) * v_max
    """
    return _two_or_four_digits(inputs, rows, out, look, 2.0**-36)


def union_bound(inputs: SparseInputs, rows: NDArray[np.int64], out: F64, look: Look = survey) -> F64:
    """Bound for the arithmetic of `int8-union`: as ws_bound, with rows that share their tiles on two digits.

    probability   their reference lies up to 3 bits above the maximum, so FP16 holds at least 2^8 of the largest and
                  flushes by 2^-25 / 2^8: (2^-11 + candidates * 2^-33) * v_max
    """
    return _two_or_four_digits(inputs, rows, out, look, 2.0**-33)


def _two_or_four_digits(inputs: SparseInputs, rows: NDArray[np.int64], out: F64, look: Look, flushed: float) -> F64:
    """ws_bound, for probabilities of which FP16 flushes `flushed` of the largest."""
    known = look(inputs, rows, "query")
    shape = inputs.shape
    folded = _folded(inputs, rows)
    two = two_digit_error(folded.reshape(-1, shape.head_size), inputs.scale).reshape(folded.shape[:-1])
    largest = two.reshape(len(rows), shape.kv_heads, shape.group).max(axis=2).repeat(shape.group, axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        delta = np.where(largest <= QUERY_BUDGET, two + 10 * U_FP32 * known.largest, _digit_error(inputs, rows, known))
    probability = U_FP16 + shape.candidates * flushed
    return _bound(inputs, out, _weight_error(delta, known) + _sums(inputs, 2 * U_FP32) + probability)


def two_digit_error(folded: F64, scale: float) -> F64:
    """[heads] nats: what two INT8 digits of query * key_scale [heads, head_size] may do to a logit; NaN if infinite.

    Half a unit of each channel times a code of 128; the unit is 2^-14 or 2^-15 of the head's largest channel.
    """
    finite: NDArray[np.bool_] = np.isfinite(np.abs(folded).sum(axis=1))
    _, exponent = fixed_point(np.where(finite[:, None], folded, 0.0))
    error = 0.5 * CODE_MAX * folded.shape[1] * scale * np.ldexp(1.0, exponent + 16)
    return np.where(finite, error, np.nan)


def bf16_bound(inputs: SparseInputs, rows: NDArray[np.int64], out: F64, look: Look = survey) -> F64:
    """Bound for `previous` of prefill: keys and values code * scale in BF16, BF16 probabilities, tensor cores.

    keys          fp32(code * key_scale) rounded to BF16 shifts logits by what `Survey.shift` finds on the row's own
                  keys; query times key is then summed as in fp16_bound, with twice FP32's unit. Infinite where a
                  partial sum may overflow
    values        fp32(code * value_scale) rounded to BF16: U_BF16 * v_max, or 2^-133 where that is subnormal. Infinite
                  where their sum, which is divided by the row sum at the end, may overflow
    probability   BF16 has FP32's exponents, so p in BF16 is off by U_BF16 * p and nothing is flushed above FP32's own
                  end. If the row sum keeps the unrounded p the output moves by at most U_BF16 * v_max. If it takes the
                  rounded ones the weights change by factors within exp(+-U_BF16): 2 * tanh(U_BF16 / 2), no more
    """
    known = look(inputs, rows, "keys")
    with np.errstate(invalid="ignore", over="ignore"):
        delta = _or_overflow(inputs, rows, known.shift + _accumulation(inputs, rows, 2 * U_FP32))
    relative = _weight_error(delta, known) + _sums(inputs, 2 * U_FP32) + 2 * U_BF16 * (1 + U_BF16)
    summed = inputs.shape.candidates * largest_output(inputs)
    return np.where(summed < FP32_MAX, _bound(inputs, out, relative) + SMALLEST_BF16, np.inf)


def key_noise(inputs: SparseInputs, rows: NDArray[np.int64], kv_head: int) -> F64:
    """[rows] nats: RMS over a KV head's query heads of what BF16 keys typically do to a logit.

    Errors of different channels are taken for independent: scale * sqrt(sum_d query[d]^2 * mean_c rounding[c, d]^2),
    the mean over up to 4096 positions.
    """
    group = inputs.shape.group
    query = inputs.query[rows, kv_head * group : (kv_head + 1) * group].astype(np.float64)
    spread = np.square(key_rounding(inputs, kv_head, slice(0, 4096))).mean(axis=0)
    return inputs.scale * np.sqrt((np.square(query) @ spread).mean(axis=-1))


def _digit_error(inputs: SparseInputs, rows: NDArray[np.int64], known: Survey) -> F64:
    """[rows, query_heads] nats: what four INT8 digits of the folded query and FP32 scores do to a logit."""
    digit = inputs.shape.head_size * CODE_MAX * 2.0**-30 / 0.99 + 10 * U_FP32
    return inputs.scale * np.abs(_folded(inputs, rows)).max(axis=-1) * digit + 10 * U_FP32 * known.largest


def _or_overflow(inputs: SparseInputs, rows: NDArray[np.int64], delta: F64) -> F64:
    """`delta`, infinite where a partial sum of a logit may be beyond FP32."""
    largest = np.abs(_folded(inputs, rows)).sum(axis=-1) * CODE_MAX * max(inputs.scale, 1.0)
    return np.where(largest < FP32_MAX, delta, np.inf)


def _on_half_path(inputs: SparseInputs, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[rows, query_heads]: whether the row and KV head may be on the path whose bound is the wider one of the two."""
    shape = inputs.shape
    load = query_load(inputs, rows).reshape(len(rows), shape.kv_heads, shape.group).max(axis=2)
    near = load <= 1 + 2.0**-9  # the kernel adds in FP16, which may lose 3 * 2^-11
    small = (np.abs(inputs.value_scale) <= LARGE_VALUE_SCALE).all(axis=1)
    return (near & small).repeat(shape.group, axis=1)


def _folded(inputs: SparseInputs, rows: NDArray[np.int64]) -> F64:
    """[rows, query_heads, head_size]: query * key_scale, exact."""
    with np.errstate(invalid="ignore"):  # 0 * inf
        key_scale = inputs.key_scale.astype(np.float64).repeat(inputs.shape.group, axis=0)
        return inputs.query[rows].astype(np.float64) * key_scale


def _accumulation(inputs: SparseInputs, rows: NDArray[np.int64], unit: float) -> F64:
    return (inputs.shape.head_size + 6) * unit * logit_magnitude(inputs, rows)


def _weight_error(delta: F64, known: Survey | None) -> F64:
    """[rows, query_heads]: half of what sum |p' - p| can be, twice."""
    moved = np.tanh(delta / 2)
    if known is not None:
        with np.errstate(invalid="ignore", over="ignore"):
            others = np.exp(np.minimum(known.others_log + 2 * delta, 0.0))
        moved = np.where(np.isfinite(delta), np.minimum(moved, others), moved)
    return 2 * moved


def _sums(inputs: SparseInputs, unit: float) -> float:
    return (2 * inputs.shape.candidates + 8) * unit


def _bound(inputs: SparseInputs, out: F64, relative: F64) -> F64:
    """The store, and `relative` [rows, query_heads] of what no output exceeds."""
    with np.errstate(invalid="ignore"):
        return U_BF16 * np.abs(out) + SMALLEST_BF16 + relative[:, :, None] * largest_output(inputs)
