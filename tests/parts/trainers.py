"""A PPOTrainer on the tiny GPT-2, with rewards that are made for it."""

import copy
import math
from dataclasses import replace

import torch

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.metrics import VecInfo
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.policy import Critic, Policy
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.training.rollout import Clock, collect_rollout
from rlhf_dialog.training.trainer import PPOTrainer
from rlhf_dialog.training.update import PPOUpdate
from tests.parts.tiny import byte_tokenizer, gpt2

PROMPTS = [Dialogue([f"{letter} ?"], meta={"index": i}) for i, letter in enumerate("abcdefghijklmnop")]


class Share(BaseReward):
    """The share of one letter in the response."""

    name = "share"

    def __call__(self, dialogues):
        return [d.response.count("e") / max(len(d.response), 1) for d in dialogues]


class Places(BaseReward):
    """Something that differs from response to response."""

    name = "places"

    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, dialogues):
        return [self.scale * ((i * 7) % 5 - 1.5) for i in range(len(dialogues))]


def settings(**keys):
    small = {"rollout_batch_size": 6, "max_new_tokens": 5, "num_mini_batch": 2, "ppo_epoch": 2, "lr": 1e-3}
    base = {"model_path": "tiny", "env": {"args": {"data_path": "unused"}}, "reward_class": {"id": "Meteor"}}
    return Config(**{**base, **small, "critic_lr": 1e-3, "use_share_model": True, **keys})


def make_trainer(
    reward=None,
    ref_seed=0,
    vec_info=None,
    use_amp=False,
    world=None,
    double=False,
    new_lm=gpt2,
    prompts=PROMPTS,
    parts=None,
    **keys,
):
    """A trainer on the tiny GPT-2, or on `new_lm(seed)`, built as `load_models` would, on the world's device.

    `parts`: further arguments of PPOTrainer. A third of the tokens end a response.
    """
    config = settings(**keys, use_amp=use_amp)
    gae = config.advantage_estimator == "gae"
    lm = new_lm(0)
    lm.generation_config.eos_token_id = list(range(160, 240))
    policy = Policy(lm, gae and config.use_share_model, bool(use_amp)).eval()
    critic = Critic(new_lm(0), bool(use_amp)).eval() if gae and not config.use_share_model else None
    ref_policy = Policy(new_lm(ref_seed), use_amp=bool(use_amp)).eval().requires_grad_(False)
    ref_policy = ref_policy if config.reference else None
    for model in filter(None, (policy, critic, ref_policy)):
        model.to(world.device if world else "cpu", torch.float64 if double else torch.float32)
    torch.manual_seed(config.seed)
    models = Models(policy, critic, ref_policy, byte_tokenizer())
    return PPOTrainer(config, models, prompts, reward or Places(), vec_info or VecInfo(), world, **(parts or {}))


def numbers_of(metrics):
    """What is no time, and is a number."""
    return {
        name: x for name, x in metrics.items() if name != "FPS" and not name.startswith("time/") and math.isfinite(x)
    }


def parameters(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


class Holes(BaseReward):
    """None, NaN or inf at some places, else something that differs from response to response."""

    name = "holes"

    def __init__(self, places, value=None):
        self.places, self.value = places, value

    def __call__(self, dialogues):
        return [self.value if i in self.places else (i * 7) % 5 - 1.5 for i in range(len(dialogues))]


def collect_next(trainer):
    """What is collected on the next prompts, without an update."""
    scorer, keep_features, clock = trainer.scorer, trainer.keep_features, Clock(trainer.models.policy.lm.device)
    responder = trainer.begin_rollout(clock)
    return collect_rollout(trainer.next_episodes(), responder, scorer, trainer.models, keep_features, clock)


def collect_stored(trainer, collected, rows):
    """From now on the trainer collects these rows of what was collected."""
    check = trainer.check
    stored = copy.deepcopy(collected.select(rows))
    stored = replace(stored, num_generated=stored.num_tokens, num_dropped=0)
    trainer.check = lambda _: check(stored)


def change_predictions(monkeypatch, change):
    """The update goes on with `change(predictions, microbatch)`; `monkeypatch` may be None in a process of its own."""
    predict = PPOUpdate.predict

    def changed(self, microbatch):
        return change(predict(self, microbatch), microbatch)

    if monkeypatch is None:
        PPOUpdate.predict = changed
    else:
        monkeypatch.setattr(PPOUpdate, "predict", changed)
