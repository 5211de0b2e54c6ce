# SPDX-License-Identifier: MIT
"""JSON documents that are dataclasses: read strictly, with the place of whatever does not fit, written, and as schema.

Fields are strings, integers, numbers, None, Literals, tuples, dict[str, ...] and dataclasses; Annotated numbers carry
their Limits. A field whose default is None may be absent, and is not written where it is None. Dataclasses of a union
are told apart by their first field, a Literal of one text.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from dsa_bench.model.text import short

T = TypeVar("T")
_UNIONS = (UnionType, Union)
LINE = 240
"""Characters up to which an object or list stays on one line."""
COUNT_KEY = re.compile(r"[1-9][0-9]{0,15}", re.ASCII)
"""A positive integer as the name of a field: a positive decimal integer without leading 0, its only spelling."""


class Limits(NamedTuple):
    """The closed range of a number."""

    low: float
    high: float


class Misfit(ValueError):
    """`place` is a JSON pointer, or a position in the text; str() says what is wrong there."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place


class _Object(dict[str, Any]):
    """A JSON object that remembers a key which it was given twice."""

    twice: str | None = None


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object()
    for key, value in pairs:
        if key in made:
            made.twice = key
        made[key] = value
    return made


def parse_json(data: bytes) -> Any:
    """The value of a JSON text, for `from_json`. Raises Misfit naming the place in the text if it is not one."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise Misfit(f"byte {error.start}", "is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise Misfit(f"line {error.lineno} column {error.colno}", f"is not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise Misfit("/", f"is not JSON that can be read ({error})") from error


def from_json(hint: type[T], value: Any) -> T:
    """The dataclass that a parsed JSON value stands for. Raises Misfit where something has another type or range."""
    return _build(hint, value, "")


def _build(hint: Any, value: Any, place: str) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        given = _objectpointer(value, place)
        hints = _hints(cast(type, hint))
        for name in given:
            if name not in hints:
                raise Misfit(pointer(place, name), "is no field that this dsa-bench knows")
        for name in hints:
            if name not in given and name not in _optional(cast(type, hint)):
                raise Misfit(place or "/", f"lacks the field {name!r}")
        built = {name: _build(hints[name], given[name], f"{place}/{name}") for name in hints if name in given}
        return cast(Any, hint)(**built)
    if origin in _UNIONS:
        return None if value is None and NoneType in parts else _build(_alternative(parts, value, place), value, place)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in parts):
            raise Misfit(place, f"is {_said(value)}, must be {' or '.join(map(_said, parts))}")
        return value
    if origin is dict:
        return {key: _build(parts[1], part, pointer(place, key)) for key, part in _objectpointer(value, place).items()}
    if origin is tuple:
        if not isinstance(value, list):
            raise Misfit(place, f"is {_said(value)}, must be a list")
        items = cast("list[Any]", value)
        kinds = [parts[0]] * len(items) if parts[-1] is Ellipsis else list(parts)
        if len(kinds) != len(items):
            raise Misfit(place, f"is a list of {len(items)}, must be one of {len(kinds)}")
        return tuple(_build(kind, item, f"{place}/{at}") for at, (kind, item) in enumerate(zip(kinds, items)))  # noqa: B905
    return _scalar(hint, value, place)


def _alternative(parts: tuple[Any, ...], value: Any, place: str) -> Any:
    """The part of a union that a value is meant for: of several dataclasses, the one whose first field it names."""
    choices = [part for part in parts if part is not NoneType]
    if len(choices) == 1:
        return choices[0]
    given = _objectpointer(value, place)
    name = next(iter(_hints(choices[0])))
    tags = {get_args(_hints(part)[name])[0]: part for part in choices}
    if name not in given:
        raise Misfit(place or "/", f"lacks the field {name!r}")
    tag = given[name]
    if not isinstance(tag, str) or tag not in tags:
        raise Misfit(f"{place}/{name}", f"is {_said(tag)}, must be {' or '.join(map(_said, tags))}")
    return tags[tag]


def _scalar(hint: Any, value: Any, place: str) -> Any:
    kind, limits = (get_args(hint)[0], get_args(hint)[1]) if get_origin(hint) is Annotated else (hint, None)
    fits = type(value) is kind or (kind is float and type(value) is int)
    if fits and limits is not None:
        fits = limits.low <= value <= limits.high  # False for NaN
    if not fits:
        raise Misfit(place, f"is {_said(value)}, must be {_asked(kind, limits)}")
    try:
        return float(value) if kind is float else value
    except OverflowError as error:  # an integer beyond every float
        raise Misfit(place, f"is {_said(value)}, must be {_asked(kind, limits)}") from error


def _objectpointer(value: Any, place: str) -> _Object:
    if not isinstance(value, _Object):
        raise Misfit(place or "/", f"is {_said(value)}, must be an object")
    if value.twice is not None:
        raise Misfit(pointer(place, value.twice), "is given twice")
    return value


def given_twice(value: Any) -> str | None:
    """The JSON pointer of a key that an object in `parse_json`'s value was given twice; None if there is none."""
    rest: list[tuple[str, Any]] = [("", value)]
    while rest:
        place, one = rest.pop()
        if isinstance(one, _Object):
            if one.twice is not None:
                return pointer(place, one.twice)
            rest += [(pointer(place, key), part) for key, part in one.items()]
        elif isinstance(one, list):
            rest += [(f"{place}/{at}", part) for at, part in enumerate(cast("list[Any]", one))]
    return None


