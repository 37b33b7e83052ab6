"""The DeepSpeed keys of a run, their JSON files and Accelerate's answers, checked before DeepSpeed is imported.

The batch sizes are computed here and given to DeepSpeed in responses; those of the file are replaced.
"""

import logging
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_dialog.config.batch_plan import BatchPlan
from rlhf_dialog.config.loading import reward_nodes, shipped_folder
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.strategy import PLACE, answer, fsdp_settings, is_on
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import damage_as_user_error, parse_json
from rlhf_dialog.models.device import pick_device
from rlhf_dialog.models.precision import Precision, precision_of

logger = logging.getLogger(__name__)
COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|#[^\n]*')
REFERENCE_KEY = "ref_ds_config"
FROZEN_KEYS = (REFERENCE_KEY, "intent_ds_config")
FROZEN_DEFAULT = "default"  # NLPReward's name for: no engine, and the model is kept on the CPU
OFFLOADED = {"zero_optimization": {"offload_param": {"device": "cpu"}}}
BATCH_SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
IGNORED = ("optimizer", "scheduler")  # blocks of the file that the YAML's keys replace
DEFAULT_STAGE = 2  # of a run whose file has none, or `auto`; of a frozen model it is 0
OFFLOADS = {"offload_optimizer": 1, "offload_param": 3}  # the lowest ZeRO stage that has something to offload
HALVES: tuple[Precision, ...] = ("fp16", "bf16")


@dataclass(frozen=True)
class EngineSettings:
    """How the trained models of a run are partitioned; `document` is the JSON without `auto` values."""

    source: str
    document: dict[str, Any]
    stage: int
    precision: Precision
    offload_optimizer: bool
    offload_param: bool

    @property
    def half(self) -> bool:
        """Whether the model computes with 16-bit weights."""
        return self.precision != "fp32"


@dataclass(frozen=True)
class FrozenSettings:
    """Where a frozen model is kept: stage 0 has no engine, and may be kept on the CPU; stage 3 is partitioned."""

    stage: int
    offload: bool


def engine_settings(config: Config) -> EngineSettings:
    """The settings of the engine: by the file of `deepspeed_config`, else by Accelerate's file, else by its answers.

    Raises UserError when a file is missing or asks for something that is not supported.
    """
    source, raw = _engine_document(config)
    document = _without_auto(raw)
    zero = _block(document, "zero_optimization", source)
    stage = zero.setdefault("stage", DEFAULT_STAGE)
    if stage not in (1, 2, 3):
        what = f"zero_optimization.stage is {stage!r}; it must be 1, 2 or 3"
        raise UserError(what, where=source, remedy="leave use_deepspeed out to partition nothing")
    offloaded = []
    for part, lowest in OFFLOADS.items():
        if config.use_offload and stage >= lowest:
            zero.setdefault(part, {"device": "cpu"})
        device = _device(zero, part)
        if device == "nvme":
            raise UserError(f"{source}: {part} to nvme is not supported, as checkpoints would not contain it; use cpu")
        if device == "cpu" and stage < lowest:
            raise UserError(f"{source}: {part} needs at least ZeRO stage {lowest}, not {stage}")
        offloaded.append(device == "cpu")
    return EngineSettings(source, document, stage, _precision(document, raw, config, source), *offloaded)


def _engine_document(config: Config) -> tuple[str, dict[str, Any]]:
    """Where the settings are from, and the JSON."""
    file, stage = answer("ACCELERATE_DEEPSPEED_CONFIG_FILE"), answer("ACCELERATE_DEEPSPEED_ZERO_STAGE")
    if config.deepspeed_config is not None:
        return read_engine_file(config.deepspeed_config, config.source_folder, "deepspeed_config")
    if file not in ("", "none"):
        return read_engine_file(file, Path(), "deepspeed_config_file")
    if not stage:
        return f"our default (ZeRO stage {DEFAULT_STAGE})", {}
    devices = {part: answer(f"ACCELERATE_DEEPSPEED_{part.upper()}_DEVICE") for part in OFFLOADS}
    zero = {part: {"device": device} for part, device in devices.items() if device}
    return PLACE, {"zero_optimization": zero | {"stage": int(stage) if stage.isdecimal() else stage}}


