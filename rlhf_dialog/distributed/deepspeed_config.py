"""The DeepSpeed keys of a run and their JSON files, read and checked before DeepSpeed is imported.

The batch sizes are computed here and given to DeepSpeed in responses; those of the file are replaced.
"""

import logging
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlhf_dialog.config.batch_plan import BatchPlan
from rlhf_dialog.config.loading import reward_nodes, shipped_folder
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import damage_as_user_error, parse_json

logger = logging.getLogger(__name__)
COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|#[^\n]*')
REFERENCE_KEY = "ref_ds_config"
FROZEN_KEYS = (REFERENCE_KEY, "intent_ds_config")
FROZEN_DEFAULT = "default"  # NLPReward's name for: no engine, and the model is kept on the CPU
OURS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
IGNORED = {"optimizer": "lr, critic_lr, opti_eps and weight_decay of the YAML", "scheduler": "use_linear_lr_decay"}
REFUSED = {
    "amp": "apex is not supported; use the fp16 or bf16 block, or precision: bf16",
    "elasticity": "the number of processes is fixed during a run; remove the block",
    "autotuning": "DeepSpeed's autotuner starts its own runs; remove the block and set the sizes in the YAML",
}
Precision = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class EngineSettings:
    """How the trained models of a run are partitioned; `document` is the JSON without `auto` values and batch sizes."""

    source: str
    document: dict[str, Any]
    stage: int
    precision: Precision
    offload_optimizer: bool
    offload_param: bool
    sizes: dict[str, Any]  # the batch sizes in the file
    notes: tuple[str, ...]  # which parts of the file are not used, and why

    @property
    def half(self) -> bool:
        """Whether the model computes with 16-bit weights."""
        return self.precision != "fp32"


@dataclass(frozen=True)
class FrozenSettings:
    """Where a frozen model is kept: stage 0 has no engine, and may be kept on the CPU; stage 3 is partitioned."""

    source: str
    stage: int
    offload: bool
    document: dict[str, Any]


def engine_settings(config: Config) -> EngineSettings:
    """The settings of the engine that `use_deepspeed: true` asks for.

    Raises UserError when the file is missing or asks for something that is not supported.
    """
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
            f"{source}: {precision} with ZeRO stage 0 is not supported; use stage 1, which computes the same with less memory, "
            "or precision: bf16"
        )
    if config.asked_precision != "auto" and precision != "fp32":
        key = "precision" if config.use_amp is None else "use_amp"
        notes.append(f"{key} has no effect, because the engine computes in {precision}")
    sizes = {key: document.pop(key) for key in OURS if key in document}
    optimizer, param = (_device(zero, f"offload_{what}") == "cpu" for what in ("optimizer", "param"))
    return EngineSettings(source, document, int(stage), precision, optimizer, param, sizes, tuple(notes))


def _offload(zero: dict[str, Any], stage: int, use_offload: bool, source: str) -> None:
    """Add `use_offload` to the block. Raises UserError for an offload that DeepSpeed ignores or that cannot be saved."""
    if use_offload and stage == 0:
        raise UserError("use_offload: true needs ZeRO stage 1, 2 or 3: stage 0 has nothing to offload")
    if use_offload:
        zero.setdefault("offload_optimizer", {"device": "cpu"})
        if stage == 3:
            zero.setdefault("offload_param", {"device": "cpu"})
    for key, least in (("offload_optimizer", 1), ("offload_param", 3)):
        device = _device(zero, key)
        if device == "nvme":
            why = "because checkpoints would not contain it; use cpu"
            raise UserError(f"{source}: {key} to nvme is not supported, {why}")
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
    """The settings of `ref_ds_config` or `intent_ds_config`, at the top level or of a reward with `use_deepspeed: true`.

    Where the key is not set: None, but a reference is partitioned as a policy of stage 3 is. None also for a reference that is
    the policy itself. Raises UserError for stages 1 and 2, and when two places set different values.
    """
    asked = _read_frozen_key(config, key)
    if not asked:
        return _as_the_policy(config) if key == REFERENCE_KEY else None
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
            f"{where}: {source} has ZeRO stage {stage}, which partitions the state of an optimizer, but a frozen model has "
            "none; use stage 0 (the whole model in each process) or 3 (partitioned weights)"
        )
    if stage not in (0, 3) or isinstance(stage, bool):
        raise UserError(f"{where}: {source}: zero_optimization.stage is {stage!r}; it must be 0 or 3")
    kept = {"zero_optimization": zero}
    return FrozenSettings(source, int(stage), _device(zero, "offload_param") == "cpu", kept)


