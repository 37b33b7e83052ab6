"""Episodes of several turns, written again with plain loops: the mask has holes where the user spoke.

The rule (docs/ARCHITECTURE.md): a hole behaves as if its tokens were deleted, a reward on a False position belongs to the last
True position before it, gamma counts True positions only, or whole turns with `credit: turn`. So each oracle deletes the holes
first, gives their rewards to the token before, and computes what the papers say of short lists (GAE, arXiv 1506.02438; GRPO,
2402.03300; RLOO, 2402.14740; REINFORCE++, 2501.03262). The penalties to go of a group are compared token by token.
"""

import math

import pytest
import torch

from rlhf_dialog.training import ppo

NAN, TOLERANCE = math.nan, 1e-9
GROUP, COLUMNS = 3, 11


class Case:
    """Six random episodes, as tensors and as lists; what stands in a hole is a trap, but for rewards where `paid_in_holes`."""

    def __init__(self, seed, paid_in_holes=True):
        torch.manual_seed(seed)
        shape = (2 * GROUP, COLUMNS)
        self.mask = torch.rand(shape) < (0.3, 0.6, 0.9)[seed % 3]
        self.mask[:, seed % COLUMNS] = True  # each episode has a token
        self.gamma, self.gae_lambda = torch.rand(2, dtype=torch.float64).tolist()
        self.logprobs, self.ref_logprobs, self.values, self.turn_rewards = torch.randn(4, *shape, dtype=torch.float64)
        self.scores = torch.randn(len(self.mask), dtype=torch.float64)
        self.turn_rewards[torch.rand(shape) < 0.5] = 0.0
        for column in (self.logprobs, self.ref_logprobs, self.values):
            column[~self.mask] = NAN
        if not paid_in_holes:
            self.turn_rewards[~self.mask] = NAN

    @property
    def kept(self):
        """The True positions of each episode."""
        return [[t for t in range(COLUMNS) if row[t]] for row in self.mask.tolist()]

    def credit(self, by_turn=False):
        return ppo.Credit(self.gamma, self.gae_lambda, GROUP, by_turn)


def deleted(row, places):
    return [row[t].item() for t in places]


def owned(rewards, places):
    """What each token is paid: its own reward and those in the hole behind it; nobody's are those before the first token."""
    found = []
    for number, t in enumerate(places):
        end = places[number + 1] if number + 1 < len(places) else len(rewards)
        found.append(sum(x for x in rewards[t:end].tolist() if math.isfinite(x)))
    return found


def turns_of(places):
    """The turns of an episode: lists of numbers of tokens whose columns are neighbours."""
    turns = []
    for number, t in enumerate(places):
        if number and places[number - 1] == t - 1:
            turns[-1].append(number)
        else:
            turns.append([number])
    return turns


def gae_of(rewards, values, gamma, gae_lambda):
    """Equation 16 with deltas of equation 10, to the end of the episode, behind which the value is 0."""
    steps = range(len(rewards))
    deltas = [rewards[t] + gamma * (values[t + 1] if t + 1 < len(values) else 0.0) - values[t] for t in steps]
    return [sum((gamma * gae_lambda) ** (k - t) * deltas[k] for k in steps if k >= t) for t in steps]


def turn_gae_of(rewards, values, places, gamma, gae_lambda):
    """The same with whole turns as steps: advantages and returns of tokens."""
    turns = turns_of(places)
    paid = [sum(rewards[t] for t in turn) for turn in turns]
    before = [values[turn[0]] for turn in turns]
    found = gae_of(paid, before, gamma, gae_lambda)
    of_tokens = [(found[i], found[i] + before[i]) for i, turn in enumerate(turns) for _ in turn]
    return [advantage for advantage, _ in of_tokens], [target for _, target in of_tokens]


def discounted(rewards, gamma):
    return [sum(gamma ** (k - t) * rewards[k] for k in range(t, len(rewards))) for t in range(len(rewards))]


def check(found, expected, places):
    """Equal on the tokens, and 0 in the holes."""
    for row, numbers, kept in zip(found, expected, places, strict=True):
        assert deleted(row, kept) == pytest.approx(numbers, rel=TOLERANCE, abs=TOLERANCE)
        assert all(row[t] == 0 for t in range(len(row)) if t not in kept)


SEEDS = pytest.mark.parametrize("seed", range(12))


@SEEDS
@pytest.mark.parametrize("credit", ["token", "turn"])
@pytest.mark.parametrize("paid_in_holes", [True, False])
def test_gae_of_an_episode_with_holes(seed, credit, paid_in_holes):
    """Also with rewards that are no numbers in the holes, where nothing is paid."""
    case = Case(seed, paid_in_holes)
    settings, nothing = case.credit(by_turn=credit == "turn"), torch.zeros_like(case.values)
    found = ppo.gae_advantages(case.turn_rewards, nothing, case.values, case.mask, settings)
    advantages, returns = [], []
    for row, places in enumerate(case.kept):
        rewards, values = owned(case.turn_rewards[row], places), deleted(case.values[row], places)
        if credit == "turn":
            both = turn_gae_of(rewards, values, places, case.gamma, case.gae_lambda)
        else:
            one = gae_of(rewards, values, case.gamma, case.gae_lambda)
            both = one, [advantage + value for advantage, value in zip(one, values, strict=True)]
        advantages.append(both[0])
        returns.append(both[1])
    check(found[0], advantages, case.kept)
    check(found[1], returns, case.kept)


