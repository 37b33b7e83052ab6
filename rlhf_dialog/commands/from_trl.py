"""The YAML of a run from the configuration or the command line of TRL's PPO script, for `train_ppo.py --from_trl`.

TRL's defaults count too: where they differ from those here, the YAML holds them, so that the run is TRL's.
"""

import shlex
from pathlib import Path
from typing import Any

import yaml

from rlhf_dialog.config.loading import load_settings, read_yaml
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.synonyms import HINTS
from rlhf_dialog.errors import UserError

RENAMED = {
    "adam_epsilon": ("opti_eps",),
    "cliprange": ("clip_param",),
    "cliprange_value": ("value_clip_param",),
    "dataset_name": ("env.args.data_path",),
    "ds3_gather_for_generation": ("zero3_gather_for_generation",),
    "gradient_checkpointing": ("activation_checkpointing",),
    "lam": ("gae_lambda",),
    "learning_rate": ("lr", "critic_lr"),
    "local_rollout_forward_batch_size": ("per_device_rollout_size",),
    "logging_steps": ("log_interval",),
    "missing_eos_penalty": ("truncation_penalty",),
    "num_mini_batches": ("num_mini_batch",),
    "num_ppo_epochs": ("ppo_epoch",),
    "num_total_batches": ("max_iterations",),
    "response_length": ("max_new_tokens",),
    "save_steps": ("save_interval",),
    "save_total_limit": ("keep_checkpoints",),
    "use_peft": ("use_lora",),
    "vf_coef": ("value_loss_coef",),
}
SAME = (
    *("gamma", "kl_coef", "kl_estimator", "lora_alpha", "lora_r", "seed", "temperature"),
    *("total_episodes", "trust_remote_code", "weight_decay", "whiten_rewards"),
)
DEFAULTS: dict[str, Any] = {
    "adam_epsilon": 1e-8,
    "cliprange": 0.2,
    "cliprange_value": 0.2,
    "gamma": 1.0,
    "gradient_accumulation_steps": 1,
    "kl_coef": 0.05,
    "lam": 0.95,
    "learning_rate": 3e-6,
    "local_rollout_forward_batch_size": 64,
    "lr_scheduler_type": "linear",
    "num_mini_batches": 1,
    "num_ppo_epochs": 4,
    "per_device_train_batch_size": 8,
    "response_length": 53,
    "seed": 42,
    "temperature": 0.7,
    "vf_coef": 0.1,
}
ALWAYS = {  # what TRL's PPO does without a key
    "kl_rate": 0.0,  # kl_coef stays fixed
    "entropy_coef": 0.0,
    "use_huber_loss": False,
    "use_valuenorm": False,
    "use_max_grad_norm": False,
}
NOTES = {
    "max_grad_norm": "TRL's PPO does not clip gradients; use_max_grad_norm: true would",
    "num_train_epochs": "set total_episodes: the number of prompts times this",
    "num_processes": "of the launcher; rollout_batch_size is already multiplied by it",
}
PROCESSES = ("num_processes", "nproc_per_node", "num_gpus")
NO_END = "TRL ends after 3 passes over its prompts; set total_episodes"
NO_STOP = "TRL never ends a response before response_length without it; here end tokens and turn_separator always do"


def from_trl(given: str) -> tuple[str, list[str]]:
    """The YAML of a run, and a sentence for each key that has no counterpart; these are also comments in the YAML.

    `given` is a YAML file, or the command line of TRL's script. Raises UserError when it is neither, or when a value cannot be
    used.
    """
    keys = _command_line(given) if given.startswith("--") or " --" in given else read_yaml(Path(given))
    keys = {name: value for name, value in keys.items() if value is not None}
    run, notes = _translated(keys)
    notes = [" ".join(note.split()) for note in notes]  # a key of several lines must not end its comment
    nested: dict[str, Any] = {}
    for key, value in run.items():
        *parents, leaf = key.split(".")
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    needed = {"model_path": "m", "env": {"args": {"data_path": "d"}}}
    try:
        load_settings(Config, None, {**needed, **nested, "reward_class": {"id": "LengthMatch"}})
    except UserError as error:
        raise UserError(f"--from_trl {given[:60]!r}: {error}") from None
    text = yaml.safe_dump(nested, sort_keys=False, allow_unicode=True)
    return text + "".join(f"# {note}\n" for note in notes), notes


def _command_line(text: str) -> dict[str, Any]:
    """`python ppo.py --key value --flag --key=value` as a mapping; of a launcher's options, before the script, only the number of
    processes."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--from_trl: the command line cannot be read: {error}; quote it as a whole") from error
    script = max((i for i, word in enumerate(words) if word.endswith(".py")), default=-1)
    launcher = _options(words[: script + 1])
    counts = [value for name, value in launcher.items() if name in PROCESSES]
    return ({"num_processes": counts[0]} if counts else {}) | _options(words[script + 1 :])


def _options(words: list[str]) -> dict[str, Any]:
    """`--key value`, `--key=value`, `--key first second` (a list) and `--key` alone (true); words before them are ignored."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = [value] if equals else []
        elif name:
            found[name].append(word)
    values = {name: [_value(name, word) for word in some] for name, some in found.items()}
    return {name: True if not some else some[0] if len(some) == 1 else some for name, some in values.items()}


