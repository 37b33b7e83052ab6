"""What Accelerate's variables and the YAML ask for: DDP, FSDP2 or DeepSpeed, and in which precision. No library is loaded for it.

`accelerate launch` hands on the answers of `accelerate config` as environment variables: each is honoured, reported or refused.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from rlhf_dialog.terminal import log_once

PLACE = "accelerate's configuration"
ON, OFF = "1|t|true|y|yes|on", "0|f|false|n|no|off"
SWITCHES = {"FSDP_": "ACCELERATE_USE_FSDP", "ACCELERATE_DEEPSPEED_": "ACCELERATE_USE_DEEPSPEED"}  # of families
REFUSED = {  # variable: refused values as a pattern, why and what to do
    "ACCELERATE_USE_MEGATRON_LM": (ON, "Megatron-LM is not supported; use FSDP2 or DeepSpeed"),
    "ACCELERATE_USE_SAGEMAKER": (ON, "SageMaker's launcher is not supported; start torchrun on its machines"),
    "ACCELERATE_DYNAMO_BACKEND": (r"(?!no$).+", "dynamo_backend: models are not compiled; set it to no"),
    "ACCELERATE_MIXED_PRECISION": ("fp8", "mixed_precision: fp8 is not supported; use bf16"),
    **dict.fromkeys(
        ("XLA_USE_BF16", "XLA_DOWNCAST_BF16", "ACCELERATE_IN_TPU_POD"), (".+", "TPUs (XLA) are not supported")
    ),
    "ACCELERATE_USE_PARALLELISM_CONFIG": (
        ON,
        "parallelism_config: no tp_size, cp_size, sp_size or HSDP; remove the block",
    ),
    "FSDP_VERSION": (r"(?!2$).*", "fsdp_version: only FSDP2 is supported; set it to 2"),
    "FSDP_SHARDING_STRATEGY": ("hybrid.*|4|5", "fsdp_sharding_strategy: HSDP is not supported; use FULL_SHARD"),
    "FSDP_IGNORED_MODULES": (".+", "fsdp_ignored_modules: all modules are sharded; leave it out"),
    "FSDP_AUTO_WRAP_POLICY": (r"(?!trans|no_).+", "fsdp_auto_wrap_policy: not by size; use TRANSFORMER_BASED_WRAP"),
    "FSDP_MIN_NUM_PARAMS": (r"(?!0$|100000000$)\d+", "fsdp_min_num_params: wrap by class, not by size; leave it out"),
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": (ON, "fsdp_activation_checkpointing_offload: not supported; use false"),
    "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": (".+", "deepspeed_moe_layer_cls_names: not supported; leave it out"),
}
NOTICES = {  # variable: values as a pattern, the key and what happens instead
    "FSDP_STATE_DICT_TYPE": (r"(?!full).+", "fsdp_state_dict_type: checkpoints hold whole weights"),
    "FSDP_SHARDING_STRATEGY": (r"(?!full_shard$|1$).+", "fsdp_sharding_strategy: fsdp_reshard_after_forward decides"),
    "FSDP_AUTO_WRAP_POLICY": ("no_wrap", "fsdp_auto_wrap_policy: the layers of the model are wrapped"),
    "FSDP_BACKWARD_PREFETCH": (r"(?!no_prefetch$).+", "fsdp_backward_prefetch: FSDP2 plans its own"),
    "FSDP_FORWARD_PREFETCH": (ON, "fsdp_forward_prefetch: FSDP2 plans its own"),
    "FSDP_CPU_RAM_EFFICIENT_LOADING": (ON, "fsdp_cpu_ram_efficient_loading: every process reads the whole model"),
    "FSDP_USE_ORIG_PARAMS": (OFF, "fsdp_use_orig_params: FSDP2 always keeps the parameters"),
    "FSDP_SYNC_MODULE_STATES": (OFF, "fsdp_sync_module_states: all processes begin with equal weights"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": (r"(?!1$|auto$).+", "gradient_accumulation_steps: the YAML decides"),
    "ACCELERATE_GRADIENT_CLIPPING": (r"(?!auto$).+", "gradient_clipping: max_grad_norm of the YAML decides"),
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": (ON, "zero3_init_flag: models are partitioned after loading"),
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": (ON, "zero3_save_16bit_model: saved weights are float32"),
    "ACCELERATE_DEBUG_MODE": (ON, "debug: the exchanges of a run are not checked"),
    "ACCELERATE_CPU_AFFINITY": (ON, "enable_cpu_affinity: only several processes on GPUs are bound to processors"),
}
TASKS = {"SLURM_STEP_NUM_TASKS": "srun", "OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpirun"}


@dataclass(frozen=True)
class FsdpSettings:
    """How FSDP2 shards the models of a run."""

    source: str  # who asks
    wrap: tuple[str, ...] = ()  # classes whose modules are units; empty: the model's _no_split_modules
    reshard_after_forward: bool = True
    cpu_offload: bool = False


def answer(variable: str) -> str | None:
    """The value of one of Accelerate's variables; None where the switch of its family is off."""
    switch = next((name for prefix, name in SWITCHES.items() if variable.startswith(prefix)), None)
    return None if switch and not is_on(switch) else os.environ.get(variable, "")


