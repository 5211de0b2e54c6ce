# SPDX-License-Identifier: MIT
"""NVTX ranges around visits, for whoever looks at a run in a profiler."""

from contextlib import AbstractContextManager, nullcontext

try:
    import nvtx  # pyright: ignore[reportMissingTypeStubs]
except ImportError:  # an uninstalled source tree; ranges are a convenience
    nvtx = None


def annotate(message: str) -> AbstractContextManager[object]:
    """A range in the domain `dsa-bench`; nothing where nvtx is missing."""
    return nullcontext() if nvtx is None else nvtx.annotate(message, domain="dsa-bench")
