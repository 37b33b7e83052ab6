"""What a reward says of the models inside of it, and who asks: placement, forecast, identity, scoring beside other work."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ranks import CONFIG
from test_trainer import make_trainer
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.deepspeed_config import FrozenSettings
from rlhf_dialog.distributed.memory import forecast
from rlhf_dialog.distributed.placement import Sharing
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import BaseReward, CompositeReward, RewardError, build_reward, scored
from rlhf_dialog.rewards.base import Part, models_inside, needs_device, walk
from rlhf_dialog.rewards.composite import model_paths
from rlhf_dialog.runs import identity

DIALOGUES = [Dialogue(["Hi ."], response="Hello ."), Dialogue(["Bye ."], response="")]
DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2, 3])
BERT = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Judge(BaseReward):
    """A reward of a user's with a frozen model of its own."""

    name = "judge"

    def __init__(self, folder="nowhere", bias=0.0):
        self.model = nn.Linear(1, 1).requires_grad_(False)
        nn.init.constant_(self.model.weight, 0.5)
        nn.init.constant_(self.model.bias, bias)

    def __call__(self, dialogues):
        lengths = torch.tensor([[float(len(d.response))] for d in dialogues], device=self.model.weight.device)
        return self.model(lengths).flatten().tolist()

    def frozen_models(self):
        return {"judge": self.model}

    @classmethod
    def model_paths(cls, args):
        return {"judge": args["folder"]}


class Halved(BaseReward):
    """A reward that asks another one."""

    name = "halved"

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, dialogues):
        return [score / 2 for score in self.inner(dialogues)]

    def children(self):
        return [self.inner]


class Words(BaseReward):
    name = "words"

    def __call__(self, dialogues):
        return [float(len(d.response.split())) for d in dialogues]


def summed(*rewards):
    reward = CompositeReward.__new__(CompositeReward)
    reward._set_parts([Part(0.5, one) for one in rewards])
    return reward


def inside(depth, reward):
    for _ in range(depth):
        reward = summed(Words(), reward)
    return reward


@pytest.fixture
def judges(monkeypatch):
    monkeypatch.setattr(RewardFactory, "classes", RewardFactory.classes | {"Judge": Judge, "Words": Words})


def yaml_inside(depth: int, *parts: dict) -> dict:
    for _ in range(depth):
        parts = ({"id": "CompositeReward", "args": {"parts": [{"id": "Words"}, *parts]}},)
    return parts[0]


@DEPTHS
def test_a_model_is_moved_to_the_device(depth):
    judge = Judge()
    reward = inside(depth, Halved(judge))
    assert reward.to("meta") is reward
    assert {p.device.type for p in judge.model.parameters()} == {"meta"}


@DEPTHS
def test_a_reward_with_a_model_waits_for_the_device(depth):
    assert needs_device(inside(depth, Halved(Judge())))
    assert not needs_device(inside(depth, Halved(Words())))


def test_every_reward_and_every_model_is_met_once():
    judge, other = Judge(), Judge()
    shared = Halved(judge)
    shared.frozen_models = lambda: {"shared": judge.model}
    reward = summed(judge, Words(), inside(1, shared), other)
    met = list(walk(reward))
    assert len(met) == len({id(one) for one in met}) == 7
    found = models_inside(reward)
    assert {name: holder for name, (holder, _) in found.items()} == {"judge": judge, "judge_2": other}


@DEPTHS
def test_the_forecast_counts_models_of_any_reward(depth, judges, tmp_path):
    BertConfig(**BERT, num_labels=4).save_pretrained(tmp_path)
    built = BertForSequenceClassification(BertConfig(**BERT, num_labels=4))
    judge = {"id": "Judge", "args": {"folder": str(tmp_path)}}
    keys = {"model_path": str(tmp_path / "lm"), "reward_class": yaml_inside(depth, judge)}
    make_trainer().models.policy.lm.config.save_pretrained(tmp_path / "lm")
    policy, reference, found = forecast.read_sizes(CONFIG.model_copy(update=config_of(**keys)))
    assert {name: sizes.parameters for name, sizes in found.items()} == {"judge": built.num_parameters()}
    parts = {
        part.name: part.bytes for part in forecast.forecast(policy, reference, found, forecast.setting_of(CONFIG)).parts
    }
    assert parts["weights of the judge"] == 4 * built.num_parameters()


def config_of(**keys):
    return {name: getattr(type(CONFIG).model_validate(CONFIG.model_dump() | keys), name) for name in keys}


def test_a_model_whose_size_cannot_be_read_is_left_out_of_the_forecast(judges, tmp_path, caplog):
    make_trainer().models.policy.lm.config.save_pretrained(tmp_path)
    BertConfig(**BERT).save_pretrained(tmp_path / "bert")
    known, unknown = ({"id": "Judge", "args": {"folder": str(tmp_path / name)}} for name in ("bert", "gone"))
    keys = {"model_path": str(tmp_path), "reward_class": yaml_inside(1, unknown, known, known)}
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        found = forecast.read_sizes(CONFIG.model_copy(update=config_of(**keys)))
    assert set(found[2]) == {"judge_2", "judge_3"}
    assert "the memory forecast leaves out the reward's judge" in caplog.text
    assert str(tmp_path / "gone") in caplog.text


