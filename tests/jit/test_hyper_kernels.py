# SPDX-License-Identifier: MIT
"""What the hyper-connection kernels need on every target, from their compiled modules. Skipped without NVRTC."""

import pytest

from dsa_bench.backends.cuda.hyper import CEILING, MODULES
from dsa_bench.jit import compiler
from dsa_bench.jit.modules import CompiledModule, compile_modules
from dsa_bench.jit.target import TARGETS, Target
from dsa_bench.model.errors import CannotMeasure

NAMES = [name for modules in (MODULES, CEILING) for names in modules.values() for name in names]


@pytest.fixture(autouse=True)
def needs_nvrtc() -> None:
    try:
        compiler.toolchain()
    except CannotMeasure as error:
        pytest.skip(str(error))


@pytest.fixture(params=TARGETS, ids=str)
def compiled(request: pytest.FixtureRequest) -> list[CompiledModule]:
    return compile_modules(NAMES, request.param)


def test_no_kernel_spills_or_has_a_stack(compiled: list[CompiledModule]) -> None:
    kernels = {name: facts for module in compiled for name, facts in module.kernels.items()}
    assert sorted(kernels) == [
        "copy_1_to_1", "copy_8_to_1", "gate_mul", "gate_mul_early", "hyper_down_few", "hyper_down_many",
        "pre_mix_branch_free", "pre_mix_branchy",
        "scaled_silu_branch_free", "scaled_silu_branchy", "sigmoid_differences",
    ]  # fmt: skip
    for name, facts in kernels.items():
        assert (facts.stack_bytes, facts.spill_store_bytes, facts.spill_load_bytes) == (0, 0, 0), name
        assert facts.threads, name
        assert facts.threads * facts.registers <= 65536, name
        assert facts.dynamic_smem_bytes <= 99 * 1024, f"{name}: more than sm_86 and sm_120 have for a CTA"


def test_a_cta_of_gate_mul_fits_beside_its_successor_s(compiled: list[CompiledModule]) -> None:
    """Otherwise the successor could not start before it ends, however early the trigger: 4 of them, by registers."""
    kernels = {name: facts for module in compiled for name, facts in module.kernels.items()}
    few, gate = kernels["hyper_down_few"], kernels["gate_mul_early"]
    assert few.threads is not None
    assert gate.threads is not None
    per_thread = [-(-facts.registers // 8) * 8 for facts in (few, gate)]  # allocated in eights
    assert few.threads * per_thread[0] + 4 * gate.threads * per_thread[1] <= 65536


def test_sizes_that_the_launcher_reads() -> None:
    modules = {module.name: module for module in compile_modules(NAMES, Target(90, "a"))}
    down = modules["hyper/down"].kernels
    assert down["hyper_down_few"].constants["max_rows"] == 8
    assert down["hyper_down_few"].constants["width"] == 10240
    assert down["hyper_down_few"].constants["tile"] == 3
    assert (down["hyper_down_many"].constants["tile"], down["hyper_down_many"].constants["tile_rows"]) == (160, 128)
    assert modules["hyper/pre_mix"].kernels["scaled_silu_branch_free"].constants["tile"] == 128
