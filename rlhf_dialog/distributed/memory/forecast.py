"""The memory that one process of a run will need, from the configuration and the models' config.json, before any weight is read.

All sizes are bytes. P prompt tokens, T response tokens, V vocabulary. The forecast is for prompts of `max_prompt_length` and
responses of `max_new_tokens`, so that most runs stay below it.

Not counted: what importing the libraries takes (0.4 to 0.8 GiB of host memory, 0.3 to 0.6 GiB of a GPU for its context), what
allocators keep between tensors, the buckets of DeepSpeed and DDP, the data set, the value head, METEOR's WordNet, and the
workspaces of matrix products.
"""

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.memory.free_memory import free_on_gpu, free_on_host
from rlhf_dialog.distributed.memory.model_bytes import (
    ForwardPass,
    Sizes,
    kept_bytes,
    live_bytes,
    lora_parameters,
    model_sizes,
)
from rlhf_dialog.distributed.memory.setting import MemorySetting, memory_setting
from rlhf_dialog.models.precision import HALF
from rlhf_dialog.models.pretrained import load_pretrained
from rlhf_dialog.rewards.composite import model_paths

logger = logging.getLogger(__name__)
LOOK_EVERY = 8  # tokens whose kept ids a filter holds as a mask
MAX_LIVE_PARAMETERS = 10**9  # DeepSpeed's default of stage3_max_live_parameters
PHASES = ("loading", "rollout", "scoring", "reward", "update", "optimizer step")
TRAINING = PHASES[1:]
IN_ROLLOUT = ("rollout", "scoring", "reward")  # weights that are gathered for a rollout stay whole until it is scored


@dataclass(frozen=True)
class Item:
    """The bytes of one item of memory; without `phases` it is there all the time."""

    name: str
    bytes: int
    phases: tuple[str, ...] = ()
    on_host: bool = False  # in host memory, away from the device that computes


@dataclass(frozen=True)
class Forecast:
    """The items of a process's memory on the device that computes (a GPU's, or the machine's own) and away from it."""

    items: tuple[Item, ...]

    def items_in(self, phase: str, on_host: bool = False) -> list[Item]:
        """The items that are in memory during a phase."""
        return [item for item in self.items if item.on_host == on_host and (not item.phases or phase in item.phases)]

    def bytes_in(self, phase: str, on_host: bool = False) -> int:
        return sum(item.bytes for item in self.items_in(phase, on_host))

    @property
    def always(self) -> int:
        """Bytes on the device that are there in every phase."""
        return sum(item.bytes for item in self.items if not (item.phases or item.on_host))

    @property
    def peak(self) -> str:
        """The phase that needs the most memory on the device."""
        return max(PHASES, key=self.bytes_in)

    @property
    def total(self) -> int:
        """Bytes on the device at the peak: the permanent items and those of the largest phase."""
        return self.bytes_in(self.peak)

    @property
    def host_total(self) -> int:
        return max(self.bytes_in(phase, on_host=True) for phase in PHASES)

    @property
    def largest(self) -> Item:
        """The largest item at the peak."""
        return max(self.items_in(self.peak), key=lambda item: item.bytes)

    def table(self) -> str:
        """One line for the total, two for the permanent items, and one for the items that each phase adds."""
        host = f", and {human(self.host_total)} of host memory" if self.host_total else ""
        lines = [f"memory forecast per process, without libraries: {human(self.total)} (in the {self.peak}){host}"]
        groups = {"always": [item for item in self.items if not item.phases]}
        groups["after loading"] = [item for item in self.items if item.phases == TRAINING]
        for phase in PHASES:
            groups[phase] = [item for item in self.items if phase in item.phases and item.phases != TRAINING]
        for title, items in groups.items():
            if items:
                on_device = sum(item.bytes for item in items if not item.on_host)
                lines.append(f"  {title} {human(on_device)}: {', '.join(map(_describe_item, items))}")
        return "\n".join(lines)


def _describe_item(item: Item) -> str:
    return f"{item.name} {human(item.bytes)}{' of host memory' if item.on_host else ''}"


