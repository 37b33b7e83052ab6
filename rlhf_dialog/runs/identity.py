"""What a resumed run must share with the run that it continues, and which changed settings it only reports."""

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.loading import reward_nodes
from rlhf_dialog.config.registry import AdvantageFactory, EnvironmentFactory, LossFactory, RewardFactory
from rlhf_dialog.config.schema import Config, DoubledKeys, PPOKeys, RewardKeys
from rlhf_dialog.data.chat_template import separator_of
from rlhf_dialog.data.dialogue import AUTO, Dialogue
from rlhf_dialog.data.prompts import data_fingerprint
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import as_read_again
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.lora import base_parameters
from rlhf_dialog.rewards.base import BaseReward, models_inside, walk
from rlhf_dialog.rewards.function_reward import FunctionReward
from rlhf_dialog.runs.reward_code import changed_code, code_of
from rlhf_dialog.runs.verification import sha256_of

logger = logging.getLogger(__name__)
CODE = "reward code"  # the key of `code_of` in an identity; also of an estimator and a loss
SHARED_KEYS = (
    *("seed", "advantage_estimator", "use_share_model", "use_valuenorm", "reference"),
    *("context_size", "min_context_size", "drop_overlap", "max_prompt_length", "turn_separator", "system_prompt"),
    *("max_new_tokens", "temperature", "top_k", "top_p", "stop_token_ids"),
    *("use_lora", "load_in_4bit", "lora_r", "lora_alpha", "lora_target_modules"),
)
NETWORK_KEYS = ("model_class", "critic_class")
# compared by the resulting numbers
BATCH_KEYS = ("rollout_batch_size", "num_responses_per_prompt", "episode_length", "env_num")
END_KEYS = ("total_time_steps", "max_iterations", "total_episodes")
FREE_KEYS = ("per_device_microbatch_size", "per_device_rollout_size", "disable_cuda", "disable_wandb")
KEPT_KEYS = {"kl_coef": "no effect: the controller continues with the value of the checkpoint"}
OPERATION_ARGS = ("batch_size", "timeout_s", "retries", "backoff_s", "num_workers", "token_env", "cache")
PRECISION_KEYS = ("precision", "use_amp", "amp_dtype")
SIZE_KEYS = ("per_device_rollout_size", "per_device_microbatch_size")  # in the order of a checkpoint
FORMULAS = 2  # the revision of the formulas that train or select a model; a change of one makes it larger
SAMPLES = 256  # numbers per parameter that the fingerprint of a model reads


def identity_of(config: Config, models: Models, prompts: Sequence[Dialogue], reward: BaseReward) -> dict[str, Any]:
    """What must be the same at `--resume`, as JSON. `models` are the initial models of the run, before any update."""
    identity = {
        "model_path": model_fingerprint(models.policy.lm),
        "ref_model": models.ref_policy and model_fingerprint(models.ref_policy.lm),
        "tokenizer": tokenizer_fingerprint(models.tokenizer),
        "data": data_fingerprint(prompts),
        "columns": config.env.args.columns,
        "reward_class": essential(config.reward_class.model_dump()),
        "reward parts": part_names(reward),
        CODE: code_of(
            _makers(config, reward), [x.file for x in walk(reward) if isinstance(x, FunctionReward) and x.file]
        ),
        "reward models": {name: model_fingerprint(module) for name, (_, module) in models_inside(reward).items()},
        "rollout_batch_size": batch_plan(config).num_responses,
        "num_responses_per_prompt": config.num_responses_per_prompt,
        **{key: getattr(config, key) for key in SHARED_KEYS},
        "turn_separator": separator_of(models.tokenizer, config.turn_separator),
        **{key: (own := getattr(config, key)) and own.model_dump() for key in NETWORK_KEYS},
        "date_string": config.date_string,
        "environment": config.environment and essential(config.environment.model_dump(include={"id", "args"})),
    }
    return as_read_again(identity)


