"""The training loop: it learns, counts and pays as the configuration says."""

import json
import math
import random
import time

import numpy as np
import pytest
import torch

from rlhf_dialog.config.registry import AdvantageFactory
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models.generation import StopRule
from rlhf_dialog.rewards.function_reward import FunctionReward
from rlhf_dialog.training import ppo
from tests.parts.trainers import PROMPTS, Holes, Places, Share, collect_next, make_trainer, parameters


@pytest.mark.parametrize(("rank", "groups"), [(0, [0, 0, 1, 1]), (1, [2, 2, 3, 3])])
def test_responses_to_one_prompt_have_a_group_that_is_counted_over_all_ranks(monkeypatch, rank, groups):
    trainer = make_trainer(advantage_estimator="rloo", num_responses_per_prompt=2, rollout_batch_size=8)
    taken = make_trainer().sampler.take(4)
    monkeypatch.setattr(type(trainer.world), "share", lambda _, items: items[2 * rank : 2 * rank + 2])
    rollout = collect_next(trainer)
    assert [d.meta["group"] for d in rollout.dialogues] == groups
    assert [d.meta["index"] for d in rollout.dialogues] == [taken[group] for group in groups]
    assert all("group" not in prompt.meta for prompt in trainer.prompts)


class Drawing(Places):
    """Draws from all generators, and may seed them before; what it drew is in `drawn`."""

    def __init__(self, seeds=False):
        super().__init__()
        self.seeds, self.drawn = seeds, []

    def __call__(self, dialogues):
        if self.seeds:
            random.seed(1)
            np.random.seed(1)
            torch.manual_seed(1)
            torch.set_default_dtype(torch.float64)
        drawn = random.random(), np.random.random(), torch.rand(()).item()
        self.drawn += [drawn] if dialogues else []
        return super().__call__(dialogues)

    begin_scoring = lambda self, *_: self([])  # noqa: E731
    metrics = lambda self: {"x": len(self([]))}  # noqa: E731


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_reward_that_seeds_draws_or_sets_the_default_type_changes_nothing_that_the_run_draws(timeout):
    texts = []
    for reward in (Places(), Drawing(), Drawing(seeds=True), FunctionReward(Drawing(seeds=True).__call__)):
        trainer = make_trainer(reward, reward_timeout_s=timeout)
        texts.append([])
        for _ in range(3):
            trainer.step()
            texts[-1].append([dialogue.response for dialogue in trainer.rollout.dialogues])
        assert torch.get_default_dtype() is torch.float32
        if isinstance(reward, Drawing) and not reward.seeds:
            numbers = zip(*reward.drawn, strict=True)
            assert [len({*some}) for some in numbers] == [3, 3, 3]  # new ones in each iteration
    assert texts[0] == texts[1] == texts[2] == texts[3]


@pytest.mark.slow
def test_learns_to_write_one_letter():
    """From one in 259 to six of ten within 20 iterations (measured with three seeds: 5 to 15)."""
    sizes = {"rollout_batch_size": 96, "per_device_microbatch_size": 96, "max_new_tokens": 6, "num_mini_batch": 4}
    coefficients = {"lr": 1e-2, "critic_lr": 1e-2, "gamma": 1.0, "kl_coef": 0.0, "entropy_coef": 0.0}
    trainer = make_trainer(Share(), **sizes, **coefficients, max_iterations=20)
    trainer.models.policy.lm.generation_config.eos_token_id = None
    trainer.responder.stop = StopRule(trainer.models.policy, trainer.models.tokenizer, "<EOU>")
    scores = []
    while not trainer.done and max(scores, default=0.0) <= 0.6:
        scores.append(trainer.step()["objective/score"])
    assert scores[0] < 0.05
    assert scores[-1] > 0.6, scores


def test_an_iteration_says_where_it_is():
    told = []
    trainer = make_trainer(per_device_rollout_size=4, parts={"tell": told.append})
    trainer.step()
    rollout = ["0 of 6 responses", "4 of 6 responses", "reference model", "reward"]
    update = [f"epoch {i} of 2, minibatch {j} of 2" for i in (1, 2) for j in (1, 2)]
    assert told == rollout + update
    trainer.responder.reply(PROMPTS)  # as a validation does
    assert len(told) == 8


def test_the_optimizer_that_is_handed_in_makes_the_steps():
    """Plain gradient descent moves each weight by the rate times its gradient, AdamW's first step every one by the rate."""
    descent = {"optimizer": lambda module, config, lr: torch.optim.SGD(module.parameters(), lr)}
    trainer = make_trainer(parts=descent, ppo_epoch=1, num_mini_batch=1, lr=0.5, use_max_grad_norm=False)
    before = parameters(trainer.models.policy)
    norm = trainer.step()["ppo/grad_norm"]
    moved = [p - before[name] for name, p in trainer.models.policy.named_parameters()]
    distance = torch.cat([x.flatten() for x in moved]).norm().item()
    assert distance == pytest.approx(0.5 * norm, rel=1e-4)


