"""The memory that one process of a run needs, computed from config.json before any weight is read, and what is free. In bytes.

It is there to warn, because on a CPU the kernel kills a process that takes too much without a word. Left out are imports
(0.4 to 0.8 GiB), what allocators keep, the data, and activations of the reward's models. A run whose weights are sharded
(ZeRO, FSDP2) and a network of the user's have no forecast.
"""

import logging
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedConfig
from transformers.pytorch_utils import Conv1D

from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.deepspeed_config import asks_deepspeed
from rlhf_dialog.distributed.strategy import fsdp_settings
from rlhf_dialog.models.policy import LOGITS_AT_ONCE, LOGITS_AT_ONCE_ON_GPU
from rlhf_dialog.models.precision import HALF, precision_of
from rlhf_dialog.models.pretrained import load_pretrained
from rlhf_dialog.models.trunk import trunk_of
from rlhf_dialog.rewards.composite import model_paths

logger = logging.getLogger(__name__)
NF4_BITS = 4.127  # of a weight, with its share of the scales


@dataclass(frozen=True)
class Sizes:
    """Counts of a model, from its config.json."""

    parameters: int
    trunk: int  # parameters without an output embedding of its own
    widths: int  # inputs and outputs of the trunk's linear layers, all added up
    layers: int
    hidden: int
    cache: int  # numbers in the keys and values of a token
    vocab: int
    linear: int = 0  # parameters of the trunk's linear layers
    is_half: bool = False  # whether the weights on the disk have 16 bits


def model_sizes(hf_config: PreTrainedConfig, auto_class: Any = AutoModelForCausalLM) -> Sizes:
    """The sizes of the model that `auto_class` builds from the configuration, on the meta device, which takes no memory."""
    with torch.device("meta"):
        model = auto_class.from_config(hf_config, trust_remote_code=False)
    config: Any = model.config.get_text_config()
    trunk = trunk_of(model)
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    linear = [x.weight for x in trunk.modules() if isinstance(x, nn.Linear | Conv1D)]
    return Sizes(
        parameters=model.num_parameters(),
        trunk=trunk.num_parameters(),
        widths=sum(sum(weight.shape) for weight in linear),
        layers=layers,
        hidden=config.hidden_size,
        cache=2 * layers * (getattr(config, "num_key_value_heads", None) or heads) * head_dim,
        vocab=config.vocab_size,
        linear=sum(weight.numel() for weight in linear),
        is_half=hf_config.dtype in HALF,
    )


def needed_bytes(
    config: Config,
    policy: Sizes,
    reference: Sizes | None = None,
    judges: Sequence[Sizes] = (),
    on_cuda: bool = False,
    world_size: int = 1,
) -> int:
    """What one of `world_size` processes holds at its peak, with prompts and responses of the longest length.

    Weights, 8 bytes for each trained parameter (Adam's moments), and the larger of what sampling and an update hold: keys,
    values and logits; gradients, activations and logits. On a CPU at least the policy in float32, in which it is read, and the
    linear layers of LoRA merged in float32, to be saved. A token keeps the input and output of each linear layer, and of each
    norm its input in fp32 (arXiv 2205.05198, section 4.1, without dropout). LoRA trains r * (inputs + outputs) for each linear
    layer (arXiv 2106.09685, section 4.1); in 4 bits a frozen weight takes NF4_BITS (arXiv 2305.14314, section 3).
    `reference` None: as large as the policy; `judges`: the models of the reward.
    """
    is_half = precision_of(config, torch.device("cuda" if on_cuda else "cpu")) != "fp32"
    width = 2 if is_half else 4
    frozen = 2 if is_half and policy.is_half and (on_cuda or not config.load_in_4bit) else 4
    trunks = 2 if config.estimator.needs_critic and not config.use_share_model else 1
    trained = policy.parameters + (trunks - 1) * policy.trunk
    if config.use_lora:
        trained = config.lora_r * policy.widths * trunks
    in_4bit = policy.linear if config.load_in_4bit else 0
    base = policy.parameters - in_4bit
    weights = 4 * trained
    if config.use_lora:
        weights += frozen_bytes(policy, frozen) + round(in_4bit * NF4_BITS / 8) - frozen * in_4bit
    if config.reference and (not config.use_lora or config.ref_model not in (None, config.model_path)):
        weights += frozen_bytes(reference or policy, frozen)
    weights += sum(4 * judge.parameters for judge in judges)
    if is_half and config.use_lora and frozen == 2:
        is_tied = policy.trunk == policy.parameters
        weights += 2 * policy.vocab * policy.hidden if is_tied else 0  # a copy of the output embedding
    elif is_half:
        weights += 2 * base  # autocast's copies

    plan, prompt, response = batch_plan(config, world_size), config.max_prompt_length, config.max_new_tokens
    rows = math.ceil(plan.num_responses / world_size)
    draw = 4 * policy.vocab * (8 if config.top_k or config.top_p < 1 else 4)  # a filter sorts the logits
    sampling = min(rows, config.rollout_size) * (width * policy.cache * (prompt + response) + draw)

    microbatch = min(config.microbatch_size, math.ceil(rows / plan.num_minibatches))
    prompts = math.ceil(microbatch / config.num_responses_per_prompt) if config.packing else microbatch
    kept = width * policy.widths + 8 * policy.layers * policy.hidden
    if config.activation_checkpointing:
        kept = 4 * policy.layers * policy.hidden + kept // policy.layers
    chunk = LOGITS_AT_ONCE_ON_GPU if on_cuda else LOGITS_AT_ONCE
    logits = 12 * min(microbatch * response * policy.vocab, chunk)
    activations = trunks * kept * (prompts * prompt + microbatch * response) + logits
    reading = 0 if on_cuda or config.load_in_4bit else 4 * policy.parameters
    saving = 4 * policy.linear if config.use_lora and not on_cuda else 0
    return max(reading, weights + 8 * trained + max(sampling, 4 * trained + activations, saving))


