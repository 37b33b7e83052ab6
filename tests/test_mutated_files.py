"""Mutated files of every kind that a path accepts: they are read, or a UserError of one sentence says why."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from rlhf_dialog.config.loading import load_config
from rlhf_dialog.data.sources import load_records
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.formats import native
from rlhf_dialog.feedback.store.store import Rating, Store, TurnOrigin
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.runs.publish import package
from rlhf_dialog.runs.training_state import load_training
from rlhf_dialog.runs.verification import add_seal
from rlhf_dialog.task_oriented.commands.evaluate_policy import EvaluatePolicyOptions
from rlhf_dialog.task_oriented.commands.evaluate_policy import run as evaluate_policy
from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import build_policy
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler
from rlhf_dialog.task_oriented.runs.checkpoint import save_policy_agent
from rlhf_dialog.task_oriented.runs.settings import load_policy_config
from rlhf_dialog.task_oriented.runs.training_world import open_world
from rlhf_dialog.task_oriented.world.action_list_world import read_actions
from tests.parts import agents, evaluations
from tests.parts.damage import wreck
from tests.parts.data_files import jsonl_bytes, original_files, rows_of
from tests.parts.policy_runs import domain_file, policy_config, policy_run
from tests.parts.saving import build, modules, save
from tests.parts.small_domain import DATA

SMALL_ARGS = {"ppo": {"hidden_sizes": [8]}, "gp_sarsa": {"max_points": 20}}


@dataclass(frozen=True)
class Kind:
    """files: patterns of those that are damaged."""

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    files: tuple[str, ...]


def policy_agent(name: str) -> Callable[[Path], None]:
    """The agent of a policy that has learned a little."""

    def make(folder: Path) -> None:
        settings = {"domain": str(domain_file(folder)), "error_rate": 0.1, "user": "friendly", "max_turns": 5}
        scene = open_world(settings)
        args = SMALL_ARGS.get(name, {"hidden_sizes": [8]})
        policy = build_policy(name, args, PolicySpec(scene.num_features, len(scene.names), 0, scene.domain))
        with closing(Sampler(scene.make, 0, 2)) as sampler:
            for episode in sampler.sample(policy, 40):
                policy.observe(episode)
        policy.update()
        save_policy_agent(folder / "agent", policy, settings | {"policy": {"id": name, "args": args}}, scene)

    return make


def evaluate(folder: Path) -> None:
    output = folder / "evaluation.json"
    evaluate_policy(EvaluatePolicyOptions(agent=folder / "agent", dialogues=2, output=output))


def language_model(folder: Path) -> None:
    agents.save(folder, {"max_new_tokens": 4, "max_prompt_length": 100})


def talk(folder: Path) -> None:
    ChatAgent.load(folder).chat("Hello there .", ["Hi .", "Good ."])


def training(folder: Path) -> None:
    trainer = build("shared trunk")
    trainer.step()
    save(trainer, folder)


def resumed(folder: Path) -> None:
    trainer = build("shared trunk")
    trainer.load_state_dict(load_training(folder, modules(trainer), trainer.optimizers, World()))
    with suppress(RunStopped):
        trainer.step()


def policy_run_of(name: str, folder: Path, **keys: Any) -> None:
    policy = {"id": name, "args": SMALL_ARGS.get(name, {"hidden_sizes": [8]})}
    with suppress(RunStopped):  # a check of the run: one sentence too
        policy_run(folder, eval_interval=2, policy=policy, **keys).run()


def policy_resumed(name: str, folder: Path) -> None:
    """The hashes are those of the damaged files: a stranger can write them too."""
    (source,) = (folder / "run/checkpoints").glob("iter_*2")
    path = source / "trainer.json"
    try:
        state = json.loads(path.read_text())
        del state["files"], state["sizes"], state["sha256"]
        path.unlink()
        path.write_text(json.dumps(add_seal(source, state)))
    except (ValueError, KeyError, TypeError, RecursionError):
        path.touch()
    policy_run_of(name, folder, epoch=3, resume="auto")


def evaluation(folder: Path) -> None:
    numbers = {"mean": 0.3, "low": 0.2, "high": 0.4}
    rows = {name: {"score": numbers, "meteor": numbers} for name in ("repeat_last_turn", "true_replies")}
    settings = {"split": "test", "num_prompts": 50, "baseline": "start", "data_path": "d", "notes": ["New."]}
    one = {"score": numbers, "meteor": numbers}
    tree = {"before": one, "after": one, "difference": one, "baselines": rows, "settings": settings}
    (folder / "evaluation.json").write_text(json.dumps(tree))
    reward = {"id": "Meteor", "args": {}}
    config = {"model_path": "m", "lr": 3e-5, "env": {"args": {"data_path": "d"}}, "reward_class": reward}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    agents.save(folder / "agent", {"max_new_tokens": 4})


def card(folder: Path) -> None:
    package(folder / "agent", "a/b", "--agent", folder / "evaluation.json")


def pydial(folder: Path) -> None:
    names = {"name": ["ada", "ben", "cid", "dot", "eve"]}
    rules = {"type": "cafe", "requestable": DATA["requestable"], "system_requestable": ["tea", "area"]}
    rules |= {"informable": {**DATA["constraints"], **names}, "method": ["none"], "discourseAct": ["none"]}
    (folder / "tea-rules.json").write_text(json.dumps(rules))
    columns = ["name", "tea", "area", "phone", "hours"]
    with closing(sqlite3.connect(folder / "tea-dbase.db")) as connection:
        connection.execute(f"create table tea ({', '.join(columns)})")
        for entity in DATA["entities"]:
            connection.execute("insert into tea values (?, ?, ?, ?, ?)", [entity.get(name) for name in columns])
        connection.commit()


def yaml_files(folder: Path) -> None:
    evaluations.save_run(folder, str(folder), 0)
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy_config(folder).model_dump()))


def configs(folder: Path) -> None:
    load_config(folder / "config.yaml")
    load_policy_config(folder / "policy.yaml", {})


def store(folder: Path) -> None:
    whole = Store.create(folder / "feedback.sqlite")
    dialogue = whole.begin("ann", "terminal")
    answer = whole.add_turn(dialogue, 0, "agent", "Yes .", TurnOrigin([1], [-0.5], {}, "0001"))
    whole.add_feedback(dialogue, "ann", Rating("thumb", turn=answer, value=1))
    whole.close()


def events(folder: Path) -> None:
    with closing(Store(folder / "feedback.sqlite")) as whole:
        whole.check()
        assert [whole.people(), whole.feedback(), native.export_rows(whole)]


def bot(folder: Path) -> None:
    agents.save(folder / "model", {"max_new_tokens": 4, "max_prompt_length": 100})
    Bot.create(folder / "bot", str(folder / "model"))


def action_list(folder: Path) -> None:
    listed: list[dict[str, Any]] = [{"name": "hello", "sentence": "Hello .", "first": True}]
    listed += [{"name": "bye", "sentence": "Goodbye .", "words": ["bye"], "ends": True, "not_after": ["hello"]}]
    listed.append({"name": "again", "sentence": "Pardon ?"})
    (folder / "actions.json").write_text(json.dumps(listed))


SAVED = ("run/checkpoints/iter_*2/*",)
KINDS = {
    **{name: Kind(policy_agent(name), evaluate, ("agent/*",)) for name in ("ppo", "gp_sarsa", "feudal")},
    "language model": Kind(language_model, talk, ("*.json", "*.safetensors")),
    "training": Kind(training, resumed, ("iter_*/trainer.json", "iter_*/*.safetensors", "latest")),
    **{
        f"{name} training": Kind(
            partial(policy_run_of, name, epoch=2), partial(policy_resumed, name), ("run/checkpoints/iter_*2/*",)
        )
        for name in ("ppo", "dqn", "gp_sarsa")
    },
    "config": Kind(yaml_files, configs, ("*.yaml",)),
    "store": Kind(store, events, ("feedback.sqlite",)),
    "bot": Kind(bot, lambda folder: Bot(folder / "bot").lineage(), ("bot/lineage.json",)),
    "jsonl": Kind(
        lambda folder: (folder / "a.jsonl").write_bytes(jsonl_bytes(rows_of("train"))),
        lambda folder: load_records(str(folder / "a.jsonl"), "train"),
        ("a.jsonl",),
    ),
    "DailyDialog": Kind(
        lambda folder: original_files(folder, "train"), lambda folder: load_records(str(folder), "train"), ("train/*",)
    ),
    "domain": Kind(domain_file, lambda folder: load_domain(folder / "tea.json"), ("tea.json",)),
    "PyDial": Kind(pydial, lambda folder: load_domain(folder), ("tea-*",)),
    "evaluation": Kind(evaluation, card, ("config.yaml", "evaluation.json")),
    "action list": Kind(action_list, lambda folder: read_actions(folder / "actions.json").actions, ("*.json",)),
}


QUICK = ("domain", "jsonl", "evaluation", "action list")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder with whole files of a kind, which are read."""
    made = {}

    def folder_of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("whole")
            KINDS[name].make(made[name])
        return made[name]

    return folder_of


def outcomes(name, whole, folder, seeds):
    """The number that was read, and what ended neither well nor with a UserError of a few words."""
    kind, read, wrong = KINDS[name], 0, []
    for seed in seeds:
        target = folder / str(seed)
        shutil.copytree(whole(name), target)
        files = sorted(path for pattern in kind.files for path in target.glob(pattern) if path.is_file())
        done = wreck(Random(seed).choice(files), seed)
        try:
            kind.read(target)
            read += 1
        except UserError as error:
            if len(str(error)) > 2000:
                wrong.append((seed, done, "long"))
        except Exception as error:
            wrong.append((seed, done, f"{type(error).__name__}: {error}"[:200]))
        shutil.rmtree(target)
    return read, wrong


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def test_a_mutated_file_is_read_or_says_what_is_wrong(name, whole, tmp_path):
    shutil.copytree(whole(name), tmp_path / "whole")
    KINDS[name].read(tmp_path / "whole")
    read, wrong = outcomes(name, whole, tmp_path, range(20))
    assert wrong == []
    assert read < 20
