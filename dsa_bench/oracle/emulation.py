# SPDX-License-Identifier: MIT
"""The arithmetic of `int8-tc` in NumPy: what kernels/dsa/int8_tc.cuh and dsa/merge.cu do to numbers, step by step.

Each condition and each step can be switched off, so that a test can show what it is for (docs/numerics.md). Not
emulated: the error of the hardware's ex2 (2^-22), and the bits that a tensor core drops while it aligns products.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import SplitPlan
from dsa_bench.model.shape import TILE, Op
from dsa_bench.oracle.attention import F64, folded_query
from dsa_bench.oracle.digits import digit_scores
from dsa_bench.oracle.rounding import F32, exp2, toward_zero
from dsa_bench.oracle.tolerance import LARGE_VALUE_SCALE, QUERY_BUDGET, QUERY_LOAD

PATHS = ("half", "digits", "single")
"""How a CTA may compute, the fastest first: Q' as one FP16 number; as INT8 digits; with FP32 probabilities as well."""
LOG2E = np.float32(1.44269504088896341)
MMA_K = 16
"""Products that one tensor-core instruction adds to an FP32 accumulator."""
WIDE_EXPONENT = 100
HEADROOM = 27
"""Binary orders that sums keep free for a value_scale above wide_scale: 2^20 candidates times 2^7."""
MAX_SCALE = 1.0
"""The softmax scale up to which the kernel is chosen."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The conditions and steps of the kernel. What switches one off stands behind it.

    query_budget       nats: a head whose eps may be above it makes its CTA leave `half`         inf
    tail_scale         |value_scale| above which a CTA leaves `half`                             inf
    tail_depth         nats below the running maximum at which such a CTA leaves `digits`        inf
    max_rise           nats that its maximum may rise after its first candidates, likewise       inf
    wide_scale         |value_scale| above which a CTA starts on `single`, with less headroom    inf
    digits             INT8 digits of the folded query                                           1
    probability_scale  factor on a probability before it becomes FP16                            1
    residual           a second FP16 number takes what the first one lost                        False
    natural_log        scores stay natural until the maximum is subtracted                       False
    divide_first       the accumulator loses its factor before value_scale is applied            False
    wide_exponent      `single` holds probabilities times 2^this                                 0
    far_factor         the merge applies a split's weight below this in two factors              0.0
    """

    query_budget: float = QUERY_BUDGET
    tail_scale: float = LARGE_VALUE_SCALE
    tail_depth: float = 20.0
    max_rise: float = 60.0
    wide_scale: float = 2.0**100
    digits: int = 4
    probability_scale: float = 2.0**15
    residual: bool = True
    natural_log: bool = True
    divide_first: bool = True
    wide_exponent: int = WIDE_EXPONENT
    far_factor: float = 2.0**-120


DECODE = Arithmetic()
PREFILL = Arithmetic(residual=False)


def kernel_arithmetic(op: Op) -> Arithmetic:
    """What `int8-tc` does: prefill keeps one FP16 number of a probability."""
    return DECODE if op == "decode" else PREFILL


class Partial(NamedTuple):
    """m, l [group] and acc [group, head_size] of one split: acc = value_scale * sum exp(x - m) * v8, not divided."""

    m: F32
    l: F32  # noqa: E741 - the maths
    acc: F32


class Emulated(NamedTuple):
    """One row and KV head: the output before it is rounded to BF16 [group, head_size], and CTAs by path."""

    out: F32
    paths: Counter[str]


@np.errstate(all="ignore")
def attend_row(
    inputs: SparseInputs,
    row: int,
    kv_head: int,
    plan: SplitPlan,
    arithmetic: Arithmetic = DECODE,
    forced: str | None = None,
) -> Emulated:
    """All splits of one row and KV head, and their merge. `forced` takes a path whatever the inputs need."""
    paths: Counter[str] = Counter()
    partials: list[Partial] = []
    for split in range(plan.splits):
        cta = _Cta(inputs, row, kv_head, plan.candidate_slice(split, inputs.shape.candidates), arithmetic)
        partial, path = cta.run(forced)
        partials.append(partial)
        paths[path] += 1
    return Emulated(merge(partials, arithmetic), paths)


@np.errstate(all="ignore")
def merge(partials: Sequence[Partial], arithmetic: Arithmetic = DECODE) -> F32:
    """[group, head_size]: sum w * acc / sum w * l with w = exp(m - max m); zeros for a row without a candidate."""
    m, l, acc = (np.stack([getattr(partial, name) for partial in partials]) for name in ("m", "l", "acc"))  # noqa: E741
    live = l != 0
    top = np.fmax.reduce(np.where(live, m, np.float32(-np.inf)), axis=0)
    log2 = np.where(m == top, np.float32(0), (m - top) * LOG2E)
    far = log2 < (np.log2(np.float32(arithmetic.far_factor)) if arithmetic.far_factor else -np.inf)
    factor = np.where(far, np.float32(arithmetic.far_factor), np.float32(1))
    weight = exp2(log2 - np.log2(factor))
    total = np.where(live, weight * factor * l, np.float32(0)).sum(axis=0)
    terms = weight[:, :, None] * (factor[:, :, None] * acc)
    mixed = np.where(live[:, :, None] & (weight != 0)[:, :, None], terms, np.float32(0)).sum(axis=0)
    return np.where(total[:, None] == 0, np.float32(0), mixed / total[:, None])