def test_the_order_of_the_prompts():
    """Each comes once before one comes again; a group has four responses by default; the seed decides."""
    trainer = make_trainer(rollout_batch_size=8, ppo_epoch=1, num_mini_batch=1)
    seen = []
    for _ in range(2):
        trainer.step()
        seen += [dialogue.meta["index"] for dialogue in trainer.rollout.dialogues]
    assert sorted(seen) == list(range(16))
    grouped = collect_next(make_trainer(advantage_estimator="grpo", rollout_batch_size=8))
    assert len({dialogue.meta["index"] for dialogue in grouped.dialogues}) == 2
    assert make_trainer(seed=1).sampler.take(16) != make_trainer(seed=2).sampler.take(16)


@pytest.mark.parametrize(
    ("keys", "progress"),
    [
        ({"max_iterations": 3, "total_time_steps": 1}, [1 / 3, 2 / 3, 1]),
        ({"total_episodes": 13}, [6 / 13, 12 / 13, 1]),
    ],
)
def test_the_length_of_a_run(keys, progress):
    trainer = make_trainer(**keys)
    found = []
    while not trainer.done and len(found) < 5:  # it would go on without the key
        line = trainer.step()
        found.append((line["iteration"], line["episodes"], trainer.progress))
    assert found == [(i, 6 * i, pytest.approx(share)) for i, share in enumerate(progress, 1)]
    assert trainer.done


def test_training_ends_with_the_iteration_that_reaches_the_tokens_exactly():
    trainer = make_trainer()
    trainer.step()
    tokens = int(trainer.rollout.response_mask.sum())
    for more, count in ((0, 1), (1, 2)):
        trainer = make_trainer(total_time_steps=tokens + more)
        found = []
        while not trainer.done:
            found.append((trainer.step()["time_steps"], trainer.progress))
        assert (len(found), found[0]) == (count, (tokens, pytest.approx(tokens / (tokens + more))))
        assert found[-1][1] == 1


def test_kl_coefficient_moves_once_an_iteration():
    """It is held until the KL has reached its target; without `kl_hold`, a KL of 0 lies below it."""
    for keys, second in (({}, 0.5), ({"kl_hold": False}, 0.5 * 0.98), ({"kl_rate": 0.0, "kl_hold": False}, 0.5)):
        trainer = make_trainer(kl_coef=0.5, **keys)
        found = [trainer.step()["objective/kl_coef"] for _ in range(2)]
        assert found == [0.5, pytest.approx(second)]
    given = {"kl_coef": 0.4, "kl_target": 0.1, "kl_rate": 0.2, "kl_clip": 0.3, "kl_coef_max": 2.0}
    found = vars(make_trainer(**given, kl_hold=False).kl)
    assert {name: found[name] for name in given} == given
    assert found["hold"] is False


def test_what_a_filter_hides_is_logged():
    trainer = make_trainer(top_k=20, temperature=0.7)
    metrics, r = trainer.step(), trainer.rollout
    mask = r.response_mask
    assert metrics["objective/kl_full"] == pytest.approx(r.kl_full[mask].mean().item(), abs=1e-7)
    assert metrics["objective/ref_support_mass"] == pytest.approx(r.ref_support_mass[mask].mean().item(), rel=1e-5)
    assert "objective/kl_full" not in make_trainer().step()


def test_state_is_json_and_goes_back():
    trainer = make_trainer(top_p=0.9)
    trainer.step()
    trainer.sizes.lower({"update": 1})  # as for a full GPU
    state = json.loads(json.dumps(trainer.state_dict()))
    other, of_other_sizes = make_trainer(top_p=0.9), make_trainer(top_p=0.9, per_device_rollout_size=5)
    of_other_sizes.load_state_dict(state)
    assert of_other_sizes.sizes.rows == {}
    other.load_state_dict(state)
    assert other.state_dict() == trainer.state_dict()
    assert (other.iteration, other.episodes, other.time_steps) == (1, 6, trainer.rollout.num_tokens)
    assert other.kl.kl_coef == trainer.kl.kl_coef
    assert other.value_norm.mean == trainer.value_norm.mean != 0
    assert other.sampler.take(3) == trainer.sampler.take(3)
    assert make_trainer(use_valuenorm=False).state_dict()["value_normalizer"] is None


def test_a_size_that_another_rank_had_to_take_is_taken_at_the_end_of_the_iteration(monkeypatch):
    trainer = make_trainer()
    monkeypatch.setattr(World, "gather", lambda _, x: [x, {"update": 1}] if isinstance(x, dict) else [x])
    trainer.step()
    assert trainer.sizes.rows == {"update": 1}


def test_what_a_metric_of_the_user_takes_is_in_no_other_time(monkeypatch):
    """The clock stands still but for the vec-info class, which takes 1,000 seconds."""
    now = [0.0]

    class Slow(VecInfo):
        def __call__(self, rollout):
            now[0] += 1000.0
            return {}

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    trainer = make_trainer(vec_info=Slow())
    now[0] = 50.0
    monkeypatch.setattr(trainer.update, "warm_up_ddp", lambda rollout: now.__setitem__(0, now[0] + 10))
    metrics = trainer.step()
    assert metrics["time/vec_info"] == 1000
    assert metrics["time/update"] == 10
    assert metrics["FPS"] == pytest.approx(trainer.rollout.num_tokens / 10)


