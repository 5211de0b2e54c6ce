# SPDX-License-Identifier: MIT
"""What this machine can measure with."""

import platform

import dsa_bench
from dsa_bench.backends.cpu.backend import cpu_device
from dsa_bench.backends.cuda.probe import missing_gpu
from dsa_bench.sweep.header import package_versions, source_revision


def environment() -> dict[str, str | None]:
    """Facts by name, each as text; None for what does not apply."""
    cpu = cpu_device()
    commit, dirty = source_revision()
    missing = missing_gpu()
    return {
        "dsa-bench": dsa_bench.__version__ + (f" ({commit[:12]}{', modified' if dirty else ''})" if commit else ""),
        "python": f"{platform.python_version()} on {platform.platform()}",
        "cpu": f"{cpu.name}, {cpu.sm_count} workers",
        "gpu": "usable" if missing is None else f"not usable: {missing}",
        "packages": ", ".join(f"{name} {version}" for name, version in package_versions().items() if name != "python"),
    }
