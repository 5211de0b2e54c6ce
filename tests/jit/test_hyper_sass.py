# SPDX-License-Identifier: MIT
"""What docs/hyper.md says of the machine code of sm_90a. Skipped without NVRTC or cuobjdump."""

import pytest
from sass import Code, disassemble, places

from dsa_bench.backends.cuda.hyper import CEILING, MODULES
from dsa_bench.jit.target import Target


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Code:
    modules = (*MODULES["mix"], *MODULES["gate"], *CEILING["mix"])
    return disassemble(modules, Target(90, "a"), tmp_path_factory.mktemp("sass"))


def test_the_branch_is_a_select_in_the_branch_free_form_only(code: Code) -> None:
    branchy, branch_free = code["pre_mix_branchy"], code["pre_mix_branch_free"]
    assert [len(places(branch_free, name)) for name in ("MUFU.EX2", "FSEL")] == [32, 32]
    assert [len(places(branch_free, name)) for name in ("BSSY", "CALL", "FCHK")] == [0, 0, 0]
    assert [len(places(branchy, name)) for name in ("MUFU.EX2", "FSEL", "FCHK")] == [64, 0, 32]
    assert len(places(branchy, "BSSY")) > 32
    assert len(branchy) > 3 * len(branch_free)
    assert not places(code["scaled_silu_branch_free"], "BSSY")
    assert places(code["scaled_silu_branchy"], "BSSY")


def test_the_trigger_comes_first_or_last(code: Code) -> None:
    (early,), (late,) = (places(code[name], "PREEXIT") for name in ("gate_mul_early", "gate_mul"))
    assert early < min(places(code["gate_mul_early"], "LDG"))
    assert early <= 5
    assert late > max(places(code["gate_mul"], "STG"))


def test_weights_are_prefetched_before_the_wait_and_x_is_read_behind_it(code: Code) -> None:
    few, many = code["hyper_down_few"], code["hyper_down_many"]
    (wait,) = places(few, "ACQBULK")
    assert max(places(few, "LDGSTS")) < wait < min(places(few, "LDG"))
    (wait,) = places(many, "ACQBULK")
    assert sum(at < wait for at in places(many, "LDGSTS")) == 12


def test_no_kernel_touches_local_memory(code: Code) -> None:
    assert len(code) == 11
    assert [name for name, one in code.items() if places(one, "LDL") or places(one, "STL")] == []
