# SPDX-License-Identifier: MIT
"""The tensors of one call, on the host."""

import hashlib
from dataclasses import dataclass, fields

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.shape import Op, SparseShape

BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class SparseInputs:
    """query [rows, query_heads, head_size] bf16 · key, value [kv_heads, context, head_size] int8 ·
    key_scale, value_scale [kv_heads, head_size] fp32 · selected [rows, candidates] int32 · scale, the softmax scale ·
    op, the operator that is called with them.

    An entry of `selected` counts if it lies in [0, context), wherever it stands in its list; duplicates count twice.
    """

    query: NDArray[np.generic]
    key: NDArray[np.int8]
    value: NDArray[np.int8]
    key_scale: NDArray[np.float32]
    value_scale: NDArray[np.float32]
    selected: NDArray[np.int32]
    scale: float = 1.0 / 16.0
    op: Op = "decode"

    @property
    def shape(self) -> SparseShape:
        rows, query_heads, head_size = self.query.shape
        kv_heads, context, _ = self.key.shape
        return SparseShape(rows, context, self.selected.shape[1], query_heads, kv_heads, head_size, self.op)

    @property
    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """Every tensor by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def gathered_bytes(self) -> int:
        """K and V bytes that one call reads: every valid entry of every list, for every KV head."""
        shape = self.shape
        valid = np.count_nonzero((self.selected >= 0) & (self.selected < shape.context))
        return int(valid) * shape.kv_heads * shape.head_size * 2

    def digest(self) -> str:
        """SHA-256 over every tensor's name, type, shape and bytes, and the softmax scale; 16 hex digits."""
        sha = hashlib.sha256(f"scale={self.scale!r}".encode())
        for name, tensor in self.tensors.items():
            sha.update(f"{name}:{tensor.dtype.name}{tensor.shape}".encode())
            sha.update(np.ascontiguousarray(tensor).view(np.uint8).data)
        return sha.hexdigest()[:16]
