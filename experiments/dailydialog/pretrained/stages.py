"""The stages of a pretrained size in their order."""

from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.dailydialog import training
from experiments.dailydialog.pretrained import choosing, measuring, table
from experiments.dailydialog.pretrained import training as pretrained
from experiments.dailydialog.pretrained.estimate import FOR_B, estimate
from experiments.dailydialog.scene import ESTIMATE, Scene
from experiments.dailydialog.sizes import A, B
from experiments.dailydialog.stages import Stage


def _nothing(scene: Scene) -> dict[str, Any]:
    return {}


def _supervised(name: str, title: str) -> Stage:
    settings = partial(training.supervised_settings, stage=name)
    run: Callable[[Scene], None] = partial(training.train_supervised, stage=name)
    return Stage(name, title, (ESTIMATE,), settings, partial(_if_b, run=run) if name in FOR_B else run)


def _if_b(scene: Scene, run: Callable[[Scene], None]) -> None:
    """Run it where the learned reward is trained at all."""
    if pretrained.agents(scene, B):
        run(scene)


def _ppo(name: str, title: str, needs: tuple[str, ...]) -> Stage:
    settings = partial(pretrained.ppo_settings, name=name)
    return Stage(name, title, ("sft", "settings", *needs), settings, partial(pretrained.train_ppo, name=name))


def _sft_settings(scene: Scene) -> dict[str, Any]:
    found = training.supervised_settings(scene, "sft")
    return found | {"word_prompts": pretrained.WORD_PROMPTS, "floor_prompts": pretrained.FLOOR_PROMPTS}


def _validation_settings(scene: Scene) -> dict[str, Any]:
    return {"prompts": scene.plan["validation_prompts"]}


def _leak_settings(scene: Scene) -> dict[str, Any]:
    return {"dialogues": scene.size.leak_dialogues}


def _chat_settings(scene: Scene) -> dict[str, Any]:
    return {"lines": scene.size.chat_lines}


ACT_JUDGES = ("act_judge", "act_judge_minilm")
REWARD = ("relevance", "relevance_order")
JUDGES = ("judge_convolution", "judge_bag", "other_half")
STAGES = (
    Stage(ESTIMATE, "measure this machine, and estimate how long everything takes", (), _nothing, estimate),
    Stage(
        "sft",
        "supervised fine-tuning of all weights of the chat model",
        (ESTIMATE,),
        _sft_settings,
        pretrained.train_sft,
    ),
    _supervised("intent", "the act classifier of the reward: MiniLM, on one half of the dialogues"),
    _supervised("act_judge", "a judge of acts: a BERT from scratch, on the other half"),
    _supervised("act_judge_minilm", "a second judge of acts: MiniLM, on the other half"),
    _supervised("relevance", "the relevance model of the learned reward"),
    _supervised("relevance_order", "its second relevance model, which knows the order of words"),
    _supervised("judge_convolution", "a judge of relevance: another architecture, the other half"),
    _supervised("judge_bag", "a second judge of relevance: another seed, the other half"),
    _supervised("other_half", "a small GPT-2 of the other half, for mutual information"),
    Stage(
        "settings",
        "PPO A with each of the settings, chosen on validation",
        ("sft", "intent", *ACT_JUDGES),
        pretrained.settings_settings,
        choosing.choose,
    ),
    _ppo(A, "PPO with the reward of OpenRL's documentation: intent, METEOR, adaptive KL", ("intent",)),
    _ppo(B, "PPO with the learned reward", REWARD),
    Stage(
        "speed",
        "our benchmark with the settings of OpenRL's documentation",
        (ESTIMATE,),
        _nothing,
        pretrained.benchmark,
    ),
    Stage(
        "validation",
        "measure on validation; chosen.json says what the test split will be read for",
        (A, B, *ACT_JUDGES),
        _validation_settings,
        measuring.validate,
    ),
    Stage("test", "measure on test", ("validation", *JUDGES), measuring.test_settings, measuring.test),
    Stage("leak", "has the start seen the test split before?", ("validation",), _leak_settings, measuring.find_leaks),
    Stage("chat", "lines of other people, answered by each model", ("validation",), _chat_settings, measuring.chat),
    Stage("table", "the tables of results", ("test", "leak", "chat", "speed"), _nothing, table.write),
)
NAMES = tuple(stage.name for stage in STAGES)
