# SPDX-License-Identifier: MIT
"""Which cell and which variant of one run answers to which of another, and where two runs are not alike."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsa_bench.model.record import Check, Header
from dsa_bench.report.sides import SideCell, cell_order

HELD = ("backend", "name", "sm_count", "compute_capability", "l2_bytes", "memory_bytes", "driver")
"""Facts of a GPU that two runs must share for a difference to be the code's."""
HELD_ON_CPU = ("backend", "name", "sm_count")
NOTED = ("runtime", "compiler")
"""Facts that a change under test may bring; said, not refused."""
CLOCK_TOLERANCE = 0.03
"""A cell's median clock that differs by more was set or held to another (bench.rounds.CLOCK_FLOOR within a run)."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something that is not the same on both sides."""

    field: str
    base: str
    head: str

    def __str__(self) -> str:
        return f"{self.field}: base {self.base}, head {self.head}"


def device_mismatches(base: Header, head: Header) -> list[Mismatch]:
    """Facts of the devices that differ, and padding that makes one another device. A fact that a header lacks is
    unknown, and so not equal."""
    on_cpu = base.device.get("backend") == head.device.get("backend") == "cpu"
    names = HELD_ON_CPU if on_cpu else HELD
    padding = [str(header.plan.get("pad_smem", 0)) for header in (base, head)]
    return [
        Mismatch(f"device.{name}", *(_fact(header.device.get(name)) for header in (base, head)))
        for name in names
        if base.device.get(name) is None or base.device.get(name) != head.device.get(name)
    ] + [Mismatch("pad_smem", *padding)] * (padding[0] != padding[1])


def _fact(value: Any) -> str:
    return "unknown" if value is None else str(value)


def noted_differences(base: Header, head: Header) -> list[Mismatch]:
    """Versions that differ: of run times, compilers, packages and dsa-bench."""
    pairs = [(name, base.device.get(name), head.device.get(name)) for name in NOTED]
    pairs += [
        (name, base.versions.get(name), head.versions.get(name))
        for name in sorted(base.versions.keys() | head.versions.keys())
    ]
    pairs.append(("dsa-bench", base.version, head.version))
    return [Mismatch(name, str(one or "none"), str(other or "none")) for name, one, other in pairs if one != other]


def cell_mismatches(base: SideCell, head: SideCell) -> list[Mismatch]:
    """Timer, L2 mode, inputs and clocks of one matched cell."""
    found: list[tuple[str, Any, Any]] = []
    if base.mode is not None and head.mode is not None:
        found += zip(("timer", "l2"), base.mode, head.mode, strict=True)
    found.append(("inputs", _inputs(base), _inputs(head)))
    for name in ("sm_mhz", "memory_mhz"):
        one, other = base.clocks.get(name), head.clocks.get(name)
        if one and other and abs(one - other) > CLOCK_TOLERANCE * max(one, other):
            found.append((name, f"{one:.0f}", f"{other:.0f}"))
    return [Mismatch(name, one, other) for name, one, other in found if one != other]


def _inputs(side: SideCell) -> str:
    return "+".join(sorted({check.data_hash for check in side.checks.values()}))


def matched_cells(
    base: Mapping[str, list[SideCell]], head: Mapping[str, list[SideCell]]
) -> Iterator[tuple[SideCell | None, SideCell | None]]:
    """Cells by shape and then by timer and L2 mode; modes that only one side has are matched in order."""
    for cell in sorted(base.keys() | head.keys(), key=cell_order):
        ones, others = list(base.get(cell, [])), list(head.get(cell, []))
        for one in list(ones):
            same = next((other for other in others if other.mode == one.mode), None)
            if same is not None:
                yield one, same
                ones.remove(one)
                others.remove(same)
        while ones or others:
            yield ones.pop(0) if ones else None, others.pop(0) if others else None


@dataclass(frozen=True, slots=True)
class Match:
    """A variant of each side that answers to the same request.

    requested  tiles-per-split values that led to these two launches; empty for a kernel that takes none
    """

    base: Check | None
    head: Check | None
    requested: tuple[int, ...]

    @property
    def check(self) -> Check:
        """The newer side's, else the other's."""
        found = self.head or self.base
        assert found is not None
        return found


def matched_variants(base: Mapping[str, Check], head: Mapping[str, Check]) -> list[Match]:
    """Variants by kernel and requested tiles per split, so that an automatic rule that chooses another geometry is
    compared with itself; where only one side was asked for a value, by the launch that it led to."""
    asked = {(check.kernel, value): check for check in head.values() for value in check.requested}
    pairs: dict[tuple[str | None, str | None], list[int]] = {}
    for check in base.values():
        for value in check.requested or (None,):
            other = head.get(check.variant) if value is None else asked.get((check.kernel, value))
            other = other or head.get(check.variant)
            pairs.setdefault((check.variant, other and other.variant), []).extend(() if value is None else (value,))
    known = {(check.kernel, value) for check in base.values() for value in check.requested}
    met = {other for _, other in pairs}
    for check in head.values():
        new = [value for value in check.requested if (check.kernel, value) not in known]
        if check.variant not in met:
            pairs.setdefault((None, check.variant), []).extend(new)
    matches = [
        Match(None if one is None else base[one], None if other is None else head[other], tuple(sorted(values)))
        for (one, other), values in pairs.items()
    ]
    return sorted(matches, key=_variant_order)


def _variant_order(match: Match) -> tuple[Any, ...]:
    check = match.check
    rank = {"previous": 0, "int8-tc": 1}.get(check.kernel, 2)
    return rank, check.kernel, match.requested, check.splits, check.variant, match.head is None