def _makers(config: Config, reward: BaseReward) -> list[Any]:
    """The classes and functions that score, of reward, parts, YAML and environment, and those of the estimator and the loss."""
    inside = [one.function if isinstance(one, FunctionReward) else type(one) for one in walk(reward)]
    named = [RewardFactory.find(node["id"]) for _, node in reward_nodes(config.reward_class.model_dump())]
    environment = config.environment and EnvironmentFactory.find(config.environment.id)
    formulas = AdvantageFactory.find(config.advantage_estimator), LossFactory.find(config.policy_loss)
    return [one for one in (*inside, *named, environment, *formulas) if one is not None]


def essential(args: Any) -> Any:
    """A reward's arguments without those that do not change its scores, and URLs without a query, which may contain a key."""
    if isinstance(args, dict):
        return {key: essential(value) for key, value in args.items() if key not in OPERATION_ARGS}
    if isinstance(args, list):
        return [essential(value) for value in args]
    return args.split("?")[0] if isinstance(args, str) and "://" in args else args


def settings_of(config: Config) -> dict[str, Any]:
    """The settings that change the numbers of a run, but may be changed at `--resume`."""
    names = [*PPOKeys.model_fields, *DoubledKeys.model_fields, *RewardKeys.model_fields, *PRECISION_KEYS]
    kept = [name for name in names if name not in (*SHARED_KEYS, *BATCH_KEYS, *FREE_KEYS)]
    if config.use_linear_lr_decay:
        kept += END_KEYS
    return {name: getattr(config, name) for name in kept} | {"engine": config.engine and config.engine.model_dump()}


def differences(now: dict[str, Any], then: Any, here: str = "here", there: str = "in the checkpoint") -> list[str]:
    """`key: 'now' here, 'then' in the checkpoint` for every key that both have and that differs."""
    earlier = then if isinstance(then, dict) else {}
    return [
        f"{key}: {_excerpt(value)} {here}, {_excerpt(earlier[key])} {there}"
        for key, value in now.items()
        if key in earlier and earlier[key] != value
    ]


def refuse_another_run(now: dict[str, Any], then: Any, source: Path) -> None:
    """Raises UserError that lists every differing key when the checkpoint in `source` belongs to another run."""
    if changes := differences({key: value for key, value in now.items() if key != CODE}, then):
        raise UserError(
            "\n  ".join([f"{source}: belongs to a different run than this one:", *changes])
            + f"\nresume with the values of the checkpoint, or start a new run with its weights: {_new_run(source)}"
        )


def refuse_changed_reward(now: dict[str, Any], then: dict[str, Any], source: Path, allowed: bool) -> None:
    """Raises UserError when the code of reward, estimator or loss is not that of the checkpoint, unless that is `allowed`."""
    if CODE not in then:
        if now[CODE]:
            text = (
                "%s: does not record the code of the reward, the estimator or the loss (%s), so a change is not noticed"
            )
            logger.info(text, source, ", ".join(now[CODE]))
    elif changed := changed_code(now[CODE], then[CODE]):
        what = (
            f"{source}: the code of the reward, the estimator or the loss has changed since then: {', '.join(changed)}"
        )
        if not allowed:
            remedy = f"go on with the changed one: --allow_changed_reward true; or begin a new run: {_new_run(source)}"
            raise UserError(f"{what}; restore it, or {remedy}")
        logger.warning("%s; the run goes on with the changed one (allow_changed_reward)", what)


def _new_run(source: Path) -> str:
    return f"--resume_weights_only {source.parent.parent} --experiment_name <a new name>"


def refuse_other_ranks(config: Config, identity: dict[str, Any], world: World) -> None:
    """Raises UserError when a process of the run has another model, other data or other settings than rank 0."""
    deciding = {*PPOKeys.model_fields, *DoubledKeys.model_fields, *END_KEYS, "save_interval", "eval_interval"}
    gathered = world.gather(config.model_dump(include=deciding | {"ledger", "ledger_texts"}) | identity)
    for rank, other in enumerate(gathered):
        if found := differences(gathered[0], other, "on rank 0", f"on rank {rank}"):
            what = f"rank {rank} differs from rank 0; start all processes with the same settings and files:"
            raise UserError("\n  ".join([what, *found]))


