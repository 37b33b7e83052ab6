"""What is estimated, chosen, measured and aimed at, on numbers for which it is known."""

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments.dailydialog.pretrained import choosing, estimate, measuring, stages, table, targets, training
from experiments.dailydialog.scene import Scene
from experiments.dailydialog.sizes import PRETRAINED, PRETRAINED_FULL, RLOO, SIZES, A, B
from experiments.dailydialog.systems import System
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.errors import UserError

PLAN = {"use_amp": True, "reduced": False, "epochs": {"sft": 0.5}, "tokens": 20_000, "tokens_b": 9_000}
PLAN |= {"setting_tokens": 8_000, "test_prompts": 500, "validation_prompts": 200}


@pytest.fixture
def scene(tmp_path):
    for name in ("smollm2", "minilm", "chitchat"):
        (tmp_path / "fetched" / name).mkdir(parents=True)
    made = Scene(tmp_path / "data", tmp_path / "work", "pretrained", tmp_path / "fetched", print)
    made.plan = dict(PLAN)
    made.folder("settings").mkdir(parents=True)
    made.folder("sft").mkdir()
    replace_json(made.folder("settings") / training.CHOSEN_SETTING, {"keys": {"lr": 3e-5}})
    replace_json(made.folder("sft") / "floor.json", {"floor": -4.25})
    return made


@pytest.mark.parametrize(
    ("name", "of_token", "tokens"),
    [
        (A, 0.108, 20_000),  # 36 minutes hold 20,000
        (A, 0.01, 25_000),  # at most
        (A, 0.2, 15_000),  # at least, where they fit into 50 minutes
        (A, 0.3, 10_000),  # 50 minutes hold 10,000
        (B, 0.3, 2_500),  # 13 minutes hold 2,600
    ],
)
def test_tokens_are_what_the_minutes_allow(name, of_token, tokens):
    assert estimate.tokens_for(PRETRAINED, name, of_token) == tokens
    assert estimate.tokens_for(PRETRAINED_FULL, name, of_token) == 100_000


def test_epochs_are_what_the_minutes_allow():
    measured = {"beside": 60.0, "epoch": 600.0, "whole": 1200.0}
    assert estimate.epochs_for(6, measured, 1.0) == pytest.approx(0.5)
    assert estimate.epochs_for(600, measured, 1.0) == 1.0
    assert estimate.epochs_for(0.1, measured, 1.0) == 0.01


@pytest.mark.parametrize(
    ("seconds", "minutes", "prompts"),
    [(3.0, 100.0, 500), (9.0, 60.0, 300), (9.0, 0.0, 300), (3.6, 120.0, 400), (3.6, 144.0, 300), (20.0, 0.0, 150)],
)
def test_test_prompts_keep_to_the_limits(seconds, minutes, prompts):
    """seconds: of all rows for one prompt. 300 of them are kept, unless they alone take more than 50 minutes."""
    assert estimate.prompts_for(PRETRAINED, lambda count: count * seconds, minutes) == prompts
    assert estimate.prompts_for(PRETRAINED_FULL, lambda count: count * seconds, minutes) == 1500


def test_settings_are_tried_for_whole_iterations(scene, monkeypatch):
    """128 responses of 15 tokens. Of 9 minutes 3 x 200 prompts take 300 seconds, and 2 runs at 40 tokens a second the rest."""
    measured = {"beside": 0.0, "epoch": 600.0, "whole": 600.0, "speed": 40.0}
    measured |= {"seconds": 50.0, "drawing": 40.0, "prompts": 100.0}
    monkeypatch.setattr(estimate, "kept", lambda *_: measured)
    monkeypatch.setattr(estimate.dialogues, "write", lambda _: None)
    scene.folder("estimate").mkdir()
    for has_bfloat16, tokens, prompts in ((True, 3_840, 200), (False, 5_760, 100)):
        monkeypatch.setattr(estimate, "has_bfloat16", lambda *_, has=has_bfloat16: has)
        estimate.estimate(scene)
        assert (scene.plan["setting_tokens"], scene.plan["validation_prompts"]) == (tokens, prompts)
        assert scene.plan["epochs"]["intent"] == (0.25 if has_bfloat16 else 0.7)  # of 2.5 and of 7 minutes
    scene = replace(scene, size_name="pretrained_full")
    scene.folder("estimate").mkdir(exist_ok=True)
    estimate.estimate(scene)
    assert (scene.plan["tokens"], scene.plan["validation_prompts"], scene.plan["test_prompts"]) == (100_000, 200, 1500)


def test_a_processor_without_bfloat16_has_one_run_of_a(scene):
    assert [one.folder for one in training.agents(scene)] == ["ppo_a_0", "ppo_a_1", "ppo_a_2", "ppo_b_0"]
    assert measuring.TWO in measuring.test_rows(scene)
    scene.plan["reduced"] = True
    assert [one.folder for one in training.agents(scene)] == ["ppo_a_0"]
    assert measuring.TWO not in measuring.test_rows(scene)
    ran = []
    for stage in stages.STAGES:
        if stage.name in estimate.FOR_B:
            stage.run(scene)  # it does nothing
    assert ran == []
    assert "no instructions for bfloat16" in "".join(table.cut(scene))
    assert training.ppo_settings(scene, B) == {"floor": -4.25}


