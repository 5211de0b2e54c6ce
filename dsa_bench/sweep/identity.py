# SPDX-License-Identifier: MIT
"""Whether two runs are one, so that the second goes on with the record of the first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from dsa_bench.model.errors import BadInput
from dsa_bench.model.record import Header
from dsa_bench.model.run import Run, read_run
from dsa_bench.model.text import quoted


def identity(header: Header) -> dict[str, Any]:
    """What must be the same for two runs to be one. Records from before there were several selections name none, and
    facts of a device that are not known may be missing."""
    return {
        "version": header.version,
        "device": {name: fact for name, fact in header.device.items() if fact is not None},
        "kernel_hashes": header.kernel_hashes,
        "plan": {"selections": [], **header.plan},
    }


def resumed(record: Path, header: Header, timer: str, l2: str) -> Run:
    """The recorded run, if one with this header, timer and L2 mode is its continuation. Raises BadInput naming what
    differs."""
    before = read_run(record)
    was, now = identity(before.header), identity(header)
    taken = {(visit.timer, visit.l2) for visit in before.visits}
    if taken - {(timer, l2)}:
        (was["timer"], was["l2"]), now["timer"], now["l2"] = min(taken), timer, l2
    if was != now:
        raise BadInput(
            f"--resume {record}: was measured differently ({_first_difference(was, now)}); name another --record"
        )
    return before


def _first_difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Of two that differ. A field that one of them lacks is another than a field that holds null."""
    differing = (key for key in sorted(before.keys() | now.keys()) if _field(before, key) != _field(now, key))
    key = next(differing)
    one, other = _fields(before.get(key)), _fields(now.get(key))
    if one is not None and other is not None:
        return f"{key}.{_first_difference(one, other)}"
    return f"{key} was {_said(before, key)}, now {_said(now, key)}"


def _fields(value: Any) -> dict[str, Any] | None:
    """Of an object, or of a list of objects or lists, by place."""
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    places = cast(list[Any], value) if isinstance(value, list) else []
    if not places or isinstance(places[0], (str, int, float, type(None))):
        return None
    return {str(place): one for place, one in enumerate(places)}


def _field(one: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    return key in one, one.get(key)


def _said(one: Mapping[str, Any], key: str) -> str:
    return quoted(one[key]) if key in one else "absent"