def human(num_bytes: float) -> str:
    """A number of bytes as text: `1.50 GiB`, `12.0 MiB`."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def forecast(
    policy: Sizes, reference: Sizes | None, judges: Mapping[str, Sizes] | None, setting: MemorySetting
) -> Forecast:
    """The memory of one process. `reference` None: as large as the policy; `judges`: the models of the reward by name."""
    reference = reference or policy
    items = _trained_items("policy", policy, policy.parameters, setting)
    if setting.critic == "separate":
        items += _trained_items("critic", policy, policy.trunk, setting)
    if setting.holds_reference:
        items += _frozen("reference", reference, setting.weight_bytes, "scoring", setting)
        items.append(Item("16-bit head of the reference", _frozen_head(reference, setting, HALF), TRAINING))
    kept = replace(setting, frozen_stage=setting.judge_stage, frozen_offload=setting.judge_offload)
    for name, judge in (judges or {}).items():
        items += _frozen(name, judge, 4, "reward", kept)
        length = min(setting.prompt + setting.response, judge.positions or 2**31)
        live = live_bytes(judge, setting.classifier_batch * length, length)
        items.append(Item(f"activations of the {name}", live, ("reward",)))
    items += _loading(policy, reference, judges or {}, Forecast(tuple(items)).always, setting)
    items += _rollout(policy, setting) + _scoring(policy, reference, setting) + _update(policy, setting)
    return Forecast(tuple(item for item in items if item.bytes))


def _loading(
    policy: Sizes, reference: Sizes, judges: Mapping[str, Sizes], held: int, setting: MemorySetting
) -> list[Item]:
    """Every process reads whole models in fp32 to its device, and only then shares them out, offloads them or halves them.

    `held`: bytes of weights that stay on the device.
    """
    critic = policy.trunk if setting.critic == "separate" and not setting.lora_rank else 0
    second = reference.parameters if setting.holds_reference else 0
    whole = 4 * (policy.parameters + critic + second + sum(judge.parameters for judge in judges.values()))
    items = [Item("weights before they are shared out", max(whole - held, 0), ("loading",))]
    if setting.on_cuda:
        both = 4 * (policy.parameters + (max(policy.parameters, second) if second else 0))
        items.append(Item("models on their way to the device", both, ("loading",), on_host=True))
    return items


def trained_count(sizes: Sizes, weights: int, setting: MemorySetting) -> int:
    """The number of parameters that get a gradient, of a model with `weights` parameters."""
    return lora_parameters(sizes, setting.lora_rank, setting.lora_targets) if setting.lora_rank else weights


def _trained_items(name: str, sizes: Sizes, weights: int, setting: MemorySetting) -> list[Item]:
    """Weights, gradients and Adam's state: 4 + 4 + 8 bytes for each trained parameter in fp32.

    ZeRO (arXiv 1910.02054, section 5 and figure 1) partitions the optimizer state over the processes in stage 1, also the
    gradients in stage 2, also the parameters in stage 3; in 16 bit it has 2 + 2 + 12 bytes. From stage 1 on DeepSpeed keeps an
    fp32 copy of the weights beside the moments in every precision. Gradients that are offloaded (from stage 2 on) wait in fp32.
    """
    stage, world, width = setting.zero_stage, setting.world_size, setting.weight_bytes
    trained = trained_count(sizes, weights, setting)
    # a critic shares the base
    held = weights if not setting.lora_rank else trained + (weights if name == "policy" else 0)
    narrow = narrow_count(sizes, setting, (setting.autocast_type,)) if setting.lora_rank and name == "policy" else 0
    state = (12 if stage or setting.precision == "half" else 8) * trained // (world if stage else 1)
    away = setting.offload_optimizer and stage >= 2
    gradients = (4 if away else width) * trained // (world if stage >= 2 else 1)
    kept = (width * held - 2 * narrow) // (world if stage == 3 else 1)
    several = setting.update_rows < setting.step_rows or stage > 0  # see `_update`
    items = [
        Item(f"weights of the {name}", kept, (), setting.offload_param and stage == 3),
        Item(f"Adam's state of the {name}", state, TRAINING, setting.offload_optimizer and stage > 0),
        Item(f"gradients of the {name}", gradients, ("update", "optimizer step")[not several :], away),
    ]
    if stage == 3:
        live = min(held, MAX_LIVE_PARAMETERS) * width
        items.append(Item(f"gathered parameters of the {name}", live, ("update",)))
        title = "parameters gathered for the rollout" + ("" if name == "policy" else f", of the {name}")
        items.append(Item(title, held * width, IN_ROLLOUT))
    return items


def narrow_count(sizes: Sizes, setting: MemorySetting, types: tuple[torch.dtype, ...] = HALF) -> int:
    """How many frozen weights stay in the 16 bits of their checkpoint, if that has one of the `types`."""
    return sizes.linear + sizes.own_head if setting.narrows and sizes.checkpoint_type in types else 0


def _frozen(name: str, sizes: Sizes, width: int, phase: str, setting: MemorySetting) -> list[Item]:
    """Weights without gradients, `width` bytes each where they do not stay in 16 bits."""
    whole = width * sizes.parameters - 2 * narrow_count(sizes, setting)
    if setting.frozen_stage == 3:
        partition = Item(f"weights of the {name}", whole // setting.world_size, (), setting.frozen_offload)
        return [partition, Item(f"gathered parameters of the {name}", whole, IN_ROLLOUT)]
    weights = Item(f"weights of the {name}", whole, (), setting.frozen_offload)
    return [weights, Item(f"{name} on the device", whole, (phase,))] if setting.frozen_offload else [weights]


def _rollout(sizes: Sizes, setting: MemorySetting) -> list[Item]:
    """Keys and values of every layer for the rows generated at once, the pass over their prompts, and logits to sample from."""
    rows, length = min(setting.rows, setting.rows_at_once), setting.prompt + setting.response
    cache = rows * length * sizes.layers * 2 * sizes.kv_heads * sizes.head_dim * setting.float_bytes
    read = min(setting.num_prompts(rows), setting.microbatch)
    lora = setting.lora_rank > 0
    prompts = live_bytes(sizes, read * setting.prompt, setting.prompt, setting.float_bytes, lora)
    logits, kept = rows * sizes.vocab, setting.kept_ids(sizes.vocab)
    features = setting.rows * setting.response * sizes.hidden * setting.float_bytes
    support = 8 * setting.response * kept  # of a response
    masks = logits * (LOOK_EVERY + 9) + rows * kept * 16  # of some tokens, and an order of one's ids
    draw = max(logits * 4 * (8 if setting.filtered else 4), masks if kept else 0)  # a filter sorts: indices and a copy
    exact_kl = features if setting.exact_kl else 0
    return [
        Item("tokens", setting.rows * (8 * setting.prompt + 48 * setting.response), TRAINING),
        Item("cache of keys and values", cache, ("rollout",)),
        _largest("rollout", Item("activations of the prompts", prompts), Item("logits to draw from", draw)),
        Item("hidden states for the unfiltered KL", features if setting.filtered else 0, ("rollout", "scoring")),
        Item("hidden states of the reference for the exact KL", exact_kl, ("scoring", "update")),
        Item("kept token ids", setting.rows * support, TRAINING),
        Item("kept token ids while they grow", setting.rows * support, ("rollout",)),
        Item(
            "kept token ids of microbatches",
            (setting.rows + min(setting.rows, setting.microbatch)) * support,
            ("scoring",),
        ),
        Item("kept token ids of a minibatch", setting.step_rows * support, ("update", "optimizer step")),
        Item("kept token ids of a microbatch", 2 * setting.update_rows * support, ("update",)),
        Item("bf16 copies of weights", _bf16_copies(sizes, setting), ("rollout",)),
        Item(
            "16-bit head of the policy", _frozen_head(sizes, setting, (setting.autocast_type,)) if lora else 0, TRAINING
        ),
    ]


def inference_bytes(sizes: Sizes, setting: MemorySetting) -> int:
    """What generating replies, and predictions of these, take beside a loaded model."""
    items = _rollout(sizes, setting) + _scoring(sizes, sizes, setting)
    return max(sum(item.bytes for item in items if phase in item.phases) for phase in ("rollout", "scoring"))


def _largest(phase: str, *items: Item) -> Item:
    """The largest of some items that are not there at the same time."""
    return replace(max(items, key=lambda item: item.bytes), phases=(phase,))


def _scoring(policy: Sizes, reference: Sizes, setting: MemorySetting) -> list[Item]:
    """Passes over microbatches without gradients, one model after the other, each before its logits."""
    length, rows = setting.prompt + setting.response, min(setting.microbatch, setting.rows)
    tokens = setting.num_prompts(rows) * setting.prompt + rows * setting.response
    live = max(live_bytes(sizes, tokens, length, setting.float_bytes) for sizes in (policy, reference))
    # the logits and what they are in fp32; with a filter, five tensors of both models for the unfiltered KL
    logits = _logits(policy, setting, rows, 20 if setting.filtered else 4 + setting.converted_bytes)
    copies = 0 if setting.lora_rank else _bf16_copies(policy, setting)
    head = 0 if setting.lora_rank or setting.precision != "amp" else 2 * policy.embedding  # is kept from the rollout
    return [
        _largest("scoring", Item("activations without gradients", live), Item("logits", logits)),
        Item("bf16 copies of weights", copies if setting.critic == "separate" else head, ("scoring",)),
    ]


def _update(sizes: Sizes, setting: MemorySetting) -> list[Item]:
    """Passes over microbatches with gradients, and the temporary memory of the optimizer step.

    A backward pass that adds to an existing gradient holds a second gradient, of one parameter at a time.
    """
    length, trunks = setting.prompt + setting.response, 2 if setting.critic == "separate" else 1
    rows = setting.update_rows
    prompts = setting.num_prompts(rows)
    keys = rows * length + (prompts * setting.prompt if prompts < rows else 0)
    # see packing.py
    explicit = setting.precision == "amp" and setting.packing and not setting.on_cuda and length <= 256
    trunk = replace(sizes, explicit_attention=sizes.explicit_attention or explicit)
    how = ForwardPass(
        setting.float_bytes,
        2 if setting.precision == "half" else 4,
        setting.packing,
        setting.activation_checkpointing,
        setting.lora_rank > 0,
    )
    tokens = prompts * setting.prompt + rows * setting.response
    kept = kept_bytes(trunk, tokens, length, how, keys)
    # computed again, one layer at a time, when the logits have gone
    layer = kept_bytes(replace(trunk, layers=1), tokens, length, replace(how, checkpointing=False), keys)
    layer = layer if setting.activation_checkpointing else 0
    trained = trained_count(sizes, sizes.parameters, setting)
    # DeepSpeed's copies of the gradient; torch's fused Adam takes none
    temporaries = 4 * trained // setting.world_size if setting.zero_stage else 0
    # in fp32 the logits, their exponentials and the slope of the entropy; in 16 bits the logits and a gradient
    logits = _logits(sizes, setting, rows, 12 + 2 * setting.converted_bytes)
    # those of a single microbatch come as its activations go
    several = rows < setting.step_rows or setting.zero_stage > 0
    second = setting.weight_bytes * min(sizes.largest, trained) if several else 0
    gradients = 0 if several else setting.weight_bytes * trained * trunks - kept * trunks - logits
    return [
        Item("gradients of the step, less the activations", max(gradients, 0), ("update",)),
        Item("activations", (kept - layer) * trunks, ("update",)),
        _largest(
            "update", Item("activations of one layer", layer), Item("logits", logits), Item("a second gradient", second)
        ),
        Item("bf16 copies of weights", _bf16_copies(sizes, setting) * trunks, ("update",)),
        Item("temporaries of Adam", 0 if setting.offload_optimizer else temporaries, ("optimizer step",)),
    ]


def _logits(sizes: Sizes, setting: MemorySetting, rows: int, bytes_each: int) -> int:
    return bytes_each * min(rows * setting.response * sizes.vocab, setting.logits_chunk // 4)


def _frozen_head(sizes: Sizes, setting: MemorySetting, types: tuple[torch.dtype, ...]) -> int:
    """The 16-bit copy of a frozen output embedding in fp32, which stays."""
    is_narrow = sizes.own_head > 0 and narrow_count(sizes, setting, types) > 0
    return 0 if is_narrow or setting.precision != "amp" or setting.zero_stage == 3 else 2 * sizes.embedding


def _bf16_copies(sizes: Sizes, setting: MemorySetting) -> int:
    """Autocast's copies of the weights in fp32 of linear layers: the backward pass needs those of frozen ones too.

    A frozen head's copy is `_frozen_head`.
    """
    if setting.precision != "amp":
        return 0
    if not setting.lora_rank:
        return 2 * (sizes.linear + sizes.embedding)
    frozen = 0 if narrow_count(sizes, setting, (setting.autocast_type,)) else sizes.linear
    return 2 * (frozen + trained_count(sizes, 0, setting))


def processes_here() -> int:
    """The processes that the launcher started on this machine; DeepSpeed's launcher has a name of its own for their number."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)


