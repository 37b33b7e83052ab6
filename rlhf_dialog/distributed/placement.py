"""Where the models of a run are kept: the engines, the frozen models, and access to whole weights when they are needed."""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from rlhf_dialog.config.batch_plan import BatchPlan
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed import deepspeed_config, deepspeed_engine
from rlhf_dialog.distributed.accelerator import Preparer
from rlhf_dialog.distributed.deepspeed_engine import DeepSpeedEngine
from rlhf_dialog.distributed.engine import Engine
from rlhf_dialog.distributed.frozen_models import FrozenModels
from rlhf_dialog.distributed.fsdp_engine import FSDPEngine, Together, keep_whole, shard, sharded_parts
from rlhf_dialog.distributed.strategy import FsdpSettings, fsdp_settings
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.lora import trainable_parameters
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.precision import precision_of, uses_tf32
from rlhf_dialog.rewards.base import BaseReward

logger = logging.getLogger(__name__)


def check_placement(config: Config, device: torch.device) -> None:
    """Check the DeepSpeed keys before anything is loaded. Raises UserError when they cannot work."""
    for key in deepspeed_config.FROZEN_KEYS:
        deepspeed_config.frozen_settings(config, key)
    if config.use_deepspeed:
        settings = deepspeed_config.engine_settings(config)
        if settings.precision == "fp16" and device.type == "cpu":
            raise UserError(f"{settings.source}: fp16 weights need a GPU; use bf16 or fp32 with device: cpu")
    if deepspeed_config.asks_deepspeed(config):
        deepspeed_engine.load_deepspeed(device)


def new_optimizer(module: nn.Module, config: Config, lr: float) -> torch.optim.Optimizer:
    """The AdamW optimizer of one engine, for the trained parameters of `module`.

    The value head of a policy is a second group, with `critic_lr`; its parameters are the last, as without groups.
    """
    trained = trainable_parameters(module)
    head = [name for name in trained if isinstance(module, Policy) and name.startswith("value_head.")]
    groups: list[dict[str, Any]] = [{"params": [p for name, p in trained.items() if name not in head]}]
    if head:
        groups.append({"params": [trained[name] for name in head], "lr": config.critic_lr})
    return torch.optim.AdamW(groups, lr=lr, eps=config.opti_eps, weight_decay=config.weight_decay, fused=True)


NewOptimizer = Callable[[nn.Module, Config, float], torch.optim.Optimizer]