def test_a_reward_without_an_end_stops_the_run(monkeypatch, capsys):
    class Stuck(Places):
        name = "stuck"

        def __call__(self, dialogues):
            time.sleep(600)

    trainer = make_trainer(Stuck(), reward_timeout_s=0.2)
    with pytest.raises(RunStopped, match=r"reward 'stuck' did not finish within 0\.2 seconds"):
        trainer.step()
    assert "time.sleep(600)" in capsys.readouterr().err


# -- what tokens are paid, and the advantages of it, under settings that tests/oracles leaves out


def test_without_gae_the_advantages_are_those_of_lambda_1():
    trainer = make_trainer(use_gae=False, gamma=0.9, gae_lambda=0.5, lr=1e-2, use_valuenorm=False)
    trainer.step()
    coefficient = trainer.kl.kl_coef
    metrics, r = trainer.step(), trainer.rollout
    mask = r.response_mask
    assert r.values[mask].std() > 0
    rewards = ppo.score_rewards(r.scores, mask) + ppo.kl_penalties(r.logprobs, r.ref_logprobs, mask, coefficient)
    advantages, returns = ppo.gae(rewards, r.values, mask, 0.9, 1.0)
    torch.testing.assert_close(r.rewards, rewards)
    torch.testing.assert_close(r.returns, returns)
    expected = (advantages[mask] - advantages[mask].mean()) / advantages[mask].std(correction=0)
    torch.testing.assert_close(r.advantages[mask], expected, rtol=1e-4, atol=1e-4)
    explained = 1 - (returns - r.values)[mask].var() / returns[mask].var()
    assert metrics["ppo/explained_variance"] == pytest.approx(explained.item(), rel=1e-3)


def test_penalties_of_k3_and_whitened_rewards_reach_the_advantages():
    keys = {"kl_estimator": "k3", "ref_seed": 3, "ref_model": "another", "kl_coef": 0.3, "use_valuenorm": False}
    trainer = make_trainer(**keys, whiten_rewards=True, use_adv_normalize=False)
    metrics, r = trainer.step(), trainer.rollout
    mask, paid = r.response_mask, ppo.score_rewards(r.scores, r.response_mask)
    log_r = r.ref_logprobs - r.logprobs
    plain = (paid - 0.3 * (log_r.exp() - 1 - log_r))[mask]
    expected = (plain - plain.mean()) / plain.std(correction=0) + plain.mean()
    torch.testing.assert_close(r.rewards[mask], expected, rtol=1e-4, atol=1e-4)
    advantages, returns = ppo.gae(r.rewards, r.values, mask, 0.99, 0.95)
    torch.testing.assert_close((r.advantages, r.returns), (advantages, returns))
    assert metrics["objective/kl"] == pytest.approx(-log_r[mask].mean().item(), rel=1e-4)  # k1, as the target


def test_normalised_values_are_undone_before_gae():
    trainer = make_trainer(Places(20.0), lr=1e-2, use_adv_normalize=False)
    trainer.step()
    mean, deviation = trainer.value_norm.mean, trainer.value_norm.deviation
    first = trainer.rollout
    assert mean == pytest.approx(first.returns[first.response_mask].mean().item(), rel=1e-3)
    metrics, r = trainer.step(), trainer.rollout
    values = r.values * deviation + mean
    advantages, returns = ppo.gae(r.rewards, values, r.response_mask, 0.99, 0.95)
    torch.testing.assert_close(r.advantages, advantages, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(r.returns, returns, rtol=1e-4, atol=1e-4)
    assert metrics["ppo/value_loss"] < 10  # of normalised targets; the scores reach 50


def test_advantages_are_whitened_unless_it_is_switched_off():
    keys = {"num_responses_per_prompt": 3, "advantage_estimator": "rloo"}
    for whitens in (False, True):
        trainer = make_trainer(**keys, use_adv_normalize=whitens)
        metrics, r = trainer.step(), trainer.rollout
        assert math.isnan(metrics["ppo/value_loss"])
        assert math.isnan(metrics["ppo/explained_variance"])
        assert (r.advantages[r.response_mask].std(correction=0).item() == pytest.approx(1, rel=1e-4)) is whitens


def test_penalties_alone_are_not_blown_up_to_full_size(caplog):
    """With equal scores everywhere the advantages are KL noise; whitened, they would have a deviation of 1."""
    keys = {"advantage_estimator": "grpo", "kl_coef": 0.01, "ref_seed": 3, "ref_model": "another"}
    trainer = make_trainer(Holes(range(64), 0.5), rollout_batch_size=8, **keys)
    assert trainer.step()["ppo/flat_groups"] == 2
    assert 0 < trainer.rollout.advantages.abs().max() < 0.05
    assert "iteration 1: the 4 responses to each prompt have equal scores, for all 2 prompts" in caplog.text


def test_each_estimator_of_the_configuration_has_its_function():
    names = list(AdvantageFactory.formulas)
    assert [AdvantageFactory.find(name).__name__ for name in names] == [f"{name}_advantages" for name in names]