def _as_the_policy(config: Config) -> FrozenSettings | None:
    """A reference of its own beside a policy of stage 3 is of stage 3 too: whole, it would need more than the rest of the run."""
    if not config.use_deepspeed or reference_is_policy(config):
        return None
    policy = engine_settings(config)
    if policy.stage != 3:
        return None
    zero = {key: value for key, value in policy.document["zero_optimization"].items() if key != "offload_optimizer"}
    return FrozenSettings(policy.source, 3, policy.offload_param, {"zero_optimization": zero})


def reference_is_policy(config: Config) -> bool:
    """Whether the reference is the policy without its adapter, so that there is no second model to place."""
    return config.use_lora and config.ref_model in (None, config.model_path)


def unused_reference_keys(config: Config) -> list[str]:
    """The places of the configuration that say where a reference is kept which is the policy itself."""
    return list(_key_places(config, REFERENCE_KEY)) if reference_is_policy(config) else []


def asks_deepspeed(config: Config) -> bool:
    """Whether DeepSpeed is used, for the trained models or for a frozen one."""
    return config.use_deepspeed or any(_read_frozen_key(config, key) for key in FROZEN_KEYS)


def _read_frozen_key(config: Config, key: str) -> dict[str, Any]:
    """As `_key_places`; nothing for a reference that is the policy itself."""
    return {} if key == REFERENCE_KEY and reference_is_policy(config) else _key_places(config, key)


def _key_places(config: Config, key: str) -> dict[str, Any]:
    """The value of `key` at every place that may set it, by dotted key; None where the place does not set it."""
    top = {key: value} if (value := getattr(config, key)) is not None else {}
    inside = {
        f"{place}.args.{key}": node["args"].get(key)
        for place, node in reward_nodes(config.reward_class.model_dump())
        if node["args"].get("use_deepspeed") is True
    }
    return top | inside


def read_engine_file(name: str | None, folder: Path | None, key: str) -> tuple[str, dict[str, Any]]:
    """The path and content of the JSON; for no name, our default.

    The file is looked for beside the YAML, in ds_configs/, in the working directory, and among the shipped files.
    Raises UserError when it is not found or is not a JSON object.
    """
    if name is None:
        return "our default (ZeRO stage 2)", {"zero_optimization": {"stage": 2}}
    places = [*([folder] if folder else []), Path("ds_configs"), Path(), shipped_folder("ds_configs")]
    path = next((place / name for place in places if (place / name).is_file()), None)
    if path is None:
        listed = ", ".join(str(place) for place in dict.fromkeys(places))
        raise UserError(f"{key}: '{name}' not found; looked in {listed}")
    with damage_as_user_error(f"{key}: {path} is not valid JSON (# comments are allowed): "):
        found = parse_json(COMMENT.sub(lambda match: match[1] or "", path.read_text(encoding="utf-8-sig")))
    if not isinstance(found, dict):
        raise UserError(f"{key}: {path} must hold a JSON object {{...}}, found {type(found).__name__}")
    return str(path), found


def _without_auto(node: Any) -> Any:
    """A copy without the keys whose value is `auto`; DeepSpeed's default or ours is used for them."""
    if isinstance(node, dict):
        return {key: _without_auto(value) for key, value in node.items() if value != "auto"}
    return [_without_auto(value) for value in node] if isinstance(node, list) else node


def check_token_count(config: Config, settings: EngineSettings) -> None:
    """The document's batch size counts tokens: episode_length * env_num / num_mini_batch. Raises UserError when it does not fit.

    Nothing is checked when `rollout_batch_size` sets the number of responses.
    """
    batch_size = settings.sizes.get("train_batch_size")
    if batch_size is None or config.rollout_batch_size is not None:
        return
    tokens = config.episode_length * config.env_num
    if batch_size * config.num_mini_batch != tokens:
        fits = tokens // config.num_mini_batch
        advice = f"{fits} fits, or" if fits * config.num_mini_batch == tokens else "use"
        raise UserError(
            f"{settings.source}: train_batch_size {batch_size} is not episode_length {config.episode_length} * env_num "
            f"{config.env_num} / num_mini_batch {config.num_mini_batch} = {tokens / config.num_mini_batch:g} tokens; {advice} "
            '"auto"'
        )


def engine_document(config: Config, settings: EngineSettings, plan: BatchPlan, world_size: int) -> dict[str, Any]:
    """The document for `deepspeed.initialize`: the user's, with batch sizes in responses and the YAML's gradient limit."""
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
        why = "because batch sizes are counted in responses and set by the YAML"
        logger.info("%s: replaced, %s: %s", settings.source, why, ", ".join(replaced))
    return {**settings.document, **ours, "zero_force_ds_cpu_optimizer": False}
