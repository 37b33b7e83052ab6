"""The stages of a pretrained size in their order."""

from functools import partial
from typing import Any

from experiments.dailydialog import training
from experiments.dailydialog.pretrained import choosing, measuring, table
from experiments.dailydialog.pretrained import training as pretrained
from experiments.dailydialog.pretrained.estimate import estimate
from experiments.dailydialog.scene import ESTIMATE, Scene
from experiments.dailydialog.stages import Stage


def _nothing(scene: Scene) -> dict[str, Any]:
    return {}


def _supervised(name: str, title: str) -> Stage:
    settings = partial(training.supervised_settings, stage=name)
    return Stage(name, title, (ESTIMATE,), settings, partial(training.train_supervised, stage=name))


def _sft_settings(scene: Scene) -> dict[str, Any]:
    return training.supervised_settings(scene, "sft") | {"word_prompts": pretrained.WORD_PROMPTS}


def _validation_settings(scene: Scene) -> dict[str, Any]:
    return {"prompts": scene.plan["validation_prompts"]}


def _leak_settings(scene: Scene) -> dict[str, Any]:
    return {"dialogues": scene.size.leak_dialogues}


def _chat_settings(scene: Scene) -> dict[str, Any]:
    return {"lines": scene.size.chat_lines}


REWARD, ACT_JUDGES = ("intent", "next_act"), ("act_judge", "act_judge_minilm")
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
    _supervised("next_act", "the act that is expected next, from the prompt alone: MiniLM, on the same half"),
    _supervised("act_judge", "a judge of acts: a BERT from scratch, on the other half"),
    _supervised("act_judge_minilm", "a second judge of acts: MiniLM, on the other half"),
    Stage(
        "settings",
        "short runs of PPO with each of the settings, chosen on validation",
        ("sft", *REWARD, *ACT_JUDGES),
        pretrained.settings_settings,
        choosing.choose,
    ),
    Stage(
        "ppo",
        "PPO: rloo with the expected intent, and gae with the reward of OpenRL's documentation",
        ("sft", *REWARD, "settings"),
        pretrained.ppo_settings,
        pretrained.train_ppo,
    ),
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
        ("ppo", *ACT_JUDGES),
        _validation_settings,
        measuring.validate,
    ),
    Stage("test", "measure on test", ("validation",), measuring.test_settings, measuring.test),
    Stage("leak", "has the start seen the test split before?", ("validation",), _leak_settings, measuring.find_leaks),
    Stage("chat", "lines of other people, answered by each model", ("validation",), _chat_settings, measuring.chat),
    Stage("table", "the tables of results", ("test", "leak", "chat", "speed"), _nothing, table.write),
)
NAMES = tuple(stage.name for stage in STAGES)
