"""RewardModel: arithmetic by hand on the outputs of its model, wrong arguments."""

import json
import math
from dataclasses import replace

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import RewardModel, build_reward
from rlhf_dialog.rewards.base import models_inside, needs_device
from rlhf_dialog.rewards.composite import model_paths
from rlhf_dialog.rewards.errors import RewardError
from rlhf_dialog.rewards.scoring import metrics_of, score_dialogues
from tests.parts.scalars import save_scalar

DIALOGUES = [Dialogue(["Hi ."], "one two three"), Dialogue(["Hi .", "So ?"], "one"), Dialogue(["Hi ."], "")]
WORDS = [3, 1, 0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return [save_scalar(base / str(seed), "gpt2", seed) for seed in range(3)]


@pytest.fixture(scope="module")
def folder(folders):
    return folders[0]


@pytest.fixture(scope="module")
def normal_folder(tmp_path_factory):
    """A folder with mean 0.25 and deviation 2 in its config.json."""
    folder = tmp_path_factory.mktemp("normal")
    save_scalar(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"mean": 0.25, "std": 2.0}), encoding="utf-8")
    return str(folder)


def test_normalised_clipped_and_charged_for_length(normal_folder):
    outputs = RewardModel(normal_folder).outputs(DIALOGUES)
    normal = [(x - 0.25) / 2 for x in outputs]
    assert RewardModel(normal_folder)(DIALOGUES) == pytest.approx(normal)
    assert RewardModel(normal_folder, normalize=True)(DIALOGUES) == pytest.approx(normal)
    assert RewardModel(normal_folder, normalize=False)(DIALOGUES) == pytest.approx(outputs)
    limit = sorted(map(abs, normal))[1]
    found = RewardModel(normal_folder, clip=limit, length_price=0.5)(DIALOGUES)
    clipped = [max(-limit, min(limit, x)) - 0.5 * n for x, n in zip(normal, WORDS, strict=True)]
    assert found == pytest.approx(clipped)
    assert clipped != pytest.approx([x - 0.5 * n for x, n in zip(normal, WORDS, strict=True)])


@pytest.mark.parametrize("combine", ["mean", "min", "uncertainty"])
def test_ensembles_by_hand(folders, combine):
    columns = [RewardModel(folder)(DIALOGUES) for folder in folders]
    reward = RewardModel(members=folders, combine=combine, uncertainty_coef=3.0, clip=100.0)
    expected, deviations = [], []
    for one, two, three in zip(*columns, strict=True):
        mean = (one + two + three) / 3
        variance = ((one - mean) ** 2 + (two - mean) ** 2 + (three - mean) ** 2) / 3
        expected.append({"mean": mean, "min": min(one, two, three), "uncertainty": mean - 3 * variance}[combine])
        deviations.append(math.sqrt(variance))
    assert reward(DIALOGUES) == pytest.approx(expected)
    assert metrics_of(reward) == {"reward_model_std": pytest.approx(sum(deviations) / 3)}
    assert min(deviations) > 1e-3  # else the members are the same
    part = {"id": "RewardModel", "args": {"members": folders}}
    summed = build_reward("CompositeReward", {"parts": [{"id": "LengthMatch"}, part]})
    score_dialogues(summed, [replace(dialogue, reference="one") for dialogue in DIALOGUES])
    assert metrics_of(summed) == metrics_of(reward)


def test_what_it_says_of_its_models(folders):
    args = {"members": folders[:2]}
    paths = {"reward model": folders[0], "reward model_2": folders[1]}
    assert model_paths("RewardModel", args) == paths
    assert model_paths("RewardModel", {"model": folders[0]}) == {"reward model": folders[0]}
    assert list(models_inside(build_reward("RewardModel", args))) == list(paths)
    assert needs_device(build_reward("RewardModel", args))


def test_a_score_that_is_not_finite_stops_with_the_dialogue(folder, monkeypatch):
    reward = RewardModel(folder, clip=1.0)
    monkeypatch.setattr(reward.scalar, "outputs", lambda dialogues: [math.nan] * len(dialogues))
    with pytest.raises(RewardError, match=r"reward 'reward_model' gave nan, which is not finite, for dialogue 0 with"):
        score_dialogues(reward, DIALOGUES)


def test_an_infinite_output_is_not_clipped_into_a_score(folders, monkeypatch):
    reward = RewardModel(folders[0], clip=1.0)
    monkeypatch.setattr(reward.scalar, "outputs", lambda dialogues: [math.inf, -math.inf, 0.5])
    scores = reward(DIALOGUES)
    assert [math.isnan(score) for score in scores] == [True, True, False]
    both = RewardModel(members=folders[:2], combine="uncertainty")
    for member, output in zip(both.members, (math.inf, -math.inf), strict=True):
        monkeypatch.setattr(member.scalar, "outputs", lambda dialogues, output=output: [output] * len(dialogues))
    assert all(map(math.isnan, both(DIALOGUES)))


def test_normalize_needs_a_stored_mean(folder):
    with pytest.raises(
        UserError, match=r"reward_class\.args\.normalize: true, but the config\.json of '.*' has no mean"
    ):
        RewardModel(folder, normalize=True)
