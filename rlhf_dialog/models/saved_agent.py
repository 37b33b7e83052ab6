"""The folder of a trained agent: what `from_pretrained` of transformers loads, with our settings beside it."""

from copy import copy
from pathlib import Path

from safetensors.torch import save_model
from transformers import PreTrainedTokenizerBase

from rlhf_dialog.atomic_files import atomic_folder, write_json
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.agent_template import agent_template
from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.json_files import load_json
from rlhf_dialog.models.chat_agent import AGENT_FILE, AGENT_FORMAT, AgentSettings, chat_sampling
from rlhf_dialog.models.generation import StopRule
from rlhf_dialog.models.loading import Policy
from rlhf_dialog.models.lora import merged_state
from rlhf_dialog.models.network import save_policy, spec_of

GENERATION = "generation_config.json"
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
            merged = None if policy.adapter is None else merged_state(policy.lm, policy.adapter)
            policy.lm.save_pretrained(target, state_dict=merged)
        if policy.value_head is not None:
            save_model(policy.value_head, str(target / "value_head.safetensors"))
        names = {
            *("turn_separator", "context_size", "max_prompt_length", "max_new_tokens", "temperature", "top_k"),
            "top_p",
        }
        # older versions do not know them
        names |= {name for name in NEWER if getattr(config, name) is not None}
        settings = {"format_version": AGENT_FORMAT, **config.model_dump(include=names)}
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
            _write_generation(target / GENERATION, config, stop.end_ids)


def _write_generation(path: Path, settings: Config | AgentSettings, end_ids: list[int]) -> None:
    """Sampling and ends, so that other programs answer as the agent's chat does.

    A separator that is known by its text alone ends no response of theirs.
    """
    config = load_json(path)
    config.pop("_from_model_config", None)  # transformers would replace what it does not take for a choice of somebody
    sampling = chat_sampling(settings)
    config |= {"do_sample": not sampling.greedy, "temperature": 1.0 if sampling.greedy else sampling.temperature}
    config |= {"top_k": sampling.top_k, "top_p": sampling.top_p, "max_new_tokens": sampling.max_new_tokens}
    write_json(path, config | ({"eos_token_id": end_ids} if end_ids else {}))
