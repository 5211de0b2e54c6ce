# SPDX-License-Identifier: MIT
"""The tuned map as a program uses it: read once, asked for each launch, and never a reason to stop unless strict."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path

from dsa_bench.dispatch.look_up import LaunchFacts, MapTable, applicable, speaks_of
from dsa_bench.dispatch.map_file import read_map
from dsa_bench.model.errors import BadInput
from dsa_bench.model.splits_map import SplitsMap
from dsa_bench.model.text import printable


class MapWarning(UserWarning):
    """A tuned map that cannot be used, or was tuned otherwise. Said once per process and file."""


_said: set[tuple[str, str]] = set()


class TunedMap:
    """A map's file, or none. Raises BadInput for a malformed one if `strict`; else that is one warning and no map.

    warn  takes warnings in place of the program's
    """

    def __init__(self, path: Path | None, *, strict: bool = False, warn: Callable[[str], None] | None = None) -> None:
        self._path = path
        self._hears = warn
        self._defect: str | None = None
        self._map: SplitsMap | None = None
        self._tables: dict[LaunchFacts, tuple[MapTable | None, str]] = {}
        if path is None:
            return
        try:
            self._map = read_map(path)
        except BadInput as error:
            if strict:
                raise
            self._defect = str(error)
            self._warn(f"{error}; the automatic rule decides")

    def tiles_per_split(self, facts: LaunchFacts, rows: int, tiles: int) -> tuple[int | None, str]:
        """(the map's value, None where it has none; hit, miss or mismatch in words, with the file that was read)."""
        if self._path is None:
            return None, "map: none"
        if self._map is None:
            return None, f"map: not usable, {self._defect}"
        if not speaks_of(self._map, facts):
            return None, f"map: no table of {facts.kernel} in {self._path}"
        if facts not in self._tables:
            table, warned = applicable(self._map, facts)
            for line in warned:
                self._warn(f"{self._path}: {line}")
            self._tables[facts] = table, "; ".join(warned)
        table, said = self._tables[facts]
        if table is None:
            return None, f"map: mismatch in {self._path}: {said}"
        value = table.value(rows, tiles)
        where = f"rows {rows}, tiles {tiles} of {self._path}"
        found = f"miss, no rule for {where}" if value is None else f"hit, {value} tiles per split for {where}"
        return value, f"map: {found}" + (f" ({said})" if said else "")

    def _warn(self, text: str) -> None:
        key = os.path.abspath(str(self._path)), text
        if key not in _said:
            _said.add(key)
            if self._hears is None:
                warnings.warn(printable(text), MapWarning, stacklevel=2)
            else:
                self._hears(text)
