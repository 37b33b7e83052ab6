"""Each launcher, with what accelerate asks its users for, starts the same program, and the README's command."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from tests.parts.ppo_runs import settings
from tests.parts.processes import ROOT, environment, run_command, run_python
from tests.parts.ranks import free_port

pytestmark = pytest.mark.multiprocess
FSDP = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_reshard_after_forward": True}
ANSWERS = {
    "ddp": {"distributed_type": "MULTI_GPU"},
    "fsdp": {"distributed_type": "FSDP", "fsdp_config": FSDP},
}


@pytest.fixture(scope="module")
def steps_of_one(tmp_path_factory):
    """A folder with the steps of one process."""
    folder = tmp_path_factory.mktemp("launched")
    ended = run_python("-m", "tests.parts.launched", folder, "one", cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    reward = {"id": "CompositeReward", "args": {"parts": [{"id": "LengthMatch", "weight": 0.5}]}}
    (folder / "ppo.yaml").write_text(
        yaml.safe_dump(settings(folder) | {"model_path": str(folder / "gpt2"), "reward_class": reward})
    )
    (folder / "zero3.json").write_text('{"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}')
    return folder


def command(name: str, folder: Path) -> list[str]:
    scripts = Path(sys.executable).parent
    if name in ANSWERS:
        answers = folder / f"{name}.yaml"
        machine = {
            "compute_environment": "LOCAL_MACHINE",
            "num_machines": 1,
            "num_processes": 2,
            "mixed_precision": "no",
        }
        answers.write_text(yaml.safe_dump({**machine, **ANSWERS[name], "main_process_port": free_port()}))
        return [str(scripts / "accelerate"), "launch", "--config_file", str(answers)]
    return [str(scripts / "deepspeed"), "--num_accelerators", "2", "--master_port", str(free_port())]


@pytest.mark.parametrize("name", ["ddp", "fsdp", "zero3"])
def test_a_launcher_makes_the_steps_of_one_process_and_resumes(steps_of_one, name):
    keys = {}
    if name == "zero3":
        pytest.importorskip("deepspeed")
        keys = {"use_deepspeed": True, "deepspeed_config": str(steps_of_one / "zero3.json")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = environment(ACCELERATE_USE_CPU="true", DS_ACCELERATOR="cpu", PATH=path)
    program = ["--module" if name == "zero3" else "-m", "tests.parts.launched", steps_of_one, name, json.dumps(keys)]
    ended = run_command(*command(name, steps_of_one), *program, cwd=ROOT, env=env)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
    assert all(f"{name}: rank {rank} of 2 is done" in ended.stdout for rank in (0, 1))
    words = [ROOT / "train_ppo.py", "--config", steps_of_one / "ppo.yaml", "--max_iterations", "1"]
    words += ["--run_dir", steps_of_one / "commands", "--experiment_name", name]
    words += [word for key, value in keys.items() for word in (f"--{key}", str(value))]
    ended = run_command(*command(name, steps_of_one), *words, cwd=ROOT, env=env)
    assert ended.returncode == 0, ended.stderr[-6000:]
    expected = {"fsdp": "FSDP2", "zero3": "ZeRO stage 3"}.get(name, "")
    assert expected in ended.stdout + ended.stderr
    (line,) = (steps_of_one / "commands" / name / "metrics.jsonl").read_text().splitlines()
    assert "time/wait" in json.loads(line)  # for another process
