# SPDX-License-Identifier: MIT
"""Folders of kernels by name: a folder as it is, or a git revision laid out in a temporary one."""

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsa_bench.model.errors import BadInput

KERNELS = "kernels"


@dataclass(frozen=True, slots=True)
class KernelTree:
    """A folder of kernels.

    name    as the user wrote it
    origin  the commit in full, or "folder"
    """

    name: str
    origin: str
    folder: Path


@contextmanager
def kernel_trees(*names: str) -> Generator[list[KernelTree]]:
    """The kernels of each name: a folder, or else a revision of the git repository around the current folder.

    A folder stands for its kernels/ if it has one, and is taken as it lies, committed or not. Raises BadInput for a
    name that is neither, and for a folder or a revision without kernels.
    """
    with tempfile.TemporaryDirectory(prefix="dsa-bench-") as scratch:
        yield [_tree(name, Path(scratch) / str(number)) for number, name in enumerate(names)]


def _tree(name: str, scratch: Path) -> KernelTree:
    given = Path(name)
    if name and os.path.isdir(given):
        folder = given / KERNELS if os.path.isdir(given / KERNELS) else given
        _refuse_without_kernels(name, folder)
        return KernelTree(name, "folder", folder.resolve())
    commit = _git(name, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").decode().strip()
    top = _git(name, "rev-parse", "--show-toplevel").decode().strip()
    archive = _git(name, "-C", top, "archive", "--format=tar", commit, KERNELS)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 has none
        tar.extractall(scratch)
    _refuse_without_kernels(name, scratch / KERNELS)
    return KernelTree(name, commit, scratch / KERNELS)


def _git(name: str, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=True, timeout=60)
    except FileNotFoundError as error:
        raise BadInput(f"{name!r}: is no folder, and git is not installed; name a folder of kernels") from error
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", b"") or b""
        detail = f" ({said.decode(errors='replace').strip().splitlines()[0]})" if said.strip() else ""
        raise BadInput(
            f"{name!r}: is neither a folder nor a revision with a {KERNELS}/ folder of the git repository here{detail}"
        ) from error
    return done.stdout


def _refuse_without_kernels(name: str, folder: Path) -> None:
    if next(folder.rglob("*.cu"), None) is None:
        raise BadInput(
            f"{name!r}: holds no kernel (*.cu), nor does a {KERNELS}/ folder in it; name a tree that has them"
        )
