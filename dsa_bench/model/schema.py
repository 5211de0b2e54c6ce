# SPDX-License-Identifier: MIT
"""What a line of a run may hold, from the record dataclasses themselves: as quick tests, and as JSON Schema."""

from collections.abc import Callable
from functools import cache, partial
from inspect import cleandoc
from types import UnionType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from dsa_bench.model.record import LATER_FIELDS, SCHEMA, SCHEMA_VERSION, Check, Header, Visit

Test = Callable[[Any], bool]
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def misfitting_field(cls: type, content: dict[str, Any]) -> str | None:
    """What keeps a parsed JSON object from being a line of `cls`, in words; None if it fits."""
    scalars, containers, known = _field_tests(cls)
    signature = (*content, *map(type, content.values()), str(content.get("status")))
    if signature not in known:  # most lines of a run look like one of a few before them
        wrong = (content.keys() ^ (scalars.keys() | containers.keys())) - (_later(cls) - content.keys())
        if wrong:
            return "wrong fields " + ", ".join(sorted(wrong))
        for name, fits in scalars.items():
            if name in content and not fits(content[name]):
                return f"{name} is {content[name]!r}"
        known.add(signature)
    for name, fits in containers.items():
        if name in content and not fits(content[name]):
            return f"{name} is {content[name]!r}"
    return None


def _later(cls: type) -> frozenset[str]:
    return LATER_FIELDS.get(cls, frozenset())


@cache
def _field_tests(cls: type) -> tuple[dict[str, Test], dict[str, Test], set[Any]]:
    """(tests of scalar fields, of lists and objects, signatures of lines whose scalars are known to fit)."""
    scalars: dict[str, Test] = {}
    containers: dict[str, Test] = {}
    for name, hint in get_type_hints(cls).items():
        origin, parts = get_origin(hint), get_args(hint)
        if origin is tuple:
            containers[name] = partial(_is_list_of, parts[0])
        elif origin is dict:
            containers[name] = partial(_is_object_of, parts[1])
        elif origin is Literal:
            scalars[name] = parts.__contains__
        else:
            scalars[name] = partial(_is_one_of, frozenset(parts if origin is UnionType else (hint,)))
    return scalars, containers, set()


def _is_one_of(types: frozenset[type], value: Any) -> bool:
    return type(value) in types or (type(value) is int and float in types)


def _is_list_of(item: type, value: Any) -> bool:
    return isinstance(value, list) and {*map(type, cast("list[Any]", value))} <= {item}


def _is_object_of(item: Any, value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    accepted = {float, int} if item is float else {item}
    return item is Any or {*map(type, cast("dict[str, Any]", value).values())} <= accepted


def record_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line of a run; docs/schemas/record.schema.json is this, written down."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{SCHEMA} {SCHEMA_VERSION}: one line of a run",
        "oneOf": [_object_schema(cls) for cls in (Header, Check, Visit)],
    }


def _object_schema(cls: type) -> dict[str, Any]:
    properties = {name: _json_schema(hint) for name, hint in get_type_hints(cls).items()}
    if cls is Header:
        properties |= {"schema": {"const": SCHEMA}, "schema_version": {"const": SCHEMA_VERSION}}
    return {
        "title": cls.__name__.lower(),
        "description": cleandoc(cls.__doc__ or ""),
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in _later(cls)],
        "additionalProperties": False,
    }


def _json_schema(hint: Any) -> dict[str, Any]:
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if origin is UnionType:
        return {"anyOf": [_json_schema(part) for part in parts]}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin is tuple:
        return {"type": "array", "items": _json_schema(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _json_schema(parts[1])}
    return {"type": _JSON_TYPES[hint]}
