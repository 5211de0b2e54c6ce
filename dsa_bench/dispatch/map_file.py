# SPDX-License-Identifier: MIT
"""`splits.json` on disk: read strictly, checked beyond what types can say, written whole or not at all."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsa_bench.dispatch.facts import DENSE_KERNEL
from dsa_bench.model.dense import MAX_CAPACITY
from dsa_bench.model.dense_map import DenseMapCell, DenseTable
from dsa_bench.model.documents import COUNT_KEY, Misfit, from_json, json_schema, json_text, parse_json, pointer, to_json
from dsa_bench.model.errors import BadInput
from dsa_bench.model.files import write_whole
from dsa_bench.model.map_parts import MapWords
from dsa_bench.model.request import DIGITS
from dsa_bench.model.splits_map import (
    SCHEMA,
    SCHEMA_VERSION,
    Against,
    AnyCell,
    AnyRule,
    AnyTable,
    MapCell,
    SplitsMap,
    SplitTable,
)
from dsa_bench.model.text import quoted, short
from dsa_bench.splits.kernels import TUNED_KERNELS
from dsa_bench.splits.map_values import launched_splits


def read_map(path: Path) -> SplitsMap:
    """Read a map. Raises BadInput naming the file and the place (a JSON pointer) of whatever is wrong with it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); name a map that `tune` wrote") from error
    except ValueError as error:  # a name that no file can have
        raise BadInput(f"{path}: cannot be read ({error}); name a map that `tune` wrote") from error
    try:
        return parse_map(data)
    except Misfit as misfit:
        raise BadInput(f"{path}: {misfit.place} {misfit}") from misfit


def parse_map(data: bytes) -> SplitsMap:
    """The map that a file's bytes hold. Raises Misfit."""
    value = parse_json(data)
    _refuse_other_documents(value)
    splits_map = from_json(SplitsMap, value)
    check_map(splits_map)
    return splits_map


def _refuse_other_documents(value: Any) -> None:
    """Say what the file is before saying which of its fields does not fit."""
    if not isinstance(value, dict):
        raise Misfit("/", "is no object, so it is not a map of dsa-bench")
    schema, version = value.get("schema"), value.get("schema_version")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if schema != SCHEMA:
        said = quoted(schema if isinstance(schema, (list, dict)) else str(schema))  # pyright: ignore[reportUnknownArgumentType]
        raise Misfit("/schema", f"is {said}, must be {SCHEMA!r}: this is not a map of dsa-bench")  # pyright: ignore[reportUnknownArgumentType]
    if type(version) is int and version != SCHEMA_VERSION:  # pyright: ignore[reportUnknownArgumentType]
        what = "older than" if version < SCHEMA_VERSION else "newer than"
        raise Misfit(
            "/schema_version", f"is {short(version)}, {what} the {SCHEMA_VERSION} that is read here; tune again"
        )


def check_map(splits_map: SplitsMap) -> None:
    """Raises Misfit where values contradict each other."""
    seen: dict[Any, int] = {}
    for at, table in enumerate(splits_map.tables):
        first = seen.setdefault(table.identity, at)
        if first != at:
            raise Misfit(f"/tables/{at}", f"is for the same launches as /tables/{first} ({table.name})")
        _check_table(table, f"/tables/{at}")
    of_decode = [
        (f"/tables/{at}", table) for at, table in enumerate(splits_map.tables) if isinstance(table, SplitTable)
    ]
    for at, (place, table) in enumerate(of_decode):
        for before, other in of_decode[:at]:
            _refuse_two_kernels(table, place, other, before)
    for place, table in of_decode:
        _check_against(table, place, [other for _, other in of_decode])


def _refuse_two_kernels(table: SplitTable, place: str, other: SplitTable, before: str) -> None:
    """Raises Misfit where rules of two kernels are for one launch."""
    if table.kernel == other.kernel or table.launches != other.launches:
        return
    for (at, rule), (against, one) in itertools.product(enumerate(table.rules), enumerate(other.rules)):
        if _meet(rule.rows, one.rows) and _meet(rule.size, one.size):
            both = f"{table.kernel} and {other.kernel}"
            raise Misfit(f"{place}/rules/{at}", f"overlaps {before}/rules/{against}: one launch cannot take {both}")


