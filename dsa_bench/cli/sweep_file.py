# SPDX-License-Identifier: MIT
"""Sweep files: TOML whose entries hold the options of the commands that measure, under their names.

An entry is parsed as the command line that it stands for, so that a value means the same in both, and a wrong one is
refused in the same words. The JSON Schema (docs/schemas/sweep.schema.json) comes from the same options.
"""

import copy
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import typer

from dsa_bench.cli.decode import decode
from dsa_bench.cli.dense import dense, dense_request
from dsa_bench.cli.gate import gate
from dsa_bench.cli.hyper import hyper_request
from dsa_bench.cli.mix import mix
from dsa_bench.cli.prefill import prefill
from dsa_bench.cli.sparse import sparse_request
from dsa_bench.model.dense_request import DenseRequest
from dsa_bench.model.errors import BadInput
from dsa_bench.model.hyper import HyperOp
from dsa_bench.model.hyper_request import HyperRequest
from dsa_bench.model.request import SparseRequest
from dsa_bench.model.shape import Op
from dsa_bench.model.text import quoted

AnyOp = Op | HyperOp | Literal["dense"]
COMMANDS: dict[AnyOp, Callable[..., None]] = {
    "decode": decode,
    "prefill": prefill,
    "dense": dense,
    "mix": mix,
    "gate": gate,
}
NO_KEYS = frozenset({"ctx", "format", "record", "resume", "plan", "sms", "resident", "explain", "splits"})
"""Options of a command that are about one call of it, and not about what is measured; or about a map of its results."""
MAX_BYTES = 1 << 20
JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", Path: "string"}
ARTICLES = {int: "an integer", float: "a number", str: "a string", bool: "true or false", Path: "a string"}
PLURALS = {int: "integers", str: "strings"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One `[[measure]]` of a sweep file.

    place    file and entry, counted from 1, as errors name it
    backend  "auto" unless the entry says otherwise
    """

    place: str
    backend: str
    request: SparseRequest | HyperRequest | DenseRequest


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep file: its entries, and the name of its folder under results/."""

    name: str
    entries: list[Entry]

    @property
    def cells(self) -> int:
        return sum(len(entry.request.cell_keys) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Key:
    """An option as a key: the type of its value, or of the values of its array."""

    option: Any
    type: type
    is_array: bool

    @property
    def words(self) -> str:
        return f"an array of {PLURALS[self.type]}" if self.is_array else ARTICLES[self.type]

    def fits(self, value: Any) -> bool:
        if self.is_array:
            return isinstance(value, list) and all(map(self._is_one, cast("list[Any]", value)))
        return self._is_one(value)

    def _is_one(self, value: Any) -> bool:
        type_in_toml = str if self.type is Path else self.type
        if type(value) is int and abs(value) >= 2**63:  # which has no end in TOML, nor in a line about it
            return False
        return type(value) is type_in_toml or (self.type is float and type(value) is int)

    def arguments(self, value: Any) -> list[str]:
        """The command line that says the same."""
        flag = self.option.opts[0]
        if self.type is bool:
            off = self.option.secondary_opts[:1]
            return [flag] if value else list(off)
        values = dict.fromkeys(cast("list[Any]", value)) if self.is_array else (value,)
        return [f"{flag}={one}" for one in values]  # not joined: --option takes no list in one token


def load_sweep(path: Path) -> Sweep:
    """Read and check a sweep file. Raises BadInput naming the file and the key, or the line of what is no TOML."""
    try:
        data = path.read_bytes()
        if len(data) > MAX_BYTES:
            raise BadInput(f"{path}: holds {len(data)} bytes; a sweep file has at most {MAX_BYTES}")
        document = tomllib.loads(data.decode())
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be read ({error.strerror}); name a sweep file, such as sweeps/cpu-small.toml"
        ) from error
    except (ValueError, RecursionError) as error:  # of TOML, with the line, or of UTF-8
        raise BadInput(f"{path}: is not TOML ({str(error)[:200]})") from error
    for key in document:
        if key != "measure":
            raise BadInput(f"{path}: {key}: is no key of a sweep file; it holds [[measure]] entries and nothing else")
    entries = document.get("measure")
    if (
        not isinstance(entries, list)
        or not entries
        or not all(isinstance(one, dict) for one in cast("list[Any]", entries))
    ):
        raise BadInput(f"{path}: measure: must be one or more [[measure]] entries")
    tables = cast("list[dict[str, Any]]", entries)
    return Sweep(_name(path), [_entry(f"{path}: measure[{number}]", table) for number, table in enumerate(tables, 1)])


def _said(value: object) -> str:
    """A value as a line can show it."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return f"a number of {value.bit_length()} bits"
    return quoted(value)


def _name(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-.") or "sweep"


def _entry(place: str, table: Mapping[str, Any]) -> Entry:
    op = table.get("op")
    if op not in tuple(COMMANDS):
        said = "is missing" if op is None else f"{op!r} is not an operator"
        raise BadInput(f"{place}.op: {said}; it is one of {', '.join(COMMANDS)}")
    keys = sweep_keys(op)
    arguments: list[str] = []
    for name, value in table.items():
        if name == "op":
            continue
        if name not in keys:
            raise BadInput(f"{place}.{name}: is no option of {op}; there are {', '.join(keys)}")
        if not keys[name].fits(value):
            raise BadInput(f"{place}.{name}: must be {keys[name].words}, not {_said(value)}")
        if value == []:
            raise BadInput(f"{place}.{name}: is empty; leave it out for the default")
        arguments += keys[name].arguments(value)
    try:
        ctx = _command(op).make_context(op, arguments)
        return Entry(place, ctx.params["backend"], _request(ctx, op))
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from error
    except Exception as error:
        option: Any = getattr(error, "param", None)
        if option is None or not hasattr(error, "message"):
            raise
        raise BadInput(f"{place}.{_key(option)}: {cast('Any', error).message}") from error


def _request(ctx: Any, op: AnyOp) -> SparseRequest | HyperRequest | DenseRequest:
    if op == "dense":
        return dense_request(ctx.params, {})
    return hyper_request(op, ctx.params) if op in ("mix", "gate") else sparse_request(ctx, op)


@cache
def _command(op: AnyOp) -> Any:
    """The command without its variables: a sweep file says all that it measures."""
    app = typer.Typer(add_completion=False)
    app.command()(COMMANDS[op])
    command: Any = copy.copy(typer.main.get_command(app))
    command.params = [copy.copy(option) for option in command.params]
    for option in command.params:
        option.envvar = None
    return command


def _key(option: Any) -> str:
    return option.opts[0].removeprefix("--")


@cache
def sweep_keys(op: AnyOp) -> dict[str, Key]:
    """The options of an operator that an entry may hold, by key."""
    hints = get_type_hints(COMMANDS[op])
    keys: dict[str, Key] = {}
    for option in _command(op).params:
        if option.name in hints and option.name not in NO_KEYS:
            hint = hints[option.name]
            if get_origin(hint) is UnionType:
                (hint,) = (part for part in get_args(hint) if part is not type(None))
            is_array = get_origin(hint) is list
            keys[_key(option)] = Key(option, get_args(hint)[0] if is_array else hint, is_array)
    return keys


def sweep_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a sweep file; docs/schemas/sweep.schema.json is this, written down."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dsa-bench sweep: what to measure",
        "type": "object",
        "properties": {
            "measure": {"type": "array", "minItems": 1, "items": {"oneOf": [*map(_entry_schema, COMMANDS)]}}
        },
        "required": ["measure"],
        "additionalProperties": False,
    }


def _entry_schema(op: AnyOp) -> dict[str, Any]:
    return {
        "title": op,
        "type": "object",
        "properties": {"op": {"const": op}, **{name: _key_schema(key) for name, key in sweep_keys(op).items()}},
        "required": ["op"],
        "additionalProperties": False,
    }


def _key_schema(key: Key) -> dict[str, Any]:
    one = {"type": JSON_TYPES[key.type]}
    described = {"description": key.option.help}
    return {**described, "type": "array", "minItems": 1, "items": one} if key.is_array else {**described, **one}


if __name__ == "__main__":
    print(json.dumps(sweep_schema(), indent=1))