def report_forecast(config: Config, device: torch.device, setting: MemorySetting | None = None) -> Forecast | None:
    """The forecast of this process; None when no forecast is possible, as for a network of the user's.

    Logged as a table with --verbose, and with a warning where it exceeds the free memory.

    Several processes on one machine share its memory, but have one GPU each.
    """
    if config.model_class or config.critic_class:
        return None
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    setting = setting or memory_setting(config, world_size, on_cuda=device.type == "cuda")
    sizes = read_sizes(config)
    if sizes is None:
        return None
    forecast_of_run = forecast(*sizes, setting)
    processes = processes_here()
    on_host = forecast_of_run.host_total if setting.on_cuda else forecast_of_run.total + forecast_of_run.host_total
    machine = "this machine" + (f" for {processes} processes" if processes > 1 else "")
    places = (
        (forecast_of_run.total, free_on_gpu(device) if setting.on_cuda else None, str(device)),
        (on_host * processes, free_on_host(), machine),
    )
    tight = any(free is not None and needed > free for needed, free, _ in places)
    logger.log(logging.INFO if tight else logging.DEBUG, "%s", forecast_of_run.table())
    for needed, free, where in places:
        if free is not None and needed > free:
            helps = "; ".join(remedies(sizes, setting)) or "use a smaller model"
            logger.warning(
                "this run may not fit in memory: it needs about %s (in the %s), but %s are free on %s; the largest item is %s. "
                "To lower it: %s",
                human(needed),
                forecast_of_run.peak,
                human(free),
                where,
                _describe_item(forecast_of_run.largest),
                helps,
            )
    return forecast_of_run


