"""The DeepSpeed keys of a run, their JSON files and Accelerate's answers, checked before DeepSpeed is imported.

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
from rlhf_dialog.distributed.strategy import PLACE, answer, asks_fsdp, is_on
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import damage_as_user_error, parse_json
from rlhf_dialog.models.device import pick_device
from rlhf_dialog.models.precision import precision_of

logger = logging.getLogger(__name__)
COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|#[^\n]*')
REFERENCE_KEY = "ref_ds_config"
FROZEN_KEYS = (REFERENCE_KEY, "intent_ds_config")
FROZEN_DEFAULT = "default"  # NLPReward's name for: no engine, and the model is kept on the CPU
OFFLOADED = {"zero_optimization": {"offload_param": {"device": "cpu"}}}
OURS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
IGNORED = {"optimizer": "lr, critic_lr, opti_eps and weight_decay of the YAML", "scheduler": "use_linear_lr_decay"}
REFUSED = {
    "amp": "apex is not supported; use the fp16 or bf16 block, or precision: bf16",
    "elasticity": "the number of processes is fixed during a run; remove the block",
    "autotuning": "DeepSpeed's autotuner starts its own runs; remove the block and set the sizes in the YAML",
}
OFFLOADS = {"offload_optimizer": 1, "offload_param": 3}  # the lowest ZeRO stage that has something to offload
Precision = Literal["fp32", "fp16", "bf16"]
HALVES: tuple[Precision, ...] = ("fp16", "bf16")


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
    """The settings of the engine that `use_deepspeed: true` or accelerate's configuration asks for.

    Raises UserError when a file is missing, asks for something that is not supported, or differs from another answer.
    """
    file = answer("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    if file in (None, "", "none"):
        return _engine_settings(config, config.deepspeed_config, "deepspeed_config")
    by_launcher = _engine_settings(config, file, "deepspeed_config_file")
    if config.deepspeed_config is None:
        return by_launcher
    settings = _engine_settings(config, config.deepspeed_config, "deepspeed_config")
    for name in ("stage", "offload_optimizer", "offload_param", "precision"):
        here, there = getattr(settings, name), getattr(by_launcher, name)
        if here != there:
            what = f"{name} is {here} in {settings.source}, but {there} in {by_launcher.source} of {PLACE}"
            raise UserError(what, where="deepspeed_config", remedy="keep one of them")
    return settings


def _engine_settings(config: Config, name: str | None, key: str) -> EngineSettings:
    source, raw = read_engine_file(name, config.folder if key == "deepspeed_config" else Path(), key)
    document = _without_auto(raw)
    for part in REFUSED.keys() & document.keys():
        raise UserError(f"{source}: {part}: {REFUSED[part]}")
    notes = [f"{part} is not used, because {why} decides" for part, why in IGNORED.items() if document.pop(part, None)]
    zero, fp16, bf16 = (_block(document, part, source) for part in ("zero_optimization", "fp16", "bf16"))
    fp16 |= {"enabled": True} if config.use_fp16 else {}
    if config.use_offload:
        zero.setdefault("offload_optimizer", {"device": "cpu"})
    _merge(document, answers := _launcher_document(), source)
    source += f" and {PLACE}" if name and any(answers.values()) else ""
    stage = zero.setdefault("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise UserError(f"{source}: zero_optimization.stage is {stage!r}; it must be 0, 1, 2 or 3")
    if config.use_offload and stage == 0:
        raise UserError("use_offload: true needs ZeRO stage 1, 2 or 3: stage 0 has nothing to offload")
    optimizer, param = (_offload(zero, part, source, config.use_offload) for part in OFFLOADS)
    auto = [half for half in HALVES if isinstance(raw.get(half), dict) and raw[half].get("enabled") == "auto"]
    if auto and stage and not config.use_fp16 and (half := precision_of(config, pick_device(config))) in auto:
        document[half].setdefault("enabled", True)
    on: list[Precision] = [half for half in HALVES if document[half].get("enabled") is True]
    if len(on) > 1:
        raise UserError(
            "fp16 and bf16 are both on, by the file or by use_fp16", where=source, remedy="keep one of them"
        )
    if on and stage == 0:
        what = f"{on[0]} with ZeRO stage 0 is not supported"
        remedy = "use stage 1, which computes the same with less memory, or precision: bf16"
        raise UserError(what, where=source, remedy=remedy)
    if on and config.asked_precision not in ("auto", on[0]):
        asked = "precision" if config.use_amp is None else "use_amp"
        notes.append(f"{asked} has no effect, because the engine computes in {on[0]}")
    if "bf16" in on:
        bf16.setdefault("check_grad_overflow", True)
    sizes = {part: document.pop(part) for part in OURS if part in document}
    size, batches, tokens = sizes.get(OURS[0]), config.num_mini_batch, config.episode_length * config.env_num
    if size is not None and config.rollout_batch_size is None and size * batches != tokens:  # it counts tokens
        product = f"episode_length {config.episode_length} * env_num {config.env_num} / num_mini_batch {batches}"
        what = f"train_batch_size {size} is not {product} = {tokens / batches:g} tokens"
        remedy = 'use "auto"' if tokens % batches else f'{tokens // batches} fits, or "auto"'
        raise UserError(what, where=source, remedy=remedy)
    document = {part: block for part, block in document.items() if block or part not in HALVES}
    return EngineSettings(source, document, int(stage), on[0] if on else "fp32", optimizer, param, sizes, tuple(notes))


def _launcher_document() -> dict[str, Any]:
    """What the answers of `accelerate config` ask DeepSpeed for, as a part of its JSON."""
    stage, half = answer("ACCELERATE_DEEPSPEED_ZERO_STAGE"), answer("ACCELERATE_MIXED_PRECISION")
    zero: dict[str, Any] = {"stage": int(stage) if stage.isdecimal() else stage} if stage else {}
    devices = {key: answer(f"ACCELERATE_DEEPSPEED_{key.upper()}_DEVICE") for key in OFFLOADS}
    halves: dict[str, Any] = {name: {"enabled": name == half} for name in HALVES} if half in HALVES else {}
    return {"zero_optimization": zero | {key: {"device": x} for key, x in devices.items() if x}, **halves}


def _merge(document: dict[str, Any], answers: dict[str, Any], source: str) -> None:
    """Add the answers to the document. Raises UserError where it has others."""
    for key, value in answers.items():
        if isinstance(value, dict):
            _merge(_block(document, key, source), value, f"{source}: {key}")
        elif document.setdefault(key, value) != value:
            what = f"{key} is {document[key]} here, but {value} in {PLACE}"
            raise UserError(what, where=source, remedy="keep one of them")


def _offload(zero: dict[str, Any], key: str, source: str, use_offload: bool) -> bool:
    """Whether a part is offloaded; `use_offload` adds it. Raises UserError where DeepSpeed ignores it or it cannot be saved."""
    if use_offload and zero["stage"] >= OFFLOADS[key]:
        zero.setdefault(key, {"device": "cpu"})
    device = _device(zero, key)
    if device == "nvme":
        raise UserError(f"{source}: {key} to nvme is not supported, because checkpoints would not contain it; use cpu")
    if device == "cpu" and zero["stage"] < OFFLOADS[key]:
        raise UserError(f"{source}: {key} needs at least ZeRO stage {OFFLOADS[key]}, not {zero['stage']}")
    return device == "cpu"


def _device(zero: dict[str, Any], key: str) -> str:
    block = zero.get(key)
    return str(block.get("device", "none")) if isinstance(block, dict) else "none"


def _block(document: dict[str, Any], key: str, source: str) -> dict[str, Any]:
    """The block of this key, which is added where the document has none. Raises UserError for anything else."""
    block = document.setdefault(key, {})
    if not isinstance(block, dict):
        raise UserError(f"{source}: {key} must be a block {{...}}, found {block!r}")
    return block


def frozen_settings(config: Config, key: str) -> FrozenSettings | None:
    """The settings of `ref_ds_config` or `intent_ds_config`, at the top level or of a reward with `use_deepspeed: true`.

    Where the key is not set: None, but a reference is partitioned as a policy of stage 3 is. None also for a reference that is
    the policy itself. Raises UserError for stages 1 and 2, and when two places set different values.
    """
    asked = {} if key == REFERENCE_KEY and has_no_second_model(config) else _key_places(config, key)
    if not asked:
        return _as_the_policy(config) if key == REFERENCE_KEY else None
    given = {where: name for where, name in asked.items() if name is not None} or {key: FROZEN_DEFAULT}
    (where, name), *others = given.items()
    for other, another in others:
        if another != name:
            raise UserError(f"{where}: {name!r} here, but {another!r} in {other}; keep one of them")
    source, raw = (name, OFFLOADED) if name == FROZEN_DEFAULT else read_engine_file(name, config.folder, where)
    zero = _block(_without_auto(raw), "zero_optimization", source)
    stage, offload = zero.get("stage", 0), _device(zero, "offload_param") == "cpu"
    if stage in (1, 2):
        raise UserError(
            f"{where}: {source} has ZeRO stage {stage}, which partitions the state of an optimizer, but a frozen model has "
            "none; use stage 0 (the whole model in each process) or 3 (partitioned weights)"
        )
    if stage not in (0, 3) or isinstance(stage, bool):
        raise UserError(f"{where}: {source}: zero_optimization.stage is {stage!r}; it must be 0 or 3")
    if (stage or offload) and asks_fsdp(config):
        what = f"{source} partitions or offloads a frozen model, which is not supported with FSDP2"
        raise UserError(what, where=where, remedy="use stage 0 without offload, or leave it out")
    return FrozenSettings(source, int(stage), offload, {"zero_optimization": zero})


def _as_the_policy(config: Config) -> FrozenSettings | None:
    """A reference of its own beside a policy of stage 3 is of stage 3 too: whole, it would need more than the rest of the run."""
    policy = engine_settings(config) if config.use_deepspeed and not has_no_second_model(config) else None
    if policy is None or policy.stage != 3:
        return None
    zero = {key: value for key, value in policy.document["zero_optimization"].items() if key != "offload_optimizer"}
    return FrozenSettings(policy.source, 3, policy.offload_param, {"zero_optimization": zero})


def has_no_second_model(config: Config) -> bool:
    """Whether there is no second model to place: no reference, or the policy without its adapter."""
    return not config.reference or (config.use_lora and config.ref_model in (None, config.model_path))


def unused_reference_keys(config: Config) -> list[str]:
    """The places of the configuration that say where a reference is kept which is no model of its own."""
    return list(_key_places(config, REFERENCE_KEY)) if has_no_second_model(config) else []


def asks_deepspeed(config: Config) -> bool:
    """Whether DeepSpeed is used, for the trained models or for a frozen one."""
    keys = FROZEN_KEYS[1:] if has_no_second_model(config) else FROZEN_KEYS
    return config.use_deepspeed or is_on("ACCELERATE_USE_DEEPSPEED") or any(_key_places(config, key) for key in keys)


def _key_places(config: Config, key: str) -> dict[str, Any]:
    """The value of `key` at every place that may set it, by dotted key; None where the place does not set it."""
    top = {key: value} if (value := getattr(config, key)) is not None else {}
    nodes = reward_nodes(config.reward_class.model_dump())
    asking = [(place, node["args"]) for place, node in nodes if node["args"].get("use_deepspeed") is True]
    return top | {f"{place}.args.{key}": args.get(key) for place, args in asking}


def read_engine_file(name: str | None, folder: Path | None, key: str) -> tuple[str, dict[str, Any]]:
    """The path and content of the JSON; for no name, our default.

    The file is looked for beside the YAML, in ds_configs/, in the working directory, and among the shipped files.
    Raises UserError when it is not found or is not a JSON object.
    """
    if name is None:
        stage = answer("ACCELERATE_DEEPSPEED_ZERO_STAGE")
        source = PLACE if stage else "our default (ZeRO stage 2)"
        return source, {"zero_optimization": {} if stage else {"stage": 2}}
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


def engine_document(config: Config, settings: EngineSettings, plan: BatchPlan, world_size: int) -> dict[str, Any]:
    """The document for `deepspeed.initialize`: the user's, with batch sizes in responses and the YAML's gradient limit."""
    part = math.ceil(math.ceil(plan.num_prompts / world_size) * config.num_responses_per_prompt / plan.num_minibatches)
    micro = min(config.microbatch_size, part)
    rounds = math.ceil(part / micro)
    sizes = dict(zip(OURS, (micro * rounds * world_size, micro, rounds), strict=True))
    limit = config.max_grad_norm if config.use_max_grad_norm else 0.0
    ours: dict[str, Any] = {**sizes, "gradient_clipping": limit, "zero_allow_untested_optimizer": True}
    given = settings.document | settings.sizes
    replaced = ", ".join(f"{key} {given[key]} -> {x}" for key, x in ours.items() if given.get(key, x) != x)
    why = "replaced, because batch sizes are counted in responses and set by the YAML"
    for note in (*settings.notes, *([f"{why}: {replaced}"] if replaced else ())):
        logger.info("%s: %s", settings.source, note)
    return {**settings.document, **ours, "zero_force_ds_cpu_optimizer": False}
