"""Rollouts in which scores are missing, and what their episodes count."""

import math

import pytest
import torch

from rlhf_dialog.errors import RunStopped, UserError
from tests.parts.trainers import Holes, make_trainer, parameters


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_an_episode_without_a_score_stops_or_is_skipped(value, caplog):
    with pytest.raises(
        UserError, match=r"reward 'holes' gave (None|nan|inf), which is not .* for dialogue 1 with the resp"
    ):
        make_trainer(Holes([1, 4], value)).step()
    trainer = make_trainer(Holes([1, 4], value), on_reward_error="skip")
    wanted = make_trainer().sampler.take(6)
    metrics, rollout = trainer.step(), trainer.rollout
    assert [d.meta["index"] for d in rollout.dialogues] == [wanted[i] for i in (0, 2, 3, 5)]
    assert rollout.scores.tolist() == [-1.5, 2.5, -0.5, -1.5]
    assert metrics["objective/score"] == metrics["reward/holes"] == pytest.approx(-0.25)
    assert metrics["response/unscored"] == 2
    assert rollout.reward_scores.total == rollout.reward_scores.parts["holes"].raw == [-1.5, 2.5, -0.5, -1.5]
    assert "reward 'holes' gave no score for 2 of 6 dialogues" in caplog.text
    lengths = {name: len(x) for name, x in vars(rollout).items() if isinstance(x, (list, torch.Tensor))}
    assert set(lengths.values()) == {4}, lengths
    assert make_trainer().step()["response/unscored"] == 0


def test_dropped_tokens_and_episodes_were_generated_all_the_same():
    expected = make_trainer().step()
    skipping = make_trainer(Holes([0, 1, 2]), on_reward_error="skip")
    found = skipping.step()
    assert found["time_steps"] == expected["time_steps"] > skipping.rollout.num_tokens
    assert found["episodes"] == expected["episodes"] == 6
    assert found["response/length"] == skipping.rollout.num_tokens / 3


@pytest.mark.parametrize(
    ("estimator", "places", "kept"),
    [
        ("grpo", [0, 7], [1]),  # one of three groups of three is whole
        ("rloo", [4], [0, 2]),
        ("reinforce_pp", [0, 7], None),
        ("gae", [0, 7], None),
    ],
)
def test_baselines_need_whole_groups(estimator, places, kept):
    keys = {"num_responses_per_prompt": 3, "rollout_batch_size": 9, "on_reward_error": "skip"}
    trainer = make_trainer(Holes(places), advantage_estimator=estimator, **keys, use_adv_normalize=False)
    wanted = make_trainer().sampler.take(3)
    metrics = trainer.step()
    found = [d.meta["index"] for d in trainer.rollout.dialogues]
    if kept is None:
        assert found == [wanted[i // 3] for i in range(9) if i not in places]
    else:
        assert found == [wanted[group] for group in kept for _ in range(3)]
        totals = trainer.rollout.rewards.sum(dim=1).view(-1, 3)
        sums = (trainer.rollout.advantages * trainer.rollout.response_mask).sum(dim=1)
        assert totals.shape[0] == len(kept)
        assert sums.isfinite().all()
    assert metrics["response/unscored"] == 9 - len(found)


@pytest.mark.parametrize(("estimator", "places"), [("gae", range(6)), ("grpo", [0, 3])])
def test_an_iteration_without_any_score_stops_the_run(estimator, places):
    keys = {"advantage_estimator": estimator, "num_responses_per_prompt": 3, "on_reward_error": "skip"}
    trainer = make_trainer(Holes(places), **keys)
    before = parameters(trainer.models.policy)
    with pytest.raises(
        RunStopped, match=r"iteration 1: all 6 episodes are dropped, because the reward 'holes' gave .* no score"
    ):
        trainer.step()
    assert all(torch.equal(p, before[name]) for name, p in trainer.models.policy.named_parameters())


def test_the_first_rollout_counts_prompts_that_lose_part_of_their_newest_turn(caplog):
    trainer = make_trainer(max_prompt_length=3)
    trainer.step()
    lines = [line for line in caplog.messages if "lose the beginning of their newest turn" in line]
    sizes = [len(trainer.speaker.encoder._encode(f"{d.prompt_turns[-1]} <EOU>")) for d in trainer.rollout.dialogues]
    cut = sum(size > 3 for size in sizes)
    assert cut > 0
    assert lines == [
        f"{cut} of 6 prompts lose the beginning of their newest turn: max_prompt_length is 3, and {max(sizes)} would do"
    ]
    trainer.step()
    assert len([line for line in caplog.messages if "lose the beginning" in line]) == 1
