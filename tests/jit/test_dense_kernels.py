# SPDX-License-Identifier: MIT
"""What `fast` of dense decode needs in each of its builds, one for each pair of head sizes. Skipped without NVRTC."""

import itertools

import pytest

from dsa_bench.backends.cuda.dense import CHANNELS_PER_VECTOR, MAX_VECTORS, MODULES, defines
from dsa_bench.jit import compiler
from dsa_bench.jit.modules import compile_modules
from dsa_bench.jit.target import Target
from dsa_bench.model.dense import DenseShape
from dsa_bench.model.dense_inputs import DTYPES
from dsa_bench.model.errors import CannotMeasure

SIZES = [CHANNELS_PER_VECTOR * vectors for vectors in range(1, MAX_VECTORS + 1)]


@pytest.mark.parametrize(("head_size", "value_head_size"), list(itertools.product(SIZES, SIZES)))
def test_no_build_spills_or_has_a_stack(head_size: int, value_head_size: int) -> None:
    """The bounds on registers (`kHeld`) are an estimate; what they leave too few for shows here."""
    try:
        compiler.toolchain()
    except CannotMeasure as error:
        pytest.skip(str(error))
    built_for = defines("fast", DenseShape(512, 512, head_size=head_size, value_head_size=value_head_size))
    (module,) = compile_modules([MODULES["fast"]], Target(90, "a"), built_for)
    assert sorted(module.kernels) == sorted(f"fast_{part}_{dtype}" for part in ("row", "split") for dtype in DTYPES)
    for name, facts in module.kernels.items():
        assert (facts.stack_bytes, facts.spill_store_bytes, facts.spill_load_bytes) == (0, 0, 0), name
        assert facts.constants["max_head_size"] == head_size
        assert facts.constants["max_value_head_size"] == value_head_size
