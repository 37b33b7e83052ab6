"""Where a run runs: its device, its threads, and the processes that a launcher started for it."""

import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.deepspeed_config import asks_deepspeed
from rlhf_dialog.distributed.rank_errors import MEETING, rank
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.device import pick_device, take_gpu

LONGEST_WAIT = timedelta(hours=1)  # for another rank: it may wait for a reward; gloo, through which ranks wait
EXCHANGE_WAIT = timedelta(minutes=10)  # to meet, and for nccl, which exchanges what all ranks have already
FIRST_EXCHANGE = timedelta(minutes=5)  # of nccl: less than after which its own watch kills the process


def start(config: Config) -> World:
    """The world of this process: alone, or with the others of torchrun or accelerate launch (gloo on CPU, nccl on CUDA).

    `config`: as `strategy.settle` returns it. A second call returns the same world. Raises UserError when the device or the
    launcher's environment is not usable.
    """
    if config.pytorch_threads:
        torch.set_num_threads(config.pytorch_threads)
    device = pick_device(config)
    if device.type == "cuda":
        device = take_gpu(config.local_rank)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if asks_deepspeed(config):
        os.environ["DS_ACCELERATOR"] = device.type  # before any library imports DeepSpeed, which chooses once
    if size == 1:
        if (asks_deepspeed(config) or config.use_fsdp) and not dist.is_initialized():  # they want a group for one too
            _join(device, dist.HashStore(), 0, 1)
        return World(device=device)
    if dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size(), device)
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        what = f"WORLD_SIZE says {size} processes, but {', '.join(missing)} is not set"
        raise UserError(what, remedy="start them with torchrun or accelerate launch")
    try:
        store, number, size = next(rendezvous("env://", timeout=EXCHANGE_WAIT))
        MEETING["store"] = dist.PrefixStore("rlhf_dialog", store)
        _check_interfaces(MEETING["store"], number, size)
        _join(device, store, number, size)
        dist.all_reduce(torch.zeros(1))  # a network that does not connect the ranks ends the run now
        if device.type == "cuda":
            work: Any = dist.all_reduce(torch.zeros(1, device=device), async_op=True)
            work.wait(FIRST_EXCHANGE)
        group: Any = dist.group.WORLD
        group._get_backend(torch.device("cpu"))._set_default_timeout(LONGEST_WAIT)
    except RuntimeError as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UserError(
            f"rank {rank()} on {socket.gethostname()} cannot reach the other processes, which meet at {address} "
            f"({str(error).splitlines()[0][:200]}). Check that all of them were started and can open that address; on several "
            "hosts, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the network interface that connects them (`ip -brief "
            "address` lists the interfaces)"
        ) from error
    return World(number, size, device)


def _check_interfaces(store: dist.Store, number: int, size: int) -> None:
    """Raises UserError on all ranks when GLOO_SOCKET_IFNAME names an interface that the host of one of them does not have."""
    there = [name for _, name in socket.if_nameindex()]
    absent = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name and name not in there]
    what = f"rank {number} on {socket.gethostname()} has no network interface {', '.join(absent)}; it has {', '.join(there)}"
    store.set(f"interface of {number}", what if absent else "")
    for other in range(size):
        if found := store.get(f"interface of {other}").decode():
            raise UserError(found, where="GLOO_SOCKET_IFNAME")


def _join(device: torch.device, store: dist.Store, number: int, size: int) -> None:
    """Connect the processes. gloo tries that for five times its timeout, so it has a fifth of EXCHANGE_WAIT until then."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=size, timeout=EXCHANGE_WAIT / 5)
    group: Any = dist.group.WORLD
    for kind in {"cpu", device.type}:
        group._get_backend(torch.device(kind))._set_default_timeout(EXCHANGE_WAIT)
