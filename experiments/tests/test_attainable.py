"""What any policy could gain: variances by a published table, choices by enumeration, the prediction where it is known, a run."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("sklearn")

from experiments import attainable
from experiments.prediction import cross_validate, reply_features
from rlhf_dialog.evaluation.replies import Replies
from tests.parts import tiny
from tests.parts.byte_agents import PROMPTS, agent_of

# six targets by four judges: Shrout & Fleiss (1979), tables 2 to 4
RATINGS = np.array([[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]], dtype=float)


def test_the_variances_of_a_published_table():
    found = attainable.variances(RATINGS)
    assert round(found["icc"], 2) == 0.17
    assert found["within_sd"] ** 2 == pytest.approx(6.26, abs=0.005)  # their mean square within targets
    assert found["sd"] == pytest.approx(2.6, abs=0.2)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_best_of_n_by_enumeration(n):
    by = RATINGS[::-1] + np.arange(4) / 100  # no ties
    wanted = [
        np.mean([row[max(some, key=lambda i: order[i])] for some in itertools.combinations(range(4), n)])
        for row, order in zip(RATINGS, by, strict=True)
    ]
    assert attainable.best_of(RATINGS, by, n) == pytest.approx(wanted)


def test_the_share_that_a_prediction_explains_by_hand():
    """Within prompts the score is 1, -1 and 2, -2; the prediction has half of the first and nothing of the second."""
    scores, predictions = np.array([[4.0, 2.0], [9.0, 5.0]]), np.array([[0.5, -0.5], [3.0, 3.0]])
    statistic = attainable.explained_share(scores, predictions, np.arange(2))
    assert statistic.point == pytest.approx(1 - (0.25 + 0.25 + 4 + 4) / (1 + 1 + 4 + 4))


def world_of_scores(num_prompts=200, draws=8):
    """A score of variance 4 between prompts and 1 within, a quarter of which one of 5 features says; the others are noise."""
    random = np.random.default_rng(0)
    features = random.normal(size=(num_prompts, draws, 5))
    within = 0.5 * features[..., 0] + math.sqrt(0.75) * random.normal(size=(num_prompts, draws))
    return features + 3 * random.normal(size=(num_prompts, 1, 5)), 2 * random.normal(size=(num_prompts, 1)) + within


def test_a_score_of_known_variances():
    """ICC 4 / 5; the best of 2 of normal scores is 1 / sqrt(pi) deviations above the mean, of which a choice by x has x's."""
    features, scores = world_of_scores()
    predictions = cross_validate(features, scores, np.arange(200))
    found = attainable.summary(scores, predictions, {0.7: scores[:, :4] + 0.25}, np.arange(200), reads=True)
    assert found["icc"] == pytest.approx(0.8, abs=0.04)
    assert found["within_sd"] == pytest.approx(1.0, abs=0.05)
    assert found["explained_within"]["low"] < 0.25 < found["explained_within"]["high"]
    gains = found["gains"]
    assert list(gains) == [
        *(f"best of {n} by the reward (reads the reference)" for n in (2, 4, 8)),
        *(f"best of {n} by the prediction" for n in (2, 4, 8)),
        "temperature 0.7",
    ]
    for name, gain in (("the reward (reads the reference)", 1.0), ("the prediction", 0.5)):
        assert gains[f"best of 2 by {name}"]["mean"] == pytest.approx(gain / math.sqrt(math.pi), abs=0.05)
    assert gains["temperature 0.7"]["low"] < 0.25 < gains["temperature 0.7"]["high"]
    assert gains["best of 8 by the prediction"]["mean"] < found["limit"]["gain"] < found["limit"]["knowing_the_reward"]


def test_the_limit_by_hand():
    """The best of 8 is at log 8 - 7 / 8 nats, 1.2044; a quarter of the variance 4 has the deviation 1."""
    known = 2 * math.sqrt(2 * 1.204442)
    for reads, share, measured, gain in (
        (True, 0.25, 0.1, known / 2),
        (True, -0.1, 0.1, 0.1),
        (False, 0.25, 0.1, known),
    ):
        found = attainable.limit(2.0, share, 8, reads, measured)
        assert (found["gain"], found["knowing_the_reward"]) == pytest.approx((gain, known), abs=1e-5)


@pytest.mark.parametrize("packing", [True, False])
def test_the_features_are_the_states_of_the_plain_model(packing):
    agent, texts = agent_of(tiny.gpt2(0), packing), (("Yes .", "Why ?"), ("No", "A longer one ."))
    draws = [
        Replies([p.with_reply(text, text == "No") for p, text in zip(PROMPTS, some, strict=False)], [0, 0])
        for some in zip(*texts, strict=True)
    ]
    found = reply_features(agent, draws)
    for i, j in itertools.product(range(2), range(2)):
        reply = draws[j].dialogues[i]
        prompt = agent.encoder.encode_prompt(reply.prompt_turns)
        ids = agent.encoder.encode_reply(reply.response)
        ids = ids[:-1] if reply.truncated else ids
        with torch.no_grad():
            states = agent.policy.lm.transformer(torch.tensor([prompt + ids])).last_hidden_state[0]
        read = states[len(prompt) - 1 : -1]
        words = len(reply.response.split())
        counts = [words, math.log(words + 1), float(reply.truncated), float("?" in reply.response)]
        wanted = [*read.mean(dim=0).tolist(), *read[-1].tolist(), *counts]
        assert found[i, j] == pytest.approx(wanted, abs=1e-5)


@pytest.fixture
def world(tmp_path):
    tiny.gpt2(0).save_pretrained(tmp_path / "start")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "start")
    data = str(tiny.write_data(tmp_path / "data", 12))
    config = {"model_path": str(tmp_path / "start"), "env": {"args": {"data_path": data}}, "max_new_tokens": 7}
    for name, reward in (("meteor", "Meteor"), ("copies", "CopyPrice"), ("nothing", "NoReward")):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**config, "reward_class": {"id": reward}}))
    return tmp_path


def called(world, config, *words):
    given = ["--config", str(world / f"{config}.yaml"), "--prompts", "16", "--draws", "4"]
    return attainable.main([*given, "--output", str(world / "found.json"), *words])


def test_a_run_from_the_command_line(world, capsys):
    assert called(world, "meteor", "--temperatures", "0.5") == 0
    found, shown = json.loads((world / "found.json").read_text()), capsys.readouterr().out
    assert found["settings"]["prompts"] == 16
    names = [
        f"best of {n} by {name}" for name in ("the reward (reads the reference)", "the prediction") for n in (2, 4)
    ]
    assert list(found["gains"]) == [*names, "temperature 0.5"]
    assert [name for name in found["gains"] if f"| gain: {name} |" not in shown] == []
    assert shown.splitlines()[-1] == found["limit"]["sentence"]
    assert found["gains"][names[0]]["mean"] >= 0
    assert called(world, "meteor", "--temperatures", "0.5") == 0
    assert json.loads((world / "found.json").read_text()) == found
