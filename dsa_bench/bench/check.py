# SPDX-License-Identifier: MIT
"""Correct first: one poisoned run, compared elementwise with a reference inside a derived bound."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dsa_bench.bench.variant import Checked
from dsa_bench.model.errors import BadInput
from dsa_bench.model.inputs import BF16
from dsa_bench.oracle.attention import relative_rms
from dsa_bench.oracle.tolerance import SMALLEST_BF16

POISON = 2.0**127 * (2 - 2.0**-7)
"""The largest finite BF16. An output that could reach it is refused before anything runs."""


class OutputBuffer(Protocol):
    def fill_output(self, value: float) -> None: ...

    def output(self) -> NDArray[np.generic]: ...


def refuse_reachable_poison(largest_output: float) -> None:
    """Raises BadInput if an answer could be as large as the poison."""
    if not largest_output < POISON:
        raise BadInput(
            f"value scales: an output could reach {largest_output:.3g}, beyond BF16's largest number {POISON:.3g}; "
            "lower --value-scale-multiplier, or give other inputs"
        )


def refuse_blind_bound(bound: NDArray[np.float64], largest_output: NDArray[np.float64]) -> None:
    """Raises BadInput if the bound of any element is so wide that every output would pass.

    bound [checked, query_heads, head_size] · largest_output [query_heads, head_size], what no output exceeds.
    """
    blind = ~(bound <= largest_output + SMALLEST_BF16)
    if blind.any():
        at = tuple(np.argwhere(blind)[0])
        raise BadInput(
            f"the data: logits are so large that rounding could move an output by {bound[at]:.3g}, where none exceeds "
            f"{largest_output[at[1:]]:.3g}, and any result would pass; lower --key-scale-multiplier or --query-std, or "
            "give other inputs"
        )


def run_poisoned(launch: Callable[[int], None], buffer: OutputBuffer) -> NDArray[np.generic]:
    """The output of one launch into a poisoned buffer."""
    buffer.fill_output(POISON)
    launch(0)
    return buffer.output()


def compare(
    out: NDArray[Any], expected: NDArray[np.float64], bound: NDArray[np.float64], rows: NDArray[np.int64]
) -> Checked:
    """Compare out[rows] with `expected` inside `bound`; no element of `out` may still hold the poison.

    out [rows, query_heads, head_size], any float type · expected, bound [checked, query_heads, head_size] FP64.
    """
    unwritten = unwritten_elements(out)
    if len(unwritten):
        return Checked(
            "wrong_result", f"{len(unwritten)} output elements were never written, first {_place(unwritten[0])}"
        )
    return compare_rows(out, expected, bound, rows)


def unwritten_elements(out: NDArray[Any]) -> NDArray[np.int64]:
    """[elements, axes]: the places that still hold the poison. BF16 by its bits, which large outputs allow."""
    if out.dtype == BF16:
        return np.argwhere(out.view(np.uint16) == np.array(POISON, BF16).view(np.uint16))
    return np.argwhere(out.astype(np.float32) == np.float32(POISON))


def compare_rows(
    out: NDArray[Any], expected: NDArray[np.float64], bound: NDArray[np.float64], rows: NDArray[np.int64]
) -> Checked:
    """Compare out[rows] with `expected` inside `bound`, and nothing else of `out`."""
    got = out[rows].astype(np.float64)
    excess = np.abs(got - expected) / bound
    excess[~np.isfinite(excess)] = np.inf
    rms_error = relative_rms(got, expected)
    if excess.size and excess.max() > 1:
        at = np.unravel_index(int(excess.argmax()), excess.shape)
        row_place = _place((rows[at[0]], *at[1:]))
        return Checked(
            "wrong_result",
            f"out{row_place} is {got[at]:.6g}, the FP64 reference {expected[at]:.6g}, the bound {bound[at]:.2g}",
            rms_error if np.isfinite(rms_error) else None,
        )
    return Checked("ok", None, rms_error)


def _place(index: Any) -> str:
    return "[" + ", ".join(str(int(part)) for part in index) + "]"
