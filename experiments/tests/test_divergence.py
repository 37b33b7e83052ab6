"""The divergence of an agent from its start, token by token."""

import numpy as np
import pytest

from experiments.divergence import kl_by_token, log_ratios
from rlhf_dialog.evaluation.replies import Replies, generate_replies
from tests.parts.byte_agents import PROMPTS, agent_of, token_by_token
from tests.parts.tiny import gpt2


@pytest.mark.parametrize("packing", [True, False])
def test_the_kl_before_each_token_of_the_agents_replies(packing):
    agent, start = agent_of(gpt2(1), packing), agent_of(gpt2(0), packing)
    answers = generate_replies(agent, PROMPTS, agent.sampling, 3, 3)
    answers.dialogues[1] = answers.dialogues[1].with_reply("No .", truncated=False)
    found = kl_by_token(agent, start, answers, batch_size=3)
    for row, dialogue in zip(found, answers.dialogues, strict=True):
        pairs = [logprobs for _, logprobs in token_by_token((agent, start), dialogue)]
        wanted = [float((ours.exp() * (ours - theirs)).sum()) for ours, theirs in pairs]
        assert row[: len(wanted)].tolist() == pytest.approx(wanted, abs=1e-9)
        assert np.isnan(row[len(wanted) :]).all()
    assert any(dialogue.truncated for dialogue in answers.dialogues)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_log_ratio_of_a_reply_is_that_of_its_tokens(temperature):
    agent, start = agent_of(gpt2(1)), agent_of(gpt2(0))
    replies = [PROMPTS[0].with_reply("Yes.", truncated=True), PROMPTS[1].with_reply("Of course . It is late .")]
    found = log_ratios(agent, start, Replies(replies, [5, 20]), batch_size=1, temperature=temperature)
    for ratio, dialogue in zip(found, replies, strict=True):
        tokens = token_by_token((agent, start), dialogue, temperature)
        expected = sum(float(ours[token] - theirs[token]) for token, (ours, theirs) in tokens)
        assert ratio == pytest.approx(expected, abs=1e-5)