def _check_table(table: AnyTable, place: str) -> None:
    cells: dict[tuple[int, int], AnyCell] = {}
    last = (0, 0)
    words = table.words
    kernels = (DENSE_KERNEL,) if isinstance(table, DenseTable) else TUNED_KERNELS
    if table.kernel not in kernels:
        raise Misfit(f"{place}/kernel", f"is {quoted(table.kernel)}, must be {' or '.join(kernels)}")
    if isinstance(table, DenseTable) and table.query_heads % table.kv_heads:
        raise Misfit(f"{place}/query_heads", f"is {table.query_heads}, no multiple of kv_heads {table.kv_heads}")
    if isinstance(table, SplitTable) and table.clusters is not None:
        _check_clusters(table.clusters, f"{place}/clusters", table.kernel)
    for at, cell in enumerate(table.cells):
        where = f"{place}/cells/{at}"
        if cell.shape <= last:
            raise Misfit(where, f"rows {cell.rows}, {words.size} {cell.size}: cells must be sorted, each shape once")
        cells[cell.shape], last = cell, cell.shape
        if isinstance(table, DenseTable) and isinstance(cell, DenseMapCell):
            _check_dense_shape(cell, where, table)
        _check_cell(cell, where, words)
    for at, rule in enumerate(table.rules):
        _check_rule(rule, f"{place}/rules/{at}", table, cells)
    _refuse_overlaps(table.rules, f"{place}/rules")


def _check_clusters(clusters: Mapping[str, int], place: str, kernel: str) -> None:
    """Raises Misfit for clusters that no launch has, so that the table would never hold."""
    if kernel != DIGITS:
        raise Misfit(place, f"is a field of {DIGITS}, and the table is of {kernel}")
    for size in clusters:
        if not COUNT_KEY.fullmatch(size):
            raise Misfit(pointer(place, size), "is no size: a positive decimal integer without leading 0")
    if not any(clusters.values()):
        raise Misfit(place, "holds no count above 0; a device without clusters has no such field")


def _check_dense_shape(cell: DenseMapCell, place: str, table: DenseTable) -> None:
    """Raises Misfit for a cell that is no launch of the table's heads."""
    if cell.rows % table.query_heads:
        raise Misfit(f"{place}/rows", f"is {cell.rows}, no multiple of the {table.query_heads} query heads")
    if cell.capacity > MAX_CAPACITY:
        raise Misfit(f"{place}/capacity", f"is {cell.capacity}, must be at most {MAX_CAPACITY}, the kernels' limit")
    if cell.length > cell.capacity:
        raise Misfit(f"{place}/length", f"is {cell.length}, and the capacity is {cell.capacity}")


def _check_cell(cell: AnyCell, place: str, words: MapWords) -> None:
    for value in cell.us:
        if not COUNT_KEY.fullmatch(value):
            raise Misfit(
                pointer(f"{place}/us", value), f"is no {words.of_value}: a positive decimal integer without leading 0"
            )
    for name, value in (
        ("auto", cell.auto),
        ("best", cell.best),
        *((f"ties/{n}", tie) for n, tie in enumerate(cell.ties)),
    ):
        if str(value) not in cell.us:
            raise Misfit(f"{place}/{name}", f"is {value}, which is not among the measured values (us)")
    if cell.auto_us != cell.us[str(cell.auto)]:
        raise Misfit(f"{place}/auto_us", f"is {cell.auto_us:g}, but us has {cell.us[str(cell.auto)]:g} for {cell.auto}")
    if sorted({*cell.ties} - {cell.best}) != list(cell.ties):
        raise Misfit(f"{place}/ties", "must be sorted, each value once, without best")
    _check_ratio(cell.ratio, f"{place}/ratio")


