"""The divergence of an agent from its start, token by token."""

import numpy as np
import pytest
import torch

from experiments.divergence import kl_by_token, log_ratios
from rlhf_dialog.evaluation.replies import Replies, generate_replies
from tests.parts.byte_agents import PROMPTS, agent_of
from tests.parts.tiny import gpt2


@pytest.mark.parametrize("packing", [True, False])
def test_the_kl_before_each_token_of_the_agents_replies(packing):
    agent, start = agent_of(gpt2(1), packing), agent_of(gpt2(0), packing)
    answers = generate_replies(agent, PROMPTS, agent.sampling, 3, 3)
    answers.dialogues[1] = answers.dialogues[1].with_reply("No .", truncated=False)
    found = kl_by_token(agent, start, answers, batch_size=3)
    for row, dialogue in zip(found, answers.dialogues, strict=True):
        ids, wanted = agent.encoder.encode_prompt(dialogue.prompt_turns), []
        said = agent.encoder.encode_reply(dialogue.response)
        for token in said[:-1] if dialogue.truncated else said:
            with torch.no_grad():
                ours, theirs = (
                    one.policy.lm(torch.tensor([ids])).logits[0, -1].log_softmax(-1) for one in (agent, start)
                )
            wanted.append(float((ours.exp() * (ours - theirs)).sum()))
            ids = [*ids, token]
        assert row[: len(wanted)].tolist() == pytest.approx(wanted, abs=1e-9)
        assert np.isnan(row[len(wanted) :]).all()
    assert any(dialogue.truncated for dialogue in answers.dialogues)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_log_ratio_of_a_reply_is_that_of_its_tokens(temperature):
    agent, start = agent_of(gpt2(1)), agent_of(gpt2(0))
    replies = [PROMPTS[0].with_reply("Yes.", truncated=True), PROMPTS[1].with_reply("Of course . It is late .")]
    found = log_ratios(agent, start, Replies(replies, [5, 20]), batch_size=1, temperature=temperature)
    for ratio, dialogue in zip(found, replies, strict=True):
        ids, expected = agent.encoder.encode_prompt(dialogue.prompt_turns), 0.0
        tokens = agent.encoder.encode_reply(dialogue.response)
        for token in tokens[:-1] if dialogue.truncated else tokens:
            with torch.no_grad():
                logits = [
                    speaker.policy.lm(torch.tensor([ids])).logits[0, -1] / temperature for speaker in (agent, start)
                ]
            expected += float(logits[0].log_softmax(-1)[token] - logits[1].log_softmax(-1)[token])
            ids = [*ids, token]
        assert ratio == pytest.approx(expected, abs=1e-5)
