"""The folder of a trained agent: what `from_pretrained` of transformers loads, with our settings beside it."""

from pathlib import Path

from safetensors.torch import save_model
from transformers import PreTrainedTokenizerBase

from rlhf_dialog.atomic_files import atomic_folder, write_json
from rlhf_dialog.config.schema import Config
from rlhf_dialog.models.chat_agent import AGENT_FILE, AGENT_FORMAT, AgentSettings
from rlhf_dialog.models.loading import Policy
from rlhf_dialog.models.lora import merged_state
from rlhf_dialog.models.network import save_policy, spec_of

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
        tokenizer.save_pretrained(target)
        if policy.value_head is not None:
            save_model(policy.value_head, str(target / "value_head.safetensors"))
        settings = config.model_dump(
            include={
                "turn_separator",
                "context_size",
                "max_prompt_length",
                "max_new_tokens",
                "temperature",
                "top_k",
                "top_p",
                # older versions do not know them
                *(["stop_token_ids"] if config.stop_token_ids else []),
                *(name for name in NEWER if getattr(config, name) is not None),
            }
        )
        network = {} if spec is None else {"model_class": spec.model_dump()}
        write_json(target / AGENT_FILE, {"format_version": AGENT_FORMAT, **settings, **network})