def _precision(document: dict[str, Any], raw: dict[str, Any], config: Config, source: str) -> Precision:
    """The type of the weights that compute. Its block is switched on in the document, where a key or Accelerate asks for it.

    A block that is `auto` in `raw`, the file, is on where the run computes in that precision. Raises UserError for both blocks.
    """
    blocks: dict[str, dict[str, Any]] = {half: _block(document, half, source) for half in HALVES}
    asked = answer("ACCELERATE_MIXED_PRECISION")
    if config.use_fp16:
        blocks["fp16"]["enabled"] = True
    elif asked in HALVES:
        blocks[asked].setdefault("enabled", True)
    elif _block(raw, half := precision_of(config, pick_device(config)), source).get("enabled") == "auto":
        blocks[half]["enabled"] = True
    on = [half for half in HALVES if blocks[half].get("enabled") is True]
    if len(on) > 1:
        raise UserError("fp16 and bf16 are both on", where=source, remedy="keep one of them, or use_fp16: false")
    for part, block in blocks.items():
        if not block:
            del document[part]
    if on == ["bf16"]:
        blocks["bf16"].setdefault("check_grad_overflow", True)
    return on[0] if on else "fp32"


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

    Where the key is not set: None, but a reference beside a policy of stage 3 is partitioned too, since whole it would need more
    than the rest of the run. None also for a reference that is the policy itself. Raises UserError for stages 1 and 2.
    """
    if key == REFERENCE_KEY and has_no_second_model(config):
        return None
    asked = _key_places(config, key)
    if not asked:
        policy = engine_settings(config) if key == REFERENCE_KEY and config.use_deepspeed else None
        return FrozenSettings(3, policy.offload_param) if policy is not None and policy.stage == 3 else None
    given = {where: name for where, name in asked.items() if name is not None}
    where, name = next(iter(given.items()), (key, FROZEN_DEFAULT))
    source, raw = (name, OFFLOADED) if name == FROZEN_DEFAULT else read_engine_file(name, config.source_folder, where)
    zero = _block(_without_auto(raw), "zero_optimization", source)
    stage, offload = zero.get("stage", 0), _device(zero, "offload_param") == "cpu"
    if stage not in (0, 3):
        what = f"zero_optimization.stage is {stage!r}, but a frozen model has no optimizer state to partition"
        raise UserError(f"{where}: {source}: {what}; use 0 (whole in each process) or 3 (partitioned weights)")
    if (stage or offload) and fsdp_settings(config) is not None:
        what = f"{source} partitions or offloads a frozen model, which is not supported with FSDP2"
        raise UserError(what, where=where, remedy="use stage 0 without offload, or leave it out")
    return FrozenSettings(stage, offload)


def has_no_second_model(config: Config) -> bool:
    """Whether there is no second model to place: no reference, or the policy without its adapter."""
    return not config.reference or (config.use_lora and config.ref_model in (None, config.model_path))


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


def read_engine_file(name: str, folder: Path | None, key: str) -> tuple[str, dict[str, Any]]:
    """The path and content of the JSON.

    The file is looked for beside the YAML, in ds_configs/, in the working directory, and among the shipped files.
    Raises UserError when it is not found or is not a JSON object.
    """
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
    sizes = dict(zip(BATCH_SIZES, (micro * rounds * world_size, micro, rounds), strict=True))
    limit = config.max_grad_norm if config.use_max_grad_norm else 0.0
    ours: dict[str, Any] = {**sizes, "gradient_clipping": limit, "zero_allow_untested_optimizer": True}
    given = settings.document
    changes = [f"{part} is not used" for part in IGNORED if part in given]
    changes += [f"{key} {given[key]} -> {value}" for key, value in ours.items() if given.get(key, value) != value]
    if changes:
        logger.info("%s: the YAML decides, and batch sizes count responses: %s", settings.source, ", ".join(changes))
    if settings.half and config.asked_precision not in ("auto", settings.precision):
        text = "%s: precision %s is not used, because the engine computes in %s"
        logger.info(text, settings.source, config.asked_precision, settings.precision)
    used = {part: value for part, value in given.items() if part not in IGNORED}
    return {**used, **ours, "zero_force_ds_cpu_optimizer": False}
