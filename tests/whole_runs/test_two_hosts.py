"""Runs over two hosts (namespaces of this machine), by each launcher: their step, the end of a host, a wrong interface."""

import json
import pickle
import re
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from rlhf_dialog.distributed.world import World
from tests.parts.ppo_runs import settings
from tests.parts.processes import HANGING, ROOT, environment
from tests.parts.rank_runs import RUN, lines, numbers
from tests.parts.steps import distance, sgd_learner, whole_step
from tests.parts.trainers import collect_next
from tests.parts.two_hosts import INTERFACE, Host, two_hosts
from tests.parts.zero_files import write_json

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]
PORT = "29500"
STEP = {"rollout_batch_size": 7, "per_device_microbatch_size": 3}
ROWS = [[0, 1, 2, 3], [4, 5, 6]]  # of the responses, by rank
REWARD = """
import os
import socket
import threading
from pathlib import Path
from rlhf_dialog import BaseReward, RewardFactory

class Vowels(BaseReward):
    calls = 0

    def __call__(self, dialogues):
        Vowels.calls += 1
        if socket.gethostname() == os.environ.get("HOLDS") and Vowels.calls == 3:
            Path("holds").touch()
            threading.Event().wait()  # until it is killed
        return [sum(letter in "aeiou" for letter in d.response) / 10 for d in dialogues]

RewardFactory.register("Vowels", Vowels)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with two_hosts(tmp_path_factory.mktemp("hosts")) as pair:
        yield pair


def launcher(name: str, node: int) -> list[str]:
    """The command line by which docs/SCALING.md starts node 0 or 1 of two with one process each, on CPUs."""
    words = {
        "torchrun": f"torchrun --nnodes 2 --node_rank {node} --nproc_per_node 1 --master_addr alpha --master_port {PORT}",
        "c10d": f"torchrun --nnodes 2 --nproc_per_node 1 --rdzv_id 7 --rdzv_backend c10d --rdzv_endpoint alpha:{PORT}",
        "accelerate": f"accelerate launch --multi_gpu --num_machines 2 --machine_rank {node} --num_processes 2 "
        f"--main_process_ip alpha --main_process_port {PORT}",
    }[name].split()
    return [str(Path(sys.executable).parent / words[0]), *words[1:]]


def start(hosts: tuple[Host, Host], name: str, *words, **variables: str):
    """The launcher of each host, started."""
    env = environment(ACCELERATE_USE_CPU="true" if name == "accelerate" else None, DS_ACCELERATOR="cpu", **variables)
    return [host.start(*launcher(name, node), *words, env=env) for node, host in enumerate(hosts)]


def codes(started) -> list[int]:
    return [process.wait(HANGING) for process in started]


@pytest.mark.parametrize(
    ("name", "model", "engine"),
    [("torchrun", {}, {}), ("c10d", {}, {"use_fsdp": True}), ("accelerate", {"use_share_model": False}, {"stage": 2})],
)
def test_two_hosts_make_the_step_of_one_process(hosts, tmp_path, name, model, engine):
    if "stage" in engine:
        pytest.importorskip("deepspeed")
        engine = {"use_deepspeed": True, "deepspeed_config": write_json(tmp_path, engine)}
    keys = STEP | model
    torch.manual_seed(0)
    collected = collect_next(sgd_learner(None, [], World(), **keys))
    expected = whole_step(sgd_learner(collected, [[*range(7)]], World(), **keys))["moved"]
    (tmp_path / "keys.json").write_text(json.dumps(keys | engine))
    (tmp_path / "collected.pkl").write_bytes(pickle.dumps((collected, ROWS)))
    started = start(hosts, name, "-m", "tests.parts.host_step", tmp_path)
    assert codes(started) == [0, 0], [host.output()[-3000:] for host in hosts]
    assert distance(torch.load(tmp_path / "moved.pt"), expected) <= 1e-4


def test_the_processes_of_one_host_are_killed_and_the_run_goes_on(hosts, ppo, tmp_path, world):
    (tmp_path / "reward.py").write_text(REWARD)
    keys = {"reward_class": {"id": "Vowels"}, "max_iterations": 4, "save_interval": 1, "rollout_batch_size": 7}
    (tmp_path / "ppo.yaml").write_text(yaml.safe_dump(settings(world) | keys))
    words = [ROOT / "train_ppo.py", "--config", "ppo.yaml", "--register", "reward.py"]
    started = start(hosts, "c10d", *words, HOLDS="beta")
    end = time.monotonic() + HANGING
    while not Path("holds").exists() and time.monotonic() < end and started[0].poll() is None:
        time.sleep(0.1)
    hosts[1].kill()
    assert codes(started) == [1, -9], hosts[0].output()[-3000:]  # torchrun's own
    assert hosts[0].output().count("error: rank 0 has lost another process") == 1
    assert re.search(r"exitcode +: 3 ", hosts[0].output())
    assert [line["iteration"] for line in lines()] == [1, 2]
    assert codes(start(hosts, "torchrun", *words, "--resume")) == [0, 0], hosts[0].output()[-3000:]
    resumed = numbers(lines())
    assert [code for code, *_ in ppo(2, "--register", "reward.py", "--experiment_name", "here")] == [0, 0]
    assert resumed == numbers(lines(RUN.with_name("here")))


def test_a_wrong_interface_on_one_host_ends_both(hosts, world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ppo.yaml").write_text(yaml.safe_dump(settings(world) | {"reward_class": {"id": "LengthMatch"}}))
    started = []
    for rank, host in enumerate(hosts):  # as docs/SCALING.md has it without torchrun
        places = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "alpha", "MASTER_PORT": PORT}
        env = environment(GLOO_SOCKET_IFNAME=[INTERFACE, "eth7"][rank], **places)
        started.append(host.start(sys.executable, ROOT / "train_ppo.py", "--config", "ppo.yaml", env=env))
    assert codes(started) == [2, 2], hosts[0].output()
    said = "error: GLOO_SOCKET_IFNAME: rank 1 on beta has no network interface eth7; it has lo, veth0"
    assert [host.output().count(said) for host in hosts] == [1, 0]
    assert not hosts[1].output()
