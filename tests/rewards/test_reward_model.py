"""RewardModel: arithmetic by hand on the outputs of its model, ensembles, names in logs and forecasts, wrong arguments."""

import json
import math

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
    base = tmp_path_factory.mktemp("members")
    return [save_scalar(base / str(seed), "gpt2", seed) for seed in range(3)]


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
    assert reward.metrics() == {"_std": pytest.approx(sum(deviations) / 3)}
    assert min(deviations) > 1e-3  # else the members are the same


def test_the_deviation_is_logged_beside_the_mean(folders):
    """As `reward/<part>_std`, alone and inside a sum; a sum's own key that ends alike keeps its name."""
    alone = build_reward("RewardModel", {"members": folders[:2]})
    part = {"id": "RewardModel", "args": {"members": folders[:2]}}
    summed = build_reward("CompositeReward", {"parts": [{"id": "LengthMatch"}, part]})
    deeper = build_reward("CompositeReward", {"parts": [{"id": "CompositeReward", "args": {"parts": [part]}}]})
    dialogues = [Dialogue(["Hi ."], "one two", reference="one")]
    for reward, name in (
        (alone, "reward_model_std"),
        (summed, "reward_model_std"),
        (deeper, "composite/reward_model_std"),
    ):
        score_dialogues(reward, dialogues)
        (found,) = metrics_of(reward).items()
        assert found == (name, pytest.approx(alone.metrics()["_std"]))


def test_what_it_says_of_its_models(folders):
    args = {"members": folders[:2]}
    paths = {"reward model": folders[0], "reward model_2": folders[1]}
    assert model_paths("RewardModel", args) == paths
    assert model_paths("RewardModel", {"model": folders[0]}) == {"reward model": folders[0]}
    assert list(models_inside(build_reward("RewardModel", args))) == list(paths)
    assert needs_device(build_reward("RewardModel", args))


def test_a_score_that_is_not_finite_stops_with_the_dialogue(folders, monkeypatch):
    reward = RewardModel(folders[0], clip=1.0)
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


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "reward_class.args: give either model"),
        ({"model": "x", "members": ["y"]}, "reward_class.args: give either model"),
        ({"model": "./nowhere"}, "reward_class.args.model: no such folder"),
        ({"members": ["./nowhere"]}, "reward_class.args.members[0]: no such folder"),
        ({"model": "x", "clip": 0}, "reward_class.args.clip: 0 must be a number above 0"),
        ({"model": "x", "length_price": "dear"}, "reward_class.args.length_price: 'dear'"),
        ({"model": "x", "batch_size": 0}, "reward_class.args.batch_size: 0"),
        ({"model": "x", "combine": "max"}, "reward_class.args.combine: 'max' is not one of mean, min, uncertainty"),
        ({"model": "x", "normalize": "yes"}, "reward_class.args.normalize: 'yes'"),
        ({"model": "x", "turn_separator": 5}, "reward_class.args.turn_separator: 5 must be text"),
        ({"model": "x", "precision": "int8"}, "reward_class.args.precision: 'int8'"),
    ],
)
def test_wrong_arguments_are_named(args, words):
    with pytest.raises(UserError) as error:
        build_reward("RewardModel", args)
    assert words in str(error.value)


def test_normalize_needs_a_stored_mean(folders):
    with pytest.raises(
        UserError, match=r"reward_class\.args\.normalize: true, but the config\.json of '.*' has no mean"
    ):
        RewardModel(folders[0], normalize=True)
