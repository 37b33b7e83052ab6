"""Device, seeds and processes of a run."""

import random

import numpy as np
import pytest
import torch

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed import launch, random_states
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError

CLASSES = {"env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}, "model_path": "m"}


def config(**keys) -> Config:
    return Config.model_validate({**CLASSES, **keys})


@pytest.mark.parametrize(
    ("keys", "available", "device"),
    [
        ({}, False, "cpu"),
        ({}, True, "cuda"),
        ({"device": "cpu"}, True, "cpu"),
        ({"device": "cuda"}, True, "cuda"),
        ({"disable_cuda": True}, True, "cpu"),
        ({"device": "cpu", "disable_cuda": True}, False, "cpu"),
    ],
)
def test_the_device(monkeypatch, keys, available, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert launch.pick_device(config(**keys)).type == device


@pytest.mark.parametrize(
    ("keys", "available", "words"),
    [
        ({"device": "cuda"}, False, "no CUDA device"),
        ({"device": "cuda", "disable_cuda": True}, True, "disable_cuda: true"),
    ],
)
def test_a_device_that_cannot_be(monkeypatch, keys, available, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    with pytest.raises(UserError, match=words):
        launch.pick_device(config(**keys))


def test_one_process_trains(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launch.start(config(device="cpu")) == World()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert launch.start(config(device="cpu")) == World()
    assert launch.rank() == 0


def test_deepspeed_wants_a_group_also_for_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    try:
        assert launch.start(config(use_deepspeed=True, device="cpu")) == World()
        assert torch.distributed.get_world_size() == 1
    finally:
        torch.distributed.destroy_process_group()


def test_processes_that_do_not_know_where_to_meet(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert launch.rank() == 2
    with pytest.raises(UserError, match=r"3 processes, but MASTER_ADDR, MASTER_PORT is not set; .*torchrun"):
        launch.start(config())


def draws() -> tuple:
    return random.random(), float(np.random.rand()), float(torch.rand(())), torch.randperm(9).tolist()


def test_one_seed_seeds_all_three_generators():
    random_states.seed_everything(5)
    first = draws()
    random_states.seed_everything(6)
    second = draws()
    random_states.seed_everything(5)
    assert draws() == first
    assert all(a != b for a, b in zip(first, second, strict=True))
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert draws() == first


def test_threads(monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    launch.set_threads(config())
    launch.set_threads(config(pytorch_threads=2))
    assert seen == [2]
