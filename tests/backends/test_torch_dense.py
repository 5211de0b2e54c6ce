# SPDX-License-Identifier: MIT
"""Dense attention through torch: what is said where something is missing, and layouts and masks on torch's CPU."""

from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda import torch_sdpa
from dsa_bench.backends.select import open_dense
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.errors import CannotMeasure, VariantRefused
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.sdpa import dense_bound, dense_reference

GPU: Any = SimpleNamespace(device=SimpleNamespace(backend="cuda"), stream=SimpleNamespace(ptr=1))
CPU: Any = SimpleNamespace(device=SimpleNamespace(backend="cpu"), stream=None)


def missing(name: str) -> Any:
    raise CannotMeasure(f"cannot import {name} (No module named 'torch'): pip install 'dsa-bench[torch]'")


def without_a_device(name: str) -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))


def test_no_torch_is_one_line_and_no_dense_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_sdpa, "load", missing)
    opened, said = open_dense(None, "warm", GPU)
    assert opened is None
    assert said == "no dense line: cannot import torch (No module named 'torch'): pip install 'dsa-bench[torch]'"
    with pytest.raises(CannotMeasure, match=r"--dense: cannot import torch .*dsa-bench\[torch\]"):
        open_dense(True, "warm", GPU)


def test_a_torch_without_a_device_and_a_cold_l2_have_no_dense_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_sdpa, "load", without_a_device)
    assert open_dense(None, "warm", GPU) == (
        None,
        "no dense line: dense attention: this torch sees no CUDA device; pip install 'dsa-bench[torch]'",
    )
    opened, said = open_dense(None, "cold", GPU)
    assert opened is None
    assert "no cold L2; use --l2 warm" in str(said)
    with pytest.raises(CannotMeasure, match="--dense: dense attention rotates through no copies"):
        open_dense(True, "cold", GPU)


def test_nothing_is_loaded_where_it_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_sdpa, "load", lambda name: pytest.fail(f"{name} was loaded"))
    assert open_dense(False, "warm", GPU) == (None, None)
    assert open_dense(None, "warm", CPU) == (None, None)


@pytest.mark.parametrize(("rows", "context"), [(40, 40), (24, 96)])
def test_layouts_and_masks_give_dense_attention(rows: int, context: int) -> None:
    """torch's CPU has no cuDNN, and refuses it by name; its math and flash compute what the reference says."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.nn.attention.bias")

    @contextmanager
    def on_stream() -> Generator[None]:
        with torch.inference_mode():
            yield

    inputs = sparse_inputs(SparseShape(rows, context, 8, query_heads=6, op="prefill"), DataSpec())
    buffers = torch_sdpa.TorchDenseBuffers(torch, on_stream, inputs, device="cpu")
    oracle = dense_reference(inputs)
    bound = dense_bound(inputs, oracle)
    for implementation in ("math", "flash"):
        buffers.launcher(implementation)(0)
        out = buffers.output()
        assert out.shape == inputs.query.shape
        assert (np.abs(out[oracle.rows].astype(np.float64) - oracle.out) <= bound).all(), implementation
    with pytest.raises(VariantRefused, match=r"^cudnn: "):
        buffers.launcher("cudnn")
    buffers.close()
