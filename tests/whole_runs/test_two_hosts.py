"""Runs over two hosts (namespaces of this machine): their step, a lost host or link, a firewall, a wrong interface."""

import json
import pickle
import re
import sys
import time
from contextlib import nullcontext
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
from tests.parts.two_hosts import INTERFACE, Host, firewall, lost_link, two_hosts
from tests.parts.zero_files import write_json

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]
PORT = "29500"
STEP = {"rollout_batch_size": 7, "per_device_microbatch_size": 3}
ROWS = [[0, 1, 2, 3], [4, 5, 6]]  # of the responses, by rank
REWARD = """
import os
import socket
import time
from pathlib import Path
from rlhf_dialog import BaseReward, RewardFactory
from rlhf_dialog.distributed import silence

silence.NOTICED_AFTER = 5.0

class Vowels(BaseReward):
    calls = 0

    def __call__(self, dialogues):
        Vowels.calls += 1
        if socket.gethostname() == os.environ.get("HOLDS") and Vowels.calls == 3:
            Path("holds").touch()
            while not Path("goes on").exists():
                time.sleep(0.1)
        return [sum(letter in "aeiou" for letter in d.response) / 10 for d in dialogues]

RewardFactory.register("Vowels", Vowels)
"""
SOON = """
from datetime import timedelta
from rlhf_dialog.distributed import process_group

process_group.EXCHANGE_WAIT = timedelta(seconds=20)  # in which both must have started
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


def start_alone(
    hosts: tuple[Host, Host], world: Path, *words: str, interfaces: tuple[str, str] = (INTERFACE, INTERFACE)
):
    """A run without a launcher, as docs/SCALING.md has it, started on each host."""
    Path("ppo.yaml").write_text(yaml.safe_dump(settings(world) | {"reward_class": {"id": "LengthMatch"}}))
    started = []
    for rank, host in enumerate(hosts):
        places = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "alpha", "MASTER_PORT": PORT}
        env = environment(GLOO_SOCKET_IFNAME=interfaces[rank], **places)
        started.append(host.start(sys.executable, ROOT / "train_ppo.py", "--config", "ppo.yaml", *words, env=env))
    return started


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


@pytest.mark.parametrize(
    ("name", "lost", "ended"), [("c10d", "beta", [1, -9]), ("torchrun", "alpha", [-9, 1]), ("torchrun", "link", [1, 1])]
)
def test_a_host_or_the_link_is_lost_and_the_run_goes_on(hosts, tmp_path, ppo, world, name, lost, ended):
    (tmp_path / "reward.py").write_text(REWARD)
    keys = {"reward_class": {"id": "Vowels"}, "max_iterations": 4, "save_interval": 1, "rollout_batch_size": 7}
    (tmp_path / "ppo.yaml").write_text(yaml.safe_dump(settings(world) | keys))
    words = [ROOT / "train_ppo.py", "--config", "ppo.yaml", "--register", "reward.py"]
    started = start(hosts, name, *words, HOLDS="beta" if lost == "beta" else "alpha")
    end = time.monotonic() + HANGING
    while not Path("holds").exists() and time.monotonic() < end and started[0].poll() is None:
        time.sleep(0.1)
    with lost_link(hosts) if lost == "link" else nullcontext():
        for host in hosts:
            if host.name == lost:
                host.kill()
        Path("goes on").touch()
        assert codes(started) == ended, [host.output()[-3000:] for host in hosts]  # torchrun's own
    for rank, host in enumerate(hosts):
        is_there = host.name != lost
        assert host.output().count(f"error: rank {rank} has lost another process") == is_there
        assert bool(re.search(r"exitcode +: 3 ", host.output())) == is_there
    assert [line["iteration"] for line in lines()] == [1, 2]
    assert codes(start(hosts, "torchrun", *words, "--resume")) == [0, 0], hosts[0].output()[-3000:]
    resumed = numbers(lines())
    assert [code for code, *_ in ppo(2, "--register", "reward.py", "--experiment_name", "here")] == [0, 0]
    assert resumed == numbers(lines(RUN.with_name("here")))


@pytest.mark.parametrize("open_port", ["", PORT])
def test_a_firewall_between_the_hosts_ends_both(hosts, world, tmp_path, monkeypatch, open_port):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "soon.py").write_text(SOON)
    with firewall(hosts, open_port):
        assert codes(start_alone(hosts, world, "--register", "soon.py")) == [2, 2], [host.output() for host in hosts]
    said = "error: rank 0 on alpha cannot reach the other processes, which meet at alpha:29500"
    assert hosts[0].output().count(said) == 1
    assert open_port or hosts[1].output().count("rank 1: error: rank 1 on beta cannot reach the other processes") == 1


def test_a_wrong_interface_on_one_host_ends_both(hosts, world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started = start_alone(hosts, world, interfaces=(INTERFACE, "eth7"))
    assert codes(started) == [2, 2], hosts[0].output()
    said = "error: GLOO_SOCKET_IFNAME: rank 1 on beta has no network interface eth7; it has lo, veth0"
    assert [host.output().count(said) for host in hosts] == [1, 0]
    assert not hosts[1].output()