def is_on(variable: str, default: bool = False) -> bool:
    """Whether a variable says yes. Raises UserError for a value that is neither yes nor no."""
    value = answer(variable) or ("true" if default else "false")
    if not re.fullmatch(f"{ON}|{OFF}", value, re.I):
        raise UserError(f"{variable}: {value!r} must be true or false", where=PLACE)
    return re.fullmatch(ON, value, re.I) is not None


def asks_fsdp(config: Config) -> bool:
    return config.use_fsdp or is_on("ACCELERATE_USE_FSDP")


def fsdp_settings(config: Config) -> FsdpSettings | None:
    """The settings of FSDP2 where the run asks for it."""
    if not is_on("ACCELERATE_USE_FSDP"):
        return FsdpSettings("use_fsdp: true") if config.use_fsdp else None
    return FsdpSettings(
        "accelerate launch",
        tuple(re.findall(r"\w+", os.environ.get("FSDP_TRANSFORMER_CLS_TO_WRAP", ""))),
        is_on("FSDP_RESHARD_AFTER_FORWARD", default=True),
        is_on("FSDP_OFFLOAD_PARAMS"),
    )


def settle(config: Config) -> None:
    """Set the keys that Accelerate's configuration decides, and say so. Raises UserError for what a run cannot do."""
    _refuse_single_process()
    for text in _texts(REFUSED):
        raise UserError(text, where=PLACE)
    changed = {key: value for key, value in _decisions(config).items() if getattr(config, key) != value}
    for key, value in changed.items():
        try:
            setattr(config, key, value)
        except UserError as error:
            raise error.with_location(PLACE) from None
    if (fsdp := fsdp_settings(config)) and config.use_deepspeed:
        raise UserError("FSDP2 and DeepSpeed are both asked for", where=fsdp.source, remedy="keep one of them")
    if fsdp and config.uses_fp16:
        raise UserError("fp16 is not supported with FSDP2", where=fsdp.source, remedy="use precision: bf16 or fp32")
    if changed:
        log_once(f"from {PLACE}: {', '.join(f'{key}: {str(value).lower()}' for key, value in changed.items())}")
    for text in _texts(NOTICES):
        log_once(f"{PLACE}: without effect: {text}")
    os.environ.pop("FSDP_CPU_RAM_EFFICIENT_LOADING", None)  # transformers reads it too, and loads less on some ranks


def _texts(table: dict[str, tuple[str, str]]) -> list[str]:
    """The texts of a table above whose patterns fit what is asked for."""
    answers = ((answer(variable), *row) for variable, row in table.items())
    return [text for value, pattern, text in answers if value is not None and re.fullmatch(pattern, value, re.I)]


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
    half = next((half for half in ("fp16", "bf16") if half == answer("ACCELERATE_MIXED_PRECISION")), None)
    if half and config.asked_precision not in ("auto", half):
        what = f"mixed_precision: {half}, but the YAML asks for precision {config.asked_precision}"
        raise UserError(what, where=PLACE, remedy="keep one of them")
    if half and not (config.use_deepspeed or "use_deepspeed" in decisions or config.asked_precision == half):
        decisions["precision"] = half
    return decisions


def _refuse_single_process() -> None:
    """Raises UserError for one process where several were asked for: of accelerate under --cpu and MULTI_CPU, or a task."""
    if "WORLD_SIZE" in os.environ:
        return
    alone = "WORLD_SIZE=1 is for a process that is meant to train alone"
    if "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ:
        what = "accelerate launch has started a single process, although MASTER_ADDR is set as for several"
        remedy = "on CPUs start it as ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 ..., without --cpu"
        raise UserError(what, remedy=f"{remedy} and MULTI_CPU, or use torchrun; {alone}")
    for name, launcher in TASKS.items():
        if os.environ.get(name, "1") not in ("", "0", "1"):
            what = f"{launcher} has started {os.environ[name]} tasks, but each would train alone, because WORLD_SIZE is not set"
            raise UserError(what, remedy=f"start one torchrun on each host, see docs/SCALING.md; {alone}")
