# SPDX-License-Identifier: MIT
"""The arithmetic of `int8-ws` in NumPy: what kernels/dsa/prefill_int8_ws.cu does to numbers, step by step.

Not emulated: the error of the hardware's ex2 (2^-22), and the bits that a tensor core drops while it aligns products.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import SplitPlan
from dsa_bench.model.shape import TILE
from dsa_bench.oracle.attention import F64, folded_query
from dsa_bench.oracle.digits import LARGEST_UNIT, fixed_point
from dsa_bench.oracle.emulation import LOG2E, MMA_K, PREFILL, Emulated, attend_row
from dsa_bench.oracle.rounding import F32, exp2, toward_zero
from dsa_bench.oracle.tolerance import two_digit_error

PATHS = ("two", "four", "single")
"""How a CTA may compute, the fastest first: two INT8 digits of the folded query; four; with FP32 probabilities too."""
TOP = np.float32(15)
"""log2 of what the FP16 probability tile holds of the reference where tails are watched."""
HEADROOM = np.float32(4)
"""Bits less of it elsewhere."""
LARGEST = np.float32(65504)
"""What the probabilities of a lane's two candidates of a head may be together before the reference moves."""
WORD = 65536.0


@np.errstate(all="ignore")
def attend_row_ws(inputs: SparseInputs, row: int, kv_head: int, forced: str | None = None) -> Emulated:
    """One row and KV head. `forced` takes a path whatever the inputs need."""
    cta = _Cta(inputs, row, kv_head, forced)
    out = None if cta.path == "single" else cta.run()
    if out is not None:
        return Emulated(out, Counter({cta.path: 1}))
    whole = SplitPlan(inputs.shape.tiles, 1)
    return Emulated(attend_row(inputs, row, kv_head, whole, PREFILL, "single").out, Counter({"single": 1}))


@dataclass(frozen=True, slots=True, eq=False)
class _Scores:
    """Whole units [group, candidates], and how the kernel holds them: in one word, or two of which one counts 2^16."""

    units: F64
    upper: F64
    lower: F64

    def of(self, tile: NDArray[np.bool_]) -> "_Scores":
        return _Scores(self.units[:, tile], self.upper[:, tile], self.lower[:, tile])


