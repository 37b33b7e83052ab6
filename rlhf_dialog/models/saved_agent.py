"""The folder of a trained agent: what `from_pretrained` of transformers loads, with our settings beside it."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_dialog.atomic_files import atomic_folder, write_json
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.settings import DataKeys
from rlhf_dialog.data.agent_template import agent_template
from rlhf_dialog.data.chat_models import chat_settings
from rlhf_dialog.data.chat_template import prompt_encoder, separator_of
from rlhf_dialog.data.dialogue import Dialogue, tools_of
from rlhf_dialog.data.prompts import shared_system
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import load_json
from rlhf_dialog.models.chat_agent import AGENT_FILE, AGENT_FORMAT, AgentSettings, chat_sampling, read_settings
from rlhf_dialog.models.generation import StopRule
from rlhf_dialog.models.loading import Policy, read_tokenizer
from rlhf_dialog.models.lora import merged_state, merged_weights, tied_names
from rlhf_dialog.models.network import num_logits, num_token_ids, save_policy, spec_of
from rlhf_dialog.models.precision import HALF
from rlhf_dialog.models.pretrained import stored_weights
from rlhf_dialog.models.quantized import dequantized, quantized_layers

logger = logging.getLogger(__name__)
SURVIVES = 0.95
SHARD = "2GB"  # of a file of weights; transformers by itself writes one file of up to 50 GB
GENERATION = "generation_config.json"
KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version")  # of the start's generation settings
SETTINGS = ["turn_separator", "context_size", "max_prompt_length", "max_new_tokens", "temperature", "top_k", "top_p"]
# written where they are set, because older versions do not know them
NEWER = ("system_prompt", "chat_temperature", "chat_top_p", "introduction")


def save_agent(
    folder: Path, policy: Policy, tokenizer: PreTrainedTokenizerBase, config: Config | AgentSettings
) -> None:
    """Write the trained agent: a folder for `AutoModelForCausalLM.from_pretrained`, with the value head and our settings."""
    with atomic_folder(folder) as target:
        spec = spec_of(policy.lm)
        if spec is not None:
            save_policy(policy.lm, target)
        else:
            if quantized_layers(policy.lm):
                logger.info("load_in_4bit: the agent's weights are those of 4 bits, written out, plus the adapters")
            state = state_to_save(policy, config)
            policy.lm.save_pretrained(target, state_dict=state, max_shard_size=SHARD)
            types = {x.dtype for x in (state or {}).values() if x.is_floating_point()}
            if len(types) == 1:  # the model itself is of another
                dtype = str(types.pop()).removeprefix("torch.")
                write_json(target / "config.json", load_json(target / "config.json") | {"dtype": dtype})
        if policy.value_head is not None:
            save_model(policy.value_head, str(target / "value_head.safetensors"))
        names = {*SETTINGS, *(name for name in NEWER if getattr(config, name) is not None)}
        settings = {"format_version": AGENT_FORMAT, **config.model_dump(include=names)}
        settings["turn_separator"] = separator_of(tokenizer, config.turn_separator)
        if (asked := config.asked_precision) != "auto":
            settings["precision"] = asked
        if config.stop_token_ids:
            settings["stop_token_ids"] = config.stop_token_ids
        network = {} if spec is None else {"model_class": spec.model_dump()}
        write_json(target / AGENT_FILE, settings | network)
        encoder = prompt_encoder(tokenizer, config.turn_separator, config.max_prompt_length, config.system_prompt)
        saved_tokenizer = copy(tokenizer)
        saved_tokenizer.chat_template = agent_template(encoder, settings)
        saved_tokenizer.save_pretrained(target)
        if (target / GENERATION).is_file():
            stop = StopRule(policy, tokenizer, config.turn_separator, config.stop_token_ids)
            whole = num_logits(policy.lm)
            suppressed = list(range(num_token_ids(policy.lm, tokenizer) or whole, whole))
            _write_generation(target / GENERATION, config, stop.end_ids, suppressed)


def kept_system_prompt(keys: DataKeys, prompts: Sequence[Dialogue], tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The system prompt that a model trained on these prompts keeps: their system message, where all have the same.

    Otherwise that of the keys, since the text of a row is private. So it is where the rows bring tools, and where the text
    cannot be the system prompt of every dialogue.
    """
    text = shared_system(prompts)
    if not text or tools_of(text):
        return keys.system_prompt
    try:
        prompt_encoder(tokenizer, keys.turn_separator, keys.max_prompt_length, str(text))
    except UserError as error:
        logger.warning("the model does not keep the system message of its prompts: %s", error)
        return keys.system_prompt
    return str(text)


