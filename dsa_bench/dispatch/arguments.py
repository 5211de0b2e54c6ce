# SPDX-License-Identifier: MIT
"""What a program passes beside its arrays: a softmax scale, the sizes of a call, a device. Refused by name."""

from numbers import Integral, Real

from dsa_bench.model.errors import BadInput
from dsa_bench.model.shape import INT32_MAX, MAX_CANDIDATES
from dsa_bench.model.text import quoted

DEVICES = ("cuda", "cpu")


def scale_of(value: object) -> float:
    """The softmax scale as a float; its range is the gates' matter. Raises BadInput for what is no real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadInput(f"scale {quoted(value)}: must be a number, such as 1 / 16")
    try:
        return float(value)
    except OverflowError as error:  # an integer beyond every float
        raise BadInput(f"scale {quoted(value)}: must be finite and not negative") from error


def size_of(name: str, value: object, largest: int = INT32_MAX) -> int:
    """A size as an int. Raises BadInput for what is no integer from 0 to `largest`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) <= largest:
        raise BadInput(f"{name} {quoted(value)}: must be an integer of at least 0 and at most {largest}")
    return int(value)


def sizes_of(
    rows: object, candidates: object, query_heads: object, kv_heads: object, head_size: object
) -> tuple[int, int, int, int, int]:
    """The sizes of a call in that order. Raises BadInput for what is none, and for heads that do not divide."""
    heads, groups = size_of("query_heads", query_heads), size_of("kv_heads", kv_heads)
    if heads and (not groups or heads % groups):
        raise BadInput(f"query_heads {heads}: must be a multiple of kv_heads {groups}, whose groups share a KV head")
    sizes = size_of("rows", rows), size_of("candidates", candidates, MAX_CANDIDATES)
    return *sizes, heads, groups, size_of("head_size", head_size)


def context_of(context: object, rows: int) -> int:
    """The capacity of a call's cache. Raises BadInput for what is none, and where the rows do not fit."""
    positions = size_of("context", context)
    if rows > positions > 0:
        raise BadInput(f"rows {rows}: must be at most context {positions}, whose last positions they are")
    return positions


def device_of(device: object) -> str:
    """Where a call runs. Raises BadInput for anything but "cuda" and "cpu"."""
    if not isinstance(device, str) or device not in DEVICES:
        raise BadInput(f"device {quoted(device)}: must be {' or '.join(DEVICES)}")
    return device
