# SPDX-License-Identifier: MIT
"""What runs were taken on: one block for each GPU with its software, and the clocks that were read."""

import statistics
from collections.abc import Iterable, Sequence

from dsa_bench.model.record import Header
from dsa_bench.report.recorded import Recorded, plain

CLOCKS = {
    "sm_mhz": "SM clock, MHz",
    "memory_mhz": "memory clock, MHz",
    "power_w": "power, W",
    "temperature_c": "GPU, °C",
}


OF_KERNELS = ("resident_ctas", "clusters")
"""Facts of the device's that are its kernels'."""


def host_key(header: Header) -> tuple[tuple[str, str], ...]:
    """What makes two runs' hosts one: device and software."""
    device = {name: fact for name, fact in header.device.items() if name not in OF_KERNELS and fact is not None}
    return tuple(sorted((name, str(fact)) for name, fact in (device | header.versions).items()))


def host_names(runs: Iterable[Recorded]) -> dict[tuple[tuple[str, str], ...], str]:
    """Letters in the order in which hosts occur."""
    names: dict[tuple[tuple[str, str], ...], str] = {}
    for one in runs:
        names.setdefault(host_key(one.run.header), f"host {len(names) + 1}")
    return names


def host_lines(runs: Sequence[Recorded]) -> list[str]:
    """A list entry for each host."""
    lines: list[str] = []
    for key, name in host_names(runs).items():
        of_host = [one for one in runs if host_key(one.run.header) == key]
        lines.append(f"- **{name}**: {_facts(of_host[0].run.header)}. {_clocks(of_host)}")
    return lines


def _facts(header: Header) -> str:
    device = header.device
    parts = [plain(device.get("name") or "unknown device")]
    if device.get("sm_count") is not None:
        parts.append(f"{device['sm_count']} {'workers' if device.get('backend') == 'cpu' else 'SMs'}")
    for name, words in (("compute_capability", "compute capability {}"), ("driver", "driver {}"), ("runtime", "{}"),
                        ("compiler", "compiler {}")):  # fmt: skip
        if device.get(name) is not None:
            parts.append(plain(words.format(device[name])))
    for name, words in (("memory_bytes", "{:.0f} GiB of memory"), ("l2_bytes", "{:.3g} MiB of L2")):
        size = device.get(name)
        if isinstance(size, int):
            parts.append(words.format(size / 2 ** (30 if name == "memory_bytes" else 20)))
    parts += [plain(f"{name} {version}") for name, version in sorted(header.versions.items())]
    return ", ".join(dict.fromkeys(parts))  # the CPU's run time is a package, too


def _clocks(runs: Sequence[Recorded]) -> str:
    read: dict[str, list[float]] = {}
    for one in runs:
        for visit in one.run.visits:
            for name in CLOCKS:
                if name in visit.clocks:
                    read.setdefault(name, []).append(visit.clocks[name])
    if not read:
        return "Clocks were not read."
    said = [
        f"{CLOCKS[name]} {statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"
        for name, values in read.items()
    ]
    return (
        f"Median (least to largest) over {_count(sum(len(one.run.visits) for one in runs))} visits: {', '.join(said)}."
    )


def _count(number: int) -> str:
    return f"{number:,}".replace(",", " ")
