from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.task_oriented.policies.base import Episode, PolicySpec, stream
from rlhf_dialog.task_oriented.policies.ppo import PPO, imitate
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from tests.parts.several_policies import straight_and_resumed, watched
from tests.parts.toy_environments import Colours, best

SMALL = {"hidden_sizes": (16,)}


def colours(seed=0, **args):
    return PPO(PolicySpec(3, 4, seed), **SMALL | args)


def episode(rewards, values, terminated=False, truncated=False, last=0.0):
    count = len(rewards)
    columns = (np.array(x, np.float32) for x in (np.zeros(count), rewards, values))
    seen = np.zeros((count, 1), np.float32), np.ones((count, 2), bool), np.zeros(count, np.int64)
    return Episode(*seen, *columns, terminated, truncated, np.array([last], np.float32), dialogue=0)


def slow_gae(rewards, values, after, gamma, gae_lambda):
    """The sums of the definition (Schulman et al. 2015, equation 16); `after`: the value of what follows the last turn."""
    following = [*values[1:], after]
    deltas = [r + gamma * v - now for r, v, now in zip(rewards, following, values, strict=True)]
    decay = gamma * gae_lambda
    return [sum(decay**k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


def test_advantages_never_leak_over_the_end_of_a_dialogue_and_only_a_cut_one_is_bootstrapped(monkeypatch):
    policy = PPO(PolicySpec(1, 2), gamma=0.9, gae_lambda=0.8)
    monkeypatch.setattr(policy, "_values", lambda observations: 10 * observations[:, 0])
    rows = [([-1, -1, 19], [3, 5, 8]), ([-1, -1], [2, 4]), ([-1], [7]), ([-1, 0], [1, 6])]
    ended = [{"terminated": True}, {"truncated": True}, {}, {"terminated": True}]
    episodes = [episode(*row, last=0.5, **how) for row, how in zip(rows, ended, strict=True)]
    advantages, returns, mask = policy.advantages(episodes)
    for number, ((rewards, values), how) in enumerate(zip(rows, ended, strict=True)):
        expected = slow_gae(rewards, values, 0.0 if how else 5.0, 0.9, 0.8)
        np.testing.assert_allclose(advantages[number][mask[number]], expected, rtol=1e-5)
        np.testing.assert_allclose(returns[number][mask[number]], np.add(expected, values), rtol=1e-5)
    assert mask.sum(dim=1).tolist() == [3, 2, 1, 2]


def test_the_ratio_is_one_before_the_first_step_and_another_policys_action_or_an_infinite_loss_ends_the_run():
    policy = colours(ppo_epoch=1, minibatch_size=1000)
    metrics = watched(policy, Colours, 64, num_envs=8).update()
    assert metrics["ppo/approx_kl"] < 1e-10
    assert metrics["ppo/clip_fraction"] == 0.0
    for one in Sampler(Colours, 0, 8).sample(colours(seed=1), 64):
        policy.observe(one)
    with pytest.raises(RunStopped, match="the actions were sampled with another policy, or with other masks"):
        policy.update()
    policy = colours()
    (one, *_) = Sampler(Colours, 0, 1).sample(policy, 3)
    one.rewards[:] = np.inf
    policy.observe(one)
    with pytest.raises(RunStopped, match="update 1: the loss is nan"):
        policy.update()


def test_the_first_step_follows_the_gradient_of_the_textbook():
    policy = colours(ppo_epoch=1, minibatch_size=1000, entropy_coef=0.3, gamma=0.9, gae_lambda=0.8, max_grad_norm=1e6)
    episodes = [one for one in Sampler(Colours, 0, 2).sample(policy, 33) if one.ended]
    rows, learner, total = [], policy.learner, torch.zeros(())
    for one in episodes:
        advantages = slow_gae(one.rewards, one.values, 0.0, 0.9, 0.8)
        rows += [(one, t, gain, gain + one.values[t]) for t, gain in enumerate(advantages)]
    gains, returns = (np.array([row[place] for row in rows]) for place in (2, 3))
    for one, t, gain, worth in rows:
        logprobs = learner.policy(torch.from_numpy(one.observations[t]))[torch.from_numpy(one.masks[t])].log_softmax(0)
        chosen = logprobs[int(one.masks[t][: one.actions[t]].sum())]
        error = learner.critic(torch.from_numpy(one.observations[t]))[0] - (worth - returns.mean()) / returns.std()
        entropy = -(logprobs.exp() * logprobs).sum()
        total = total - (gain - gains.mean()) / gains.std() * chosen - 0.3 * entropy + error**2 / 2
    expected = torch.autograd.grad(total / len(rows), list(learner.parameters()))
    for one in episodes:
        policy.observe(one)
    policy.update()
    for weights, gradient in zip(learner.parameters(), expected, strict=True):
        torch.testing.assert_close(weights.grad, gradient, rtol=1e-3, atol=1e-5)


def test_the_critics_mean_of_a_rollout_ago_weighs_seven_tenths():
    policy, means = colours(), []
    for number in range(2):
        episodes = Sampler(Colours, number, 4).sample(policy, 40)
        _, returns, mask = policy.advantages(episodes)
        means.append(returns[mask].mean().item())
        for one in episodes:
            policy.observe(one)
        policy.update()
    assert policy.normalizer.mean == pytest.approx((0.7 * means[0] + means[1]) / 1.7, rel=1e-5)


def test_an_action_that_the_mask_forbids_is_never_drawn_and_has_no_gradient():
    policy, masks = colours(), np.tile([False, True, False, True], (500, 1))
    observations, streams = np.zeros((500, 3), np.float32), [stream(0, n, 0) for n in range(500)]
    actions, extras = policy.act(observations, masks, False, streams)
    assert set(actions.tolist()) == {1, 3}
    assert (extras["logprobs"] > np.log(0.2)).all()
    policy.logprobs(torch.zeros(1, 3), torch.tensor([[False, True, False, True]]))[0, 1].backward()
    gradient = policy.learner.policy[2].bias.grad
    assert gradient[[0, 2]].tolist() == [0.0, 0.0]
    assert gradient[1] > 0


def test_two_equal_runs_learn_the_same_and_a_saved_policy_goes_on_exactly(tmp_path):
    (_, files), (policy, others) = straight_and_resumed(tmp_path, lambda _: colours(), Colours, 4, 40, iterations=2)
    assert files == others
    assert {*map(str, files)} == {"optimizer.safetensors", "policy.json", "policy.safetensors"}
    with pytest.raises(UserError, match="does not fit"):
        colours(hidden_sizes=(8,)).load(tmp_path / "half")
    for text in ("{}", '{"num_updates": 1, "normalizer": {"weight": 1}}'):
        (tmp_path / "half" / "policy.json").write_text(text)
        with pytest.raises(UserError, match="does not fit this policy, or is damaged"):
            policy.load(tmp_path / "half")


def test_the_learning_rate_falls_to_its_share_over_the_updates_of_the_run():
    policy = PPO(PolicySpec(3, 4, num_updates=2), lr=0.01, final_lr=0.1)
    rates = []
    for _ in range(3):
        watched(policy, Colours, 8).update()
        rates.append(policy.learner.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.01, 0.0055, 0.001])


def test_the_right_policy_of_a_toy_is_copied_under_masks():
    policy, right = (
        PPO(PolicySpec(3, 4), hidden_sizes=(32,)),
        SimpleNamespace(act=lambda x, masks, _: (best(x, masks), {})),
    )
    assert imitate(policy, run_dialogues(right, Colours, 0, range(300)), seed=0) == {"imitation/accuracy": 1.0}
    episodes = run_dialogues(policy, Colours, 5, range(50))
    assert all((one.actions == best(one.observations, one.masks)).all() for one in episodes)
    assert policy.learner.optimizer.state_dict()["state"] == {}
