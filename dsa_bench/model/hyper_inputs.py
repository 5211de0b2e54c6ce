# SPDX-License-Identifier: MIT
"""Tensors of the hyper-connection operators, on the host."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.hyper import GateShape, MixShape

Tensor = NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class MixInputs:
    """normed, up [rows, branches, hidden] bf16 · low_rank [rows, rank] bf16."""

    normed: Tensor
    up: Tensor
    low_rank: Tensor

    @property
    def shape(self) -> MixShape:
        rows, branches, hidden = self.normed.shape
        return MixShape(rows, hidden, branches, self.low_rank.shape[1])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name."""
        return _tensors(self)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def digest(self) -> str:
        """SHA-256 over every tensor's name, type, shape and bytes; 16 hex digits."""
        return _digest(self.tensors)


@dataclass(frozen=True, slots=True, eq=False)
class GateInputs:
    """attention, gate [rows, gated] bf16 · ready [rows, width - gated] bf16 · weight [rank, width] bf16."""

    attention: Tensor
    gate: Tensor
    ready: Tensor
    weight: Tensor

    @property
    def shape(self) -> GateShape:
        rows, gated = self.attention.shape
        return GateShape(rows, gated, gated + self.ready.shape[1], self.weight.shape[0])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name."""
        return _tensors(self)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def digest(self) -> str:
        """SHA-256 over every tensor's name, type, shape and bytes; 16 hex digits."""
        return _digest(self.tensors)


def _tensors(inputs: Any) -> dict[str, Tensor]:
    return {field.name: getattr(inputs, field.name) for field in fields(inputs)}


def _digest(tensors: Mapping[str, Tensor]) -> str:
    sha = hashlib.sha256()
    for name, tensor in tensors.items():
        sha.update(f"{name}:{tensor.dtype.name}{tensor.shape}".encode())
        sha.update(np.ascontiguousarray(tensor).view(np.uint8).data)
    return sha.hexdigest()[:16]
