# SPDX-License-Identifier: MIT
"""Cells by name, whatever their operator: what a key looks like, its parts, and its words for people."""

import re
from collections.abc import Mapping

from dsa_bench.model import dense, hyper, shape

AttentionShape = shape.SparseShape | dense.DenseShape

CELL_KEYS: dict[str, re.Pattern[str]] = {
    **dict.fromkeys(shape.OPS, shape.CELL_KEY),
    **hyper.CELL_KEYS,
    "dense": dense.DENSE_CELL_KEY,
}
"""Operator -> what the keys of its cells look like."""


def is_cell_key(key: str) -> bool:
    """Whether a cell is named as one of an operator is."""
    pattern = CELL_KEYS.get(key.removeprefix("op=").partition(",")[0])
    return pattern is not None and pattern.fullmatch(key) is not None


def attention_shape_of_key(key: str) -> AttentionShape:
    """The shape that a cell of attention is named after. Raises BadInput if it is another operator's, or none."""
    return dense.dense_shape_of_key(key) if key.startswith("op=dense,") else shape.shape_of_key(key)


def cell_words(parts: Mapping[str, str], *, heads: bool = True) -> str:
    """The parts of a key as a heading. `heads` adds those of attention."""
    if parts.get("op") in hyper.HYPER_OPS:
        return ", ".join(f"{name} {value}" for name, value in parts.items() if name not in ("op", "branches"))
    if parts.get("op") == "dense":
        words = f"capacity {parts['capacity']}, length {parts['length']}"
        words += "" if parts["batch"] == "1" else f", batch {parts['batch']}"
        words += "" if parts["query_len"] == "1" else f", queries {parts['query_len']}"
        sizes = f"heads {parts['query_heads']}/{parts['kv_heads']} x {parts['head_size']}/{parts['value_head_size']}"
        return f"{words}, {sizes}, {parts['dtype']}" if heads else words
    words = f"rows {parts['rows']}, context {parts['context']}, candidates {parts['candidates']}"
    words += f", selection {parts['selection']}" if "selection" in parts else ""
    return f"{words}, heads {parts['query_heads']}/{parts['kv_heads']}" if heads else words
