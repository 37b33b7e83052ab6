"""RewardModel: arithmetic by hand on the outputs of its model, wrong arguments."""

import json
import math

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import RewardModel, build_reward
from rlhf_dialog.rewards.base import models_inside, needs_device
from rlhf_dialog.rewards.composite import model_paths
from rlhf_dialog.rewards.errors import RewardError
from rlhf_dialog.rewards.scoring import score_dialogues
from tests.parts.scalars import save_scalar

DIALOGUES = [Dialogue(["Hi ."], "one two three"), Dialogue(["Hi .", "So ?"], "one"), Dialogue(["Hi ."], "")]
WORDS = [3, 1, 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_scalar(tmp_path_factory.mktemp("model"), "gpt2")


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


def test_what_it_says_of_its_model(folder):
    args = {"model": folder}
    assert model_paths("RewardModel", args) == {"reward model": folder}
    assert list(models_inside(build_reward("RewardModel", args))) == ["reward model"]
    assert needs_device(build_reward("RewardModel", args))


def test_a_score_that_is_not_finite_stops_with_the_dialogue(folder, monkeypatch):
    reward = RewardModel(folder, clip=1.0)
    monkeypatch.setattr(reward.scalar, "outputs", lambda dialogues: [math.nan] * len(dialogues))
    with pytest.raises(RewardError, match=r"reward 'reward_model' gave nan, which is not finite, for dialogue 0 with"):
        score_dialogues(reward, DIALOGUES)


def test_an_infinite_output_is_not_clipped_into_a_score(folder, monkeypatch):
    reward = RewardModel(folder, clip=1.0)
    monkeypatch.setattr(reward.scalar, "outputs", lambda dialogues: [math.inf, -math.inf, 0.5])
    scores = reward(DIALOGUES)
    assert [math.isnan(score) for score in scores] == [True, True, False]


def test_normalize_needs_a_stored_mean(folder):
    with pytest.raises(
        UserError, match=r"reward_class\.args\.normalize: true, but the config\.json of '.*' has no mean"
    ):
        RewardModel(folder, normalize=True)