def _value(name: str, word: str) -> Any:
    try:
        return yaml.safe_load(word)
    except yaml.YAMLError:
        return word


def _translated(keys: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Dotted keys of a run with their values, and the notes about the rest."""
    every = DEFAULTS | keys
    run: dict[str, Any] = _models(keys) | ALWAYS
    for name, value in every.items():
        for key in RENAMED.get(name, (name,) if name in SAME else ()):
            run[key] = value
    run |= _batch(every) | _switches(every)
    used = {*RENAMED, *SAME, *DEFAULTS, *_USED}
    notes = [f"{name}: {_short(value)}: {_reason(name)}" for name, value in keys.items() if name not in used]
    if "reward_model_path" in keys and "critic_path" not in run:
        notes.append("value model: TRL's starts from the reward model; here the critic starts from model_path")
    if "total_episodes" not in keys and "num_total_batches" not in keys:
        notes.append(f"total_episodes: {NO_END}")
    if "num_sample_generations" in keys and "sample_interval" not in run:
        notes.append(
            f"num_sample_generations: {_short(keys['num_sample_generations'])}: {HINTS['num_sample_generations']}"
        )
    if "stop_token" not in keys and "stop_token_id" not in keys:
        notes.append(f"stop_token: {NO_STOP}")
    if every["lr_scheduler_type"] not in ("linear", "constant"):
        notes.append(
            f"lr_scheduler_type: {_short(every['lr_scheduler_type'])}: {HINTS['lr_scheduler_type']}; it stays constant"
        )
    missing = {
        "model_path": "sft_model_path",
        "env.args.data_path": "dataset_name",
        "reward_class": "reward_model_path",
    }
    notes += [f"{key}: missing, because there is no {name}; add it" for key, name in missing.items() if key not in run]
    return run, notes


_USED = (
    *("sft_model_path", "model_name_or_path", "reward_model_path", "output_dir", "run_name", "report_to", "stop_token"),
    *(
        "stop_token_id",
        "bf16",
        "fp16",
        "use_cpu",
        "no_cuda",
        "deepspeed",
        "num_sample_generations",
        "lora_target_modules",
    ),
)


def _models(keys: dict[str, Any]) -> dict[str, Any]:
    """Policy, tokenizer, reward and critic; TRL reads the tokenizer from model_name_or_path."""
    policy = keys.get("sft_model_path", keys.get("model_name_or_path"))
    run: dict[str, Any] = {} if policy is None else {"model_path": policy}
    words = keys.get("model_name_or_path", policy)
    if words != policy:
        run["env.args.tokenizer_path"] = words
    if (reward := keys.get("reward_model_path")) is not None:
        run["reward_class"] = {"id": "RewardModel", "args": {"model": reward}}
        if "critic_path" in Config.model_fields and not keys.get("use_peft"):
            run["critic_path"] = reward
    return run


def _batch(keys: dict[str, Any]) -> dict[str, Any]:
    """One batch of TRL is the responses of one iteration over all processes."""
    sizes = {
        name: keys.get(name, 1)
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "num_processes")
    }
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise UserError(f"--from_trl: {name}: found {_short(size)}, wanted a whole number from 1 on")
    micro, accumulation, processes = sizes.values()
    batch = micro * accumulation * processes
    run: dict[str, Any] = {"rollout_batch_size": batch, "per_device_microbatch_size": micro}
    samples, episodes = keys.get("num_sample_generations"), keys.get("total_episodes")
    if type(samples) is int and type(episodes) is int:
        run["sample_interval"] = max(1, -(-episodes // batch) // samples) if samples > 0 else 0
    return run


def _switches(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys whose values mean something else here."""
    run: dict[str, Any] = {"use_linear_lr_decay": keys["lr_scheduler_type"] == "linear"}
    if "output_dir" in keys:
        folder = Path(str(keys["output_dir"]))
        run |= {"run_dir": str(folder.parent), "experiment_name": folder.name}
    if "run_name" in keys and "output_dir" not in keys:
        run["experiment_name"] = keys["run_name"]
    if "stop_token_id" in keys:
        run["stop_token_ids"] = [keys["stop_token_id"]]
    for name, precision in (("bf16", "bf16"), ("fp16", "fp16")):
        if name in keys and "precision" not in run:
            run |= {"precision": precision} if keys[name] is True else {"precision": "fp32"} if name == "bf16" else {}
    if "lora_target_modules" in keys:
        layers = keys["lora_target_modules"]
        run["lora_target_modules"] = None if layers == "all-linear" else [layers] if isinstance(layers, str) else layers
    if keys.get("use_cpu") is True or keys.get("no_cuda") is True:
        run["device"] = "cpu"
    if "deepspeed" in keys:
        run |= {"use_deepspeed": True, "deepspeed_config": keys["deepspeed"]}
    report = keys.get("report_to", [])
    trackers = report if isinstance(report, list) else [report]
    return run | {f"use_{name}": True for name in ("wandb", "tensorboard") if {name, "all"} & set(map(str, trackers))}


def _reason(name: str) -> str:
    return NOTES.get(name) or HINTS.get(name) or "has no counterpart here"


def _short(value: Any) -> str:
    return " ".join(yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").split())[:100]
