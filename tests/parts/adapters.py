"""Trainers whose policy has adapters."""

import torch

from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.models.lora import trainable_parameters
from rlhf_dialog.training.trainer import PPOTrainer
from tests.parts.saved_models import CPU
from tests.parts.trainers import PROMPTS, Places, settings

R, ALPHA = 4, 6.0


def config_of(path, **keys):
    return settings(**{"model_path": path, "use_lora": True, "lora_r": R, "lora_alpha": ALPHA, **keys})


def disturb(module, seed=0):
    """Adapters that change something, and a head that does."""
    torch.manual_seed(seed)
    for name, parameter in trainable_parameters(module).items():
        if "lora_B" in name or "value_head" in name:
            torch.nn.init.normal_(parameter, std=0.3)


def build(path, **keys):
    """A trainer as PPOAgent builds it."""
    config = config_of(path, **keys)
    models = load_models(config, CPU)
    models.policy.lm.generation_config.eos_token_id = list(range(160, 240))
    torch.manual_seed(config.seed)
    return PPOTrainer(config, models, PROMPTS, Places(), VecInfo())
