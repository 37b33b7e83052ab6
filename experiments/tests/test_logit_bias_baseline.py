"""The mean logit shift: what it is made of, what sampling does with it, and the share of a gain that it reaches."""

from dataclasses import replace

import pytest
import torch

from experiments import logit_bias_baseline
from experiments.logit_bias_baseline import LogitBias
from rlhf_dialog.evaluation.replies import generate_replies
from tests.parts.byte_agents import PROMPTS, agent_of, token_by_token
from tests.parts.tiny import gpt2


@pytest.mark.parametrize("packing", [True, False])
def test_the_bias_is_the_mean_change_of_the_log_probabilities(packing):
    """By a loop over the agent's replies, one token at a time."""
    agent, start = agent_of(gpt2(1), packing), agent_of(gpt2(0), packing)
    found = logit_bias_baseline.fit_bias(agent, start, PROMPTS, agent.sampling, seed=3, batch_size=3)
    changes = [[], []]
    for dialogue in generate_replies(agent, PROMPTS, agent.sampling, 3, 3).dialogues:
        whole = replace(dialogue, truncated=False)
        for t, (_, (ours, theirs)) in enumerate(token_by_token((agent, start), whole)):
            changes[min(t, 1)].append(ours - theirs)
    for bias, own in zip((found.first, found.later), changes, strict=True):
        torch.testing.assert_close(bias, torch.stack(own).mean(0), rtol=0, atol=1e-9)


def test_a_shift_of_the_agents_own_making_is_found_and_gives_the_agent_back():
    """An agent that is its start with another bias of the logits: its own replies, token by token."""
    start, agent = agent_of(gpt2(0), packing=False), agent_of(gpt2(0), packing=False)
    shift = torch.randn(259, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    head = agent.policy.lm.lm_head
    agent.policy.lm.lm_head.forward = lambda x: torch.nn.functional.linear(x, head.weight) + shift
    bias = logit_bias_baseline.fit_bias(agent, start, PROMPTS, agent.sampling)
    for found in (bias.first, bias.later):
        assert (found - shift).std() < 1e-9  # up to a constant, which a softmax does not see
    wanted, given = (
        generate_replies(responder, PROMPTS * 5, sampling, 7)
        for responder, sampling in ((agent, agent.sampling), (start, bias.apply_to(agent.sampling)))
    )
    assert [dialogue.response for dialogue in given.dialogues] == [dialogue.response for dialogue in wanted.dialogues]


def test_the_scale_with_the_best_score_is_taken():
    bias = LogitBias(torch.zeros(3), torch.ones(3))
    assert logit_bias_baseline.choose_scale(bias, lambda one: -abs(one.scale - 1.6)).scale == 1.5
    assert logit_bias_baseline.choose_scale(bias, lambda one: 0.0).scale == logit_bias_baseline.SCALES[0]


@pytest.mark.parametrize(
    ("numbers", "share"), [((0.6, 1.0, 0.2), 0.5), ((0.1, 1.0, 0.2), -0.125), ((0.6, 0.2, 0.2), None)]
)
def test_the_share_of_the_gain(numbers, share):
    assert logit_bias_baseline.gain_share(*numbers) == (share if share is None else pytest.approx(share))
