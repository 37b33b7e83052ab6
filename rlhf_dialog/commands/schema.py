"""Print the JSON schema of a YAML, with which an editor completes its keys."""

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import StringSchema

from rlhf_dialog import wings
from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.commands.command_line import check_output
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.config.registry import EnvironmentFactory, Registry, RewardFactory, VecInfoFactory
from rlhf_dialog.config.settings import Settings
from rlhf_dialog.config.synonyms import NO_EFFECT

KINDS = ("ppo", "sft", "intent", "preference", "relevance", "policy")
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


class SchemaOptions(Options):
    description = (
        "Print the JSON schema (draft 2020-12) of a YAML: every key with its type, range, default and meaning.\n"
        "An editor with a YAML language server completes keys by it where a line of the YAML says\n\n"
        "  # yaml-language-server: $schema=schemas/ppo.json"
    )

    kind: str = option(
        "which YAML: that of train (ppo, the default), of a supervised stage, of train-policy", "ppo", choices=KINDS
    )
    output: Path | None = option("file to write, in place of standard output", metavar="FILE")


def run(options: SchemaOptions) -> None:
    if options.output:
        check_output("output", options.output, str(options.output))
        options.output.parent.mkdir(parents=True, exist_ok=True)
        replace_text(options.output, schema_text(build_schema(options.kind)))
        print(f"{options.output}: written")
    else:
        sys.stdout.write(schema_text(build_schema(options.kind)))


def schema_text(schema: Schema) -> str:
    """The schema as the text of a file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def build_schema(kind: str) -> Schema:
    """The schema of one of KINDS. Classes of the user's are not in it, but every id is allowed."""
    from rlhf_dialog.training.supervised.settings import IntentConfig, PreferenceConfig, RelevanceConfig, SFTConfig

    kinds: dict[str, type[Settings]] = {
        "sft": SFTConfig,
        "intent": IntentConfig,
        "preference": PreferenceConfig,
        "relevance": RelevanceConfig,
    }
    if kind == "ppo":
        return _ppo_schema()
    if kind == "policy":
        return json_schema(wings.settings(kind), {"policy": list(wings.registered_ids("policy"))})
    return json_schema(kinds[kind])


def _ppo_schema() -> Schema:
    import rlhf_dialog.environments.built_in
    import rlhf_dialog.metrics
    import rlhf_dialog.rewards  # noqa: F401  the built-in classes register themselves
    from rlhf_dialog.config.schema import Config

    ids = {
        "reward_class": built_in(RewardFactory),
        "vec_info_class": built_in(VecInfoFactory),
        "environment": [*built_in(EnvironmentFactory), *wings.registered_ids("environment")],
    }
    return json_schema(Config, ids, NO_EFFECT)


def built_in(registry: Registry) -> list[str]:
    """The ids that the package itself registers."""
    return [name for name, cls in registry.classes.items() if cls.__module__.startswith("rlhf_dialog.")]


main = partial(run_command, SchemaOptions, run)  # the command line; returns the exit code
