# SPDX-License-Identifier: MIT
"""The tensors of dense decode, on the host."""

import hashlib
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.dense import DenseDtype, DenseShape
from dsa_bench.model.inputs import BF16

DTYPES: dict[DenseDtype, np.dtype[np.generic]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": BF16,
}


@dataclass(frozen=True, slots=True, eq=False)
class DenseInputs:
    """The tensors of one call, shaped as DenseShape says, and what a row may see.

    length     live keys; those behind it are never read
    scale      of the product; None is 1 / sqrt(head_size)
    softcap    0, or c in c * tanh(x / c), before the mask
    causal     query i sees the keys up to i + end - query_len, end the end of its batch entry's live keys
    pad_limit  None, or int32 [batch]: live keys of each batch entry; a negative one is no limit
    mask       None, or fp32 [batch, query_len, capacity], added to the scores; -inf takes a key out
    """

    query: NDArray[np.generic]
    key: NDArray[np.generic]
    value: NDArray[np.generic]
    length: int
    scale: float | None = None
    softcap: float = 0.0
    causal: bool = False
    pad_limit: NDArray[np.int32] | None = None
    mask: NDArray[np.float32] | None = None

    @property
    def shape(self) -> DenseShape:
        batch, query_heads, query_len, head_size = self.query.shape
        _, kv_heads, capacity, value_head_size = self.value.shape
        dtype: DenseDtype = next(name for name in DTYPES if DTYPES[name] == self.query.dtype)
        return DenseShape(
            capacity, self.length, query_heads, kv_heads, head_size, value_head_size, batch, query_len, dtype
        )

    @property
    def softmax_scale(self) -> float:
        """The factor on the product of query and key."""
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """Every tensor by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def place(self, row: int) -> tuple[int, int, int, int]:
        """Batch entry, query head, query and KV head of a row."""
        shape = self.shape
        rest, query = divmod(row, shape.query_len)
        batch, head = divmod(rest, shape.query_heads)
        return batch, head, query, head // shape.group

    def stop(self, row: int) -> int:
        """End of the keys that a row sees: [0, stop)."""
        batch, _, query, _ = self.place(row)
        end = self.length
        if self.pad_limit is not None and self.pad_limit[batch] >= 0:
            end = min(end, int(self.pad_limit[batch]))
        return min(max(query + end - self.query.shape[2] + 1, 0), end) if self.causal else end

    def digest(self) -> str:
        """SHA-256 over every tensor's name, type, shape and bytes, and what else the result hangs on; 16 hex digits."""
        said = f"length={self.length},scale={self.softmax_scale!r},softcap={self.softcap!r},causal={self.causal}"
        sha = hashlib.sha256(said.encode())
        for name, tensor in self.tensors.items():
            sha.update(f"{name}:{tensor.dtype.name}{tensor.shape}".encode())
            sha.update(np.ascontiguousarray(tensor).view(np.uint8).data)
        return sha.hexdigest()[:16]