def set_system_prompt(folder: Path, text: str, trust_remote_code: bool = False) -> None:
    """Give an agent, or a plain chat model, the system prompt of its chat, in its settings and in its chat template.

    Raises UserError where the template takes none, or where it leaves no room for a turn.
    """
    settings = read_settings(folder, AgentSettings(**chat_settings(folder)))
    tokenizer = read_tokenizer(str(folder), str(folder), trust_remote_code)
    separator = separator_of(tokenizer, settings.turn_separator)
    encoder = prompt_encoder(tokenizer, separator, settings.max_prompt_length, text)
    names = {*SETTINGS, *settings.model_fields_set}
    stored = {**settings.model_dump(include=names), "turn_separator": separator, "system_prompt": text}
    tokenizer.chat_template = agent_template(encoder, stored)
    tokenizer.save_pretrained(folder)
    write_json(folder / AGENT_FILE, {"format_version": AGENT_FORMAT, **stored})


def state_to_save(policy: Policy, config: Config | AgentSettings) -> dict[str, Tensor] | None:
    """The weights of an agent in the types that `agent_dtype` asks for, adapters merged; None: those of the model as it is.

    Under `auto`, those that training has changed get the checkpoint's type where the change, of all of them together, has a
    cosine of SURVIVES with what is left of it after the rounding; the others lose nothing.
    """
    lm, adapter = policy.lm, policy.adapter
    stored: dict[str, Tensor] = {}
    if isinstance(config, Config) and config.agent_dtype != "float32":
        try:
            stored = stored_weights(
                config.model_path, "model_path", config.trust_remote_code, config.allow_pickle_weights
            )
        except UserError as error:
            logger.warning("the agent is saved in float32, because what it started from cannot be compared: %s", error)
    stored = {name: x for name, x in stored.items() if x.dtype in HALF}
    if not stored:
        return None if adapter is None else merged_state(lm, adapter)
    in_4bit = quantized_layers(lm)
    survives, changed = surviving_change(merged_weights(lm, adapter), stored, in_4bit)
    rounds = config.agent_dtype == "checkpoint" or survives >= SURVIVES  # type: ignore[union-attr]
    if not rounds:
        text = "%d trained weights of the agent are saved in float32: rounding would leave %.0f %% of their change"
        logger.info(text, len(changed), 100 * survives)
    types = {name: x.dtype for name, x in stored.items()}
    for name in changed:
        del stored[name]  # before as much is merged
    state: dict[str, Tensor] = {}
    tied = tied_names(lm)
    copies: dict[int | str, Tensor] = {}  # a weight that two layers share is stored once
    for name, x in merged_weights(lm, adapter):
        if name in tied:
            continue
        if name in stored and name not in in_4bit:
            state[name] = stored[name]
        else:
            place = x.data_ptr() if adapter is None else name
            if place not in copies:
                copies[place] = x.to("cpu", types.get(name, x.dtype) if rounds else x.dtype)
            state[name] = copies[place]
    return state


@torch.no_grad()
def surviving_change(
    weights: Iterable[tuple[str, Tensor]], stored: dict[str, Tensor], in_4bit: Mapping[str, Any] = {}
) -> tuple[float, set[str]]:
    """The cosine of the change of the weights since they were `stored` and of that after rounding, and which have changed.

    Those of the layers `in_4bit` have changed since they were quantized.
    """
    products, changed = torch.zeros(3, dtype=torch.float64), set()
    for name, x in weights:
        if name not in stored:
            continue
        before = dequantized(in_4bit[name]) if name in in_4bit else stored[name].to(x.device)
        change = x - before
        if change.any():
            rounded = x.to(stored[name].dtype).to(x.dtype) - before
            pairs = ((change, rounded), (change, change), (rounded, rounded))
            products += torch.stack([(a * b).sum(dtype=torch.float64) for a, b in pairs]).cpu()
            changed.add(name)
    both, true, rounded_squares = products.tolist()
    return (both / math.sqrt(true * rounded_squares) if rounded_squares else float(not changed)), changed


def _write_generation(path: Path, settings: Config | AgentSettings, end_ids: list[int], suppressed: list[int]) -> None:
    """Sampling, ends and the ids that are no tokens, so that other programs answer as the agent's chat does.

    Penalties of the start go, since the policy was not trained with them. A separator that is known by its text alone ends no
    response of theirs.
    """
    start = load_json(path)
    config = {name: start[name] for name in KEPT if name in start}
    sampling = chat_sampling(settings)
    config |= {"do_sample": not sampling.greedy, "temperature": 1.0 if sampling.greedy else sampling.temperature}
    config |= {"top_k": sampling.top_k, "top_p": sampling.top_p, "max_new_tokens": sampling.max_new_tokens}
    config |= {"suppress_tokens": suppressed} if suppressed else {}
    write_json(path, config | ({"eos_token_id": end_ids} if end_ids else {}))
