"""What the wings offer to the pipeline: commands, ids of a YAML, and partners for `chat`. The one place that names them.

A wing is a product of its own beside the pipeline of language models, which never imports from one: everything here is the
path of a module, or `module:name`, and is loaded when it is asked for.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

GROUPS = (
    "start here",
    "measure",
    "teach",
    "policies that choose dialogue acts",
    "publish",
    "develop",
)  # in the order of the help
START, MEASURE, TEACH, ACTS, PUBLISH, DEVELOP = GROUPS


class Command(NamedTuple):  # not a dataclass: those load `inspect`, for which `--help` would wait
    """One command. module: with `main(argv) -> exit code`; meaning: what it does, in the help; group: one of GROUPS."""

    module: str
    meaning: str
    group: str


class Wing(NamedTuple):
    """What one wing offers.

    commands: name -> command, in the order of the help
    registered: kind of a registry -> id -> where its class or function is
    chat: what `commands.chat` asks for -> where it is
    settings: kind of YAML -> where its class of keys is
    """

    commands: Mapping[str, Command]
    registered: Mapping[str, Mapping[str, str]]
    chat: Mapping[str, str]
    settings: Mapping[str, str]


TASK_ORIENTED = Wing(
    commands={
        "train-policy": Command(
            "rlhf_dialog.task_oriented.commands.train_policy", "train a dialogue policy that chooses acts", ACTS
        ),
        "evaluate-policy": Command(
            "rlhf_dialog.task_oriented.commands.evaluate_policy",
            "evaluate a dialogue policy next to the handcrafted one",
            ACTS,
        ),
    },
    registered={
        "environment": {
            "restaurant": "rlhf_dialog.task_oriented.world.restaurant:restaurant",
            "language_model_user": "rlhf_dialog.task_oriented.world.users.language_model:LMUser",
        },
        "policy": {
            "ppo": "rlhf_dialog.task_oriented.policies.ppo:PPO",
            "gp_sarsa": "rlhf_dialog.task_oriented.policies.gp_sarsa:GPSarsa",
            "dqn": "rlhf_dialog.task_oriented.policies.dqn:DQN",
            "bbqn": "rlhf_dialog.task_oriented.policies.bbqn:BBQN",
            "feudal": "rlhf_dialog.task_oriented.policies.feudal:Feudal",
            "acer": "rlhf_dialog.task_oriented.policies.acer:ACER",
            "a2c": "rlhf_dialog.task_oriented.policies.a2c:A2C",
            "tracer": "rlhf_dialog.task_oriented.policies.tracer:TRACER",
            "enac": "rlhf_dialog.task_oriented.policies.enac:ENAC",
            "random": "rlhf_dialog.task_oriented.policies.handcrafted:RandomPolicy",
            "handcrafted": "rlhf_dialog.task_oriented.policies.built_in:build_handcrafted",
            "manager": "rlhf_dialog.task_oriented.policies.multi_domain.manager:Manager",
            "committee": "rlhf_dialog.task_oriented.policies.multi_domain.committee:Committee",
        },
        "baseline": {
            "handcrafted": "rlhf_dialog.task_oriented.policies.sampling.in_words:handcrafted_in_words",
            "random": "rlhf_dialog.task_oriented.policies.sampling.in_words:random_in_words",
        },
    },
    chat={"environment": "rlhf_dialog.task_oriented.commands.chat_environment:converse_in"},
    settings={"policy": "rlhf_dialog.task_oriented.runs.settings:PolicyConfig"},
)
FEEDBACK = Wing(
    commands={
        "feedback": Command(
            "rlhf_dialog.feedback.commands.feedback", "collect feedback for a bot and train on it", TEACH
        )
    },
    registered={},
    chat={
        "bots": "rlhf_dialog.feedback.commands.chat:bots_in",
        "partner": "rlhf_dialog.feedback.commands.chat:Partner",
        "words": "rlhf_dialog.feedback.commands.chat:run_word",
    },
    settings={},
)
WINGS = (TASK_ORIENTED, FEEDBACK)


def commands() -> dict[str, Command]:
    """The commands of all wings."""
    return {name: command for wing in WINGS for name, command in wing.commands.items()}


def registered_ids(kind: str) -> dict[str, Callable[[], Any]]:
    """The ids of a kind of registry, each with what loads its class or function."""
    places = {name: place for wing in WINGS for name, place in wing.registered.get(kind, {}).items()}
    return {name: partial(load, place) for name, place in places.items()}


def for_chat(what: str) -> Any:
    """What a wing offers to `chat` under this name."""
    return load(next(wing.chat[what] for wing in WINGS if what in wing.chat))


def settings(kind: str) -> Any:
    """The class of the keys of a wing's YAML."""
    return load(next(wing.settings[kind] for wing in WINGS if kind in wing.settings))


def load(place: str) -> Any:
    """What `module:name` says."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