def frozen_bytes(sizes: Sizes, width: int) -> int:
    """Of weights that are not trained: `width` for each of a linear layer and of an output embedding of its own, else 4."""
    narrow = sizes.linear + sizes.parameters - sizes.trunk
    return width * narrow + 4 * (sizes.parameters - narrow)


def read_sizes(path: str, auto_class: Any = AutoModelForCausalLM) -> Sizes | None:
    """The sizes of the model in a folder or of a Hub name, none of whose code runs; None where loading will report a fault."""
    try:
        return model_sizes(load_pretrained(AutoConfig, path, "model_path", trust_remote_code=False), auto_class)
    except Exception:  # of any kind: a config.json may hold anything
        return None


def warn_of_memory(config: Config, device: torch.device, world_size: int = 1) -> int | None:
    """The bytes that this process needs; warns where fewer are free. None when there is no forecast.

    Several processes on one machine share its memory, but have one GPU each.
    """
    is_sharded = asks_deepspeed(config) or fsdp_settings(config) is not None
    if is_sharded or config.model_class or config.critic_class or (policy := read_sizes(config.model_path)) is None:
        return None
    reference = read_sizes(config.ref_model) if config.ref_model else None
    paths = model_paths(config.reward_class.id, config.reward_class.args).values()
    judges = [sizes for path in paths if (sizes := read_sizes(path, AutoModelForSequenceClassification))]
    on_cuda = device.type == "cuda"
    needed = needed_bytes(config, policy, reference, judges, on_cuda, world_size)
    free = torch.cuda.mem_get_info(device)[0] if on_cuda else host_memory()[0]
    processes = 1 if on_cuda else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if free is not None and processes * needed > free:
        text = "this run may not fit in memory: it needs about %s, but %s are free on %s; what helps: %s"
        where = str(device) if on_cuda else "this machine"
        logger.warning(text, human(processes * needed), human(free), where, "; ".join(remedies(config)))
    return needed


def remedies(config: Config) -> list[str]:
    """The changes of a key that lower the memory of this run, in the order of docs/SCALING.md."""
    has_layers = not (config.model_class or config.critic_class)  # those of a model of transformers
    helps = {
        "use_share_model: true": has_layers and config.estimator.needs_critic and not config.use_share_model,
        "per_device_microbatch_size: 1": config.microbatch_size > 1,
        "activation_checkpointing: true": has_layers and not config.activation_checkpointing,
        "use_lora: true": has_layers and not config.use_lora and not asks_deepspeed(config),  # which refuses it
        "load_in_4bit: true": config.use_lora and not (config.load_in_4bit or config.use_fsdp or config.engine),
        f"max_prompt_length: {config.max_prompt_length // 2}": config.max_prompt_length > 1,
        "a smaller model": True,
    }
    return [change for change, is_possible in helps.items() if is_possible]


def host_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> tuple[int | None, int | None]:
    """The free and the total memory of the machine, or of this process's control groups where these have less.

    None where the system does not report it. https://docs.kernel.org/admin-guide/cgroup-v2.html: a limit may be set at any level
    above; cached pages of files count as free.
    """
    sizes = dict(re.findall(r"^(MemAvailable|MemTotal):\s+(\d+) kB", _text(proc / "meminfo"), re.MULTILINE))
    if len(sizes) < 2:
        return None, None
    free, total = 1024 * int(sizes["MemAvailable"]), 1024 * int(sizes["MemTotal"])
    own = re.search(r"^0::/(.*)$", _text(proc / "self" / "cgroup"), re.MULTILINE)
    group = cgroups / (own[1] if own else "")
    for folder in (group, *group.parents):
        limit = _text(folder / "memory.max").strip()
        if limit.isdigit():
            cached = re.search(r"^inactive_file (\d+)", _text(folder / "memory.stat"), re.MULTILINE)
            used = int(_text(folder / "memory.current")) - (int(cached[1]) if cached else 0)
            free, total = min(free, max(int(limit) - used, 0)), min(total, int(limit))
    return free, total


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def human(num_bytes: float) -> str:
    """A number of bytes as text: `1.50 GiB`, `12.0 MiB`."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"
