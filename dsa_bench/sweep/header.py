# SPDX-License-Identifier: MIT
"""The first line of a run: what ran, where, and what was asked."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import dsa_bench
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.record import Header

RECORDED_PACKAGES = ("numpy", "ml-dtypes", "cupy-cuda12x", "cupy-cuda13x", "cuda-bindings", "cupti-python", "torch")


def run_header(
    plan: Mapping[str, Any], seed: int, device: DeviceFacts, kernel_hashes: Mapping[str, str], argv: Sequence[str]
) -> Header:
    """The header of a run that starts now."""
    commit, dirty = source_revision()
    return Header(
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        version=dsa_bench.__version__,
        commit=commit,
        dirty=dirty,
        argv=tuple(argv),
        seed=seed,
        device=asdict(device),
        versions=package_versions(),
        plan=dict(plan),
        kernel_hashes=dict(kernel_hashes),
    )


def package_versions() -> dict[str, str]:
    """Versions of the packages that a measurement can depend on, as installed."""
    versions = {"python": platform.python_version()}
    for name in RECORDED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def source_revision() -> tuple[str | None, bool | None]:
    """(commit, dirty) of the source tree that runs; (None, None) for an installed package or without git.

    A tree that was copied without its history can say what it is: DSA_BENCH_COMMIT=<commit>, or <commit>-dirty.
    """
    said = os.environ.get("DSA_BENCH_COMMIT")
    if said:
        return said.removesuffix("-dirty"), said.endswith("-dirty")
    tree = Path(dsa_bench.__file__).resolve().parent.parent
    if not (tree / ".git").exists():
        return None, None
    try:
        commit = _git(tree, "rev-parse", "HEAD")
        return commit, bool(_git(tree, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(tree: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
