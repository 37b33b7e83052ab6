"""A trained module with its optimizer, on one process or on many that share its gradient.

Another way to share (DeepSpeed) is another class with the methods of `Engine`: nothing above asks which it has.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rlhf_dialog.world import World


class Engine:
    """One optimizer step is: for each microbatch `with engine.microbatch(last)`: `engine.model(...)`, `engine.backward(loss)`;
    then `clip`, `step`, `zero_grad`. The losses of all microbatches of all ranks add up to the loss that is descended.

    Every rank runs the same number of microbatches; one that has nothing left gives a loss of 0 that depends on the parameters.
    The first of all is one that changes nothing, on every rank and in every process: DDP lays its buckets out anew after its
    first backward, and with three ranks or more another layout rounds differently, so that a resumed run would differ.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, world: World):
        self.module = module  # ours: for generation, evaluation and checkpoints
        self.optimizer, self.world = optimizer, world
        self.model: nn.Module = module  # what the update calls in its place
        self.lowered: str | None = None  # what happened to the scale of fp16 losses, where there is one
        self.ddp: DistributedDataParallel | None = None
        if world.size > 1:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", ".*broadcast_buffers", FutureWarning
                )  # its newer name is not in torch 2.6
                self.model = self.ddp = DistributedDataParallel(module, broadcast_buffers=False)

    @contextmanager
    def microbatch(self, last: bool) -> Iterator[None]:
        """Around forward and backward of a microbatch: only the last one of a minibatch exchanges gradients."""
        if self.ddp is None or last:
            yield
        else:
            with self.ddp.no_sync():
                yield

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of this rank's share of the loss. DDP averages over the ranks, where a sum is wanted."""
        (loss if self.world.size == 1 else loss * self.world.size).backward()

    def clip(self, limit: float) -> float:
        """The norm of the gradient before it was scaled down to `limit`; one within it is not touched."""
        norm = nn.utils.get_total_norm([p.grad for p in self.module.parameters() if p.grad is not None])
        if not norm <= limit:
            nn.utils.clip_grads_with_norm_(self.module.parameters(), limit, norm)
        return norm.item()

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def set_lr(self, lr: float) -> None:
        self.optimizer.param_groups[0]["lr"] = lr