def _check_ratio(ratio: tuple[float, float, float], place: str) -> None:
    centre, low, high = ratio
    if not low <= centre <= high:
        raise Misfit(place, f"{centre:g} must lie between its ends {low:g} and {high:g}")


def _check_against(table: SplitTable, place: str, tables: Sequence[SplitTable]) -> None:
    """Raises Misfit where a cell says otherwise of what runs without the map than that kernel's own cell does.

    Of the tables of several versions of that kernel, one has to agree.
    """
    for at, cell in enumerate(table.cells):
        against, where = cell.against, f"{place}/cells/{at}/against"
        if against is None:
            continue
        others = [kernel for kernel in TUNED_KERNELS if kernel != table.kernel]
        if against.kernel not in others:
            said = f"is {quoted(against.kernel)}, must be {' or '.join(others)}: what the table's kernel replaces"
            raise Misfit(f"{where}/kernel", said)
        _check_ratio(against.ratio, f"{where}/ratio")
        own = [
            one
            for other in tables
            if (other.kernel, other.launches) == (against.kernel, table.launches)
            for one in other.cells
            if one.shape == cell.shape
        ]
        said = against.tiles_per_split, against.us
        if own and all(one.against is not None or (one.auto, one.auto_us) != said for one in own):
            raise Misfit(where, _contradiction(against, own[0]))


def _contradiction(against: Against, own: MapCell) -> str:
    if own.against is not None:
        return f"says that {against.kernel} runs without the map, whose own cell says that of {own.against.kernel}"
    return (
        f"says {against.tiles_per_split} tiles per split and {against.us:.7g} us of {against.kernel}, whose own cell "
        f"has {own.auto} (auto) and {own.auto_us:.7g} us"
    )


def _check_rule(rule: AnyRule, place: str, table: AnyTable, cells: dict[tuple[int, int], AnyCell]) -> None:
    words = table.words
    for name, (low, high) in (("rows", rule.rows), (words.size, rule.size)):
        if low > high:
            raise Misfit(f"{place}/{name}", f"starts at {low}, after its end {high}")
    for rows, size in itertools.product(rule.rows, rule.size):
        if (rows, size) not in cells:
            raise Misfit(place, f"reaches beyond the measured cells: none has rows {rows}, {words.size} {size}")
    for (rows, size), cell in cells.items():
        if rule.rows[0] <= rows <= rule.rows[1] and rule.size[0] <= size <= rule.size[1]:
            asked = launched_splits(table, size, rule.value)
            if asked not in {launched_splits(table, size, int(value)) for value in cell.us}:
                said = f"is {rule.value}, which was not measured at rows {rows}, {words.size} {size}"
                raise Misfit(f"{place}/{words.value}", said)


def _refuse_overlaps(rules: Sequence[AnyRule], place: str) -> None:
    starts = [(rule.rows[0], rule.size[0]) for rule in rules]
    for at, (one, other) in enumerate(itertools.pairwise(starts), 1):
        if other < one:
            raise Misfit(f"{place}/{at}", "stands after a rule that starts later; rules must be sorted")
    for at, rule in enumerate(rules):
        for before in range(at):
            if _meet(rule.rows, rules[before].rows) and _meet(rule.size, rules[before].size):
                raise Misfit(f"{place}/{at}", f"overlaps {place}/{before}")


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def map_text(splits_map: SplitsMap) -> str:
    """The file's text, one line break at its end: the same map, the same bytes. Raises Misfit for no valid map."""
    check_map(splits_map)
    content = to_json(splits_map)
    first = {name: content.pop(name) for name in ("schema", "schema_version")}
    return json_text({**first, **content}) + "\n"


def write_map(path: Path, splits_map: SplitsMap) -> None:
    """Write a map whole, as model.files.write_whole does."""
    write_whole(path, map_text(splits_map))


def splits_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the file; docs/schemas/splits.schema.json is this, written down."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{SCHEMA} {SCHEMA_VERSION}: a tuned map",
        **json_schema(SplitsMap),
    }
