# SPDX-License-Identifier: MIT
"""The one place that imports GPU packages, and only when they are used. Readers of files: data/formats.py."""

import importlib
from typing import Any

from dsa_bench.model.errors import CannotMeasure

_EXTRAS = {"torch": "torch"}


def load(name: str) -> Any:
    """Import a module such as "cuda.bindings.nvrtc"; CannotMeasure names what is missing and what brings it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        reason = str(error).strip().partition("\n")[0]
        raise CannotMeasure(f"cannot import {name} ({reason}): {install_hint(name)}") from error


def install_hint(name: str) -> str:
    """The pip command for the extra that brings a package."""
    extra = _EXTRAS.get(name.partition(".")[0])
    if extra:
        return f"pip install 'dsa-bench[{extra}]'"
    return "pip install 'dsa-bench[cuda13]' (or [cuda12] for a CUDA 12 driver)"
