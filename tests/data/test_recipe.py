# SPDX-License-Identifier: MIT
"""The recipe of docs/inputs.md, run on a layer that holds nothing but its arguments."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsa_bench.data.files import read_inputs
from dsa_bench.model.shape import SparseShape


def test_the_recipe_writes_what_the_loader_reads(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes times scales are the cache within half a step of each channel, and a dead channel stays zero."""
    torch: Any = pytest.importorskip("torch", reason="needs pip install 'dsa-bench[torch]'")
    pytest.importorskip("safetensors", reason="needs pip install 'dsa-bench[inputs]'")
    recipe = re.search(r"```python\n(.*?)```", (root / "docs/inputs.md").read_text(), re.DOTALL)
    assert recipe is not None

    class Attention(torch.nn.Module):
        scale = 0.0625

        def forward(self, **arguments: Any) -> Any:
            return arguments["query"]

    rng = torch.Generator().manual_seed(0)
    key, value = (torch.randn(1, 2, 50, 256, generator=rng).to(torch.bfloat16) for _ in "kv")
    key[:, 1, :, 7] = 0
    step = {
        "query": torch.randn(1, 24, 3, 256, generator=rng).to(torch.bfloat16),
        "key": key,
        "value": value,
        "selected": torch.arange(21).reshape(1, 3, 7),
    }
    attention = Attention()
    layers = [None, None, None, SimpleNamespace(attention=attention)]

    class Model:
        def __init__(self) -> None:
            self.layers = layers

        def __call__(self, **arguments: Any) -> Any:
            return attention(**arguments)

    monkeypatch.chdir(tmp_path)
    exec(recipe[1], {"model": Model(), "step": step})
    inputs = read_inputs("layer3.safetensors")
    assert inputs.shape == SparseShape(rows=3, context=50, candidates=7)
    assert inputs.scale == 0.0625
    assert inputs.selected.tolist() == step["selected"][0].tolist()
    np.testing.assert_array_equal(inputs.query.astype(float)[1, 23], step["query"][0, 23, 1].double().numpy())
    for cache, codes, scale in ((key, inputs.key, inputs.key_scale), (value, inputs.value, inputs.value_scale)):
        error = np.abs(codes * scale[:, None].astype(float) - cache[0].double().numpy())
        assert (error <= scale[:, None] * 0.5001).all()
    assert inputs.key_scale[1, 7] == 0
    assert not inputs.key[1, :, 7].any()
