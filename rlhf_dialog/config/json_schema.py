"""The JSON schema of a YAML, for editors that complete its keys: what the schema refuses, the command refuses too."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import StringSchema

from rlhf_dialog.config.settings import Settings

DIALECT = GenerateJsonSchema.schema_dialect  # draft 2020-12
Schema = dict[str, Any]


class _AsRead(GenerateJsonSchema):
    """What the command reads: a text may be written as a number (`experiment_name: 2026`); keys have no titles."""

    def str_schema(self, schema: StringSchema) -> Schema:
        return super().str_schema(schema) | {"type": ["string", "number"]}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema(
    kind: type[Settings], ids: Mapping[str, Collection[str]] | None = None, ignored: Mapping[str, str] | None = None
) -> Schema:
    """The schema of the YAML that is read as `kind`, with the meaning and the default of every key.

    ids: key -> the built-in ids of its class, which an editor offers; every other text is allowed, for a class of the user's.
    ignored: keys that are accepted without effect, each with the reason.
    """
    schema = kind.model_json_schema(schema_generator=_AsRead)
    properties = schema["properties"]
    for name, field in kind.model_fields.items():
        if field.default_factory is not None:
            default = field.get_default(call_default_factory=True)
            properties[name]["default"] = default.model_dump(mode="json") if isinstance(default, Settings) else default
    for name, known in (ids or {}).items():
        properties[name] = _with_ids(properties[name], sorted(set(known)), schema["$defs"])
    for name, reason in (ignored or {}).items():
        properties[name] = {"description": f"has no effect here; {reason}", "deprecated": True}
    for mapping in _mappings(schema):
        if mapping.get("type") == "object":
            mapping.pop("required", None)
    return {"$schema": DIALECT, **schema}


def _with_ids(key: Schema, ids: list[str], definitions: Mapping[str, Schema]) -> Schema:
    """The key with the class written out in it, whose id is one of `ids` or any other text."""
    branches = key.get("anyOf", [key])
    name = next(branch["$ref"] for branch in branches if "$ref" in branch).rpartition("/")[2]
    definition = definitions[name]
    meaning = definition["properties"]["id"]["description"]
    one = {"anyOf": [{"enum": ids}, {"type": ["string", "number"]}], "description": meaning}
    written_out = {**definition, "properties": {**definition["properties"], "id": one}}
    others = [branch for branch in branches if "$ref" not in branch]
    said: Schema = {word: key[word] for word in ("description", "default") if word in key}
    return {"anyOf": [written_out, *others], **said} if others else {**written_out, **said}


def _mappings(node: Any) -> Iterator[Schema]:
    """Every mapping in the schema, itself first."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _mappings(child)
