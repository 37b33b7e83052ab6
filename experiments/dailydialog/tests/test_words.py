"""The loss in nats a word, by one forward pass for each token."""

import pytest

from experiments.dailydialog.words import READ, nats_a_word
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.evaluation.replies import pick_prompts
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent
from tests.parts import tiny
from tests.parts.byte_agents import token_by_token


def test_nats_a_word_by_hand(tmp_path):
    tiny.gpt2().save_pretrained(tmp_path / "model")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "model")
    data = str(tiny.write_data(tmp_path / "data", 4))
    keys = {"context_size": 5, "min_context_size": 1, "max_prompt_length": 96, "turn_separator": "<EOU>", "seed": 0}
    settings = AgentSettings(**{name: keys[name] for name in READ})
    agent, nats, words = ChatAgent.load(tmp_path / "model", settings=settings), 0.0, 0
    found = nats_a_word(agent, data, keys | {"max_eval_prompts": 2})
    for prompt in pick_prompts(PromptRules().load(data, "validation"), 2, 0):
        words += len(prompt.reference.split()) + 1
        tokens = token_by_token([agent], prompt.with_reply(prompt.reference, False))
        nats -= sum(logprobs[token].item() for token, (logprobs,) in tokens)
    assert found["words"] == words
    assert found["nats_a_word"] == pytest.approx(nats / words, rel=1e-4)
