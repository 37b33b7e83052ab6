"""RLHF fine-tuning for generative dialog language models. The names below are the public ones; each is imported when used.

Import it before torch: it sets how long torch's waiting threads spin, and how its CUDA memory grows (`distributed.runtime`).
"""

from importlib import import_module
from typing import Any

from rlhf_dialog import wings
from rlhf_dialog.config import registry
from rlhf_dialog.distributed import runtime

runtime.spin_briefly()
runtime.grow_segments()
registry.OFFERED.update({kind: wings.registered_ids(kind) for kind in ("environment", "policy", "baseline")})
_HOME = {
    "AdvantageFactory": "config.registry",
    "BaseReward": "rewards.base",
    "ChatAgent": "models.chat_agent",
    "CompositeReward": "rewards.composite",
    "Config": "config.schema",
    "Dialogue": "data.dialogue",
    "EnvironmentFactory": "config.registry",
    "LossFactory": "config.registry",
    "MetricFactory": "config.registry",
    "ModelFactory": "config.registry",
    "NLPReward": "rewards.nlp_reward",
    "NLPVecInfo": "metrics.nlp",
    "NoScore": "rewards.base",
    "PPOAgent": "runs.agent",
    "PPOTrainer": "training.trainer",
    "RewardFactory": "config.registry",
    "Rollout": "training.rollout",
    "UserError": "errors",
    "VecInfo": "metrics.nlp",
    "VecInfoFactory": "config.registry",
    "load_config": "config.loading",
    "main": "commands.train",
    "watch": "runs.watch",
}
__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rlhf_dialog' has no attribute '{name}'")
    return getattr(import_module(f"rlhf_dialog.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
