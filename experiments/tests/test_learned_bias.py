"""The learned bias: the best one where it is known by hand, its gradient by a plain second formula, and when it stops."""

import itertools

import pytest
import torch

from experiments import learned_bias, quickstart_table
from experiments.learned_bias import BiasTraining, learn_bias, leave_one_out, response_logprobs
from experiments.logit_bias_baseline import LogitBias
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import Scorer
from tests.parts.byte_agents import PROMPTS, agent_of
from tests.parts.tiny import gpt2

LETTERS = "abcd"


class Counted(BaseReward):
    """A number for each reply, and what it was told before each batch."""

    name = "counted"

    def __init__(self, count):
        self.count, self.told, self.asked = count, [], []

    def begin_scoring(self, purpose, iteration):
        self.told.append((purpose, iteration))

    def metrics(self):
        self.told.append("metrics")
        return {}

    def __call__(self, dialogues):
        self.asked.append([(one.prompt_turns[-1], one.response) for one in dialogues])
        return [float(self.count(one)) for one in dialogues]


def ids_of(start, letters=LETTERS):
    return [start.encoder.tokenizer(letter)["input_ids"][-1] for letter in letters]


def four_letters():
    """A start that writes four letters, all as likely, and nothing else."""
    start = agent_of(gpt2(0), packing=False)
    logits = torch.full((259,), -1e4, dtype=torch.float64)
    logits[ids_of(start)] = 0.0
    start.policy.lm.lm_head.forward = lambda x: logits.expand(*x.shape[:-1], -1)
    return start


def learned(start, count, **training):
    reward = Counted(count)
    return learn_bias(start, PROMPTS, Scorer(reward), Sampling(3), BiasTraining(**training)), reward


def test_the_best_bias_is_found():
    """The first letter is best b, every later one c, though both vectors see the same letters."""
    start = four_letters()
    count = lambda one: (one.response[:1] == "b") + one.response[1:].count("c")  # noqa: E731
    found, _ = learned(start, count, iterations=12, rate=0.2)
    for vector, best in ((found.first, "b"), (found.later, "c")):
        shares = vector[ids_of(start)].softmax(0)
        assert LETTERS[shares.argmax()] == best
        assert shares.max() > 0.6, shares  # a quarter before


@pytest.mark.parametrize("packing", [True, False])
def test_the_gradient_by_a_second_formula(packing):
    """d log p(token) / d bias = (one-hot - softmax) / temperature, summed token by token with the plain model."""
    start, temperature = agent_of(gpt2(0), packing), 0.7
    bias = torch.randn(2, 259, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    torch.manual_seed(0)
    asked = [prompt for prompt in PROMPTS for _ in range(learned_bias.NUM_RESPONSES)]
    sampling = LogitBias(*bias.detach()).apply_to(Sampling(5, temperature=temperature))
    batch, replies = learned_bias.answer(start, asked, sampling)
    advantages = torch.randn(len(asked), dtype=torch.float64)
    logprobs = response_logprobs(start, batch, bias, temperature)
    (advantages * logprobs).sum().backward()
    gradient, summed = torch.zeros_like(bias), torch.zeros_like(logprobs)
    for row, prompt in enumerate(asked):
        ids = start.encoder.encode_prompt(prompt.prompt_turns)
        reply = batch.response_ids[row][batch.response_mask[row]].tolist()
        assert len(reply) == replies.num_tokens[row]
        for t, token in enumerate(reply):
            with torch.no_grad():
                logits = start.policy.lm(torch.tensor([ids])).logits[0, -1] + bias[min(t, 1)]
            probabilities = (logits / temperature).softmax(-1)
            summed[row] += probabilities[token].log().detach()
            change = -probabilities.detach()
            change[token] += 1
            gradient[min(t, 1)] += advantages[row] * change / temperature
            ids = [*ids, token]
    torch.testing.assert_close(logprobs.detach(), summed, rtol=0, atol=1e-9)
    torch.testing.assert_close(bias.grad, gradient, rtol=0, atol=1e-8)
    assert all(parameter.grad is None for parameter in start.policy.parameters())


def test_the_baseline_of_a_response_is_the_mean_of_the_others():
    scores = torch.randn(16, dtype=torch.float64)
    expected = [
        scores[i] - torch.cat([group[:k], group[k + 1 :]]).mean()
        for i, (group, k) in enumerate(itertools.product(scores.view(2, 8), range(8)))
    ]
    torch.testing.assert_close(leave_one_out(scores), torch.stack(expected))


def rows_with(fits, score):
    """The rows of one quickstart, of 100 replies each, by the means of SFT, learned bias and PPO."""
    names = ("SFT, 1", "SFT, learned bias, 1", "after PPO, 1")
    return {
        name: {"fits": [1.0] * share + [0.0] * (100 - share), "score": [mean] * 100}
        for name, share, mean in zip(names, fits, score, strict=True)
    }


@pytest.mark.parametrize(
    ("fits", "score", "passed", "said"),
    [
        ((30, 34, 70), (1.0, 1.3, 1.5), True, "10%, 60% of that in score"),
        ((30, 50, 70), (1.0, 1.1, 1.5), False, "50%, 20% of that in score"),
        ((30, 30, 30), (1.0, 1.0, 1.0), False, "no gain, none in score"),
    ],
)
def test_the_quickstarts_target_is_by_the_fit(fits, score, passed, said):
    found = quickstart_table._share_of_gain([rows_with(fits, score)], "SFT, learned bias, 1", "1")
    assert found == ("SFT, learned bias, 1: at most 40% of the gain in replies that fit", passed, said)
