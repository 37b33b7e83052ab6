"""What is chosen, measured and aimed at, on numbers for which it is known."""

import json

import numpy as np
import pytest

from experiments.dailydialog.pretrained import choosing, measuring, targets, training
from experiments.dailydialog.sizes import GAE, RLOO
from experiments.dailydialog.systems import System
from experiments.dailydialog.work import Plan, Work
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.errors import UserError

PLAN = Plan(size="pretrained", data="d", model="m", use_amp=True, reduced=False, processor="one", cores=2)


@pytest.fixture
def work(tmp_path):
    for name in ("smollm2", "minilm", "chitchat"):
        (tmp_path / "fetched" / name).mkdir(parents=True)
    made = Work(tmp_path / "data", tmp_path / "work", "pretrained", tmp_path / "fetched")
    made.plan = PLAN
    made.folder("settings").mkdir(parents=True)
    chosen = {RLOO: {"lr": 3e-4}, GAE: {"lr": 3e-5, "critic_lr": 1e-3}}
    replace_json(made.folder("settings") / training.CHOSEN_SETTING, {"keys": chosen})
    return made


def test_a_run_has_the_chosen_setting_and_the_reward(work):
    root, chosen = work.root, training.chosen_settings(work)
    for agent in training.agents(work):
        training.job_of(work, agent, chosen[agent.name])
        config = load_config(work.folder("ppo") / f"{agent.folder}.yaml")
        assert (config.turn_separator, config.context_size, config.max_new_tokens) == ("chat_template", 5, 20)
        assert (config.seed, config.precision, config.rollout_batch_size) == (agent.seed, "bf16", 256)
        assert (config.model_path, config.total_time_steps) == (str(root / "sft/model"), 50_000)
        reward = {"intent_model": str(root / "intent/model"), "intent_coef": 0.5, "meteor_coef": 0.5}
        if agent.name == GAE:
            assert (config.advantage_estimator, config.gae_lambda, config.use_share_model) == ("gae", 1.0, True)
            assert (config.num_responses_per_prompt, config.ppo_epoch, config.kl_coef) == (4, 2, 0.2)
            assert (config.lr, config.critic_lr, config.use_lora) == (3e-5, 1e-3, False)
        else:
            assert (config.advantage_estimator, config.num_responses_per_prompt) == (RLOO, 8)
            assert (config.lr, config.use_lora, config.kl_coef) == (3e-4, True, 0.02)
            reward |= {"intent_score": "expected", "act_model": str(root / "next_act/model")}
        assert (config.reward_class.id, config.reward_class.args) == ("NLPReward", reward)


def test_the_setting_with_the_larger_gain_wins_among_those_that_keep_near():
    start = {"distinct_2": 0.8, "mean_words": 10.0}
    good, better = start | {"gain": 0.01}, start | {"gain": 0.02}
    assert choosing.best_of({"start": start, "setting_1": good, "setting_2": better}) == "setting_2"
    for far in ({"distinct_2": 0.67}, {"mean_words": 12.0}):
        assert choosing.best_of({"start": start, "setting_1": good, "setting_2": better | far}) == "setting_1"
        assert choosing.best_of({"start": start, "setting_1": good | far, "setting_2": better | far}) == "setting_2"


def line_of(iteration, mean, kl):
    """A line of 10 prompts with one reply each, whose gain is `mean`."""
    sums = {"N": 10, "P": 10, "W": 10.0, "WW": 11.0, "kl": 10 * kl}
    sums |= {"D": 0.0, "A": -10 * mean, "DD": 9.0, "AA": 9.0, "DA": 8.0, "DW": 0.0, "AW": 0.0}
    score = {"objective/score": iteration / 10, "objective/score_se": 0.1, "objective/gain": None}
    return {"iteration": iteration, "episodes": 10 * iteration} | score | {f"gain_sums/{k}": x for k, x in sums.items()}


def test_the_gain_of_a_setting_is_that_of_its_newest_half_and_never_0_for_unknown(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for kl, (mean, over) in {0.2: (0.35, "the reference"), 3.0: (0.25, "iteration 1")}.items():
        rows = [line_of(i, mean, kl) for i, mean in enumerate((0.0, 9.0, 0.3, 0.4), 1)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = choosing.last_gain(tmp_path)
        assert (found.mean, found.over) == (pytest.approx(mean), over)
    rows = [line_of(i, 0.1, 3.0) | {"objective/score_se": None} for i in (1, 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="have a standard error"):
        choosing.last_gain(tmp_path)
    path.write_text(json.dumps(rows[0]) + "\n")
    assert choosing.last_gain(tmp_path).mean == 0  # before the first step


def test_test_waits_for_what_was_chosen(work):
    with pytest.raises(UserError, match=r"chosen\.json: is not there"):
        measuring.test(work)


def system(title, **values):
    arrays = {name: np.full(40, float(value)) for name, value in values.items()}
    blocks = {"block:distinct_2": arrays.pop("distinct_2")[:1]} if "distinct_2" in arrays else {}
    return System(title, [[{**arrays, **blocks, "dialogues": np.arange(40)}]])


def test_the_targets():
    start = system("SFT", score=0.3, meteor_margin=0.1, distinct_2=0.8, mean_words=10)
    better = system("PPO", score=0.4, meteor_margin=0.1, distinct_2=0.68, mean_words=11.5)
    worse = system("PPO", score=0.28, meteor_margin=0.1, distinct_2=0.68, mean_words=11.5)
    matched = system("SFT, colder", score=0.42)
    found = {one.name: one for one in targets.of_ppo(start, better, matched)}
    assert [one.met for one in found.values()] == [True, True, False, False, False, True]
    assert found["own reward above that of SFT, colder"].met is False
    both = System("PPO", better.seeds + worse.seeds)
    each = next(iter(targets.of_ppo(start, both)))
    assert (each.met, each.numbers) == (False, "+0.100, -0.020")
    assert [one.word for one in targets.of_ppo(start, system("PPO"))] == ["not measured"] * 5
