"""A small validator of JSON schemas, from the specification (draft 2020-12)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
SAID_ONLY = {"$schema", "$defs", "title", "description", "default", "deprecated"}
READ = {"$ref", "anyOf", "type", "enum", "properties", "additionalProperties", "items", "prefixItems"}
LIMITS = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
}
SIZES = {"minLength": (str, 1), "maxLength": (str, -1), "minItems": (list, 1), "maxItems": (list, -1)}


class _Yaml12(yaml.SafeLoader):
    """Reads 1e-3 as a number, as YAML 1.2 and editors do."""


_Yaml12.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_as_an_editor(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_Yaml12)


def faults(value: Any, schema: Any, root: Any = None, place: str = "") -> list[str]:
    """What the schema refuses: `place: why`, one for each fault. AssertionError for a word that is not known here."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return [] if schema else [f"{place}: unknown"]
    assert not set(schema) - SAID_ONLY - READ - set(LIMITS) - set(SIZES), schema
    return list(_faults(value, schema, root, place))


def _faults(value: Any, schema: dict[str, Any], root: Any, place: str) -> Iterator[str]:
    if "$ref" in schema:
        yield from faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, place)
    if "anyOf" in schema and all(faults(value, one, root, place) for one in schema["anyOf"]):
        yield f"{place}: none of the kinds"
    if "type" in schema and not any(_is_a(value, kind) for kind in _listed(schema["type"])):
        yield f"{place}: not {schema['type']}"
    if "enum" in schema and not any(value == one and type(value) is type(one) for one in schema["enum"]):
        yield f"{place}: not one of {schema['enum']}"
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for key, inner in value.items():
            yield from faults(
                inner, known.get(key, schema.get("additionalProperties", True)), root, f"{place}.{key}".strip(".")
            )
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        for number, inner in enumerate(value):
            one = first[number] if number < len(first) else schema.get("items", True)
            yield from faults(inner, one, root, f"{place}.{number}".strip("."))
    if _is_a(value, "number"):
        yield from (
            f"{place}: {word}" for word, fits in LIMITS.items() if word in schema and not fits(value, schema[word])
        )
    for word, (kind, sign) in SIZES.items():
        if word in schema and isinstance(value, kind) and sign * len(value) < sign * schema[word]:
            yield f"{place}: {word}"


def _listed(kinds: str | list[str]) -> list[str]:
    return [kinds] if isinstance(kinds, str) else kinds


def _is_a(value: Any, kind: str) -> bool:
    if kind in ("number", "integer"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (kind == "number" or value == int(value))
    return isinstance(value, TYPES[kind])
