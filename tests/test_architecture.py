# SPDX-License-Identifier: MIT
"""Rules of the source tree that a reader relies on."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

GPU_LIBRARIES = {"cupy", "cuda", "cupti", "torch", "pynvml"}
FILE_LIBRARIES = {"onnx", "safetensors"}


def modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((root / "dsa_bench").rglob("*.py")):
        yield path.relative_to(root).as_posix(), ast.parse(path.read_text())


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_packages_outside_the_base_install_are_loaded_in_one_place(root: Path) -> None:
    """So that a missing one is always the same clear failure: GPU libraries in jit, readers of files in data."""
    direct, by_name = [], []
    for path, tree in modules(root):
        if path.startswith("dsa_bench/jit/"):
            continue
        foreign = GPU_LIBRARIES if path == "dsa_bench/data/formats.py" else GPU_LIBRARIES | FILE_LIBRARIES
        direct += [path for name in imported(tree) if name.partition(".")[0] in foreign]
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        by_name += [path for name in ("import_module", "__import__") if name in names]
    assert direct == []
    assert by_name == []


def test_the_oracle_shares_no_code_with_a_backend(root: Path) -> None:
    for path, tree in modules(root):
        if path.startswith("dsa_bench/oracle/"):
            assert not any(name.startswith("dsa_bench.backends") for name in imported(tree)), path


def test_every_file_states_its_licence(root: Path) -> None:
    files = [*(root / "dsa_bench").rglob("*.py"), *(root / "tests").rglob("*.py")]
    assert [str(path) for path in files if not path.read_text().startswith("# SPDX-License-Identifier: MIT\n")] == []


def test_imports_point_down(root: Path) -> None:
    pytest.importorskip("importlinter")
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", lint, "--no-cache"], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
