"""Sizes that nobody has set, for a GPU: the largest powers of two for which it has memory, by the forecast."""

import logging
from collections.abc import Callable
from dataclasses import replace

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.memory.forecast import forecast, human, inference_bytes, read_sizes
from rlhf_dialog.distributed.memory.free_memory import free_on_gpu
from rlhf_dialog.distributed.memory.model_bytes import model_sizes
from rlhf_dialog.distributed.memory.setting import MemorySetting
from rlhf_dialog.distributed.world import World
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.models.responder import Responder

logger = logging.getLogger(__name__)
LEFT_FREE, LEFT_FREE_BY_SEVERAL = 0.1, 0.25  # of the free memory; several processes have buckets and gathered weights
CPU_BATCH, LARGEST_BATCH = 64, 1024  # prompts that an evaluation answers at a time
MICROBATCH, ROLLOUT = "per_device_microbatch_size", "per_device_rollout_size"


def choose_sizes(config: Config, world: World, setting: MemorySetting) -> bool:
    """Set the sizes of the configuration that are `auto` on a GPU, the same on every rank; whether there was one to set.

    Nothing is loaded yet. All ranks call it.
    """
    automatic = [key for key in (MICROBATCH, ROLLOUT) if getattr(config, key) == "auto"]
    can_choose = setting.on_cuda and automatic and not (config.model_class or config.critic_class)
    sizes = read_sizes(config) if can_choose else None
    if sizes is None:
        return False
    shared = world.size > 1 or setting.zero_stage > 0
    free = free_on_gpu(world.device)
    room = int(free * (1 - (LEFT_FREE_BY_SEVERAL if shared else LEFT_FREE)))

    def fits(phases: tuple[str, ...], setting: MemorySetting) -> bool:
        found = forecast(*sizes, setting)
        return all(found.bytes_in(phase) <= room for phase in phases)

    if MICROBATCH in automatic:
        passes = ("scoring", "update")
        most = largest_power(setting.rows, lambda size: fits(passes, replace(setting, microbatch=size)))
        config.per_device_microbatch_size = min(world.gather(most))
        setting = replace(setting, microbatch=config.microbatch_size)
    if ROLLOUT in automatic:
        most = largest_power(setting.rows, lambda size: fits(("rollout",), replace(setting, rows_at_once=size)))
        config.per_device_rollout_size = min(world.gather(most))
    text = ", ".join(f"{key} {getattr(config, key)}" for key in automatic)
    logger.info(
        "chosen by the memory forecast, for %s of %s free on %s: %s", human(room), human(free), world.device, text
    )
    return True


def fitting_batch(speaker: Responder, sampling: Sampling) -> int:
    """How many prompts a loaded model answers at a time: 64, or the largest power of two for which its GPU has memory."""
    policy, response = speaker.policy, sampling.max_new_tokens
    if policy.lm.device.type != "cuda":
        return CPU_BATCH
    try:
        sizes = model_sizes(policy.lm.config)
    except Exception as error:  # of any kind: a network of the user's, or a model that needs its own code
        logger.debug("no memory forecast: %s", error)
        return CPU_BATCH
    room = int(free_on_gpu(policy.lm.device) * (1 - LEFT_FREE))
    setting = MemorySetting(
        rows=LARGEST_BATCH,
        microbatch=LARGEST_BATCH,
        prompt=speaker.encoder.max_prompt_length,
        response=response,
        precision="amp" if policy.use_amp else "fp32",
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        filtered=sampling.filtered,
        on_cuda=True,
    )

    def fits(size: int) -> bool:
        return inference_bytes(sizes, replace(setting, rows=size, microbatch=size, rows_at_once=size)) <= room

    return largest_power(LARGEST_BATCH, fits)


def largest_power(top: int, fits: Callable[[int], bool]) -> int:
    """The largest power of two that fits, of those up to the first that is not below `top`; 1 where none does."""
    size = 1 << max(top - 1, 0).bit_length()
    while size > 1 and not fits(size):
        size //= 2
    return size
