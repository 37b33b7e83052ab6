"""Each launcher, as accelerate asks its users, starts the README's command; ranks with adapters make the step of one process."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
import yaml

from rlhf_dialog.models.lora import trainable_parameters
from tests.parts import trainers
from tests.parts.ppo_runs import settings
from tests.parts.processes import ROOT, environment, run_command
from tests.parts.ranks import free_port, runs_in_ranks
from tests.parts.saved_models import save
from tests.parts.steps import LR, distance, lora_trainer, whole_step
from tests.parts.tiny import gpt2, llama

pytestmark = pytest.mark.multiprocess
FSDP = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_reshard_after_forward": True}
ANSWERS = {
    "ddp": {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"},
    "fsdp": {"distributed_type": "FSDP", "fsdp_config": FSDP, "mixed_precision": "no"},
}


def launcher(name: str, folder: Path) -> list[str]:
    scripts = Path(sys.executable).parent
    if name == "zero3":
        return [str(scripts / "deepspeed"), "--num_accelerators", "2", "--master_port", str(free_port())]
    machine = {"compute_environment": "LOCAL_MACHINE", "num_machines": 1, "num_processes": 2}
    answers = {**machine, **ANSWERS[name], "main_process_port": free_port()}
    (folder / "answers.yaml").write_text(yaml.safe_dump(answers))
    return [str(scripts / "accelerate"), "launch", "--config_file", str(folder / "answers.yaml")]


@pytest.mark.parametrize(("name", "said"), [("ddp", "precision: bf16"), ("fsdp", "FSDP2"), ("zero3", "ZeRO stage 3")])
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
    run = tmp_path / "run_results" / name
    assert (yaml.safe_load((run / "config.yaml").read_text())["precision"] == "bf16") == (name == "ddp")
    (line,) = (run / "metrics.jsonl").read_text().splitlines()
    assert "time/wait" in json.loads(line)  # for another process


def moved(trainer):
    """The gradients of all that is trained: what plain descent moves it by."""
    return {key: x for key, x in whole_step(trainer)["moved"].items() if "lora_" in key or "value_head" in key}


@pytest.mark.parametrize(
    ("make", "shape"),
    [(gpt2, {"use_share_model": True, "kl_in": "loss"}), (llama, {"use_share_model": False})],  # tied, and not
)
@pytest.mark.parametrize("more", [{}, {"use_fsdp": True}])
def test_ranks_with_adapters_make_the_step_of_one_process(tmp_path, monkeypatch, make, shape, more):
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    model = save(tmp_path / "model", make(initializer_range=0.3))
    keys = {"rollout_batch_size": 7, "num_mini_batch": 1, "ppo_epoch": 1, "per_device_microbatch_size": 2}
    keys |= {"lr": LR, "critic_lr": LR, "device": "cpu", **shape}
    keys["optimizer"] = lambda module, _, lr: torch.optim.SGD(trainable_parameters(module).values(), lr=lr)
    one = lora_trainer(model, **keys)
    rollout = trainers.collect_next(one)
    trainers.collect_stored(one, rollout, list(range(7)))
    expected = moved(one)

    def work(rank):
        trainer = lora_trainer(model, **keys, **more)
        trainers.collect_stored(trainer, rollout, trainer.world.share(range(7)))
        return distance(moved(trainer), expected)

    for apart, *texts in runs_in_ranks(2, work, tmp_path):
        assert apart < 1e-10, texts
