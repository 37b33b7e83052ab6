"""Random agents on bytes, in float64."""

import torch

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


@torch.no_grad()
def token_by_token(responders, dialogue, temperature=1.0):
    """Each token of the reply, and the log-probabilities (V) before it by the plain model of each responder."""
    encoder = responders[0].encoder
    ids, reply = encoder.encode_prompt(dialogue.prompt_turns), encoder.encode_reply(dialogue.response)
    for token in reply[:-1] if dialogue.truncated else reply:
        logits = [one.policy.lm(torch.tensor([ids])).logits[0, -1] for one in responders]
        yield token, [(x / temperature).log_softmax(-1) for x in logits]
        ids = [*ids, token]