def test_a_run_has_the_chosen_setting_the_reward_and_the_floor(scene):
    work, keys = scene.work, training.chosen_setting(scene)
    for agent in training.agents(scene):
        job = training.job_of(scene, agent, keys)
        config = load_config(scene.folder(agent.name) / f"{agent.folder}.yaml")
        assert (config.turn_separator, config.context_size, config.max_new_tokens) == ("chat_template", 5, 20)
        assert (config.seed, config.lr, config.precision) == (agent.seed, 3e-5, "bf16")
        assert config.model_path == str(work / "sft/model")
        if agent.name == A:
            assert (config.advantage_estimator, config.gae_lambda, config.use_share_model) == ("gae", 1.0, True)
            assert (config.num_responses_per_prompt, config.ppo_epoch, config.kl_rate > 0) == (4, 2, True)
            wanted = {"intent_model": str(work / "intent/model"), "intent_coef": 0.5, "meteor_coef": 0.5}
            assert (config.reward_class.id, config.reward_class.args) == ("NLPReward", wanted)
            assert job.tokens == 20_000
        else:
            assert (config.advantage_estimator, config.num_responses_per_prompt, job.tokens) == (RLOO, 8, 9_000)
            price = config.reward_class.args["parts"][2]["args"]
            assert (price["model"], price["floor"]) == (str(work / "sft/model"), -4.25)


def test_what_decides_names_no_folder(scene, tmp_path):
    decides = [stage.settings(scene) for stage in stages.STAGES if stage.name != "estimate"]
    assert str(tmp_path) not in json.dumps(decides, default=str)


def test_a_stage_needs_only_earlier_ones():
    for number, stage in enumerate(stages.STAGES):
        assert set(stage.needs) <= set(stages.NAMES[:number]), stage.name


def test_the_setting_with_the_larger_sum_wins_among_those_that_keep_near():
    start = {"meteor_margin": 0.01, "judge_accuracy": 0.5, "distinct_2": 0.8, "mean_words": 10.0}
    good, better = start | {"judge_accuracy": 0.52}, start | {"judge_accuracy": 0.6}
    assert choosing.best_of({"start": start, "setting_1": good, "setting_2": better}) == "setting_2"
    for far in ({"distinct_2": 0.7}, {"mean_words": 12.0}):
        assert choosing.best_of({"start": start, "setting_1": good, "setting_2": better | far}) == "setting_1"
        assert choosing.best_of({"start": start, "setting_1": good | far, "setting_2": better | far}) == "setting_2"


def test_test_waits_for_what_was_chosen(scene):
    with pytest.raises(UserError, match=r"chosen\.json: is not there"):
        measuring.test(scene)
    with pytest.raises(UserError, match=r"chosen\.json: is not there"):
        measuring.find_leaks(scene)


def system(title, **values):
    arrays = {name: np.full(40, float(value)) for name, value in values.items()}
    blocks = {"block:distinct_2": arrays.pop("distinct_2")[:1]} if "distinct_2" in arrays else {}
    return System(title, [[{**arrays, **blocks, "dialogues": np.arange(40)}]])


def test_the_targets_of_a():
    numbers = dict.fromkeys(targets.MARGINS, 0.1) | {"distinct_2": 0.8, "copied_two": 0.01, "mean_words": 10}
    start, people = system("SFT", **numbers), system("true replies", copied_two=0.04)
    ours = system("PPO A", **dict.fromkeys(targets.MARGINS, 0.2), distinct_2=0.7, copied_two=0.05, mean_words=10.5)
    found = {one.name: one for one in targets.of_a(start, ours, {"bias": ours, "matched": None}, people)}
    assert [found[f"{name} above that of SFT"].met for name in targets.MARGINS.values()] == [True] * 4
    assert [found[f"{name} above that of bias"].met for name in targets.MARGINS.values()] == [False] * 4
    assert found["METEOR margin above that of matched"].word == "not measured"
    assert (found["distinct-2 at least 0.9 of SFT's"].met, found["copies not above people's"].met) == (False, False)
    assert found["length within 10% of SFT's"].met is True


def test_the_targets_of_b():
    names = ("relevance_r10", "relevance_2_r10", "encoder_similarity", "mutual_information")
    start, two, four = (
        system(title, **dict.fromkeys(names, value)) for title, value in (("SFT", 0.2), ("two", 0.22), ("four", 0.3))
    )
    learned = system("PPO B", **dict.fromkeys(names[:3], 0.26), mutual_information=0.31)
    found = [one.met for one in targets.of_b(start, learned, two, four)]
    assert found == [True] * 7
    assert [one.met for one in targets.of_b(start, two, learned, four)] == [False] * 7


def test_full_is_larger_and_tiny_has_all_stages():
    assert [one.folder for one in PRETRAINED_FULL.agents if one.name == B] == ["ppo_b_0", "ppo_b_1", "ppo_b_2"]
    assert (PRETRAINED_FULL.tokens, PRETRAINED_FULL.test_prompts) == (100_000, 1500)
    assert replace(SIZES["pretrained_tiny"], supervised={}).pretrained
    assert len(PRETRAINED.settings) == 2
