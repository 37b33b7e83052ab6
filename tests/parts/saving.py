"""Trainers that are saved and resumed, of every kind that has other files."""

import random

import numpy as np
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.runs.training_state import load_training, save_training
from tests.parts.trainers import Places, make_trainer, numbers_of

CPU = torch.device("cpu")
KINDS = {
    "shared trunk": {},
    "separate critic": {"use_share_model": False},
    "no value normalisation": {"use_valuenorm": False},
    "filtered, decay": {"top_k": 30, "use_linear_lr_decay": True, "max_iterations": 9, "weight_decay": 0.01},
    "without critic": {"advantage_estimator": "rloo", "num_responses_per_prompt": 3},
}


class Moody(Places):
    """A reward that draws from all three random generators."""

    def __call__(self, dialogues):
        drawn = random.random() + np.random.random() + torch.rand(()).item()
        return [value + drawn for value in super().__call__(dialogues)]


def build(kind):
    random.seed(0)
    np.random.seed(0)
    return make_trainer(Moody(), lr=3e-3, **KINDS[kind])


def modules(trainer):
    found = {"policy": trainer.models.policy, "critic": trainer.models.critic}
    return {name: module for name, module in found.items() if module is not None}


def save(trainer, folder):
    return save_training(folder, trainer.config, trainer.state_dict(), modules(trainer), trainer.optimizers)


def resume(kind, folder):
    """New objects with everything from the checkpoint."""
    trainer = build(kind)
    torch.manual_seed(999)  # whatever the new process has drawn before
    trainer.load_state_dict(load_training(folder, modules(trainer), trainer.optimizers, World()))
    return trainer


def steps(trainer, count):
    return [numbers_of(trainer.step()) for _ in range(count)]