class _Tail:
    """Whether a CTA on `digits` has met a candidate so deep, or a rise so far, that its FP16 or FP32 sums lost it."""

    def __init__(self, arithmetic: Arithmetic, armed: bool) -> None:
        self._arithmetic = arithmetic
        self._armed = armed
        self._first: F32 | None = None
        self.met = False

    def look(self, x: F32, m: F32) -> None:
        if not self._armed:
            return
        if self._first is None:
            self._first = m
        rise, depth = m - self._first, m[:, None] - x
        self.met |= bool((rise > self._arithmetic.max_rise).any() or (depth > self._arithmetic.tail_depth).any())


class _Cta:
    """One CTA: the query heads of one row and KV head over a run of the row's tiles."""

    def __init__(self, inputs: SparseInputs, row: int, kv_head: int, part: slice, arithmetic: Arithmetic) -> None:
        listed = inputs.selected[row, part]
        valid = np.flatnonzero((listed >= 0) & (listed < inputs.shape.context))
        self._tile = valid // TILE
        self._keys = inputs.key[kv_head, listed[valid]].astype(np.float64)
        self._values = inputs.value[kv_head, listed[valid]].astype(np.float64)
        self._folded = folded_query(inputs, row, kv_head)
        self._value_scale = inputs.value_scale[kv_head]
        self._scale = np.float32(inputs.scale)
        self._arithmetic = arithmetic

    def run(self, forced: str | None) -> tuple[Partial, str]:
        path = forced or self._path_of_inputs()
        if path == "half":
            sums, _ = self._half_probabilities(self._half_scores(), _Tail(self._arithmetic, armed=False))
            return self._publish_half(sums), path
        scores = digit_scores(self._folded, self._keys, self._scale, self._arithmetic.digits)
        if path == "digits":
            tail = _Tail(self._arithmetic, armed=forced is None and self._exceeds(self._arithmetic.tail_scale))
            sums, rest = self._half_probabilities(scores, tail)
            if not tail.met:
                return self._publish_half(sums), path
            return self._wide_probabilities(scores, rest, self._widened(sums)), "single"
        return self._wide_probabilities(scores, np.unique(self._tile), self._no_sums()), "single"

    def _path_of_inputs(self) -> str:
        budget = self._arithmetic.query_budget
        within = np.isinf(budget) or rounds_within(self._half_query(), self._scale, budget)
        if within and not self._exceeds(self._arithmetic.tail_scale):
            return "half"
        return "single" if self._exceeds(self._arithmetic.wide_scale) else "digits"

    def _exceeds(self, limit: float) -> bool:
        """Whether a value_scale is above the limit; NaN is above every one."""
        return not np.isinf(limit) and not bool((np.abs(self._value_scale) <= limit).all())

    def _half_query(self) -> F64:
        return self._folded.astype(np.float32).astype(np.float16).astype(np.float64)

    def _half_scores(self) -> F32:
        """[group, candidates]: products of FP16 numbers in two chains of tensor-core sums."""
        q, chains = self._half_query(), [np.zeros((len(self._folded), len(self._keys)), np.float32) for _ in range(2)]
        for step, first in enumerate(range(0, q.shape[1], MMA_K)):
            part = slice(first, first + MMA_K)
            chains[step % 2] = toward_zero(chains[step % 2] + q[:, part] @ self._keys[:, part].T)
        return (chains[0] + chains[1]) * self._scale

    def _no_sums(self) -> Partial:
        group = len(self._folded)
        acc = np.zeros((group, len(self._value_scale)), np.float32)
        return Partial(np.full(group, -np.inf, np.float32), np.zeros(group, np.float32), acc)

    def _half_probabilities(self, x: F32, tail: _Tail) -> tuple[Partial, NDArray[np.int64]]:
        """Paths `half` and `digits`: p * probability_scale as FP16, with what that loses as a second FP16 number.

        The sums, acc times probability_scale, of the tiles before a tail; and the tiles from it on.
        """
        factor = np.float32(self._arithmetic.probability_scale)
        m, l, acc = self._no_sums()  # noqa: E741
        tiles = np.unique(self._tile)
        if not self._arithmetic.natural_log:
            x = x * LOG2E
        for at, tile in enumerate(tiles):
            own = self._tile == tile
            top = maximum(m, x[:, own])
            tail.look(x[:, own], top)
            if tail.met:
                return Partial(m, l, acc), tiles[at:]
            rescale, m = self._rescale(m, top), top
            p = self._probability(x[:, own] - without_infinity(m)[:, None])
            l = l * rescale + p.sum(axis=1, dtype=np.float32)  # noqa: E741
            acc = acc * rescale[:, None]
            high = (p * factor).astype(np.float16)
            residual = (p * factor - high.astype(np.float32)).astype(np.float16)
            for part in (high, residual) if self._arithmetic.residual else (high,):
                acc = self._add_values(acc, part.astype(np.float64), self._values[own])
        if not self._arithmetic.natural_log:
            m = m / LOG2E
        return Partial(m, l, acc), tiles[len(tiles) :]

    def _publish_half(self, sums: Partial) -> Partial:
        m, l, acc = sums  # noqa: E741
        inverse = np.float32(1) / np.float32(self._arithmetic.probability_scale)
        if self._arithmetic.divide_first:
            acc = acc * inverse * self._value_scale
        else:
            acc = acc * (self._value_scale * inverse)
        return Partial(m, l, np.where(l[:, None] == 0, np.float32(0), acc))

    def _widened(self, sums: Partial) -> Partial:
        """From the units of path `digits` to those of `single`."""
        wide = np.float32(2.0**self._arithmetic.wide_exponent)
        return Partial(sums.m, sums.l * wide, sums.acc * (wide / np.float32(self._arithmetic.probability_scale)))

    @staticmethod
    def _add_values(acc: F32, p: F64, values: F64) -> F32:
        for first in range(0, len(values), MMA_K):
            part = slice(first, first + MMA_K)
            acc = toward_zero(acc + p[:, part] @ values[part])
        return acc

    def _rescale(self, m: F32, top: F32) -> F32:
        if self._arithmetic.natural_log:
            return rescale_factor(m, top)
        return np.where(m == top, np.float32(1), exp2(m - top))

    def _probability(self, below: F32) -> F32:
        return exp2(below * LOG2E if self._arithmetic.natural_log else below)

    def _wide_probabilities(self, x: F32, tiles: NDArray[np.int64], sums: Partial) -> Partial:
        """Path `single`: p * 2^wide_exponent in FP32; with a vast value_scale acc and l end 2^HEADROOM smaller.

        tiles  those that are left; sums  of the ones before, in this path's units
        """
        exponent = self._arithmetic.wide_exponent
        wide, one = np.float32(2.0**exponent), np.float32(1)
        vast = self._exceeds(self._arithmetic.wide_scale)
        narrow = np.float32(2.0 ** -(exponent + HEADROOM if vast else exponent))
        m, l, acc = sums  # noqa: E741
        for tile in tiles:
            own = self._tile == tile
            top = maximum(m, x[:, own])
            root = np.where(m == top, np.float32(1), exp2((m - top) * (np.float32(0.5) * LOG2E)))
            m = top
            t = (x[:, own] - without_infinity(m)[:, None]) * LOG2E
            near = t >= -exponent
            p = exp2(np.where(near, t, t + np.float32(exponent)), subnormal=True) * np.where(near, wide, one)
            l = l * root * root + p.sum(axis=1, dtype=np.float32)  # noqa: E741
            acc = (acc * root[:, None] * root[:, None] + p.astype(np.float64) @ self._values[own]).astype(np.float32)
        small: NDArray[np.bool_] = np.abs(self._value_scale) < 1  # then acc loses its factor first, else value_scale
        acc = acc * np.where(small, narrow, one) * (self._value_scale * np.where(small, one, narrow))
        return Partial(m, l * narrow, np.where(l[:, None] == 0, np.float32(0), acc))


