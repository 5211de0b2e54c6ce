# SPDX-License-Identifier: MIT
"""Whether a cell's tensors fit this machine's memory, before they are drawn."""

import re
from pathlib import Path

from dsa_bench.data.synthetic import peak_bytes
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.shape import SparseShape


def refuse_beyond_memory(shape: SparseShape) -> None:
    """Raises CannotMeasure naming both sizes if drawing the cell's tensors would take more memory than is available."""
    refuse_beyond(shape.key, peak_bytes(shape), "ask for less --context, --rows or --candidates")


def refuse_beyond(key: str, needed: int, advice: str) -> None:
    """Raises CannotMeasure if drawing a cell's tensors takes `needed` bytes and fewer are available."""
    available = _available_bytes()
    if available is not None and needed > available:
        raise CannotMeasure(
            f"{key}: its tensors take {needed / 2**30:.1f} GiB of memory to draw and {available / 2**30:.1f} GiB "
            f"are available; {advice}"
        )


def _available_bytes() -> int | None:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else None
