"""`Engine` through DeepSpeed: ZeRO partitions the gradients, optimizer state and weights over the processes.

DeepSpeed is imported only when a run uses it. None of its extensions is compiled: the optimizer is torch's AdamW.
"""

import importlib
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlhf_dialog.distributed.deepspeed_config import EngineSettings
from rlhf_dialog.distributed.engine import Engine
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models.lora import trainable_parameters

GROUPS = {1: "single_partition_of_fp32_groups", 2: "single_partition_of_fp32_groups", 3: "fp32_partitioned_groups_flat"}
NORMS = {1: "scaled_global_norm", 2: "scaled_global_norm", 3: "_get_norm_groups"}  # what its step asks for the norm


def load_deepspeed(device: torch.device) -> Any:
    """Import the library, for the device of the run. Raises UserError when it cannot be imported."""
    os.environ["DS_ACCELERATOR"] = device.type
    os.environ.setdefault("LOCAL_RANK", "0")
    try:
        deepspeed = importlib.import_module("deepspeed")
    except ImportError as error:
        raise UserError(
            f"use_deepspeed: true, but DeepSpeed cannot be imported ({error}); install it from the checkout: "
            'pip install -e ".[deepspeed]"'
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # the trainer reports what its warnings say
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # takes minutes to compile, and only serving uses it
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)
    return deepspeed


