"""What the DeepSpeed keys of a run and their JSON files mean, before DeepSpeed is imported.

Sizes of batches are ours: DeepSpeed gets them in responses, whatever the file says.
"""

import json
import logging
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlhf_dialog.config.batch_plan import BatchPlan
from rlhf_dialog.config.loading import reward_nodes, shipped
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)
COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|#[^\n]*')
FROZEN_KEYS = ("ref_ds_config", "intent_ds_config")
FROZEN_DEFAULT = "default"  # what NLPReward calls: no engine, and the model waits on the CPU
OURS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
IGNORED = {"optimizer": "lr, critic_lr, opti_eps and weight_decay of the YAML", "scheduler": "use_linear_lr_decay"}
REFUSED = {
    "amp": "apex is not supported; use the fp16 or bf16 block, or use_amp: true",
    "elasticity": "the number of processes is fixed in a run",
    "autotuning": "DeepSpeed's autotuner starts runs of its own; choose the sizes in the YAML",
}
Precision = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class EngineSettings:
    """How the trained models of a run are shared out: `document` is the JSON, without `auto` and without batch sizes."""

    source: str
    document: dict[str, Any]
    stage: int
    precision: Precision
    offload_optimizer: bool
    offload_param: bool
    sizes: dict[str, Any]  # the batch sizes that the file has
    notes: tuple[str, ...]  # what of the file is not used

    @property
    def half(self) -> bool:
        """Whether the weights that compute have 16 bits."""
        return self.precision != "fp32"


@dataclass(frozen=True)
class FrozenSettings:
    """How a frozen model is kept: stage 0 has no engine, and may wait on the CPU; stage 3 is partitioned."""

    source: str
    stage: int
    offload: bool
    document: dict[str, Any]


def engine_settings(config: Config) -> EngineSettings:
    """The engine that `use_deepspeed: true` asks for. Raises UserError for what is not there or cannot be."""
    source, raw = read_engine_file(config.deepspeed_config, config.folder, "deepspeed_config")
    document = _without_auto(raw)
    for key in REFUSED.keys() & document.keys():
        raise UserError(f"{source}: {key}: {REFUSED[key]}")
    ignored = sorted(IGNORED.keys() & document.keys())
    notes = [f"{key} is not used, because {IGNORED[key]} decides" for key in ignored]
    document = {key: value for key, value in document.items() if key not in IGNORED}
    zero = _block(document, "zero_optimization", source)
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise UserError(f"{source}: zero_optimization.stage is {stage!r}; it must be 0, 1, 2 or 3")
    _offload(zero, int(stage), config.use_offload, source)
    document["zero_optimization"] = zero | {"stage": stage}
    precision = _precision(document, config.use_fp16, source)
    if stage == 0 and precision != "fp32":
        raise UserError(
            f"{source}: {precision} with ZeRO stage 0 is not supported; take stage 1, which computes the same with less memory, "
            "or use_amp: true"
        )
    if config.use_amp and precision != "fp32":
        notes.append(f"use_amp has no effect, because the engine computes in {precision}")
    sizes = {key: document.pop(key) for key in OURS if key in document}
    offloads = (_device(zero, "offload_optimizer") == "cpu", _device(zero, "offload_param") == "cpu")
    return EngineSettings(source, document, int(stage), precision, *offloads, sizes, tuple(notes))


def _offload(zero: dict[str, Any], stage: int, wanted: bool, source: str) -> None:
    """Add `use_offload` to the block. Raises UserError for what DeepSpeed would ignore, or could not be saved."""
    if wanted and stage == 0:
        raise UserError("use_offload: true needs a ZeRO stage of 1 to 3: stage 0 has nothing that it could move away")
    if wanted:
        zero.setdefault("offload_optimizer", {"device": "cpu"})
        if stage == 3:
            zero.setdefault("offload_param", {"device": "cpu"})
    for key, least in (("offload_optimizer", 1), ("offload_param", 3)):
        device = _device(zero, key)
        if device == "nvme":
            raise UserError(f"{source}: {key} to nvme is not supported, since checkpoints would miss it; use cpu")
        if device == "cpu" and stage < least:
            raise UserError(f"{source}: {key} needs ZeRO stage {least}{' to 3' if least < 3 else ''}, not {stage}")


def _device(zero: dict[str, Any], key: str) -> str:
    block = zero.get(key)
    return str(block.get("device", "none")) if isinstance(block, dict) else "none"


def _precision(document: dict[str, Any], use_fp16: bool, source: str) -> Precision:
    half = {name: _block(document, name, source) for name in ("fp16", "bf16")}
    chosen = {name for name, block in half.items() if block.get("enabled") is True}
    if use_fp16:
        chosen.add("fp16")
        document["fp16"] = half["fp16"] | {"enabled": True}
    if len(chosen) > 1:
        raise UserError(f"{source}: fp16 and bf16 are both on (use_fp16: {str(use_fp16).lower()}); keep one of them")
    if "bf16" in chosen:
        document["bf16"] = {"check_grad_overflow": True} | half["bf16"]
    return "fp16" if "fp16" in chosen else "bf16" if "bf16" in chosen else "fp32"


def _block(document: dict[str, Any], key: str, source: str) -> dict[str, Any]:
    block = document.get(key, {})
    if not isinstance(block, dict):
        raise UserError(f"{source}: {key} must be a block {{...}}, found {block!r}")
    return dict(block)


