# SPDX-License-Identifier: MIT
"""What seed document 000 publishes for its own kernels, to stand beside our figures: never ours, never a reference.

Source: seed 000, "Performance on NVIDIA H200" and "Cost of the FP32 path": one H200, CUDA 13.0, warm, 24/2 heads of
256, 2048 candidates; attention time by CUPTI through torch's profiler, median of 7 rounds; times in microseconds. Its
regrets are naive: best chosen and scored on the same times.
"""

from typing import Any, NamedTuple

DEVICE = "NVIDIA H200"
SHAPE = {"candidates": "2048", "query_heads": "24", "kv_heads": "2", "head_size": "256"}
DEFAULT_DATA: dict[str, Any] = {
    "query_std": 1.4,
    "key_scale_multiplier": 1.0,
    "value_scale_multiplier": 1.0,
    "invalid_fraction": 0.0,
    "selection": "sorted",
    "source": None,
}


class Pair(NamedTuple):
    """Time of the kernel that is replaced and of the tensor-core kernel, and their ratio in the document's words."""

    previous_us: float
    tensor_core_us: float
    ratio: str


class Sigmoids(NamedTuple):
    """Time of a kernel with the branchy and with the branch-free sigmoid."""

    branchy_us: float
    branch_free_us: float


class Regrets(NamedTuple):
    """Over 20 shapes, as a share of the best swept time."""

    mean: float
    maximum: float


DECODE: dict[tuple[int, int], Pair] = {
    (1, 2048): Pair(31.1, 9.5, "3.30x"),
    (1, 8192): Pair(31.2, 9.5, "3.30x"),
    (1, 32768): Pair(31.2, 9.5, "3.30x"),
    (8, 2048): Pair(73.6, 13.2, "5.58x"),
    (8, 8192): Pair(73.6, 13.3, "5.57x"),
    (8, 32768): Pair(73.7, 13.2, "5.57x"),
}
"""(rows, context), automatic split."""
PREFILL: dict[tuple[int, int], Pair] = {
    (128, 8192): Pair(173.0, 63.0, "2.72x"),
    (128, 32768): Pair(191.0, 64.0, "2.99x"),
    (2048, 8192): Pair(2287.0, 832.0, "2.75x"),
    (2048, 32768): Pair(2294.0, 832.0, "2.75x"),
    (8192, 8192): Pair(7818.0, 2830.0, "2.76x"),
    (8192, 32768): Pair(8877.0, 3200.0, "2.77x"),
}
TILES_PER_SPLIT: dict[int, float] = {1: 18.8, 2: 13.2, 4: 12.7, 8: 17.7, 16: 29.2}
"""Tiles per split -> time of 8 rows; 2 is the automatic choice."""
TILES_PER_SPLIT_ROWS, FALLBACK_CONTEXT = 8, 8192
FALLBACK: tuple[tuple[str, dict[str, float], dict[tuple[str, int], Pair]], ...] = (
    (
        "queries 8 times larger",
        {"query_std": 11.2},
        {
            ("prefill", 128): Pair(172.0, 3680.0, "21x slower"),
            ("prefill", 8192): Pair(7820.0, 135600.0, "17x slower"),
            ("decode", 8): Pair(73.6, 240.0, "3.3x slower"),
        },
    ),
    (
        "value scales of 24k to 360k",
        {"value_scale_multiplier": 1.2e7},
        {
            ("prefill", 128): Pair(172.0, 3610.0, "21x slower"),
            ("prefill", 512): Pair(577.0, 3900.0, "6.8x slower"),
            ("prefill", 2048): Pair(2288.0, 6170.0, "2.7x slower"),
        },
    ),
    (
        "the same value scales, logits of about 1.3 nats",
        {"value_scale_multiplier": 1.2e7, "key_scale_multiplier": 0.56},
        {("prefill", 8192): Pair(7780.0, 2860.0, "2.7x"), ("decode", 8): Pair(73.6, 13.3, "5.6x")},
    ),
)
"""(data in words, what differs from DEFAULT_DATA, (op, rows) -> times) at context 8192."""
SPLIT_SHAPES = frozenset((rows, candidates) for rows in (1, 2, 4, 8) for candidates in (512, 1024, 2048, 4096, 8192))
"""(rows, candidates) of the 20 shapes of SPLIT_REGRETS, at context 8192."""
SPLIT_REGRETS: dict[tuple[int, str], Regrets] = {
    (3, "auto"): Regrets(0.018, 0.148),
    (3, "seed-384"): Regrets(0.027, 0.142),
    (1, "auto"): Regrets(0.004, 0.024),
    (1, "seed-384"): Regrets(0.238, 0.449),
    (2, "auto"): Regrets(0.031, 0.134),
    (2, "seed-384"): Regrets(0.144, 0.384),
}
"""(resident CTAs on a multiprocessor, rule) -> regret; fewer than 3 by padded shared memory."""
MIX: dict[tuple[str, int], Sigmoids] = {
    ("pre-mix", 8192): Sigmoids(112.1, 82.7),
    ("scaled-silu", 8192): Sigmoids(7.3, 6.1),
}
"""(kernel, rows), hidden 2560, rank 320; per launch, of a chunk of 8192 tokens."""
MIX_SHAPE = {"hidden": "2560", "rank": "320"}
