"""Checks of values in a configuration, alone and together."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from rlhf_dialog.config.registry import AdvantageFactory
from rlhf_dialog.errors import nearest
from rlhf_dialog.terminal import visible


@dataclass(frozen=True, eq=False)
class OneOf:
    """A text that must be one of `values`, which are read at each check, so a table may grow."""

    values: Iterable[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self.values)}

    def _check(self, value: str) -> str:
        if value not in self.values:
            *others, last = map(repr, self.values)
            raise ValueError(f"{', '.join(others)} or {last}{nearest(value, self.values)}")
        return value


def folder_name(value: str | None) -> str | None:
    """Return `value`. Raises ValueError when it cannot be the name of one folder, or would not be shown as it is."""
    if value is None:
        return None
    fits = re.fullmatch(r"[^/\\.\t\n][^/\\\t\n]{0,200}", value) and len(value.encode(errors="replace")) <= 230
    if not fits or visible(value) != value:
        limits = "at most 201 letters and 230 bytes, without / \\ and control characters, and no dot at its beginning"
        raise ValueError(f"the name of a folder: {limits}")
    return value


def check_together(config: Any) -> None:
    """Raises ValueError when the keys of a `schema.Config`, whose values are valid, contradict each other."""
    check_precision(config)
    n, estimator = config.num_responses_per_prompt, config.advantage_estimator
    if config.estimator.needs_groups and n < 2:
        raise ValueError(
            f"num_responses_per_prompt: {estimator} compares the responses of one prompt and needs at least 2, found {n}; set "
            f"it too, for example to {config.estimator.num_responses_per_prompt} (a saved config.yaml holds that of its run)"
        )
    if config.rollout_batch_size and config.rollout_batch_size % n:
        raise ValueError(
            f"rollout_batch_size: {config.rollout_batch_size} responses cannot be divided into {n} per prompt "
            f"(num_responses_per_prompt); use a multiple of {n}"
        )
    ends = {"max_iterations": None, "total_time_steps": type(config).model_fields["total_time_steps"].default}
    others = [f"{key}: {getattr(config, key)}" for key, usual in ends.items() if getattr(config, key) != usual]
    if config.total_episodes is not None and others:
        what = f"{config.total_episodes} beside {others[0]}"
        raise ValueError(f"total_episodes: {what}: a run has one end; remove one of them")
    if not config.reference and config.kl_coef:
        raise ValueError(f"reference: false needs kl_coef: 0, found {config.kl_coef:g}; set one of them")
    wanted = {"ref_model": None, "ref_ds_config": None, "kl_in": "reward"}
    given = [f"{key}: {getattr(config, key)}" for key, usual in wanted.items() if getattr(config, key) != usual]
    if not config.reference and given:
        raise ValueError(f"reference: false, but {given[0]} needs a reference; leave one of them out")
    _check_networks(config)
    _check_4bit(config)
    _check_engine(config)
    if config.guard and not config.eval_interval:
        raise ValueError("guard: watches at each validation; set eval_interval too, for example to 5")
    if config.guard and config.environment:
        raise ValueError("guard: needs the prompts of a data set, found an environment; leave one of them out")
    if config.whiten_rewards and config.estimator.needs_groups:
        raise ValueError(
            f"whiten_rewards: {estimator} compares whole responses; leave it out, or use another estimator"
        )
    if config.credit == "turn" and not config.estimator.needs_critic:
        raise ValueError(f"credit: turn needs a critic, which {estimator} has not; change one of them")
    _check_losses(config)
    if config.kl_in == "loss" and config.kl_estimator != "k1":
        raise ValueError(
            f"kl_estimator: kl_in: loss is exact, without an estimator, found {config.kl_estimator}; leave one out"
        )
    if config.kl_in == "loss" and (config.use_deepspeed or config.ref_ds_config):
        key = "use_deepspeed" if config.use_deepspeed else "ref_ds_config"
        raise ValueError(f"kl_in: loss needs the whole reference in the update, which {key} may move away; use reward")
    if config.use_deepspeed and (config.use_lora or config.uses_fp16):
        key = "use_lora" if config.use_lora else "precision" if config.use_amp is None else "amp_dtype"
        raise ValueError(f"{key}: is not supported with use_deepspeed; use DDP or, for LoRA, FSDP2 (use_fsdp: true)")


def _check_losses(config: Any) -> None:
    """Raises ValueError for keys of the policy loss and of its recipes that contradict each other."""
    is_sequence, is_cispo = config.ratio == "sequence", config.policy_loss == "cispo"
    rivals = {
        "dual_clip_ppo: true": config.dual_clip_ppo and (is_sequence or is_cispo),
        "policy_loss: cispo": is_sequence and is_cispo,
        f"advantage_estimator: {config.advantage_estimator}, whose advantages differ by token": is_sequence
        and config.estimator.needs_critic,
    }
    if given := [key for key, is_given in rivals.items() if is_given]:
        key = "ratio: sequence" if is_sequence else "policy_loss: cispo"
        raise ValueError(f"{key}: is not defined with {given[0]}; change one of them")
    if config.loss_average == "length" and config.environment:
        raise ValueError("loss_average: length divides by max_new_tokens, the length of one reply; use response")
    if not config.group_std and config.advantage_estimator != "grpo":
        raise ValueError(f"group_std: is a key of grpo, found {config.advantage_estimator}; leave one of them out")
    if config.resample_flat_groups and (config.environment or config.num_responses_per_prompt < 2):
        found = "an environment" if config.environment else "one response to each prompt (num_responses_per_prompt)"
        raise ValueError(f"resample_flat_groups: compares the responses to one prompt of a data set, found {found}")
    ramp = config.overlong_penalty_tokens
    if ramp >= config.max_new_tokens:
        raise ValueError(
            f"overlong_penalty_tokens: must be below max_new_tokens ({config.max_new_tokens}), found {ramp}"
        )
    if ramp and not config.truncation_penalty:
        raise ValueError("overlong_penalty_tokens: gives truncation_penalty its shape, which is 0; set it, too")


def without_prompts(values: dict[str, Any]) -> dict[str, Any]:
    """The keys of a run with an `environment`, which needs neither data nor a reward class."""
    env = values.get("env") or {}
    args = (env.get("args") or {}) if isinstance(env, dict) else None
    if isinstance(args, dict):
        values = values | {"env": {**env, "args": {"data_path": "", **args}}}
    return {"reward_class": {"id": "NoReward"}, **values}


def repository_name(value: str | None) -> str | None:
    """Return `value`. Raises ValueError when the Hub cannot have a repository of that name."""
    if value is None:
        return None
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(value)
    except HFValidationError:
        raise ValueError(
            "the name of a repository on the Hub, NAME or USER/NAME, of at most 96 letters, digits and - _ . without -- and .."
        ) from None
    return value


RepositoryName = Annotated[str | None, AfterValidator(repository_name)]


def _check_networks(config: Any) -> None:
    """Raises ValueError for a critic that there is not, and for a network of the user's beside keys of transformers' models."""
    has_separate_critic = config.estimator.needs_critic and not (config.use_share_model or config.use_lora)
    if config.critic_path and not has_separate_critic:
        raise ValueError(
            "critic_path: only a separate critic has a start of its own (use_share_model: false, use_lora: false, and an "
            f"advantage_estimator with a critic: {', '.join(AdvantageFactory.names_with('needs_critic'))}); change them, or "
            "leave critic_path out"
        )
    has_head = config.estimator.needs_critic and config.use_share_model and not config.use_deepspeed
    if config.critic_warmup and not (has_separate_critic or has_head):
        raise ValueError(
            "critic_warmup: only a separate critic (without use_lora) or the head of a shared model (use_share_model: true, "
            "without use_deepspeed) can learn alone; change them, or leave critic_warmup out"
        )
    keys = [key for key in ("model_class", "critic_class") if getattr(config, key) is not None]
    for other in ("use_lora", "use_deepspeed", "use_fsdp", "activation_checkpointing"):
        if keys and getattr(config, other):
            raise ValueError(f"{keys[0]}: is not supported with {other}: true; leave one of them out")
    if config.critic_class and config.critic_path:
        raise ValueError("critic_class: critic_path names another start of the critic; leave one of them out")
    if config.critic_class and (config.use_share_model or not config.estimator.needs_critic):
        estimator = f"advantage_estimator: {config.advantage_estimator}"
        key = "use_share_model: true" if config.use_share_model else estimator
        raise ValueError(f"critic_class: under {key} there is no separate critic; leave one of them out")


def _check_4bit(config: Any) -> None:
    """Raises ValueError for a base in 4 bits beside what does not train it, or would compute with another base."""
    if config.load_in_4bit and not config.use_lora:
        raise ValueError("load_in_4bit: weights in 4 bits are not trained; set use_lora: true, too")
    for key in ("use_fsdp", "use_deepspeed", "engine"):
        if config.load_in_4bit and getattr(config, key):
            reason = "whose servers have another base" if key == "engine" else "which would shard it; use DDP"
            raise ValueError(f"load_in_4bit: is not supported with {key}, {reason}; leave one of them out")


def _check_engine(config: Any) -> None:
    """Raises ValueError for an engine beside keys that it cannot follow."""
    if config.engine is None:
        return
    if config.top_k or config.top_p < 1:
        key = f"top_k: {config.top_k}" if config.top_k else f"top_p: {config.top_p:g}"
        raise ValueError(f"engine: does not tell which tokens {key} leaves; set top_k: 0 and top_p: 1")
    if config.engine.weights == "adapter" and not config.use_lora:
        raise ValueError("engine: weights: adapter needs use_lora: true; set it, or weights: files")
    if config.model_class:
        raise ValueError("engine: vLLM has no network of your own (model_class); leave one of them out")


def check_precision(config: Any) -> None:
    """Raises ValueError when `precision` asks for one thing, and an older key for another."""
    precision, use_amp, amp_dtype = config.precision, config.use_amp, getattr(config, "amp_dtype", "auto")
    if precision == "auto":
        return
    conflicting = {}
    if use_amp is not None and use_amp == (precision == "fp32"):
        conflicting["use_amp"] = str(use_amp).lower()
    if amp_dtype not in ("auto", precision) and precision != "fp32":
        conflicting["amp_dtype"] = amp_dtype
    if conflicting:
        found = " and ".join(f"{key}: {value}" for key, value in conflicting.items())
        remedy = f"keep precision, and leave out {' and '.join(conflicting)}"
        raise ValueError(f"precision: {precision}, but {found}; {remedy}")
