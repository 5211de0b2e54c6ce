# SPDX-License-Identifier: MIT
"""Dense causal attention through torch, on the backend's stream: what a user would call without a sparse kernel.

torch.nn.functional.scaled_dot_product_attention over BF16 queries [1, query_heads, rows, head_size] and dequantised
BF16 keys and values [1, kv_heads, context, head_size], grouped heads, with the mask of rows that end the context. Which
implementation runs is pinned, one at a time:

mask                   flash                  cudnn                              efficient     math
rows == context        is_causal              is_causal                          no groups     is_causal
rows < context         causal_lower_right     the mask as a tensor, made once    no groups     the mask as a tensor

causal_lower_right by itself would make its mask anew in every call for all but flash (torch 2.7 to 2.13,
torch/nn/attention/bias.py), and that is no attention time.
"""

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsa_bench.backends.base import Launch
from dsa_bench.jit.optional import load
from dsa_bench.model.errors import CannotMeasure, VariantRefused
from dsa_bench.model.inputs import BF16, SparseInputs
from dsa_bench.model.text import first_line
from dsa_bench.oracle.rounding import dequantised

IMPLEMENTATIONS = {
    "cudnn": "CUDNN_ATTENTION",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
"""Names in records, and torch's."""
WARM_UP_CALLS = 3
"""The first call plans and allocates; later ones, in captures too, find what they need."""


class TorchDense:
    """torch with a CUDA device, and the stream that its work goes to. Raises CannotMeasure if either is missing."""

    def __init__(self, stream: Any) -> None:
        self._torch = load("torch")
        load("torch.nn.attention.bias")
        if not self._torch.cuda.is_available():
            raise CannotMeasure("dense attention: this torch sees no CUDA device; pip install 'dsa-bench[torch]'")
        self._stream = self._torch.cuda.ExternalStream(stream.ptr)

    @property
    def version(self) -> str:
        """torch and cuDNN, which stand for the kernels' hash."""
        cudnn = self._torch.backends.cudnn.version()
        return f"torch-{self._torch.__version__}+cudnn-{cudnn}"

    def load(self, inputs: SparseInputs) -> "TorchDenseBuffers":
        """The cell's tensors on the device. VariantRefused if its memory does not hold them."""
        with self._on_stream():
            return TorchDenseBuffers(self._torch, self._on_stream, inputs)

    @contextmanager
    def _on_stream(self) -> Generator[None]:
        with self._torch.cuda.stream(self._stream), self._torch.inference_mode():
            yield


class TorchDenseBuffers:
    """One cell's queries, keys, values and masks, and the output of the call that ran last.

    device  torch's name of it; "cpu" is for tests of layouts and masks
    """

    implementations = tuple(IMPLEMENTATIONS)
    last_resort = "math"

    def __init__(self, torch: Any, on_stream: Callable[[], Any], inputs: SparseInputs, device: str = "cuda") -> None:
        self._torch = torch
        self._device = device
        self._on_stream = on_stream
        self._scale = inputs.scale
        self._rows, self._context = inputs.shape.rows, inputs.shape.context
        self._out: Any = None
        self._mask: Any = None
        try:
            self._query = self._upload(inputs.query.transpose(1, 0, 2))
            self._key = self._upload(dequantised(inputs.key, inputs.key_scale[:, None]))
            self._value = self._upload(dequantised(inputs.value, inputs.value_scale[:, None]))
        except torch.cuda.OutOfMemoryError as error:
            raise VariantRefused(f"dense attention: {first_line(error)}") from error

    def launcher(self, implementation: str) -> Launch:
        """A call that is warm: nothing is planned or allocated any more. VariantRefused saying why torch refuses."""
        attend = self._attention(implementation)

        def launch(_: int) -> None:
            with self._on_stream():
                self._out = None  # its memory serves the next call, in a capture too
                self._out = attend()

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch explains at length why an implementation is left out
                for call in range(WARM_UP_CALLS):
                    launch(call)
                self._synchronize()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:  # OutOfMemoryError is the first
            self._out = None
            self._free_cached()
            raise VariantRefused(f"{implementation}: {first_line(error)}") from error
        return launch

    def time_us(self, launch: Launch) -> float:
        """Microseconds of the quicker of two calls, between events: enough to choose an implementation."""
        times_us: list[float] = []
        for call in range(2):
            with self._on_stream():
                start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                launch(call)
                end.record()
            self._synchronize()
            times_us.append(start.elapsed_time(end) * 1e3)
        return min(times_us)

    def output(self) -> NDArray[np.generic]:
        """Wait, then a copy on the host: [rows, query_heads, head_size] bf16."""
        with self._on_stream():
            host = self._out[0].transpose(0, 1).contiguous().view(self._torch.int16).cpu()
        return host.numpy().view(BF16)

    def close(self) -> None:
        """Give the memory back to the device, for the next cell's kernels."""
        self._out = self._mask = self._query = self._key = self._value = None
        self._free_cached()

    def _free_cached(self) -> None:
        with suppress(RuntimeError):  # a device that failed says so elsewhere
            self._torch.cuda.empty_cache()

    def _attention(self, implementation: str) -> Callable[[], Any]:
        functional, attention = self._torch.nn.functional, self._torch.nn.attention
        pinned = getattr(attention.SDPBackend, IMPLEMENTATIONS[implementation])
        how: dict[str, Any] = {"is_causal": True}
        if self._rows < self._context and implementation == "flash":
            how = {"attn_mask": attention.bias.causal_lower_right(self._rows, self._context)}
        elif self._rows < self._context:
            how = {"attn_mask": self._materialised_mask(implementation)}

        def attend() -> Any:
            with attention.sdpa_kernel(pinned):
                return functional.scaled_dot_product_attention(
                    self._query, self._key, self._value, **how, scale=self._scale, enable_gqa=True
                )

        return attend

    def _materialised_mask(self, implementation: str) -> Any:
        """[1, 1, rows, context] bf16: 0 up to a row's own position, minus infinity after it."""
        torch = self._torch
        if self._mask is None:
            try:
                with self._on_stream():
                    mask = torch.full(
                        (self._rows, self._context), float("-inf"), dtype=torch.bfloat16, device=self._device
                    )
                    self._mask = mask.triu_(self._context - self._rows + 1)[None, None]
            except torch.cuda.OutOfMemoryError as error:
                raise VariantRefused(f"{implementation}: {first_line(error)}") from error
        return self._mask

    def _upload(self, host: NDArray[np.generic]) -> Any:
        bits = np.ascontiguousarray(host).view(np.int16)
        return self._torch.from_numpy(bits).to(self._device).view(self._torch.bfloat16)[None]

    def _synchronize(self) -> None:
        if self._device != "cpu":
            self._torch.cuda.synchronize()
