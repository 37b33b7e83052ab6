"""The stages in their order: what each needs, what decides it, and what it does."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments.dailydialog import measuring, table, training
from experiments.dailydialog.estimate import estimate
from experiments.dailydialog.record import begin, done, end, spend, spent
from experiments.dailydialog.scene import ESTIMATE, Scene, Stopwatch


@dataclass(frozen=True)
class Stage:
    """One folder of the work. needs: stages that it reads; settings: what decides it beside them, the data and the versions."""

    name: str
    title: str
    needs: tuple[str, ...]
    settings: Callable[[Scene], dict[str, Any]]
    run: Callable[[Scene], None]


def _nothing(scene: Scene) -> dict[str, Any]:
    return {}


def _supervised(name: str, title: str) -> Stage:
    settings = partial(training.supervised_settings, stage=name)
    return Stage(name, title, (ESTIMATE,), settings, partial(training.train_supervised, stage=name))


def _ppo_settings(scene: Scene) -> dict[str, Any]:
    return {agent.folder: training.ppo_settings(scene, agent) for agent in scene.size.agents}


def _validation_settings(scene: Scene) -> dict[str, Any]:
    return {"prompts": scene.size.validation_prompts}


def _test_settings(scene: Scene) -> dict[str, Any]:
    size = scene.size
    bias = {"bias_tokens": size.bias_tokens}
    return bias | {"prompts": size.test_prompts, "draws": size.draws, "few": size.pretrained_prompts, **scene.judges()}


REWARD = ("sft", "relevance", "relevance_order")  # the models that it asks
JUDGED = (*measuring.MEASURED, *REWARD[1:], "judge_convolution", "judge_bag", "act_judge")
STAGES = (
    Stage(ESTIMATE, "measure this machine, and estimate how long everything takes", (), _nothing, estimate),
    _supervised("sft", "supervised fine-tuning of a small GPT-2 from scratch"),
    _supervised("relevance", "the relevance model of the reward"),
    _supervised("relevance_order", "the reward's second relevance model, which knows the order of words"),
    _supervised("judge_convolution", "a judge of relevance: another architecture, the other half of the dialogues"),
    _supervised("judge_bag", "a second judge of relevance: another seed, the other half of the dialogues"),
    _supervised("act_judge", "a judge of acts"),
    Stage(
        "audit",
        "look for holes of the reward",
        (*REWARD, "judge_convolution", "act_judge"),
        lambda scene: {"words": list(scene.size.audit), **scene.judges()},
        training.audit_reward,
    ),
    Stage(
        "ppo",
        "PPO from the SFT model, several seeds and estimators",
        REWARD,
        _ppo_settings,
        training.train_ppo,
    ),
    Stage(
        "best_of_4",
        "what PPO's tokens are worth as draws: SFT on the best of four",
        REWARD,
        training.draws_settings,
        training.train_on_best,
    ),
    Stage(
        "dpo",
        "DPO on the best and the worst of the same draws",
        ("best_of_4",),
        training.dpo_settings,
        training.train_dpo,
    ),
    Stage(
        "validation",
        "measure on validation; chosen.json says what the test split will be read for",
        JUDGED,
        _validation_settings,
        measuring.validate,
    ),
    Stage("test", "measure on test", ("validation",), _test_settings, measuring.test),
    Stage("table", "the table of results", ("test", "audit"), _nothing, table.write),
)
NAMES = tuple(stage.name for stage in STAGES)


def after(name: str, stages: tuple[Stage, ...] = STAGES) -> list[str]:
    """The stage and all that need it, at any distance."""
    names = [name]
    for stage in stages:
        if set(stage.needs) & set(names):
            names.append(stage.name)
    return list(dict.fromkeys(names))


def run_stage(stage: Stage, scene: Scene) -> bool:
    """Run the stage, unless it is done; returns whether it was. Raises UserError where it was made with something else."""
    needs = {name: done(scene.folder(name))["hash"] for name in stage.needs if name != ESTIMATE}
    for name in stage.needs:
        done(scene.folder(name))
    folder = scene.folder(stage.name)
    if begin(folder, {**scene.common(), "needs": needs, "settings": stage.settings(scene)}):
        return True
    before, watch = spent(folder), Stopwatch()
    try:
        stage.run(scene)
    finally:
        spend(folder, before + watch.seconds)
    end(folder)
    return False
