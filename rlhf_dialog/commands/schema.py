"""Print the JSON schema of a YAML, with which an editor completes its keys."""

import json
from functools import partial

from pydantic.json_schema import GenerateJsonSchema

from rlhf_dialog import wings
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.settings import Settings

KINDS = ("ppo", "sft", "intent", "preference", "relevance", "policy")


def build_schema(kind: str) -> str:
    """The schema of one of KINDS, as JSON."""
    from rlhf_dialog.training.supervised.settings import IntentConfig, PreferenceConfig, RelevanceConfig, SFTConfig

    stages: tuple[type[Settings], ...] = (Config, SFTConfig, IntentConfig, PreferenceConfig, RelevanceConfig)
    return schema_text(wings.settings(kind) if kind == "policy" else dict(zip(KINDS, stages, strict=False))[kind])


def schema_text(settings: type[Settings]) -> str:
    """The schema of the YAML that is read as `settings`, as JSON. No key is required: the command line may set it."""
    schema = {"$schema": GenerateJsonSchema.schema_dialect, **settings.model_json_schema()}
    for mapping in (schema, *schema.get("$defs", {}).values()):
        mapping.pop("required", None)
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


class SchemaOptions(Options):
    description = (
        "Print the JSON schema (draft 2020-12) of a YAML: every key with its type, range, default and meaning."
    )

    kind: str = option("which YAML: of train (ppo), a supervised stage, train-policy", "ppo", choices=KINDS)


def run(options: SchemaOptions) -> None:
    print(build_schema(options.kind), end="")


main = partial(run_command, SchemaOptions, run)  # the command line; returns the exit code