class _Cta:
    """The query heads of one row and KV head on path `two` or `four`."""

    def __init__(self, inputs: SparseInputs, row: int, kv_head: int, forced: str | None) -> None:
        listed = inputs.selected[row]
        valid = np.flatnonzero((listed >= 0) & (listed < inputs.shape.context))
        self._tile = valid // TILE
        self._slot = valid % TILE
        self._keys = inputs.key[kv_head, listed[valid]].astype(np.float64)
        self._values = inputs.value[kv_head, listed[valid]].astype(np.float64)
        self._value_scale = inputs.value_scale[kv_head]
        self._folded = folded_query(inputs, row, kv_head)
        self._scale = np.float64(inputs.scale)
        self._watches = forced is None and self._exceeds(PREFILL.tail_scale)
        self.path = forced or self._path_of_inputs(two_digit_error(self._folded, inputs.scale))

    def _path_of_inputs(self, error: F64) -> str:
        if self._exceeds(PREFILL.wide_scale):
            return "single"
        return "two" if bool((error <= PREFILL.query_budget).all()) else "four"

    def _exceeds(self, limit: float) -> bool:
        """Whether a value_scale is above the limit; NaN is above every one."""
        return not bool((np.abs(self._value_scale) <= limit).all())

    def _scores(self) -> tuple[_Scores, F32]:
        """The scores, and nats per unit of each head."""
        finite = np.isfinite(np.abs(self._folded).sum(axis=1))
        folded = np.where(finite[:, None], self._folded, 0.0)
        if self.path == "two":
            digits, exponent = two_digits(folded)
            upper = digits @ self._keys.T
            scores = _Scores(upper, upper, np.zeros_like(upper))
        else:
            units, exponent = fixed_point(folded)
            low = np.mod(units + 32896, WORD) - 32896  # 128 * 257: two digits together, each in [-128, 127]
            upper, lower = ((units - low) / WORD) @ self._keys.T, low @ self._keys.T
            scores = _Scores(units @ self._keys.T, upper, lower)
        unit = np.minimum(np.ldexp(self._scale, exponent), LARGEST_UNIT * WORD).astype(np.float32)
        return scores, np.where(finite, unit, np.float32(np.nan))

    def run(self) -> F32 | None:
        """[group, head_size] before it is rounded to BF16; None if the CTA meets a tail."""
        scores, unit = self._scores()
        to_log2 = unit * LOG2E
        shift = TOP if self._watches else TOP - HEADROOM
        l, acc = np.zeros(len(unit), np.float32), np.zeros((len(unit), len(self._value_scale)), np.float32)  # noqa: E741
        reference = first = np.zeros(len(unit))
        for tile in np.unique(self._tile):
            own = self._tile == tile
            x, started = scores.of(own), tile != self._tile[0]
            log2 = self._log2(x, reference, to_log2, shift)
            if not started or self._watches or self._passes(exp2(log2), self._slot[own]):
                top: F64 = x.units.max(axis=1)
                if not started:
                    first = top
                elif self._watches and bool(
                    ((top - first).astype(np.float32) * to_log2 > PREFILL.max_rise * LOG2E).any()
                ):
                    return None
                to = np.maximum(reference, top) if started else top
                rise: F32 = self._difference(*self._words(to), reference)
                factor = (
                    np.where(to > reference, exp2((-rise * to_log2).astype(np.float32)), np.float32(1))
                    if started
                    else np.float32(1)
                )
                reference, l = to, l * factor  # noqa: E741
                acc = acc * np.broadcast_to(factor, l.shape)[:, None]
                log2 = self._log2(x, reference, to_log2, shift)
                if self._watches and bool((log2 < TOP - np.float32(PREFILL.tail_depth) * LOG2E).any()):
                    return None
            p = exp2(log2)
            l = l + p.sum(axis=1, dtype=np.float32)  # noqa: E741
            acc = add_values(acc, p.astype(np.float16).astype(np.float64), self._values[own])
        inverse = np.float32(1) / l[:, None]
        return np.where(l[:, None] == 0, np.float32(0), acc * inverse * self._value_scale)

    @staticmethod
    def _passes(p: F32, slot: NDArray[np.int64]) -> bool:
        """Whether those of a lane, candidates g and g + 8 of a warp's 16, are too large for the reference."""
        tile = np.zeros((len(p), TILE), np.float32)
        tile[:, slot] = p
        return bool((tile.reshape(len(p), -1, 2, 8).sum(axis=2) > LARGEST).any())

    def _log2(self, x: _Scores, reference: F64, to_log2: F32, shift: np.float32) -> F32:
        """log2 of what the probability tile holds."""
        difference = self._difference(x.upper, x.lower, reference[:, None]).astype(np.float64)
        return (difference * to_log2[:, None] + shift).astype(np.float32)

    def _words(self, units: F64) -> tuple[F64, F64]:
        if self.path == "two":
            return units, np.zeros_like(units)
        return np.floor(units / WORD), np.mod(units, WORD)

    def _difference(self, upper: F64, lower: F64, reference: F64) -> F32:
        reference_upper, reference_lower = self._words(reference)
        high = (upper - reference_upper).astype(np.float32).astype(np.float64)
        if self.path == "two":
            return high.astype(np.float32)
        return (high * WORD + (lower - reference_lower).astype(np.float32).astype(np.float64)).astype(np.float32)


def two_digits(folded: F64) -> tuple[F64, F64]:
    """Each head's channels in whole units, of two digits, and the exponent of the unit; rounded once."""
    _, exponent = fixed_point(folded)
    return np.rint(np.ldexp(folded, -(exponent + 16)[:, None])), exponent + 16


def add_values(acc: F32, p: F64, values: F64) -> F32:
    for first in range(0, len(values), MMA_K):
        part = slice(first, first + MMA_K)
        acc = toward_zero(acc + p[:, part] @ values[part])
    return acc
