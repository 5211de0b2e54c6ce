# SPDX-License-Identifier: MIT
"""Synthetic inputs of the hyper-connection operators, and the FP32 bit patterns that try their sigmoids."""

import math
import zlib
from collections.abc import Iterator
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dsa_bench.model.hyper import GateShape, MixShape
from dsa_bench.model.hyper_inputs import GateInputs, MixInputs, Tensor
from dsa_bench.model.inputs import BF16

GATE_STD = 2.0
"""Of what a sigmoid is taken of. Neighbours have different signs, so that a branch on the sign diverges."""
VALUE_STD = 1.0
LOW_RANK_STD = 8.0
"""Of what ScaledSilu divides by 4."""
SAMPLE_STRIDE = 257
"""Bit patterns per sampled one: prime and odd, so that every exponent and every low byte is met."""
EDGE_PATTERNS = 1024
_CHUNK = 1 << 20


def mix_inputs(shape: MixShape, seed: int = 0) -> MixInputs:
    """Draw one cell's tensors; every tensor has a stream of its own. Same shape and seed, same bytes."""
    branches = (shape.rows, shape.branches, shape.hidden)
    return MixInputs(
        normed=_normal(seed, "normed", branches, VALUE_STD),
        up=_normal(seed, "up", branches, GATE_STD),
        low_rank=_normal(seed, "low_rank", (shape.rows, shape.rank), LOW_RANK_STD),
    )


def gate_inputs(shape: GateShape, seed: int = 0) -> GateInputs:
    """Draw one cell's tensors. The weights deviate by 4 / sqrt(width), so a projection divided by 4 does as x does."""
    return GateInputs(
        attention=_normal(seed, "attention", (shape.rows, shape.gated), VALUE_STD),
        gate=_normal(seed, "gate", (shape.rows, shape.gated), GATE_STD),
        ready=_normal(seed, "ready", (shape.rows, shape.width - shape.gated), VALUE_STD),
        weight=_normal(seed, "weight", (shape.rank, shape.width), 4.0 / math.sqrt(shape.width)),
    )


def sampled_patterns(stride: int = SAMPLE_STRIDE) -> Iterator[NDArray[np.float32]]:
    """FP32 numbers by their bits, in chunks: every `stride`-th pattern, and EDGE_PATTERNS on each side of the edges.

    The edges are where something changes: zero and both ends of the subnormals, 1, the arguments from which exp
    is subnormal or zero, infinity and NaN, in both signs. stride 1 is all 2^32.
    """
    edges = np.array([0.0, 2.0**-126, 2.0**-24, 1.0, 16.6355, 17.3287, 87.3365, 103.972, np.inf], np.float32)
    around = edges.view(np.uint32).astype(np.int64)[:, None] + np.arange(-EDGE_PATTERNS, EDGE_PATTERNS)
    positive = np.clip(around, 0, 0x7FFFFFFF).astype(np.uint32).ravel()
    yield np.concatenate([positive, positive | np.uint32(1 << 31)]).view(np.float32)
    for first in range(0, 1 << 32, stride * _CHUNK):
        last = min(first + stride * _CHUNK, 1 << 32)
        yield np.arange(first, last, stride, dtype=np.int64).astype(np.uint32).view(np.float32)


def _normal(seed: int, tensor: str, shape: tuple[int, ...], std: float) -> Tensor:
    rng = np.random.default_rng([seed, zlib.crc32(tensor.encode())])
    return (_quantiles() * np.float32(std)).astype(BF16)[rng.integers(0, 1 << 16, shape, np.uint16)]


@cache
def _quantiles() -> NDArray[np.float32]:
    """The standard normal distribution at the middles of 2^16 equal steps; drawing one is drawing 16 bits."""
    normal = NormalDist()
    half = [normal.inv_cdf((step + 0.5) / (1 << 16)) for step in range(1 << 15)]
    return np.array([*half, *(-x for x in reversed(half))], np.float32)
