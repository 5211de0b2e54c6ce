# SPDX-License-Identifier: MIT
"""Case D8: letter suffixes and two-digit majors. The table is the case's; a second one covers devices."""

import pytest

from dsa_bench.jit.target import TARGETS, Target, device_target, parse_target
from dsa_bench.model.errors import BadInput


@pytest.mark.parametrize(
    ("spelling", "number", "name"),
    [
        ("9.0", 90, "90"),
        ((9, 0), 90, "90"),
        ("sm_90", 90, "90"),
        ("sm_90a", 90, "90a"),
        ("90a", 90, "90a"),
        ("10.3", 103, "103"),
        ((10, 3), 103, "103"),
        ("12.0", 120, "120"),
        ("sm_120f", 120, "120f"),
        ("8.6", 86, "86"),
        ("7.5", 75, "75"),
    ],
)
def test_spellings(spelling: str | tuple[int, int], number: int, name: str) -> None:
    target = parse_target(spelling)
    assert (target.number, str(target), target.sm) == (number, name, f"sm_{name}")
    assert parse_target(target) is target


@pytest.mark.parametrize(
    "spelling", ["", "9", "sm_", "sm_90b", "9.10", "9..0", "0.5", "-9.0", " 9.0", "٩.٠", "9.0\n", "native", (9, 0, 0)]
)
def test_unreadable_targets_are_bad_input(spelling: str) -> None:
    with pytest.raises(BadInput, match=r"must look like 9\.0, 90a or sm_90a"):
        parse_target(spelling)


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ("8.0", "80"),
        ("8.9", "89"),
        ((9, 0), "90a"),
        ("10.0", "100a"),
        ("10.3", "103a"),
        ("12.0", "120a"),
        ("7.5", "75"),
    ],
)
def test_a_device_gets_its_own_instructions(capability: str | tuple[int, int], name: str) -> None:
    assert str(device_target(capability)) == name


def test_targets_without_a_device() -> None:
    assert " ".join(map(str, TARGETS)) == "80 86 89 90a 100a 120a"
    assert Target(90, "a") in TARGETS
