# SPDX-License-Identifier: MIT
"""What a measurement ran on."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceSlots:
    """What a split rule may know of a device.

    sms       multiprocessors (CPU backend: workers)
    resident  CTAs of the split kernel that one of them holds at once
    """

    sms: int
    resident: int

    @property
    def ctas(self) -> int:
        """CTAs resident at once on the whole device: its `cta_slots`."""
        return self.sms * self.resident


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts that decide a launch or that a reader needs to judge a time. A fact that is not known is None.

    sm_count            multiprocessors; on the CPU backend the workers
    compute_capability  "9.0"; None on the CPU
    l2_bytes            L2 size; None on the CPU, where the cache is not controlled
    resident_ctas       CTAs of the split kernel, as it was launched, that one multiprocessor holds; 1 on the CPU
    clusters            size -> clusters of `int8-digits` of that size that the device holds at once; None without any
    driver, runtime     versions as the driver and the loaded run time report them
    """

    backend: str
    name: str
    sm_count: int
    compute_capability: str | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    runtime: str | None = None
    compiler: str | None = None
    resident_ctas: int | None = None
    clusters: dict[str, int] | None = None

    @property
    def held(self) -> str | None:
        """`clusters` in words."""
        return None if self.clusters is None else clusters_text(self.clusters)

    @property
    def slug(self) -> str:
        """The device's folder under results/: lower case, words joined by dashes."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def clusters_text(clusters: Mapping[str, int]) -> str:
    """Size -> clusters as `16x7 8x15`, the largest size first."""
    return " ".join(f"{size}x{clusters[size]}" for size in sorted(clusters, key=_by_number, reverse=True))


def _by_number(size: str) -> tuple[int, str]:
    return len(size), size
