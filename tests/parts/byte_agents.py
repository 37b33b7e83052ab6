"""Random agents on bytes, in float64."""

from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent
from rlhf_dialog.models.policy import Policy
from tests.parts.tiny import byte_tokenizer, packed

PROMPTS = [Dialogue([text]) for text in ("Hello .", "Where is it ?", "A table for two , please .", "No .")]


def agent_of(lm, packing=True) -> ChatAgent:
    settings, tokenizer = AgentSettings(max_new_tokens=6), byte_tokenizer()
    lm = packed(lm) if packing else lm
    encoder = prompt_encoder(tokenizer, settings.turn_separator, settings.max_prompt_length)
    return ChatAgent(Policy(lm.double()).eval(), encoder, settings)