class Placement:
    """The engines of the trained models, and the places of the frozen models.

    All ranks call every method at the same point. The contexts do nothing where every rank has all weights.
    """

    def __init__(
        self,
        config: Config,
        models: Models,
        reward: BaseReward,
        world: World,
        plan: BatchPlan,
        optimizer: NewOptimizer = new_optimizer,
    ):
        """`optimizer` makes that of a trained module with a learning rate."""
        self.config, self.models, self.world = config, models, world
        self.precision = precision_of(config, world.device)
        self.settings = deepspeed_config.engine_settings(config) if config.use_deepspeed else None
        self.fsdp = fsdp_settings(config)
        trained = {name: module for name in ("policy", "critic") if (module := getattr(models, name)) is not None}
        for policy in filter(None, (models.policy, models.ref_policy)):
            _ = policy.has_plain_head  # is tried with whole weights
        documents: dict[str, dict[str, Any]] = {}
        if self.settings is not None:
            document = deepspeed_config.engine_document(config, self.settings, plan, world.size)
            documents = {name: copy.deepcopy(document) for name in trained}
            deepspeed_engine.load_deepspeed(world.device)
            self._set_precision(self.settings)
        self.reduced_precision = self.precision != "fp32" or uses_tf32(config, world.device)  # of log-probabilities
        self.roots: list[nn.Module] = [] if self.fsdp is None else self._shard(trained, self.fsdp)
        several = world.size > 1 and self.fsdp is None
        self.preparer = Preparer(world, documents) if several or self.settings else None
        self.engines: dict[str, Engine] = {}
        for name, module in trained.items():
            lr = config.lr if name == "policy" else config.critic_lr
            self.engines[name] = self._engine(name, module, optimizer(module, config, lr))
        self.frozen = FrozenModels(config, models.ref_policy, reward, world)

    def _engine(self, name: str, module: nn.Module, optimizer: torch.optim.Optimizer) -> Engine:
        if self.roots:
            root = self.roots[0] if isinstance(self.roots[0], Together) else module
            return FSDPEngine(module, optimizer, self.world, root)
        if self.preparer is None:
            return Engine(module, optimizer, self.world, self.config.uses_fp16)
        if self.settings is None:
            ddp = self.preparer.data_parallel(module)
            return Engine(module, optimizer, self.world, self.config.uses_fp16, ddp)
        try:
            engine = self.preparer.zero_engine(name, module, optimizer)
        except (ValueError, AssertionError) as error:  # pydantic's are ValueErrors
            raise UserError(f"{self.settings.source}: DeepSpeed rejects this configuration: {error}") from error
        return DeepSpeedEngine(module, engine, self.world, self.settings)

    def _shard(self, trained: dict[str, nn.Module], settings: FsdpSettings) -> list[nn.Module]:
        """Share out the trained models, and a reference of its own; returns their roots."""
        roots: list[nn.Module] = (
            [Together(trained)] if self.config.use_lora and len(trained) > 1 else [*trained.values()]
        )
        reference = self.models.ref_policy
        if reference is not None and not deepspeed_config.has_no_second_model(self.config):
            roots.append(reference)
        for root in roots:
            shard(root, self.world, settings)
        layers = sum(len(sharded_parts(root)) for root in roots)
        logger.info("FSDP2, from %s: %d units, sharded over %d processes", settings.source, layers, self.world.size)
        return roots

    def _set_precision(self, settings: deepspeed_config.EngineSettings) -> None:
        """Give the reference the engine's precision, so that the first KL is 0, and switch autocast off where it is not used.

        At stage 3 autocast is used only where a key asks for it: it keeps copies of weights that the stage takes away.
        """
        away = ", offload to the CPU" if settings.offload_optimizer or settings.offload_param else ""
        text = "DeepSpeed: ZeRO stage %d, %s%s, from %s; the optimizer is torch's AdamW"
        logger.info(text, settings.stage, settings.precision, away, settings.source)
        if not settings.half and (settings.stage < 3 or self.config.asked_precision != "auto"):
            return
        self.precision = settings.precision
        if settings.half and self.models.ref_policy is not None:
            self.models.ref_policy.to(torch.float16 if settings.precision == "fp16" else torch.bfloat16)
        for module in (self.models.policy, self.models.critic, self.models.ref_policy):
            if module is not None:
                module.use_amp = False

    @contextmanager
    def rollout(self) -> Iterator[None]:
        """Wraps a rank's own use of the models, at its own pace; every rank must leave the block, even one that fails."""
        trained = [e.model for e in self.engines.values() if isinstance(e, DeepSpeedEngine) and e.stage == 3]
        with ExitStack() as stack:
            for engine in (*trained, *(engine for engine, _ in self.frozen.partitioned)):
                stack.enter_context(deepspeed_engine.gather_weights(engine))
            if self.fsdp is not None:
                in_loss = self.models.ref_policy if self.config.kl_in == "loss" else None  # whose head the update calls
                stack.enter_context(keep_whole(self.roots, self.fsdp, in_loss))
            yield
        for module in self.frozen.waiting:
            module.to("cpu")

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Wraps what rank 0 scores while the others wait; every rank must leave the block, even one that fails."""
        with ExitStack() as stack:
            for engine, module in self.frozen.partitioned:
                if not isinstance(module, Policy):
                    stack.enter_context(deepspeed_engine.gather_weights(engine))
            yield

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        """Inside the block, rank 0 can save the trained modules as if it held them in full; the other ranks wait."""
        with ExitStack() as stack:
            for engine in self.engines.values():
                stack.enter_context(engine.whole())
            yield

    @contextmanager
    def writable_weights(self) -> Iterator[None]:
        """Inside the block, every rank can load weights into the trained modules."""
        with ExitStack() as stack:
            for engine in self.engines.values():
                stack.enter_context(engine.writable())
            yield
