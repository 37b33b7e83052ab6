"""Each launcher, as accelerate asks its users, starts the README's command; ranks with adapters make the step of one process."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from rlhf_dialog.distributed import placement, process_group
from rlhf_dialog.metrics import VecInfo
from rlhf_dialog.models import policy as policy_module
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.models.lora import trainable_parameters
from rlhf_dialog.training.trainer import PPOTrainer
from tests.parts import trainers
from tests.parts.ppo_runs import settings
from tests.parts.processes import ROOT, environment, run_command
from tests.parts.ranks import free_port, runs_in_ranks
from tests.parts.saved_models import CPU, save
from tests.parts.steps import LR, distance, new_value_head
from tests.parts.tiny import gpt2, llama

pytestmark = pytest.mark.multiprocess
FSDP = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_reshard_after_forward": True}
ANSWERS = {
    "ddp": {"distributed_type": "MULTI_GPU"},
    "fsdp": {"distributed_type": "FSDP", "fsdp_config": FSDP},
}


def launcher(name: str, folder: Path) -> list[str]:
    scripts = Path(sys.executable).parent
    if name == "zero3":
        return [str(scripts / "deepspeed"), "--num_accelerators", "2", "--master_port", str(free_port())]
    machine = {"compute_environment": "LOCAL_MACHINE", "num_machines": 1, "num_processes": 2, "mixed_precision": "no"}
    answers = {**machine, **ANSWERS[name], "main_process_port": free_port()}
    (folder / "answers.yaml").write_text(yaml.safe_dump(answers))
    return [str(scripts / "accelerate"), "launch", "--config_file", str(folder / "answers.yaml")]


@pytest.mark.parametrize(("name", "said"), [("ddp", ""), ("fsdp", "FSDP2"), ("zero3", "ZeRO stage 3")])
def test_a_launcher_starts_a_run(world, tmp_path, name, said):
    keys = {"reward_class": {"id": "LengthMatch"}, "max_iterations": 1, "experiment_name": name}
    if name == "zero3":
        pytest.importorskip("deepspeed")
        (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}}')
        keys |= {"use_deepspeed": True, "deepspeed_config": "zero3.json"}
    (tmp_path / "ppo.yaml").write_text(yaml.safe_dump(settings(world) | keys))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = environment(ACCELERATE_USE_CPU="true", DS_ACCELERATOR="cpu", PATH=path)
    words = [ROOT / "train_ppo.py", "--config", "ppo.yaml"]
    ended = run_command(*launcher(name, tmp_path), *words, cwd=tmp_path, env=env)
    assert ended.returncode == 0, ended.stderr[-6000:]
    assert said in ended.stdout + ended.stderr
    (line,) = (tmp_path / "run_results" / name / "metrics.jsonl").read_text().splitlines()
    assert "time/wait" in json.loads(line)  # for another process


RESPONSES = 7
SHAPES = {
    "gpt2": {"use_share_model": True, "kl_in": "loss"},  # embeddings and head are one
    "llama": {"use_share_model": False},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, new_lm in (("gpt2", gpt2), ("llama", llama)):
        save(folder / name, new_lm(initializer_range=0.3))
    return folder


def learner(folder: Path, model: str, **more) -> PPOTrainer:
    """A trainer of adapters in float64, whose whole rollout is one minibatch."""
    sizes = {"rollout_batch_size": RESPONSES, "num_mini_batch": 1, "ppo_epoch": 1, "per_device_microbatch_size": 2}
    keys = {**sizes, "use_lora": True, "lr": LR, "critic_lr": LR, "device": "cpu", **SHAPES[model], **more}
    config = trainers.settings(model_path=str(folder / model), **keys)
    world = process_group.start(config)
    models = load_models(config, CPU)
    models.policy.lm.generation_config.eos_token_id = list(range(160, 240))
    torch.manual_seed(1)
    for module in filter(None, (models.policy, models.critic)):
        for name, p in module.double().named_parameters():
            if "lora_B" in name:
                nn.init.normal_(p, std=0.3)
    models.ref_policy.double()
    trainer = PPOTrainer(config, models, trainers.PROMPTS, trainers.Places(), VecInfo(), world)
    trainer.starts_from_reference = False
    return trainer


def step(trainer: PPOTrainer) -> dict[str, torch.Tensor]:
    """The gradient of each weight: what plain descent moves it by."""

    def weights():
        with trainer.placement.writable_weights():
            modules = {name: engine.module for name, engine in trainer.engines.items()}
            return {
                f"{name}.{key}": p.detach().clone()
                for name, module in modules.items()
                for key, p in trainable_parameters(module).items()
            }

    before = weights()
    trainer.step()
    after = weights()
    return {key: (before[key] - after[key]) / LR for key in before}


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("more", [{}, {"use_fsdp": True}])
def test_ranks_with_adapters_make_the_step_of_one_process(folder, tmp_path, monkeypatch, model, more):
    sgd = lambda module, _, lr: torch.optim.SGD(trainable_parameters(module).values(), lr=lr)  # noqa: E731
    monkeypatch.setattr(placement, "new_optimizer", sgd)
    monkeypatch.setattr(policy_module, "new_value_head", new_value_head)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    one = learner(folder, model)
    rollout = trainers.collect_next(one)
    trainers.collect_stored(one, rollout, list(range(RESPONSES)))
    expected = step(one)

    def work(rank):
        trainer = learner(folder, model, **more)
        trainers.collect_stored(trainer, rollout, trainer.world.share(range(RESPONSES)))
        return distance(step(trainer), expected)

    for apart, *texts in runs_in_ranks(2, work, tmp_path):
        assert apart < 1e-10, texts
