# SPDX-License-Identifier: MIT
"""What messages quote: one printable line of a readable length, whatever the value."""

from typing import Any

import pytest

from dsa_bench.cli.console import lines_to_user, note
from dsa_bench.model.errors import BadInput, DsaBenchError, GateFailed
from dsa_bench.model.text import printable, quoted, short


class Damaged:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def test_control_characters_are_escaped_and_nothing_else() -> None:
    assert printable("a\x1b[31m\x00\n\r\x85\u2028\u202e b") == r"a\x1b[31m\x00\n\r\x85\u2028\u202e b"
    assert printable("größe µs [2] \\n") == "größe µs [2] \\n"
    assert printable("\udcff") == r"\udcff"


@pytest.mark.parametrize(
    "value", ["x" * 100_000, 10**4000, 10**5000, nested(100_000), Damaged(), b"\x1b", "\n" * 99],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_every_value_has_a_short_quote(value: Any) -> None:
    assert len(quoted(value)) <= 60
    assert quoted(value).isprintable()


def test_a_quote_that_is_cut_says_so() -> None:
    assert short("x" * 60) == "x" * 60
    assert short("x" * 61) == "x" * 57 + "..."
    assert quoted("1x") == "'1x'"


@pytest.mark.parametrize("kind", [BadInput, GateFailed, DsaBenchError])
def test_every_expected_failure_is_one_printable_line(kind: type[DsaBenchError]) -> None:
    error = kind("file \x1b]0;title\x07\nname: is bad")
    assert str(error) == r"file \x1b]0;title\x07\nname: is bad"
    assert str(kind(f"more: {error}")) == f"more: {error}", "escaped once"


def test_what_is_said_on_the_way_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    note("device \x1b[2J H200\n  and more")
    lines_to_user(["one\x1b", "two\x00"])
    assert capsys.readouterr().err.splitlines() == [r"dsa-bench: device \x1b[2J H200 and more", r"one\x1b", r"two\x00"]
