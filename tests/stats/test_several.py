# SPDX-License-Identifier: MIT
"""Questions about many variants or cells at once."""

import numpy as np
import pytest

from dsa_bench.stats.several import holm, supported_percentile, tie_set


def test_ties_are_what_the_rounds_cannot_tell_from_the_best() -> None:
    rng = np.random.default_rng(11)
    drift = rng.normal(0, 0.05, 16)
    logs = [0.0, 0.001, 0.03, -0.0005]
    times = {f"v{at}": 10 * np.exp(log + drift + rng.normal(0, 0.01, 16)) for at, log in enumerate(logs)}
    assert tie_set(times, "v3") == ["v0", "v1", "v3"]
    assert tie_set({name: of_name[:4] for name, of_name in times.items()}, "v0") == list(times)
    assert tie_set({"v0": times["v0"]}, "v0") == ["v0"]


def test_percentiles_that_the_sample_supports() -> None:
    """B6, vllm-project/vllm#13917: the 99th percentile of three values is none of them."""
    assert supported_percentile([10, 20, 30], 0.99) is None
    assert supported_percentile(list(range(100)), 0.99) == 98
    assert supported_percentile(list(range(1, 21)), 0.95) == 19
    with pytest.raises(ValueError, match="between 0 and 1"):
        supported_percentile([1.0], 1.0)


def test_holm_worked_example() -> None:
    """0.01, 0.03, 0.04 of three: 3 * 0.01, 2 * 0.03, and 0.04 not below the one before."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([1.1])
