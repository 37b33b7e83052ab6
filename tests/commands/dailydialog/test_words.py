"""The loss in nats a word, by one forward pass for each token."""

import pytest
import tiny
import torch

from rlhf_dialog.commands.dailydialog.words import nats_a_word
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.models.chat_agent import ChatAgent


def test_nats_a_word_by_hand(tmp_path):
    tiny.gpt2().save_pretrained(tmp_path / "model")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "model")
    data = str(tiny.write_data(tmp_path / "data", 4))
    keys = {"context_size": 5, "min_context_size": 1, "max_prompt_length": 96, "turn_separator": "<EOU>", "seed": 0}
    found = nats_a_word(tmp_path / "model", data, keys | {"max_eval_prompts": 2})
    agent, nats, words = ChatAgent.load(tmp_path / "model"), 0.0, 0
    agent.encoder.max_prompt_length = 96
    prompts = [one for one in load_prompts(data, "validation")]
    from rlhf_dialog.evaluation.replies import pick_prompts

    for prompt in pick_prompts(prompts, 2, 0):
        ids = agent.encoder.encode_prompt(prompt.prompt_turns)
        words += len(prompt.reference.split()) + 1
        for token in agent.encoder.encode_reply(prompt.reference):
            with torch.no_grad():
                nats -= agent.policy.lm(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[token].item()
            ids = [*ids, token]
    assert found["words"] == words
    assert found["nats_a_word"] == pytest.approx(nats / words, rel=1e-4)