def record(config: Config, identity: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint records about its run, in addition to its state."""
    settings = {"settings": settings_of(config), "formulas": FORMULAS}
    return {"identity": identity, "identity_sha256": sha256_of(identity), **settings}


def refuse_other_formulas(source: Path, state: dict[str, Any]) -> None:
    """Raises UserError when the checkpoint was computed with other formulas than those of this version."""
    if (then := state.get("formulas", 1)) != FORMULAS:
        raise UserError(
            f"{source}: was computed with other formulas (revision {then}; this version has {FORMULAS}), so the run cannot be "
            "continued; begin a new one, with its weights: --resume_weights_only RUN_FOLDER"
        )


def begun_keys(config: Config, state: dict[str, Any]) -> dict[str, Any]:
    """What a resumed run keeps of the `state` of its checkpoint where its configuration leaves that open.

    The precision, what ends its turns, the day that its chat template writes, and the sizes of parts.
    """
    settings, before, sizes = (state.get(key) or {} for key in ("settings", "identity", "part_sizes"))
    kept: dict[str, Any] = {}
    if config.use_amp is None and config.precision == "auto":
        kept |= {key: settings[key] for key in PRECISION_KEYS if key in settings}
    if config.turn_separator == AUTO:
        kept["turn_separator"] = before.get("turn_separator")
    if config.date_string is None:
        kept["date_string"] = before.get("date_string")
    asked = dict(zip(SIZE_KEYS, sizes.get("asked", ()), strict=False))
    kept |= {key: size for key, size in asked.items() if getattr(config, key) == "auto"}
    return {key: value for key, value in kept.items() if value is not None and value != getattr(config, key)}


def changed_settings(config: Config, then: Any) -> list[str]:
    """`key then -> now` for every setting that both have and that differs."""
    now, earlier = settings_of(config), then if isinstance(then, dict) else {}
    return [
        f"{key} {_excerpt(earlier[key])} -> {_excerpt(value)}" + (f" ({KEPT_KEYS[key]})" if key in KEPT_KEYS else "")
        for key, value in now.items()
        if key in earlier and earlier[key] != value
    ]


def _excerpt(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]} ..."


def model_fingerprint(lm: nn.Module) -> str:
    """Class, size, and a hash of the configuration, the parameters' names and shapes and a sample of their numbers.

    For a model with adapters: that of the model without them.

    >>> model_fingerprint(lm)
    'GPT2LMHeadModel, 124439808 parameters, 5f0c7f0a3c1f9d8e'
    """
    digest = hashlib.sha256()
    config = lm.config.to_diff_dict() if isinstance(lm, PreTrainedModel) else {}
    for name in ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"):
        config.pop(name, None)
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    count = 0
    for name, parameter in base_parameters(lm):
        count += parameter.numel()
        flat = parameter.detach().reshape(-1)
        chosen = torch.linspace(0, flat.numel() - 1, min(SAMPLES, flat.numel()), dtype=torch.float64).long()
        digest.update(f"{name} {tuple(parameter.shape)} ".encode())
        digest.update(flat[chosen.to(flat.device)].float().cpu().numpy().tobytes())
    return f"{type(lm).__name__}, {count} parameters, {digest.hexdigest()[:16]}"


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """The number of tokens, and a hash of the vocabulary, the merges, the special tokens and the chat template."""
    parts: list[Any] = [sorted(tokenizer.get_vocab().items()), tokenizer.special_tokens_map, tokenizer.chat_template]
    if tokenizer.is_fast:
        rules = json.loads(tokenizer.backend_tokenizer.to_str())  # type: ignore[attr-defined]
        parts.append({key: value for key, value in rules.items() if key not in ("truncation", "padding")})
    return f"{len(tokenizer)} tokens, {_hash(json.dumps(part, sort_keys=True, default=str) for part in parts)}"


def part_names(reward: BaseReward) -> list[str]:
    """The names of a reward and its parts, such as `meteor` or `meteor_exact_stem`; the name of a sum is left out."""
    own = [] if reward.weighted_parts else [reward.name]
    return own + [name for child in reward.children() for name in part_names(child)]


def _hash(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:16]
