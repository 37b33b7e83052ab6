"""What every launcher starts: a step, a run and a resumed run of each shape, held against those of one process.

python -m tests.parts.launched FOLDER one              writes the models, the rollouts and the steps to FOLDER
LAUNCHER -m tests.parts.launched FOLDER NAME [JSON]    compares, with keys as JSON; ends with code 0 where all is equal
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlhf_dialog import PPOAgent
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.distributed import placement, process_group
from rlhf_dialog.metrics import VecInfo
from rlhf_dialog.models import policy as policy_module
from rlhf_dialog.models.loading import load_causal_lm, load_models
from rlhf_dialog.models.lora import trainable_parameters
from rlhf_dialog.training.trainer import PPOTrainer
from tests.parts.rank_runs import weights
from tests.parts.saved_models import CPU, save
from tests.parts.steps import LR, distance
from tests.parts.tiny import gpt2, llama, write_data
from tests.parts.trainers import PROMPTS, Places, collect_next, collect_stored, settings

SHAPES: dict[str, dict[str, Any]] = {
    "shared": {"model": "gpt2", "use_share_model": True},  # embeddings and head are one
    "separate": {"model": "llama", "use_share_model": False},
    "adapter": {"model": "gpt2", "use_share_model": True, "use_lora": True, "kl_in": "loss"},
    "adapters": {"model": "llama", "use_share_model": False, "use_lora": True},
}
RESPONSES = 7


def head_with_a_gradient_below(lm: nn.Module) -> nn.Linear:
    """At zero, nothing below it has one."""
    head = policy_module.ValueHead(lm.get_output_embeddings().in_features, 1)
    head.weight.data = torch.arange(head.weight.numel()).sin().view_as(head.weight) / 10
    head.bias.data.fill_(0.3)
    return head


def learner(folder: Path, shape: str, exact: bool, more: dict[str, Any]) -> PPOTrainer:
    """A trainer whose whole rollout is one minibatch, in float64 where it is to be `exact`, and which descends with SGD."""
    keys = dict(SHAPES[shape])
    model, adapted = keys.pop("model"), "use_lora" in keys
    reference = {} if adapted else {"ref_model": str(folder / f"{model}_other")}
    sizes = {"rollout_batch_size": RESPONSES, "num_mini_batch": 1, "ppo_epoch": 1, "per_device_microbatch_size": 2}
    config = settings(
        **{
            "model_path": str(folder / model),
            **sizes,
            **reference,
            **keys,
            **more,
            "lr": LR,
            "critic_lr": LR,
            "device": "cpu",
        }
    )
    world = process_group.start(config)
    models = load_models(config, CPU)
    models.policy.lm.generation_config.eos_token_id = list(range(160, 240))
    torch.manual_seed(1)
    for module in filter(None, (models.policy, models.critic)):
        for name, p in trainable_parameters(module).items():
            if "lora_B" in name:
                nn.init.normal_(p, std=0.3)
    for module in filter(None, (models.policy, models.critic, models.ref_policy) if exact else ()):
        module.double()
    trainer = PPOTrainer(config, models, PROMPTS, Places(), VecInfo(), world)
    trainer.starts_from_reference = False
    return trainer


def whole(trainer: PPOTrainer) -> dict[str, torch.Tensor]:
    with trainer.placement.writable_weights():
        return {
            f"{name}.{key}": p.detach().clone()
            for name, engine in trainer.engines.items()
            for key, p in trainable_parameters(engine.module).items()
        }


def step(trainer: PPOTrainer) -> dict[str, torch.Tensor]:
    """The gradient of each weight: what plain descent moves it by."""
    before = whole(trainer)
    trainer.step()
    after = whole(trainer)
    return {key: (before[key] - after[key]) / LR for key in before}


def compare_steps(folder: Path, shapes: list[str], exact: bool, more: dict[str, Any]) -> None:
    """One process writes rollout and gradient of each shape; several compare theirs."""
    originals = placement.new_optimizer, policy_module.new_value_head, torch.Tensor.float
    placement.new_optimizer = lambda module, _, lr: torch.optim.SGD(trainable_parameters(module).values(), lr=lr)
    policy_module.new_value_head = head_with_a_gradient_below
    if exact:
        torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    for shape in shapes:
        trainer, file = learner(folder, shape, exact, more), folder / f"{shape}.pt"
        world = trainer.world
        if world.size == 1:
            rollout = collect_next(trainer)
            collect_stored(trainer, rollout, list(range(RESPONSES)))
            torch.save((rollout, step(trainer)), file)
            continue
        rollout, expected = torch.load(file, weights_only=False)
        collect_stored(trainer, rollout, world.share(range(RESPONSES)))
        apart = distance({key: x.double() for key, x in step(trainer).items()}, expected)
        assert apart < (1e-10 if exact else 1e-4), f"{shape}: the gradient is {apart:g} of its norm away"
    placement.new_optimizer, policy_module.new_value_head, torch.Tensor.float = originals  # type: ignore[method-assign]


def compare_runs(folder: Path, shapes: list[str], name: str, more: dict[str, Any]) -> None:
    """A run of two iterations equals one of one iteration that is resumed by fresh objects; in bf16 it begins with ratio 1."""
    for shape in shapes:
        keys: dict[str, Any] = {**SHAPES[shape], "run_dir": str(folder / name), "save_interval": 1}
        keys |= {"model_path": str(folder / keys.pop("model")), "max_iterations": 2}
        for experiment, own, resume in (
            ("whole", {}, False),
            ("halves", {"max_iterations": 1}, False),
            ("halves", {}, True),
            ("bf16", {"precision": "bf16", "max_iterations": 1}, False),
        ):
            overrides = keys | more | {"experiment_name": f"{shape} {experiment}"} | own
            PPOAgent(load_config(folder / "ppo.yaml", overrides), resume=resume).train()
        last = "checkpoints/iter_000002"
        left, right = (weights(folder / name / f"{shape} {experiment}" / last) for experiment in ("whole", "halves"))
        assert left.keys() == right.keys()
        compared = {key for key in left if not re.search(r"_rank\d.*weights", key)}  # have a padding that is never set
        assert all(torch.equal(left[key], right[key]) for key in compared), shape


def prepare(folder: Path) -> None:
    for name, new_lm in (("gpt2", gpt2), ("llama", llama)):
        save(folder / name, new_lm(initializer_range=0.3))
        save(folder / f"{name}_other", new_lm(3, initializer_range=0.3))
    write_data(folder / "data", 6)


def main(folder: Path, name: str, more: str = "{}") -> None:
    torch.set_num_threads(1)
    keys = json.loads(more)
    if name == "one":
        prepare(folder)
        compare_steps(folder, [*SHAPES], True, keys)
        return
    zero = name.startswith("zero")
    shapes = [shape for shape in SHAPES if not (zero and "use_lora" in SHAPES[shape])]
    compare_steps(folder, shapes, not zero, keys)
    later = load_causal_lm(str(folder / "llama"), "model_path")
    assert all(p.numel() for p in later.parameters())  # at stage 3 transformers would give empty ones
    compare_runs(folder, shapes[:1] if name == "torchrun" else shapes, name, keys)  # of DDP, "ddp" compares the others
    print(f"{name}: rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} is done")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]  # of DeepSpeed's launcher
    main(Path(words[0]), *words[1:])