def without_holes(case, row):
    """One episode of `case` whose holes are deleted: rewards, values and mask (1, N)."""
    places = case.kept[row]
    rewards = torch.tensor([owned(case.turn_rewards[row], places)], dtype=torch.float64)
    values = torch.tensor([deleted(case.values[row], places)], dtype=torch.float64)
    return rewards, values, torch.ones(1, len(places), dtype=torch.bool)


@SEEDS
def test_an_episode_is_the_one_whose_holes_are_deleted(seed):
    """GAE and discounted returns of the whole batch, next to those of each episode alone, short and without a hole."""
    case = Case(seed)
    found = ppo.gae(case.turn_rewards, case.values, case.mask, case.gamma, case.gae_lambda)
    returns = ppo.discounted_returns(case.turn_rewards, case.mask, case.gamma)
    for row, places in enumerate(case.kept):
        rewards, values, mask = without_holes(case, row)
        short = ppo.gae(rewards, values, mask, case.gamma, case.gae_lambda)
        short_returns = ppo.discounted_returns(rewards, mask, case.gamma)
        for many, one in zip((*found, returns), (*short, short_returns), strict=True):
            assert deleted(many[row], places) == pytest.approx(one[0].tolist(), rel=TOLERANCE, abs=TOLERANCE)


def rewards_of(case, kl_coef):
    """What the run computes: the score and the rewards of turns, and the penalties, which are 0 in holes."""
    on_tokens = torch.where(case.mask, case.turn_rewards, 0.0)  # an environment pays on the last token of a turn
    paid = ppo.score_rewards(case.scores, case.mask, on_tokens)
    return paid, ppo.kl_penalties(case.logprobs, case.ref_logprobs, case.mask, kl_coef)


def rewards_by_hand(case, kl_coef):
    """The same as lists of the tokens."""
    paid, penalties = [], []
    for row, places in enumerate(case.kept):
        earned = deleted(case.turn_rewards[row], places)
        earned[-1] += case.scores[row].item()
        paid.append(earned)
        ours, theirs = deleted(case.logprobs[row], places), deleted(case.ref_logprobs[row], places)
        penalties.append([-kl_coef * (p - q) for p, q in zip(ours, theirs, strict=True)])
    return paid, penalties


@SEEDS
def test_score_turn_rewards_and_penalties(seed):
    case = Case(seed)
    paid, penalties = rewards_by_hand(case, 0.3)
    found = rewards_of(case, 0.3)
    check(found[0], paid, case.kept)
    check(found[1], penalties, case.kept)


def compared(case, row, paid, penalties, estimator):
    """The advantages of one episode next to its group."""
    group = range(row - row % GROUP, row - row % GROUP + GROUP)
    totals = {i: sum(paid[i]) for i in group}
    others = [i for i in group if i != row] if estimator == "rloo" else list(group)
    distance = totals[row] - sum(totals[i] for i in others) / len(others)
    if estimator == "grpo":
        mean = sum(totals.values()) / GROUP
        distance /= math.sqrt(sum((x - mean) ** 2 for x in totals.values()) / (GROUP - 1)) + 1e-4
    found = []
    for number in range(len(case.kept[row])):
        at = {i: sum(penalties[i][number:]) for i in group}  # from the token of this number on
        found.append(distance + at[row] - sum(at[i] for i in others) / len(others))
    return found


@SEEDS
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_pp"])
def test_the_other_estimators_with_holes(seed, estimator):
    case = Case(seed)
    paid, penalties = rewards_by_hand(case, 0.3)
    advantages_of = {
        "grpo": ppo.grpo_advantages,
        "rloo": ppo.rloo_advantages,
        "reinforce_pp": ppo.reinforce_pp_advantages,
    }[estimator]
    found = advantages_of(*rewards_of(case, 0.3), case.values, case.mask, case.credit())
    rows = range(len(paid))
    both = [[x + y for x, y in zip(paid[i], penalties[i], strict=True)] for i in rows]
    returns = [discounted(row, case.gamma) for row in both]
    is_alone = estimator == "reinforce_pp"
    advantages = returns if is_alone else [compared(case, i, paid, penalties, estimator) for i in rows]
    check(found[0], advantages, case.kept)
    check(found[1], returns, case.kept)


@SEEDS
def test_whitening_sees_the_tokens_alone(seed):
    case = Case(seed)
    numbers = [x for row, places in zip(case.values, case.kept, strict=True) for x in deleted(row, places)]
    mean = sum(numbers) / len(numbers)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in numbers) / len(numbers) + 1e-8)
    expected = [
        [(x - mean) / deviation for x in deleted(row, places)]
        for row, places in zip(case.values, case.kept, strict=True)
    ]
    check(ppo.whiten(case.values, case.mask), expected, case.kept)
