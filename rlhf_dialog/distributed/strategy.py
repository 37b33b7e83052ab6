"""What Accelerate's configuration and the YAML ask for: DDP, FSDP2 or DeepSpeed, and in which precision. It loads no library.

`accelerate launch` hands on the answers of `accelerate config` as environment variables. Answers that are not read here have no
effect (docs/SCALING.md).
"""

import os
import re
from dataclasses import dataclass
from typing import Any

from rlhf_dialog.config.loading import replace_keys
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from rlhf_dialog.terminal import log_once

PLACE = "accelerate's configuration"
ON, OFF = ("1", "t", "true", "y", "yes", "on"), ("0", "f", "false", "n", "no", "off")
SWITCHES = {"FSDP_": "ACCELERATE_USE_FSDP", "ACCELERATE_DEEPSPEED_": "ACCELERATE_USE_DEEPSPEED"}  # of families
UNSUPPORTED = {"ACCELERATE_USE_MEGATRON_LM": "Megatron-LM", "ACCELERATE_USE_PARALLELISM_CONFIG": "parallelism_config"}


@dataclass(frozen=True)
class FsdpSettings:
    """How FSDP2 shards the models of a run."""

    source: str  # who asks
    wrap: tuple[str, ...] = ()  # classes whose modules are units; empty: the model's _no_split_modules
    reshard_after_forward: bool = True
    cpu_offload: bool = False


def answer(variable: str) -> str:
    """The value of one of Accelerate's variables; empty where it is not set, or the switch of its family is off."""
    switch = next((name for prefix, name in SWITCHES.items() if variable.startswith(prefix)), None)
    return "" if switch and not is_on(switch) else os.environ.get(variable, "")


def is_on(variable: str, default: bool = False) -> bool:
    """Whether a variable says yes. Raises UserError for a value that is neither yes nor no."""
    value = answer(variable)
    if value.lower() not in ("", *ON, *OFF):
        raise UserError(f"{variable}: {value!r} must be true or false", where=PLACE)
    return value.lower() in ON if value else default


def fsdp_settings(config: Config) -> FsdpSettings | None:
    """The settings of FSDP2 where the run asks for it."""
    if not is_on("ACCELERATE_USE_FSDP"):
        return FsdpSettings("use_fsdp: true") if config.use_fsdp else None
    return FsdpSettings(
        "accelerate launch",
        tuple(re.findall(r"\w+", answer("FSDP_TRANSFORMER_CLS_TO_WRAP"))),
        is_on("FSDP_RESHARD_AFTER_FORWARD", default=True),
        is_on("FSDP_OFFLOAD_PARAMS"),
    )


def settle(config: Config) -> Config:
    """The configuration with the keys that Accelerate's decides; a line names them. Raises UserError for what a run cannot do."""
    if unsupported := [name for variable, name in UNSUPPORTED.items() if is_on(variable)]:
        raise UserError(f"{unsupported[0]} is not supported", where=PLACE, remedy="use DDP, FSDP2 or DeepSpeed")
    if is_on("ACCELERATE_USE_FSDP") and (version := answer("FSDP_VERSION")) != "2":
        raise UserError(f"fsdp_version: {version or 1} is not supported", where=PLACE, remedy="set it to 2")
    changed = {key: value for key, value in _decisions(config).items() if getattr(config, key) != value}
    config = replace_keys(config, changed, PLACE) if changed else config
    if (fsdp := fsdp_settings(config)) and config.use_deepspeed:
        raise UserError("FSDP2 and DeepSpeed are both asked for", where=fsdp.source, remedy="keep one of them")
    if fsdp and config.uses_fp16:
        raise UserError("fp16 is not supported with FSDP2", where=fsdp.source, remedy="use precision: bf16 or fp32")
    if changed:
        log_once(f"from {PLACE}: {', '.join(f'{key}: {str(value).lower()}' for key, value in changed.items())}")
    os.environ.pop("FSDP_CPU_RAM_EFFICIENT_LOADING", None)  # transformers reads it too, and loads less on some ranks
    return config


def _decisions(config: Config) -> dict[str, Any]:
    """The keys of the YAML that Accelerate's configuration sets. Raises UserError where the YAML has another answer."""
    switches = {
        "use_deepspeed": "ACCELERATE_USE_DEEPSPEED",
        "use_fsdp": "ACCELERATE_USE_FSDP",
        "activation_checkpointing": "FSDP_ACTIVATION_CHECKPOINTING",
    }
    decisions: dict[str, Any] = {key: True for key, variable in switches.items() if is_on(variable)}
    if is_on("ACCELERATE_USE_CPU"):
        if config.device == "cuda":
            raise UserError("use_cpu: true, but the YAML asks for device: cuda", where=PLACE, remedy="keep one of them")
        decisions["device"] = "cpu"
    precision = answer("ACCELERATE_MIXED_PRECISION")
    if precision not in ("", "no", "bf16", "fp16"):
        raise UserError(f"mixed_precision: {precision} is not supported", where=PLACE, remedy="use bf16, fp16 or no")
    half = precision in ("bf16", "fp16")
    if half and config.asked_precision not in ("auto", precision):
        what = f"mixed_precision: {precision}, but the YAML asks for precision {config.asked_precision}"
        raise UserError(what, where=PLACE, remedy="keep one of them")
    if half and not (config.use_deepspeed or "use_deepspeed" in decisions or config.asked_precision == precision):
        decisions["precision"] = precision
    return decisions