class DeepSpeedEngine(Engine):
    """As `Engine`. DeepSpeed clips, with the limit in its document; RunStopped is raised for a step that it skips."""

    optimizer: Any  # DeepSpeed's around ours

    def __init__(self, module: nn.Module, engine: Any, world: World, settings: EngineSettings):
        """`engine`: DeepSpeed's, as `accelerator.Preparer` prepared it."""
        self.module, self.world, self.settings, self.stage = module, world, settings, settings.stage
        self.trained, self.scaler = trainable_parameters(module), None  # fp16's losses are scaled by DeepSpeed
        module.eval()
        self.engine: Any = engine
        self.model, self.optimizer = engine, engine.optimizer
        self.norm: float | None = None  # of the gradient that waits for its step
        self.lowered: str | None = None  # what happened to the scale of fp16 losses at the newest overflow

    @contextmanager
    def microbatch(self, last: bool) -> Iterator[None]:
        self.engine.set_gradient_accumulation_boundary(last)
        self.lowered = None
        yield

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's share of the loss. DeepSpeed averages over the ranks, where a sum is wanted."""
        self.norm = math.nan
        self.engine.backward(loss * self.world.size, scale_wrt_gas=False)

    def grad_norm(self) -> Tensor:
        """The norm of the gradient before the step clips it to the limit in the document, a scalar."""
        norm = getattr(self.optimizer, NORMS[self.stage])()
        if isinstance(norm, list):
            norm = importlib.import_module("deepspeed.runtime.utils").combine_grad_norm_groups(norm)
        self.norm = float(norm / self.optimizer.loss_scale)
        return torch.tensor(self.norm, dtype=torch.float64, device=self.world.device)

    def clip(self, limit: float, norm: float) -> None:
        """Nothing: `step` clips."""

    def step(self) -> None:
        self.engine.step()
        self.norm = None
        if not self.engine.was_step_applied():
            raise RunStopped("DeepSpeed skipped an optimizer step although loss and gradient were finite")

    def zero_grad(self) -> None:
        """Discard a gradient for which no step was made, in the way that DeepSpeed discards one that overflowed."""
        if self.norm is None:
            return
        overflow, self.norm = not math.isfinite(self.norm), None
        scaler = self.optimizer.loss_scaler
        before = dict(vars(scaler))
        invalid: Any = torch.tensor(math.inf)
        name = NORMS[self.stage]
        setattr(self.optimizer, name, lambda: [invalid] if self.stage == 3 else invalid)
        try:
            self.engine.step()
        finally:
            delattr(self.optimizer, name)
        if not overflow or self.settings.precision != "fp16":
            vars(scaler).update(before)
        elif scaler.cur_scale > getattr(scaler, "min_scale", 1) or scaler.cur_scale < before["cur_scale"]:
            self.lowered = f"the scale of fp16 losses is lowered from {before['cur_scale']:g} to {scaler.cur_scale:g}"

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside the block, rank 0 has copies of the whole weights in the module, on the CPU in float32 (ZeRO's own are
        partitions, or views of one buffer); no other rank may use the module. All ranks enter it, and gather one parameter at
        a time."""
        kept = [(p, p.data) for p in self.module.parameters()]
        wholes = [self._whole(p) for p, _ in kept]
        try:
            for (p, _), found in zip(kept, wholes, strict=True):
                if found is not None:
                    p.data = found
            yield
        finally:
            for p, own in kept:
                p.data = own

    def _whole(self, parameter: nn.Parameter) -> Tensor | None:
        """The whole parameter on rank 0, from the fp32 master copy where there is one; None on the other ranks."""
        deepspeed = importlib.import_module("deepspeed")
        if self.settings.half and parameter.requires_grad:
            whole = importlib.import_module("deepspeed.utils").safe_get_full_fp32_param(parameter)
            if whole is None or not self.world.is_main:
                return None
            return whole.detach().float().cpu().clone().view(getattr(parameter, "ds_shape", parameter.shape))
        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().float().cpu().clone() if self.world.is_main else None

    @contextmanager
    def writable(self) -> Iterator[None]:
        """Inside the block, every rank has the whole weights in the module; all ranks keep what rank 0 writes into them."""
        deepspeed = importlib.import_module("deepspeed")
        with deepspeed.zero.GatheredParameters(list(self.module.parameters()), modifier_rank=0):
            # views of one buffer, which safetensors takes for tied ones
            kept = [(p, p.data) for p in self.module.parameters()]
            try:
                for p, _ in kept:
                    p.data = p.data.clone()
                yield
            finally:
                for p, own in kept:
                    own.copy_(p.data)
                    p.data = own
        self.optimizer.refresh_fp32_params()

    def describe_partitions(self) -> dict[str, Any]:
        scaler = vars(self.optimizer.loss_scaler)
        numbers = {key: x for key, x in scaler.items() if isinstance(x, int | float)}
        return {"precision": self.settings.precision, "scaler": numbers}

    def partitions(self) -> dict[str, Tensor]:
        inner = self.optimizer.optimizer.state
        tensors = {}
        for i, flat in enumerate(getattr(self.optimizer, GROUPS[self.stage])):
            tensors[f"{i}.weights"] = flat.detach().cpu().contiguous()
            for key, x in inner.get(flat, {}).items():
                tensors[f"{i}.{key}"] = torch.as_tensor(x).detach().cpu().contiguous()
        return tensors

    def restore_partitions(self, tensors: dict[str, Tensor], scaler: dict[str, float]) -> None:
        inner = self.optimizer.optimizer.state
        for i, flat in enumerate(getattr(self.optimizer, GROUPS[self.stage])):
            weights = tensors.pop(f"{i}.weights")
            if weights.shape != flat.shape:
                raise ValueError(f"partition {i} has {weights.numel()} weights, but this run needs {flat.numel()}")
            flat.data.copy_(weights)
            names = [name for name in tensors if name.startswith(f"{i}.")]
            slots = {name.split(".", 1)[1]: tensors.pop(name) for name in names}
            if slots:
                inner[flat] = {key: x if x.dim() == 0 else x.to(flat.device) for key, x in slots.items()}
        if tensors:
            raise ValueError(f"the file has partitions that this run does not have: {', '.join(sorted(tensors)[:3])}")
        vars(self.optimizer.loss_scaler).update(scaler)


@contextmanager
def gather_weights(engine: Any) -> Iterator[None]:
    """Inside the block, every rank has all weights of a stage-3 engine, and its module can be called in any way."""
    deepspeed = importlib.import_module("deepspeed")
    # what has the hooks that fetch and drop weights
    offload = getattr(engine.optimizer, "parameter_offload", engine.optimizer)
    for hook in (*offload.forward_hooks, *offload.backward_hooks, offload.fwd_pre_hook):
        hook.remove()
    offload.forward_hooks, offload.backward_hooks = [], []
    for parameter in engine.module.parameters():
        parameter.ds_active_sub_modules.clear()
    try:
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
            yield
    finally:
        stack = importlib.import_module("deepspeed.runtime.zero.parameter_offload").FWD_MODULE_STACK
        offload.setup_zero_stage3_hooks()
        stack.pop()
