"""A trained module with its optimizer, on one process or on several that add up its gradient.

DeepSpeed and FSDP2 are other classes with the methods of `Engine`; the code that uses one need not know which it has.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rlhf_dialog.distributed.world import World
from rlhf_dialog.models.lora import trainable_parameters


class Engine:
    """One optimizer step is: for each microbatch `with engine.microbatch(last)`: `engine.model(...)`, `engine.backward(loss)`;
    then `grad_norm`, `clip`, `step`, `zero_grad`. The losses of all microbatches of all ranks add up to the loss that is
    minimized.

    Every rank runs the same number of microbatches; a rank without rows passes a loss of 0 that depends on the parameters.
    The very first microbatch of every process changes nothing: DDP rearranges its buckets after its first backward, and with
    three ranks or more another layout rounds differently, so that a resumed run would differ.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        world: World,
        fp16: bool = False,
        ddp: DistributedDataParallel | None = None,
    ):
        """`ddp`: the module as `accelerator.Preparer` prepared it for several processes."""
        self.module = module  # ours: for generation, evaluation and checkpoints
        self.trained = trainable_parameters(module)  # with LoRA, where the base is shared, only the module's own
        device = next(module.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device) if fp16 else None  # so that small gradients are not 0 in fp16
        self.lowered: str | None = None  # how the scale was changed in place of the newest step
        self.optimizer, self.world, self.ddp = optimizer, world, ddp
        self.model: nn.Module = ddp or module  # what the update calls in its place
        if isinstance(optimizer, torch.optim.AdamW):  # as its first step would, so that what is free now stays free
            for p in self.trained.values():
                optimizer.state[p] = {
                    "step": torch.zeros((), dtype=torch.float32, device=p.device),
                    "exp_avg": torch.zeros_like(p, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(p, memory_format=torch.preserve_format),
                }

    @property
    def can_start_over(self) -> bool:
        """Whether a minibatch can begin again after an error in it: it leaves no process waiting and no weight gathered."""
        return type(self) is Engine and self.ddp is None

    @contextmanager
    def microbatch(self, last: bool) -> Iterator[None]:
        """Wraps forward and backward of a microbatch: only the last one of a minibatch exchanges gradients."""
        if self.ddp is None or last:
            yield
        else:
            with self.ddp.no_sync():
                yield

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of this rank's share of the loss. DDP averages over the ranks, where a sum is wanted."""
        shared = loss if self.world.size == 1 else loss * self.world.size
        (shared if self.scaler is None else self.scaler.scale(shared)).backward()

    def grad_norm(self) -> torch.Tensor:
        """The norm of the gradient, a scalar on its device; fp16's gradient is unscaled first, so call this once a step."""
        self.lowered = None
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        self._norm = nn.utils.get_total_norm([p.grad for p in self.trained.values() if p.grad is not None])
        return self._norm

    def clip(self, limit: float, norm: float) -> None:
        """Scale the gradient down to the norm `limit` if its norm, the number that `grad_norm` returned, is larger."""
        if not norm <= limit:
            nn.utils.clip_grads_with_norm_(self.trained.values(), limit, self._norm)

    def step(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def lower_scale(self) -> None:
        """In place of a step: halve the scale of the losses if it was too large for fp16, and describe it in `lowered`.

        At a scale of 1, a gradient that is not finite has another cause.
        """
        if self.scaler is None:
            return
        before = self.scaler.get_scale()
        self.scaler.update()
        if before > 1 and self.scaler.get_scale() < before:
            self.lowered = f"the scale of fp16 losses is lowered from {before:g} to {self.scaler.get_scale():g}"

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def set_lr(self, *rates: float) -> None:
        """Set the learning rate of each parameter group; a policy without a value head has only the first."""
        for group, lr in zip(self.optimizer.param_groups, rates, strict=False):
            group["lr"] = lr

    def keep_head_gradient(self) -> None:
        """Discard all gradients but the value head's: AdamW leaves a weight without one, and its moments, as they are."""
        for p in self.optimizer.param_groups[0]["params"]:
            p.grad = None

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside the block, rank 0 has the whole weights in the module, to save them; all ranks enter it."""
        yield

    @contextmanager
    def writable(self) -> Iterator[None]:
        """Inside the block, every rank can load weights into the module."""
        yield