def pointer(place: str, key: str) -> str:
    """The JSON pointer (RFC 6901) of a key in the object at `place`, as a message quotes it."""
    return f"{place}/{short(key.replace('~', '~0').replace('/', '~1'))}"


def _asked(kind: type, limits: Limits | None) -> str:
    if kind is str:
        return "a text"
    words = "an integer" if kind is int else "a finite number"
    if limits is None:
        return words
    low, high = (str(end) if kind is int else f"{end:g}" for end in limits)
    return f"{words} of at least {low} and at most {high}"


def _said(value: Any) -> str:
    """A JSON value as an error quotes it, cut to a readable length."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return short(json.dumps(value))


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


@cache
def _optional(cls: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(cls) if field.default is None)


def to_json(value: Any) -> Any:
    """A dataclass as the JSON value that stands for it, fields in their order."""
    if is_dataclass(value):
        content = {field.name: getattr(value, field.name) for field in fields(value)}
        absent = {name for name in _optional(cast(type, type(value))) if content[name] is None}
        return {name: to_json(part) for name, part in content.items() if name not in absent}
    if isinstance(value, tuple):
        return [to_json(part) for part in cast("tuple[Any, ...]", value)]
    if isinstance(value, Mapping):
        return {key: to_json(part) for key, part in cast("Mapping[str, Any]", value).items()}
    return value


def json_text(value: Any, indent: int = 0) -> str:
    """A JSON value as text with one short object or list a line. The same value always gives the same text."""
    line = json.dumps(value, allow_nan=False)
    if not isinstance(value, (dict, list)) or (indent and len(line) + indent <= LINE):
        return line
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        content = cast("dict[str, Any]", value)
        parts = [f"{pad}{json.dumps(key)}: {json_text(part, indent + 1)}" for key, part in content.items()]
    else:
        parts = [pad + json_text(part, indent + 1) for part in cast("list[Any]", value)]
    first, last = line[0], line[-1]
    return f"{first}\n" + ",\n".join(parts) + f"\n{' ' * indent}{last}" if parts else line


def json_schema(hint: Any) -> dict[str, Any]:
    """JSON Schema (2020-12) of what `from_json` takes for the hint."""
    origin, parts = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        properties = {name: json_schema(part) for name, part in _hints(cast(type, hint)).items()}
        return {
            "description": cleandoc(hint.__doc__ or ""),
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name not in _optional(cast(type, hint))],
            "additionalProperties": False,
        }
    if origin in _UNIONS:
        return {"anyOf": [json_schema(part) for part in parts]}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin is dict:
        return {"type": "object", "additionalProperties": json_schema(parts[1])}
    if origin is tuple and parts[-1] is Ellipsis:
        return {"type": "array", "items": json_schema(parts[0])}
    if origin is tuple:
        return {"type": "array", "prefixItems": [*map(json_schema, parts)], "items": False, "minItems": len(parts)}
    if origin is Annotated:
        return {**json_schema(parts[0]), "minimum": parts[1].low, "maximum": parts[1].high}
    return {"type": {str: "string", int: "integer", float: "number", NoneType: "null"}[hint]}
