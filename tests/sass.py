# SPDX-License-Identifier: MIT
"""The machine code of modules, by name of instruction: what tests of it share."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from dsa_bench.jit import compiler
from dsa_bench.jit.modules import compile_modules
from dsa_bench.jit.target import Target
from dsa_bench.model.errors import CannotMeasure

Code = dict[str, list[str]]
"""Kernel -> its instructions without predicate and operands, such as MUFU.EX2."""


def disassemble(modules: Iterable[str], target: Target, folder: Path) -> Code:
    """Every kernel of the modules; `folder` takes a cubin. Skips the test without NVRTC or cuobjdump."""
    try:
        compiler.toolchain()
    except CannotMeasure as error:
        pytest.skip(str(error))
    program = _disassembler()
    if program is None:
        pytest.skip("no cuobjdump was found; CUDA's toolkit and `pip install triton` bring one")
    found: Code = {}
    cubin = folder / "module.cubin"
    for module in compile_modules(tuple(modules), target):
        cubin.write_bytes(module.cubin)
        text = subprocess.run([program, "-sass", cubin], capture_output=True, text=True, check=True).stdout
        for part in text.split("Function : ")[1:]:
            lines = re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@\S+ )?([A-Z][A-Z0-9_.]*)", part)
            found[part.split()[0]] = lines
    return found


def places(instructions: list[str], name: str) -> list[int]:
    """Where an instruction stands, whatever its suffixes."""
    return [at for at, one in enumerate(instructions) if one == name or one.startswith(f"{name}.")]


def _disassembler() -> Path | None:
    """CUDA's cuobjdump, or the one that comes with triton."""
    found = shutil.which("cuobjdump")
    triton = importlib.util.find_spec("triton")
    folders = [] if triton is None else list(triton.submodule_search_locations or [])
    inside = [Path(folder) / "backends/nvidia/bin/cuobjdump" for folder in folders]
    return Path(found) if found else next((path for path in inside if path.is_file()), None)