def rounds_within(q: F64, scale: np.float32, budget: float) -> bool:
    """Whether the sum of |Q'| keeps every head's eps within the budget, for Q' [heads, head_size] in FP16.

    The kernel adds the 8 channels of a lane in FP16, and the lanes in units of 2^-20 of the budget, each rounded up.
    """
    lanes = np.abs(q).astype(np.float16).reshape(len(q), -1, 8)
    parts = (lanes[..., 0:4] + lanes[..., 4:8]).reshape(len(q), -1, 2, 2)
    magnitude = (parts[..., 0] + parts[..., 1]).astype(np.float32).sum(axis=-1)
    units = np.ceil(magnitude * np.float32(float(scale) * QUERY_LOAD / budget) * np.float32(2.0**20))
    return bool((np.fmin(units, 2.0**21).sum(axis=1) <= 2.0**20).all())


def maximum(m: F32, x: F32) -> F32:
    """As fmaxf: what is no number is passed over."""
    return np.fmax(m, np.fmax.reduce(x, axis=1))


def without_infinity(m: F32) -> F32:
    """What to subtract from scores whose maximum is m, so that none is inf - inf."""
    return np.where(m == -np.inf, np.float32(0), m)


def rescale_factor(m: NDArray[Any], top: F32) -> F32:
    return np.where(m == top, np.float32(1), exp2((m - top) * LOG2E))
