"""Where DeepSpeed's settings keep the frozen models: whole, on the CPU between uses, or partitioned over the processes."""

import logging
from typing import Any

from torch import nn

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.deepspeed_config import BATCH_SIZES, FrozenSettings, frozen_settings
from rlhf_dialog.distributed.deepspeed_engine import load_deepspeed
from rlhf_dialog.distributed.world import World
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.trunk import trunk_of
from rlhf_dialog.rewards.base import BaseReward, models_inside

logger = logging.getLogger(__name__)


class FrozenModels:
    """The reference and the models of a reward, placed as `ref_ds_config` and `intent_ds_config` say.

    `partitioned`: DeepSpeed's engine and the module of each model of ZeRO stage 3; `waiting`: a reference that is to be moved
    back to the CPU after a rollout. The models of a reward move themselves for each scoring.
    """

    def __init__(self, config: Config, ref_policy: Policy | None, reward: BaseReward, world: World):
        self.world = world
        self.partitioned: list[tuple[Any, nn.Module]] = []
        self.waiting: list[nn.Module] = []
        settings = frozen_settings(config, "ref_ds_config")
        if settings is not None and ref_policy is not None:
            self._place("reference", ref_policy, settings)
        settings = frozen_settings(config, "intent_ds_config")
        if settings is None:
            return
        for name, (judge, module) in models_inside(reward).items():
            self._place(name, module, settings)
            if settings.offload and settings.stage == 0 and world.device.type != "cpu":
                judge.work_on(str(world.device))

    def _place(self, name: str, module: nn.Module, settings: FrozenSettings) -> None:
        if settings.stage == 3:
            if not isinstance(module, Policy):
                module.float()  # DeepSpeed partitions weights of one type
            self.partitioned.append((self._partition(module, settings.offload), module))
            logger.info("the %s is partitioned over %d processes (ZeRO stage 3)", name, self.world.size)
        elif settings.offload and self.world.device.type != "cpu":
            module.to("cpu")
            if isinstance(module, Policy):
                for part in (module.lm, trunk_of(module.lm)):
                    part.register_forward_pre_hook(lambda *_: self._fetch(module))
                self.waiting.append(module)
            logger.info("the %s is kept on the CPU and moved to %s for scoring", name, self.world.device)

    def _partition(self, module: nn.Module, offload: bool) -> Any:
        """DeepSpeed's engine without an optimizer; `offload`: this process keeps its part in host memory."""
        deepspeed = load_deepspeed(self.world.device)
        away = {"offload_param": {"device": "cpu"}} if offload else {}
        zero = {"stage": 3, "stage3_param_persistence_threshold": 0, **away}  # small weights too
        document = {"zero_optimization": zero, **dict.fromkeys(BATCH_SIZES, 1), "train_batch_size": self.world.size}
        engine, *_ = deepspeed.initialize(model=module, config=document, dist_init_required=False)
        module.eval()
        return engine

    def _fetch(self, module: nn.Module) -> None:
        if next(module.parameters()).device.type == "cpu":
            module.to(self.world.device)
