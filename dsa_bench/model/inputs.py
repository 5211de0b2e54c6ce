# SPDX-License-Identifier: MIT
"""The tensors of one decode call, on the host."""

import hashlib
from dataclasses import dataclass, fields
from typing import cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.shape import DecodeShape

BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeInputs:
    """query [rows, query_heads, head_size] bf16 · key, value [kv_heads, context, head_size] int8 ·
    key_scale, value_scale [kv_heads, head_size] fp32 · selected [rows, candidates] int32 · scale, the softmax scale.

    An entry of `selected` counts if it lies in [0, context), wherever it stands in its list; duplicates count twice.
    """

    query: NDArray[np.generic]
    key: NDArray[np.int8]
    value: NDArray[np.int8]
    key_scale: NDArray[np.float32]
    value_scale: NDArray[np.float32]
    selected: NDArray[np.int32]
    scale: float = 1.0 / 16.0

    @property
    def shape(self) -> DecodeShape:
        rows, query_heads, head_size = self.query.shape
        kv_heads, context, _ = self.key.shape
        return DecodeShape(rows, context, self.selected.shape[1], query_heads, kv_heads, head_size)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = (getattr(self, field.name) for field in fields(self))
        return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, np.ndarray))

    def digest(self) -> str:
        """SHA-256 over every tensor's name, type, shape and bytes, and the softmax scale; 16 hex digits."""
        sha = hashlib.sha256(f"scale={self.scale!r}".encode())
        for field in fields(self):
            tensor = getattr(self, field.name)
            if isinstance(tensor, np.ndarray):
                sha.update(f"{field.name}:{tensor.dtype.name}{tensor.shape}".encode())
                sha.update(np.ascontiguousarray(cast("NDArray[np.generic]", tensor)).view(np.uint8).data)
        return sha.hexdigest()[:16]