def frozen_settings(config: Config, key: str) -> FrozenSettings | None:
    """What `ref_ds_config` or `intent_ds_config` asks for, at the top level or of a reward that says `use_deepspeed: true`.

    None where nobody asks. Raises UserError for stages 1 and 2, and for two that differ.
    """
    asked = _asked(config, key)
    if not asked:
        return None
    given = {where: name for where, name in asked.items() if name is not None} or {key: FROZEN_DEFAULT}
    (where, name), *others = given.items()
    for other, another in others:
        if another != name:
            raise UserError(f"{where}: {name!r} here, but {another!r} in {other}; keep one of them")
    if name == FROZEN_DEFAULT:
        return FrozenSettings(FROZEN_DEFAULT, 0, True, {})
    source, raw = read_engine_file(str(name), config.folder, where)
    document = _without_auto(raw)
    zero = _block(document, "zero_optimization", source)
    stage = zero.get("stage", 0)
    if stage in (1, 2):
        raise UserError(
            f"{where}: {source} has ZeRO stage {stage}, which shares out the state of an optimizer, and a frozen model has "
            "none; use stage 0 (the whole model in each process) or 3 (its weights shared out)"
        )
    if stage not in (0, 3) or isinstance(stage, bool):
        raise UserError(f"{where}: {source}: zero_optimization.stage is {stage!r}; it must be 0 or 3")
    kept = {"zero_optimization": zero}
    return FrozenSettings(source, int(stage), _device(zero, "offload_param") == "cpu", kept)


def asks_deepspeed(config: Config) -> bool:
    """Whether DeepSpeed computes: the trained models, or a frozen one."""
    return config.use_deepspeed or any(_asked(config, key) for key in FROZEN_KEYS)


def _asked(config: Config, key: str) -> dict[str, Any]:
    """The value of `key` at every place that decides on frozen models, by dotted key; None: it does not say."""
    top = {key: value} if (value := getattr(config, key)) is not None else {}
    inside = {
        f"{place}.args.{key}": node["args"].get(key)
        for place, node in reward_nodes(config.reward_class.model_dump())
        if node["args"].get("use_deepspeed") is True
    }
    return top | inside


def read_engine_file(name: str | None, folder: Path | None, key: str) -> tuple[str, dict[str, Any]]:
    """Where the JSON was found and what it holds: beside the YAML, in ds_configs/, here, or shipped; ours for no name.

    Raises UserError."""
    if name is None:
        return "our default (ZeRO stage 2)", {"zero_optimization": {"stage": 2}}
    places = [*([folder] if folder else []), Path("ds_configs"), Path(), shipped("ds_configs")]
    path = next((place / name for place in places if (place / name).is_file()), None)
    if path is None:
        listed = ", ".join(str(place) for place in dict.fromkeys(places))
        raise UserError(f"{key}: '{name}' not found; looked in {listed}")
    try:
        found = json.loads(COMMENT.sub(lambda match: match[1] or "", path.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{key}: {path} is no JSON (comments with # are fine): {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{key}: {path} must hold a JSON object {{...}}, found {type(found).__name__}")
    return str(path), found


def _without_auto(node: Any) -> Any:
    """A copy in which no key says `auto`, so that DeepSpeed's default or ours stands for it."""
    if isinstance(node, dict):
        return {key: _without_auto(value) for key, value in node.items() if value != "auto"}
    return [_without_auto(value) for value in node] if isinstance(node, list) else node


def check_token_count(config: Config, settings: EngineSettings) -> None:
    """The document's batch size counts tokens: episode_length * env_num / num_mini_batch. Raises UserError when it does not fit.

    Without a meaning when `rollout_batch_size` says how many responses there are.
    """
    found = settings.sizes.get("train_batch_size")
    if found is None or config.rollout_batch_size is not None:
        return
    tokens = config.episode_length * config.env_num
    if found * config.num_mini_batch != tokens:
        fits = tokens // config.num_mini_batch
        advice = f"{fits} fits, or" if fits * config.num_mini_batch == tokens else "use"
        raise UserError(
            f"{settings.source}: train_batch_size {found} is not episode_length {config.episode_length} * env_num "
            f"{config.env_num} / num_mini_batch {config.num_mini_batch} = {tokens / config.num_mini_batch:g} tokens; {advice} "
            '"auto"'
        )


def engine_document(config: Config, settings: EngineSettings, plan: BatchPlan, world_size: int) -> dict[str, Any]:
    """The JSON for `deepspeed.initialize`: the user's, with batch sizes in responses and our limit of gradients."""
    most = math.ceil(plan.num_prompts / world_size) * config.num_responses_per_prompt
    part = math.ceil(most / plan.num_minibatches)
    micro = min(config.per_device_microbatch_size, part)
    rounds = math.ceil(part / micro)
    sizes = dict(zip(OURS, (micro * rounds * world_size, micro, rounds), strict=True))
    limit = config.max_grad_norm if config.use_max_grad_norm else 0.0
    ours: dict[str, Any] = {**sizes, "gradient_clipping": limit, "zero_allow_untested_optimizer": True}
    for note in settings.notes:
        logger.info("%s: %s", settings.source, note)
    given = settings.document | settings.sizes
    replaced = [f"{key} {given[key]} -> {value}" for key, value in ours.items() if given.get(key, value) != value]
    if replaced:
        logger.info(
            "%s: replaced, since we count responses and the YAML decides: %s", settings.source, ", ".join(replaced)
        )
    return {**settings.document, **ours, "zero_force_ds_cpu_optimizer": False}
