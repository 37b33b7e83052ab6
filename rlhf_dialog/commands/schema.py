"""Print the JSON schema of a YAML, with which an editor completes its keys."""

import json
import sys
from functools import partial
from pathlib import Path

from rlhf_dialog import wings
from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.commands.command_line import check_output
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.config.json_schema import Schema, json_schema
from rlhf_dialog.config.registry import EnvironmentFactory, Registry, RewardFactory, VecInfoFactory
from rlhf_dialog.config.settings import Settings
from rlhf_dialog.config.synonyms import NO_EFFECT

KINDS = ("ppo", "sft", "intent", "preference", "relevance", "policy")


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
