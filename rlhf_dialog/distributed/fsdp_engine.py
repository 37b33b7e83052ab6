"""`Engine` through FSDP2: torch's `fully_shard` gives every process a part of each weight, its gradient and its moments.

accelerate calls the same function with the same fields, but prepares models only in precisions of its own and not on CPUs.
"""

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from rlhf_dialog.distributed.engine import Engine
from rlhf_dialog.distributed.strategy import FsdpSettings
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError

warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")  # nothing writes into predictions


class Together(nn.Module):
    """Models that share weights, below one root: of two roots, each would want to shard them. It calls one by its name."""

    def __init__(self, models: dict[str, nn.Module]):
        super().__init__()
        self.models = nn.ModuleDict(models)

    def forward(self, name: str, *inputs: Any) -> Any:
        return self.models[name](*inputs)


def shard(module: nn.Module, world: World, settings: FsdpSettings) -> None:
    """Shard the layers and then what is left of a model, over all processes. Raises UserError for a class that it lacks."""
    mesh = init_device_mesh(world.device.type, (world.size,))
    away = settings.cpu_offload and world.device.type != "cpu"
    offload = CPUOffloadPolicy() if away else OffloadPolicy()
    for layer in reversed(units(module, settings)):  # what is inside of another comes first
        fully_shard(layer, mesh=mesh, reshard_after_forward=settings.reshard_after_forward, offload_policy=offload)
    fully_shard(module, mesh=mesh, offload_policy=offload)
    fully_shard.state(module)._lazy_init()  # type: ignore[attr-defined]  # else a layer that is called first is a root


def units(module: nn.Module, settings: FsdpSettings) -> list[nn.Module]:
    """The modules below that are gathered and dropped on their own: those of the classes to wrap, by default of the layers."""
    names = set(settings.wrap)
    for part in () if names else module.modules():
        names |= {*(getattr(part, "_no_split_modules", None) or ())}
    classes = {type(part).__name__ for part in module.modules()}
    if lacking := sorted(set(settings.wrap) - classes):
        raise UserError(
            f"{settings.source}: fsdp_transformer_layer_cls_to_wrap: no module of {type(module).__name__} is a {lacking[0]}; "
            "leave the key out to wrap the model's layers"
        )
    return [part for part in module.modules() if type(part).__name__ in names and part is not module]


def sharded_parts(root: nn.Module) -> list[FSDPModule]:
    return [part for part in root.modules() if isinstance(part, FSDPModule)]


@contextmanager
def keep_whole(
    roots: Sequence[nn.Module], settings: FsdpSettings, kept_root: nn.Module | None = None
) -> Iterator[None]:
    """Inside the block every rank has all weights, and calls the modules at its own pace: no forward waits for another rank.

    The embeddings and head of `kept_root` stay whole after the block.
    """
    for root in roots:
        for part in sharded_parts(root):
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
    try:
        yield
    finally:
        for root in roots:
            for part in sharded_parts(root):
                if part is not kept_root:
                    part.reshard()
                if part is not root:  # a root keeps its weights from the forward to the backward pass
                    part.set_reshard_after_forward(settings.reshard_after_forward, recurse=False)


class FSDPEngine(Engine):
    """As `Engine`, for a `module` whose `root` is sharded."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, world: World, root: nn.Module):
        super().__init__(module, optimizer, world)
        self.root: Any = root
        if isinstance(root, Together):
            (name,) = (name for name, part in root.models.items() if part is module)
            self.model = partial(root, name)  # type: ignore[assignment]
        assert isinstance(root, FSDPModule)
        assert all(isinstance(p, DTensor) for p in self.trained.values())

    @contextmanager
    def microbatch(self, last: bool) -> Iterator[None]:
        self.root.set_requires_gradient_sync(last)
        yield

    def grad_norm(self) -> Tensor:
        self._norm = whole_tensor(super().grad_norm(), self.world.device)
        return self._norm

    @contextmanager
    def whole(self) -> Iterator[None]:
        """As `Engine.whole`, with the moments in the optimizer of rank 0; all on the CPU."""
        cpu, moments = torch.device("cpu"), dict(self.optimizer.state)
        for p, state in moments.items():
            gathered = {key: whole_tensor(x, cpu) for key, x in state.items()}
            self.optimizer.state[p] = gathered if self.world.is_main else state
        try:
            with self._whole_weights(cpu, self.world.is_main):
                yield
        finally:
            self.optimizer.state.update(moments)

    @contextmanager
    def writable(self) -> Iterator[None]:
        with self._whole_weights(self.world.device, True) as pairs, torch.no_grad():
            yield
            for sharded, full in pairs:
                sharded.copy_(own_part(full, sharded))
        for p, state in self.optimizer.state.items():  # as they were read, or still this rank's
            whole = {key: x for key, x in state.items() if x.dim() and not isinstance(x, DTensor)}
            state |= {key: own_part(x, p) for key, x in whole.items()}

    @contextmanager
    def _whole_weights(self, device: torch.device, keeps: bool) -> Iterator[list[tuple[Tensor, nn.Parameter]]]:
        """Put whole weights, or empty ones where it `keeps` none, in the place of this rank's parts; yields pairs of both."""
        for sharded in sharded_parts(self.root):
            sharded.reshard()
        places: list[tuple[nn.Module, str, Any]] = [
            (part, name, p) for part in self.module.modules() for name, p in part._parameters.items()
        ]
        wholes: dict[Any, nn.Parameter] = {}
        for p in {p: None for *_, p in places if isinstance(p, DTensor)}:
            full = whole_tensor(p.detach(), device)
            wholes[p] = nn.Parameter(full if keeps else full.new_empty(0), p.requires_grad)
        hooks = {part: part._load_state_dict_post_hooks for part in self.module.modules()}  # they want parts
        for part in hooks:
            part._load_state_dict_post_hooks = OrderedDict()
        for part, name, p in places:
            part._parameters[name] = wholes.get(p, p)
        try:
            yield list(wholes.items())
        finally:
            for part, name, p in places:
                part._parameters[name] = p
            for part, own in hooks.items():
                part._load_state_dict_post_hooks = own


def whole_tensor(x: Tensor, device: torch.device) -> Tensor:
    """A copy, on the device, of a tensor of which each rank has a part; all ranks call this."""
    return x.full_tensor().to(device, copy=True) if isinstance(x, DTensor) else x


def own_part(full: Tensor, like: Any) -> DTensor:
    """This rank's part, in the way that `like` is divided, of a whole tensor that every rank has."""
    return distribute_tensor(full.detach().to(like.device), like.device_mesh, like.placements, src_data_rank=None)
