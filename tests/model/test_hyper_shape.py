# SPDX-License-Identifier: MIT
"""Shapes of `mix` and `gate`: what they refuse, and the bytes that a roofline counts."""

import numpy as np
import pytest

from dsa_bench.data.hyper import gate_inputs, mix_inputs
from dsa_bench.model.errors import BadInput
from dsa_bench.model.hyper import GateShape, MixShape


@pytest.mark.parametrize(
    ("shape", "sizes", "message"),
    [
        (MixShape, {"rows": 0}, r"--rows 0: must be at least 1"),
        (MixShape, {"rows": 1, "hidden": 2564}, r"--hidden 2564: must be a multiple of 8, .* 8 BF16 numbers at once"),
        (MixShape, {"rows": 1, "rank": 321}, r"--rank 321: must be a multiple of 8"),
        (MixShape, {"rows": 1, "branches": 2}, r"--branches 2: must be 4"),
        (MixShape, {"rows": 2**31}, r"--rows 2147483648: must be at most 6710886 .* 32 bits"),
        (GateShape, {"rows": 1, "gated": 6140}, r"--gated 6140: must be a multiple of 8"),
        (GateShape, {"rows": 1, "width": 10248}, r"--width 10248: must be a multiple of 32"),
        (GateShape, {"rows": 1, "gated": 10248}, r"--gated 10248: must be at most --width 10240"),
        (GateShape, {"rows": 1, "rank": -8}, r"--rank -8: must be at least 1"),
        (GateShape, {"rows": 2**24}, r"--rows 16777216: must be at most 1677721"),
    ],
)
def test_sizes_that_no_kernel_takes(
    shape: type[MixShape] | type[GateShape], sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        shape(**sizes)


def test_bytes_of_the_document_s_largest_shape() -> None:
    """Seed 000, restated in the kernel notes: PreMix of 8192 rows moves 377.5 MB."""
    shape = MixShape(8192)
    assert round(shape.mix_bytes / 1e5) == 3775
    assert shape.silu_bytes == 8192 * 320 * 4
    gate = GateShape(8)
    assert gate.gate_bytes == 3 * 8 * 6144 * 2
    assert gate.down_bytes == 2 * (8 * 10240 + 320 * 10240 + 8 * 320)


def test_keys_name_every_dimension() -> None:
    assert MixShape(8).key == "op=mix,rows=8,hidden=2560,branches=4,rank=320"
    assert GateShape(8).key == "op=gate,rows=8,gated=6144,width=10240,rank=320"


def test_inputs_know_their_shape_size_and_digest() -> None:
    mix, gate = MixShape(3, 64, rank=16), GateShape(2, 32, 96, 24)
    one, two = mix_inputs(mix), gate_inputs(gate)
    assert (one.shape, two.shape) == (mix, gate)
    assert one.nbytes == 2 * (2 * 3 * 4 * 64 + 3 * 16)
    assert two.nbytes == 2 * (2 * 2 * 32 + 2 * 64 + 24 * 96)
    assert one.digest() == mix_inputs(mix).digest() != mix_inputs(mix, seed=1).digest()
    assert two.digest() == gate_inputs(gate).digest() != gate_inputs(gate, seed=1).digest()
    assert gate_inputs(GateShape(2, 96, 96, 24)).ready.shape == (2, 0)
    for tensor in (*one.tensors.values(), *two.tensors.values()):
        assert np.isfinite(tensor.astype(np.float32)).all()