def test_paths_of_models_are_asked_of_the_classes(judges):
    intent = {"id": "Intent", "args": {"intent_model": "acts"}}
    nlp = {"id": "NLPReward", "args": {"intent_model": "more"}}
    node = yaml_inside(2, intent, {"id": "Judge", "args": {"folder": "own"}}, nlp)
    assert model_paths(node["id"], node["args"]) == {
        "act classifier": "acts",
        "judge": "own",
        "act classifier_2": "more",
    }
    for args in ({"intent_model": "x", "intent_coef": 0}, {"intent_model": "x", "intent_coef": "0e0"}, {}):
        assert model_paths("NLPReward", args) == {}
    for args in ({}, {"parts": 3}, {"parts": [3, {}, {"id": []}, {"id": "Intent", "args": 3}, {"id": "gone"}]}, None):
        assert model_paths("CompositeReward", args) == {}  # what builds the reward says what is wrong
    with pytest.raises(RewardError, match=r"reward 'Judge' raised KeyError: 'folder' at .*test_reward_models\.py:\d+"):
        model_paths("CompositeReward", {"parts": [{"id": "Judge"}]})


@DEPTHS
def test_the_identity_holds_the_models_of_a_reward(depth):
    def identity_of(reward):
        trainer = make_trainer(reward)
        return identity.identity_of(trainer.config, trainer.models, trainer.prompts, trainer.reward)

    then = identity_of(inside(depth, Judge()))
    assert list(then["reward models"]) == ["judge"]
    assert then["reward models"]["judge"].startswith("Linear, 2 parameters, ")
    identity.refuse_another_run(identity_of(inside(depth, Judge())), then, Path("a/b/c"))
    with pytest.raises(UserError, match="reward models: "):
        identity.refuse_another_run(identity_of(inside(depth, Judge(bias=1.0))), then, Path("a/b/c"))
    del then["reward models"]  # of an earlier version
    identity.refuse_another_run(identity_of(inside(depth, Judge(bias=1.0))), then, Path("a/b/c"))


def test_the_identity_names_what_a_reward_asks():
    assert identity.part_names(summed(Words(), Halved(Words()))) == ["words", "halved", "words"]


class Carried(nn.Linear):
    """A model that notes where it is carried."""

    def __init__(self):
        super().__init__(1, 1)
        self.places = ["device"]

    def to(self, device):
        self.places.append("cpu" if str(device) == "cpu" else "device")
        return self

    def parameters(self):
        return iter([SimpleNamespace(device=torch.device("cpu" if self.places[-1] == "cpu" else "meta"))])


@DEPTHS
def test_a_frozen_model_waits_on_the_cpu_and_comes_for_each_scoring(depth, monkeypatch):
    """World of a device that is no CPU; the settings are those of `intent_ds_config: eval_ds_config.json`."""
    judges = [Judge(), Judge()]
    during = []
    for judge in judges:
        judge.model = Carried()
        monkeypatch.setattr(judge, "__class__", type("Asked", (Judge,), {"__call__": lambda self, ds: noted(self, ds)}))

    def noted(judge, dialogues):
        during.append(judge.model.places[-1])
        return [1.0] * len(dialogues)

    reward = inside(depth, summed(Halved(judges[0]), judges[1]))
    sharing = Sharing.__new__(Sharing)
    sharing.world, sharing.waiting, sharing.frozen = World(device=torch.device("meta")), [], []
    sharing.config = CONFIG.model_copy(update={"intent_ds_config": "default"})
    sharing._place_frozen(reward)
    assert [judge.model.places for judge in judges] == [["device", "cpu"]] * 2
    for round_ in (1, 2):
        scored(reward, DIALOGUES)
        assert during == ["device"] * 2 * round_
        assert [judge.model.places for judge in judges] == [["device", "cpu", *["device", "cpu"] * round_]] * 2


@DEPTHS
def test_a_frozen_model_is_shared_out(depth, monkeypatch):
    """With `intent_ds_config` of stage 3 the engine gets it; test_deepspeed.py has the engine itself."""
    made = []
    monkeypatch.setattr(
        "rlhf_dialog.distributed.placement.FrozenEngine", lambda module, world, zero: made.append((module, zero))
    )
    wanted = FrozenSettings("x.json", 3, False, {"zero_optimization": {"stage": 3}})
    monkeypatch.setattr(
        "rlhf_dialog.distributed.placement.frozen_settings", lambda _, key: wanted if key.startswith("int") else None
    )
    judge = Judge()
    sharing = Sharing.__new__(Sharing)
    sharing.world, sharing.waiting, sharing.frozen, sharing.config = World(), [], [], CONFIG
    sharing._place_frozen(inside(depth, Halved(judge)))
    assert made == [(judge.model, {"stage": 3})]


def test_a_reward_with_a_model_is_built_and_scored_like_any_other(judges):
    node = yaml_inside(2, {"id": "Judge", "weight": 2.0, "args": {"folder": "f", "bias": 1.0}})
    assert build_reward(node["id"], node["args"])(DIALOGUES) == [2.0 + 2.0 + 2 * (7 / 2 + 1.0), 2 * 1.0]
