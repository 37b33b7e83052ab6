"""The YAML of a run from the configuration or the command line of TRL's PPO script, for `train_ppo.py --from_trl`.

TRL's defaults count too: where they differ from those here, the YAML holds them, so that the run is TRL's.
"""

import math
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from rlhf_dialog.config.loading import SECRET, load_settings, read_yaml
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.synonyms import HINTS
from rlhf_dialog.errors import UserError
from rlhf_dialog.publishing.privacy import without_token

RENAMED = {
    "adam_epsilon": ("opti_eps",),
    "cliprange": ("clip_param",),
    "cliprange_value": ("value_clip_param",),
    "dataset_name": ("env.args.data_path",),
    "gradient_checkpointing": ("activation_checkpointing",),
    "lam": ("gae_lambda",),
    "learning_rate": ("lr", "critic_lr"),
    "local_rollout_forward_batch_size": ("per_device_rollout_size",),
    "missing_eos_penalty": ("truncation_penalty",),
    "num_mini_batches": ("num_mini_batch",),
    "num_ppo_epochs": ("ppo_epoch",),
    "num_total_batches": ("max_iterations",),
    "response_length": ("max_new_tokens",),
    "save_total_limit": ("keep_checkpoints",),
    "use_peft": ("use_lora",),
    "vf_coef": ("value_loss_coef",),
}
INTERVALS = {"logging_steps": "log_interval", "save_steps": "save_interval"}
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
    "num_total_batches": "TRL computes it from total_episodes",
    "eval_steps": "TRL's PPO does not evaluate; set 'eval_interval' (iterations)",
    "hub_model_id": "without push_to_hub nothing is uploaded",
    "push_to_hub": "set push_to_hub to the name of a repository",
    "run_name": "experiment_name is the name of output_dir",
    "stop_token": "TRL knows 'eos' alone; set stop_token_ids to the ids of others",
}
OF_LAUNCHER = "an option of the launcher; start train_ppo.py with it, see docs/SCALING.md"
OF_LAUNCHER_FILE = (
    "a file of the launcher that is not here; multiply rollout_batch_size by its num_processes, and set use_deepspeed and "
    "deepspeed_config if it names DeepSpeed"
)
CONTINUED = re.compile(r"\\[ \t]*\r?\n")  # a shell joins such lines
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")  # YAML takes 3e-6 as a text
YES, NO = (True, 1, "t", "y", "T", "Y"), (False, 0, "f", "n", "F", "N")  # TRL's words that YAML does not read as such
FLAGS = ("bf16", "fp16", "use_cpu", "no_cuda", "use_peft", "push_to_hub")
PROCESSES = ("num_processes", "nproc_per_node", "num_gpus")
NO_END = "TRL ends after 3 passes over its prompts; set total_episodes"
NO_POLICY = "TRL's default is EleutherAI/pythia-160m; here model_path is model_name_or_path"
NO_LAYERS = "TRL adapts the layers that peft chooses for the model; here all layers of the trunk are adapted"
NO_STOP = "TRL never ends a response before response_length without it; here end tokens and turn_separator always do"


def from_trl(given: str) -> tuple[str, list[str]]:
    """The YAML of a run, and a sentence for each key that has no counterpart; these are also comments in the YAML.

    `given` is a YAML file, or the command line of TRL's script. Raises UserError when it is neither, or when a value cannot be
    used.
    """
    launcher, keys = _command_line(given) if re.search(r"(^|\s)--", given) else ({}, read_yaml(Path(given)))
    keys = {name: _plain(name, value) for name, value in (_processes(launcher) | keys).items() if value is not None}
    run, notes = _translated(keys)
    notes += [f"{name}: {_short(value)}: {_launcher_reason(name, value, keys)}" for name, value in launcher.items()]
    notes = [" ".join(without_token(note).split()) for note in notes]  # a key of several lines must not end its comment
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
        raise UserError(f"--from_trl {without_token(given)[:60]!r}: {error}") from None
    text = yaml.safe_dump(nested, sort_keys=False, allow_unicode=True)
    return text + "".join(f"# {note}\n" for note in notes), notes


