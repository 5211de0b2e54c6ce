# SPDX-License-Identifier: MIT
"""What `int8-ws` and `int8-union` need with wgmma and without it, by their modules. Skipped without NVRTC."""

from pathlib import Path

import pytest
from sass import disassemble, places

from dsa_bench.backends.cuda.backend import DEVICE_KERNELS
from dsa_bench.dispatch.gates import DEVICE_FUNCTION
from dsa_bench.jit import compiler
from dsa_bench.jit.modules import compile_modules
from dsa_bench.jit.target import parse_target
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.request import WS

MODULE = "dsa/prefill_int8_ws"
UNION_MODULE = "dsa/prefill_int8_union"


@pytest.fixture(autouse=True)
def needs_nvrtc() -> None:
    try:
        compiler.toolchain()
    except CannotMeasure as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("target", "block", "resident"), [("90a", 227, (3, 2)), ("90", 227, (2, 2)), ("86", 99, (1, 1))]
)
def test_ctas_fit_a_multiprocessor_without_spills(target: str, block: int, resident: tuple[int, int]) -> None:
    """block: KiB of shared memory that a CTA may have; 1 KiB more of each CTA is the device's own."""
    (module,) = compile_modules([MODULE], parse_target(target))
    assert list(module.kernels) == ["prefill_int8_ws", "prefill_int8_ws_few"]
    for (name, facts), ctas in zip(module.kernels.items(), resident, strict=True):
        assert (facts.stack_bytes, facts.spill_store_bytes, facts.spill_load_bytes) == (0, 0, 0), name
        assert facts.threads is not None
        quarter = -(-ctas * facts.threads // 128)  # warps, of which each quarter of a multiprocessor has as many
        assert quarter * 32 * facts.registers <= 65536 // 4, name
        assert ctas * (facts.dynamic_smem_bytes + 1024) <= (block + 1) * 1024, name
        paths = {name: value for name, value in facts.constants.items() if name.startswith("path")}
        assert paths == {"paths": 3, "path_two": 0, "path_four": 1, "path_single": 2}


@pytest.mark.parametrize("target", ["90a", "90", "86"])
def test_gates_ask_about_the_kernel_of_a_call_that_needs_most_shared_memory(target: str) -> None:
    (module,) = compile_modules([MODULE], parse_target(target))
    needs = {name: facts.dynamic_smem_bytes + facts.static_smem_bytes for name, facts in module.kernels.items()}
    asked = DEVICE_FUNCTION["int8-ws prefill"]
    assert needs[asked] == max(needs.values())
    assert DEVICE_KERNELS["prefill"][WS][0] == asked, "the only one that the backend tells the gates of"


@pytest.mark.parametrize(("target", "wgmma"), [("90a", True), ("90", False), ("86", False), ("120a", False)])
def test_ctas_of_four_rows_fit_a_multiprocessor_without_spills(target: str, wgmma: bool) -> None:
    """Without wgmma no row is shared, and the kernel that says so takes no shared memory."""
    (module,) = compile_modules([UNION_MODULE], parse_target(target))
    assert set(module.kernels) == {"prefill_unite", "prefill_int8_union"}
    for name, facts in module.kernels.items():
        assert (facts.stack_bytes, facts.spill_store_bytes, facts.spill_load_bytes) == (0, 0, 0), name
        assert facts.threads == 256, name
    union = module.kernels["prefill_int8_union"]
    assert 2 * 256 * union.registers <= 65536, "2 CTAs on a multiprocessor"
    assert 2 * (union.dynamic_smem_bytes + union.static_smem_bytes + 1024) <= 228 * 1024, "1 KiB is the device's own"
    assert (union.dynamic_smem_bytes > 0) == wgmma
    assert union.constants["rows"] == 4
    paths = {name: value for name, value in union.constants.items() if name.startswith("path")}
    assert paths == {"paths": 4, "path_union": 0, "path_two": 1, "path_four": 2, "path_single": 3}
    unite = module.kernels["prefill_unite"]
    assert unite.dynamic_smem_bytes == 131_072 // 32 * unite.constants["bytes_per_word"]
    assert 6 * 256 * unite.registers <= 65536, "6 CTAs of a usual context on a multiprocessor"


@pytest.mark.parametrize("target", ["90a", "86"])
def test_producers_wait_for_their_copies_before_path_single_takes_the_place(target: str, tmp_path: Path) -> None:
    """A wait for groups of copies passes by those that are in none."""
    for kernel, code in disassemble([MODULE], parse_target(target), tmp_path).items():
        last_tile = places(code, "ARRIVES")[-1]
        (end, *_) = (at for at in places(code, "EXIT") if at > last_tile)
        waits = [one for one in code[last_tile:end] if one in ("LDGDEPBAR", "DEPBAR.LE")]
        assert waits == ["LDGDEPBAR", "DEPBAR.LE"], kernel
