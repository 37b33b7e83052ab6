"""Print the JSON schema of a YAML, with which an editor completes its keys."""

from functools import partial

from rlhf_dialog import wings
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.settings import Settings, schema_text

KINDS = ("ppo", "sft", "intent", "preference", "relevance", "policy")


def build_schema(kind: str) -> str:
    """The schema of one of KINDS, as JSON."""
    from rlhf_dialog.training.supervised.settings import IntentConfig, PreferenceConfig, RelevanceConfig, SFTConfig

    stages: tuple[type[Settings], ...] = (Config, SFTConfig, IntentConfig, PreferenceConfig, RelevanceConfig)
    return schema_text(wings.settings(kind) if kind == "policy" else dict(zip(KINDS, stages, strict=False))[kind])


class SchemaOptions(Options):
    description = (
        "Print the JSON schema (draft 2020-12) of a YAML: every key with its type, range, default and meaning."
    )

    kind: str = option("which YAML: of train (ppo), a supervised stage, train-policy", "ppo", choices=KINDS)


main = partial(run_command, SchemaOptions, lambda options: print(build_schema(options.kind), end=""))
