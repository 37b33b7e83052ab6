"""Several ranks on this machine for a test: forked processes that meet over gloo."""

import faulthandler
import importlib
import multiprocessing
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed import process_group, rank_errors
from tests.parts.processes import HANGING

CONFIG = Config.model_validate(
    {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}, "device": "cpu"}
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def in_ranks(size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """`work(world, *args)` in `size` processes; what each returns. Fails with the tracebacks, or when they do not end."""
    return started(size, lambda *rest: work(process_group.start(CONFIG), *rest), args)


def runs_in_ranks(size: int, work: Callable[[int], Any], folder: Path) -> list[tuple[Any, str, str]]:
    """`work(rank)` in `size` processes that are no world yet; what each returns, its stdout and its stderr."""

    def quietly() -> Any:
        rank = rank_errors.rank()
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / f"{name}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        return work(rank)

    results = started(size, quietly, ())
    texts = [[(folder / f"{name}{rank}").read_text() for name in ("out", "err")] for rank in range(size)]
    return [(result, *text) for result, text in zip(results, texts, strict=True)]


def started(size: int, work: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    if "deepspeed" in sys.modules:  # else each rank imports torch's compiler, in seconds
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    context, port = multiprocessing.get_context("fork"), free_port()
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    ranks = [
        context.Process(target=_run, args=(rank, size, port, pipes[rank][1], work, args), daemon=True)
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    for _, theirs in pipes:
        theirs.close()
    try:
        found = [_answer(rank, ours) for rank, (ours, _) in enumerate(pipes)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    failures = [text for is_fine, text in found if not is_fine]
    assert not failures, "\n".join(failures)
    return [result for _, result in found]


def _answer(rank: int, pipe: Connection) -> tuple[bool, Any]:
    if not pipe.poll(HANGING + 5):
        return False, f"rank {rank} does not end"
    try:
        return pickle.loads(pipe.recv_bytes())
    except EOFError:
        return True, "gone"  # killed


def _run(rank: int, size: int, port: int, pipe: Connection, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    faulthandler.dump_traceback_later(HANGING, exit=True)  # where it hangs
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)
    try:
        pipe.send_bytes(pickle.dumps((True, work(*args))))  # a plain pickle holds the numbers of a tensor
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, f"rank {rank}: {traceback.format_exc()}")))
    sys.stdout.flush()
    os._exit(0)
