"""One optimizer step of plain SGD, seen in its gradients and in what it moves."""

import torch
from torch import Tensor

from rlhf_dialog.distributed import process_group, strategy
from rlhf_dialog.distributed.placement import NewOptimizer, new_optimizer
from rlhf_dialog.distributed.world import World
from rlhf_dialog.metrics import VecInfo
from rlhf_dialog.models import policy as policy_module
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.training.rollout import Collected
from rlhf_dialog.training.trainer import PPOTrainer
from tests.parts.trainers import PROMPTS, Places, collect_stored, make_trainer, parameters, settings

LR = 0.5


def one_step(trainer: PPOTrainer) -> dict:
    """The gradient and the change of every parameter in one step, and its metrics."""
    gradients, before = {}, {}
    for name, engine in trainer.engines.items():
        before |= {f"{name}.{key}": p for key, p in parameters(engine.module).items()}

        def step(name=name, engine=engine):
            found = engine.module.named_parameters()
            gradients.update({f"{name}.{key}": p.grad.clone() for key, p in found if p.grad is not None})
            engine.optimizer.step()

        engine.step = step
    metrics = trainer.step()
    after = {f"{name}.{key}": p for name, e in trainer.engines.items() for key, p in e.module.named_parameters()}
    moved = {key: (before[key] - after[key].detach()) / LR for key in before}
    return {"gradients": gradients, "moved": moved, "metrics": metrics}


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest norm of a difference as a share of the norm."""
    assert set(found) == set(expected)
    assert all(expected[key].norm() > 0 for key in expected)
    return max(((found[key] - expected[key]).norm() / expected[key].norm()).item() for key in expected)


def sgd_learner(collected: Collected | None, rows: list[list[int]], ranks: World, **keys) -> PPOTrainer:
    """A trainer that descends with plain SGD on its rank's rows of what was collected; ZeRO or FSDP2 may divide its weights."""
    parts = {"optimizer": lambda module, config, lr: torch.optim.SGD(module.parameters(), lr=LR)}
    keys |= {"ref_model": "another", "num_mini_batch": 1, "ppo_epoch": 1, "lr": LR, "critic_lr": LR}
    original_head, policy_module.new_value_head = policy_module.new_value_head, _value_head
    try:
        trainer = make_trainer(ref_seed=3, world=ranks, parts=parts, **keys)
    finally:
        policy_module.new_value_head = original_head
    if collected is not None:
        collect_stored(trainer, collected, rows[ranks.rank])
    return trainer


def _value_head(lm):
    """Not at zero, where nothing below it has a gradient of the values."""
    head = policy_module.ValueHead(lm.get_output_embeddings().in_features, 1)
    head.weight.data = torch.arange(head.weight.numel()).sin().view_as(head.weight) / 10
    head.bias.data.fill_(0.3)
    return head


def lora_trainer(
    folder: str, world: World | None = None, double: bool = True, optimizer: NewOptimizer = new_optimizer, **keys
) -> PPOTrainer:
    """A trainer of adapters with opinions, on a saved model; by default in the world of the process."""
    config = strategy.settle(settings(model_path=folder, use_lora=True, **keys))
    world = process_group.start(config) if world is None else world
    models = load_models(config, world.device)
    models.policy.lm.generation_config.eos_token_id = list(range(160, 240))
    for model in filter(None, (models.policy, models.critic, models.ref_policy)):
        model.to(torch.float64 if double else torch.float32)
        for name, p in model.named_parameters():
            if "lora_B" in name or "value_head" in name:  # at zero nothing below them has a gradient
                p.data += (torch.arange(p.numel()).sin() / 10).view(p.shape).to(p)
    torch.manual_seed(config.seed)
    parts = {"from_reference": False, "optimizer": optimizer}
    return PPOTrainer(config, models, PROMPTS, Places(), VecInfo(), world, **parts)


def whole_step(trainer: PPOTrainer) -> dict:
    """The change of every whole parameter in one step, and its metrics; all ranks call it."""
    before = _whole_weights(trainer)
    metrics = trainer.step()
    after = _whole_weights(trainer)
    return {"moved": {key: (before[key] - after[key]) / LR for key in before}, "metrics": metrics}


def _whole_weights(trainer: PPOTrainer) -> dict[str, Tensor]:
    found = {}
    with trainer.placement.writable_weights():
        for name, engine in trainer.engines.items():
            found |= {f"{name}.{key}": p.clone() for key, p in parameters(engine.module).items()}
    return found