def remedies(sizes: tuple[Sizes, Sizes | None, Mapping[str, Sizes] | None], setting: MemorySetting) -> list[str]:
    """Each change of a single key that lowers the forecast, the best one first: `use_share_model: true (to 1.20 GiB)`."""
    variants = {
        "use_share_model: true": replace(setting, critic="shared" if setting.critic == "separate" else setting.critic),
        "precision: bf16": replace(setting, precision="amp" if setting.precision == "fp32" else setting.precision),
        "use_lora: true": replace(setting, lora_rank=setting.lora_rank or 16),
        "activation_checkpointing: true": replace(setting, activation_checkpointing=True),
        "per_device_microbatch_size: 1": replace(setting, microbatch=1),
        f"max_prompt_length: {setting.prompt // 2}": replace(setting, prompt=setting.prompt // 2),
        f"max_new_tokens: {setting.response // 2}": replace(setting, response=setting.response // 2),
        "rollout_batch_size: half as many": replace(
            setting, rows=math.ceil(setting.rows / 2), minibatch=math.ceil(setting.step_rows / 2)
        ),
    }
    totals = {name: forecast(*sizes, variant).total for name, variant in variants.items()}
    now = forecast(*sizes, setting).total
    helping = {name: total for name, total in totals.items() if total < 0.99 * now}
    return [f"{name} (to {human(total)})" for name, total in sorted(helping.items(), key=lambda x: x[1])]


def read_sizes(config: Config) -> tuple[Sizes, Sizes | None, dict[str, Sizes]] | None:
    """The sizes of the policy, of a separate reference (or None), and of the models of the reward, by name.

    None when the config.json of one of the first two cannot be read; a model of the reward that cannot be read is left out.
    Loading the model reports why. A forecast never runs a model's own code, even with trust_remote_code.
    """
    try:
        policy = _read(config.model_path, AutoModelForCausalLM)
        reference = None if config.ref_model is None else _read(config.ref_model, AutoModelForCausalLM)
    except Exception as error:  # of any kind: a config.json may hold anything
        logger.debug("no memory forecast: %s", error)
        return None
    return policy, reference, _read_judges(config)


def _read_judges(config: Config) -> dict[str, Sizes]:
    judges = {}
    for name, path in model_paths(config.reward_class.id, config.reward_class.args).items():
        try:
            judges[name] = _read(path, AutoModelForSequenceClassification)
        except Exception as error:  # of any kind, see above; or no classifier of transformers
            text = "the memory forecast does not include the reward's %s: its sizes cannot be read from '%s'"
            logger.info(text, name, path)
            logger.debug("%s: %s", path, error)
    return judges


def _read(path: str, auto_class: Any) -> Sizes:
    return model_sizes(load_pretrained(AutoConfig, path, "model_path", trust_remote_code=False), auto_class)
