"""Device, seeds and processes of a run."""

from datetime import timedelta

import pytest
import torch

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed import process_group, rank_errors
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from tests.parts.ranks import CONFIG, free_port, in_ranks


def config(**keys) -> Config:
    return CONFIG.model_copy(update={"device": "auto"} | keys)


@pytest.mark.parametrize(
    ("keys", "available", "device"),
    [
        ({}, False, "cpu"),
        ({}, True, "cuda"),
        ({"device": "cpu"}, True, "cpu"),
        ({"disable_cuda": True}, True, "cpu"),
        ({"device": "cuda"}, False, "no CUDA device"),
        ({"device": "cuda", "disable_cuda": True}, True, "disable_cuda: true"),
    ],
)
def test_the_device(monkeypatch, keys, available, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    if device in ("cpu", "cuda"):
        assert process_group.pick_device(config(**keys)).type == device
    else:
        with pytest.raises(UserError, match=device):
            process_group.pick_device(config(**keys))


def test_one_process_trains(monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for threads in (None, 2):
        assert process_group.start(config(device="cpu", pytorch_threads=threads)) == World()
    assert seen == [2]
    assert rank_errors.rank() == 0


def test_deepspeed_wants_a_group_also_for_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    try:
        assert process_group.start(config(use_deepspeed=True, device="cpu")) == World()
        assert torch.distributed.get_world_size() == 1
    finally:
        torch.distributed.destroy_process_group()


def test_processes_that_do_not_know_where_to_meet(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert rank_errors.rank() == 2
    with pytest.raises(UserError, match=r"3 processes, but MASTER_ADDR, MASTER_PORT is not set; .*torchrun"):
        process_group.start(config())


@pytest.mark.slow
def test_processes_that_cannot_connect_are_told_of_the_interface(monkeypatch):
    port = str(free_port())
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(process_group, "EXCHANGE_WAIT", timedelta(seconds=0.1))
    with pytest.raises(UserError, match=rf"rank 1 on .* which meet at 127\.0\.0\.1:{port} ") as caught:
        process_group.start(config(device="cpu"))
    assert "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the network interface" in str(caught.value)


def waits(world: World) -> tuple:
    gloo = torch.distributed.group.WORLD._get_backend(torch.device("cpu"))
    return gloo.options._timeout, torch.distributed.distributed_c10d._get_default_store().timeout


@pytest.mark.multiprocess
def test_ranks_meet_within_minutes_and_then_wait_for_each_other_for_an_hour():
    found = in_ranks(2, waits)
    assert [gloo for gloo, _ in found] == [timedelta(hours=1)] * 2
    assert [store for _, store in found] == [timedelta(minutes=10)] * 2