def _command_line(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """`python ppo.py --key value --flag --key=value` as two mappings: the launcher's options, before the script, and the rest."""
    try:
        words = shlex.split(CONTINUED.sub(" ", text))
    except ValueError as error:
        raise UserError(f"--from_trl: the command line cannot be read: {error}; quote it as a whole") from error
    script = next((i for i, word in enumerate(words) if word.endswith(".py") and not word.startswith("--")), -1)
    launcher, keys = _options(words[: max(script, 0)]), _options(words[script + 1 :])
    file = keys.pop("config", None)  # TRL's own YAML, whose values the command line replaces
    return launcher, keys if file is None else read_yaml(Path(str(file))) | keys


def _processes(launcher: dict[str, Any]) -> dict[str, Any]:
    """`num_processes` of the launcher's options, or of the configuration file that they name, if it is here."""
    path = Path(str(launcher.get("config_file", "")))
    in_file = read_yaml(path) if path.is_file() else {}
    counts = [launcher.pop(name) for name in PROCESSES if name in launcher] + [in_file.get("num_processes")]
    return {"num_processes": counts[0]} if counts[0] is not None else {}


def _launcher_reason(name: str, value: Any, keys: dict[str, Any]) -> str:
    is_unknown = name == "config_file" and "num_processes" not in keys and not Path(str(value)).is_file()
    return OF_LAUNCHER_FILE if is_unknown else OF_LAUNCHER


def _options(words: list[str]) -> dict[str, Any]:
    """`--key value`, `--key=value`, `--key first second` (a list) and `--key` alone (true); words before them are ignored."""
    words_of: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            if name.removeprefix("no_") != name and name[3:] in (*RENAMED, *SAME):
                name, equals, value = name[3:], "=", "false"  # as HfArgumentParser makes it for what is true by default
            words_of[name] = [value] if equals else []
        elif name:
            words_of[name].append(word)
    values = {name: [_value(word) for word in some] for name, some in words_of.items()}
    return {name: True if not some else some[0] if len(some) == 1 else some for name, some in values.items()}


def _value(word: str) -> Any:
    try:
        return yaml.safe_load(word)
    except yaml.YAMLError:
        return word


def _plain(name: str, value: Any) -> Any:
    """The value as TRL's parser takes it: numbers with an exponent, and every word for true and false."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    if name in FLAGS and not isinstance(value, bool) and value in (*YES, *NO):
        return value in YES
    return value


def _translated(keys: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Dotted keys of a run with their values, and the notes about the rest."""
    every = DEFAULTS | keys
    run: dict[str, Any] = _models(keys) | ALWAYS
    for name, value in every.items():
        for key in RENAMED.get(name, (name,) if name in SAME else ()):
            run[key] = value
    run |= _batch(every) | _switches(every)
    if "total_episodes" in keys:
        run.pop("max_iterations", None)
    return run, _unused(keys, run) + _differences(every, keys, run)


def _unused(keys: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """A note for each key that the run does not contain."""
    dropped = {
        "hub_model_id": "push_to_hub" not in run,
        "num_total_batches": "max_iterations" not in run,
        "push_to_hub": keys.get("push_to_hub") is True and "push_to_hub" not in run,
        "run_name": keys.get("run_name") != run.get("experiment_name"),
        "stop_token": keys.get("stop_token") != "eos",
        "logging_steps": "log_interval" not in run,
        "save_steps": "save_interval" not in run,
    }
    used = {*RENAMED, *INTERVALS, *SAME, *DEFAULTS, *_USED} - {
        name for name, is_dropped in dropped.items() if is_dropped
    }
    notes = [
        f"{name}: {_short(_shown(name, value))}: {_reason(name)}" for name, value in keys.items() if name not in used
    ]
    others = [name for name in _trackers(keys) if name not in ("wandb", "tensorboard", "all", "none")]
    return notes + ([f"report_to: {_short(others)}: {HINTS['report_to']}"] if others else [])


def _differences(every: dict[str, Any], keys: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """Notes about what TRL does otherwise, and about what a run needs that no key gives."""
    notes = []
    if "sft_model_path" not in keys and "model_path" in run:
        notes.append(f"sft_model_path: {NO_POLICY}")
    if "reward_model_path" in keys and "critic_path" not in run:
        notes.append("value model: TRL's starts from the reward model; here the critic starts from model_path")
    if "total_episodes" not in keys and "num_total_batches" not in keys:
        notes.append(f"total_episodes: {NO_END}")
    if "num_sample_generations" in keys and "sample_interval" not in run:
        notes.append(
            f"num_sample_generations: {_short(keys['num_sample_generations'])}: {HINTS['num_sample_generations']}"
        )
    if keys.get("use_peft") is True and "lora_target_modules" not in keys:
        notes.append(f"lora_target_modules: {NO_LAYERS}")
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
    return notes + [
        f"{key}: missing, because there is no {name}; add it" for key, name in missing.items() if key not in run
    ]


_USED = (
    *("sft_model_path", "model_name_or_path", "reward_model_path", "output_dir", "run_name", "report_to", "stop_token"),
    *("stop_token_id", "bf16", "fp16", "use_cpu", "no_cuda", "deepspeed", "num_sample_generations"),
    *("lora_target_modules", "push_to_hub", "hub_model_id"),
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
        if not keys.get("use_peft"):
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
    return run | _intervals(keys, batch)


def _intervals(keys: dict[str, Any], batch: int) -> dict[str, Any]:
    """The keys that TRL also takes as a share of its iterations; without a number of episodes such a share says nothing."""
    run: dict[str, Any] = {}
    episodes = keys.get("total_episodes")
    for name in ("logging_steps", "save_steps"):
        every = keys.get(name)
        if isinstance(every, float) and 0 < every < 1:
            every = math.ceil(math.ceil(episodes / batch) * every) if isinstance(episodes, int) else None
        if every is not None:
            run[INTERVALS[name]] = every
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
    if precision := [name for name in ("bf16", "fp16") if keys.get(name) is True]:
        run["precision"] = precision[0]
    elif keys.get("bf16") is False:
        run["precision"] = "fp32"
    if "lora_target_modules" in keys:
        layers = keys["lora_target_modules"]
        run["lora_target_modules"] = None if layers == "all-linear" else [layers] if isinstance(layers, str) else layers
    if keys.get("use_cpu") is True or keys.get("no_cuda") is True:
        run["device"] = "cpu"
    if "deepspeed" in keys:
        run |= {"use_deepspeed": True, "deepspeed_config": keys["deepspeed"]}
    if keys.get("push_to_hub") is True and (name := keys.get("hub_model_id", run.get("experiment_name"))):
        run["push_to_hub"] = name
    return run | {f"use_{name}": True for name in ("wandb", "tensorboard") if {name, "all"} & set(_trackers(keys))}


def _trackers(keys: dict[str, Any]) -> list[str]:
    report = keys.get("report_to", [])
    return [str(name) for name in (report if isinstance(report, list) else [report])]


def _shown(name: str, value: Any) -> Any:
    return "(not shown)" if SECRET.search(name) else value


def _reason(name: str) -> str:
    return NOTES.get(name) or HINTS.get(name) or "has no counterpart here"


def _short(value: Any) -> str:
    return " ".join(yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").split())[:100]
