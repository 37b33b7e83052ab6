"""Weighted sums, their parts, and what a reward that misbehaves is told."""

import math

import pytest

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import CompositeReward, RewardError, build_reward, score_dialogues
from rlhf_dialog.rewards.base import BaseReward, reads_reference
from rlhf_dialog.rewards.composite import model_paths
from tests.parts.given import DIALOGUES
from tests.parts.judges import yaml_inside

pytestmark = pytest.mark.usefixtures("own_rewards")


def test_weighted_sum_and_parts_by_hand():
    reward = CompositeReward(
        [
            {"id": "Meteor", "args": {"meteor_wordnet": "off"}},
            {"id": "LengthMatch", "weight": 0.5},
            {"id": "Given", "weight": "-1e-1", "args": {"value": 3}},  # PyYAML reads -1e-1 as text
        ]
    )
    scores = score_dialogues(reward, DIALOGUES)
    assert list(scores.parts) == ["meteor_exact_stem", "length_match", "given"]
    assert scores.parts["meteor_exact_stem"].raw == pytest.approx([0, 0, 1 / 3])
    assert scores.parts["meteor_exact_stem"].weighted == pytest.approx([0, 0, 1 / 3])
    assert scores.parts["length_match"].raw == [-0.5, -1.0, 0.0]
    assert scores.parts["length_match"].weighted == [-0.25, -0.5, 0.0]
    assert scores.parts["given"].raw == [3.0] * 3
    assert scores.parts["given"].weighted == pytest.approx([-0.3] * 3)
    assert scores.total == pytest.approx([-0.55, -0.8, 1 / 3 - 0.3])
    assert reward(DIALOGUES) == scores.total
    assert reward.needs == ("reference", "act")


def test_equal_names_get_a_number():
    parts = [{"id": "Given", "args": {"value": value}} for value in (1, 2, 3)]
    scores = score_dialogues(CompositeReward(parts), DIALOGUES[:1])
    assert {name: part.raw for name, part in scores.parts.items()} == {"given": [1], "given_2": [2], "given_3": [3]}


def test_every_fault_of_the_parts_is_told_at_once():
    parts = [
        {"weight": 1},
        {"id": "Meteor", "wieght": 2},
        {"id": "Meteor", "weight": "high"},
        {"id": "Meteor", "weight": float("inf")},
        {"id": "Meteor", "weight": True},
        {"id": "Metoer"},
        {"id": "Meteor", "args": {"meteor_word": "off"}},
        "Meteor",
        {"id": "Meteor", "args": ["off"]},
        {"id": "Meteor", "args": None, "weight": 2},
    ]
    with pytest.raises(UserError) as caught:
        CompositeReward(parts)
    lines = str(caught.value).splitlines()
    expected = [
        "[0]: id is missing",
        "[1]: unknown key 'wieght'; did you mean 'weight'?",
        "[2]: weight 'high' must be a finite number",
        "[3]: weight inf must be a finite number",
        "[4]: weight True must be a finite number",
        "[5]: unknown reward 'Metoer'; did you mean 'Meteor'?",
        "[6]: wrong arguments for Meteor",
        "[7]: 'Meteor' must be a mapping",
        "[8]: args ['off'] must be a mapping",
    ]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(f"reward_class.args.parts{start}")


def test_an_error_inside_a_part_names_the_part():
    inner = {"id": "Meteor", "args": {"meteor_wordnet": "on"}}
    nested = {"id": "CompositeReward", "args": {"parts": [{"id": "Given"}, inner]}}
    with pytest.raises(UserError, match=r"^reward_class\.args\.parts\[1\]\.args\.meteor_wordnet: 'on'"):
        CompositeReward([{"id": "Given"}, inner])
    with pytest.raises(
        UserError, match=r"^reward_class\.args\.parts\[0\]\.args\.parts\[1\]\.args\.meteor_wordnet: 'on'"
    ):
        CompositeReward([nested])
    with pytest.raises(RewardError, match=r"^reward_class\.args\.parts\[0\]: reward 'Broken' raised ValueError"):
        CompositeReward([{"id": "Broken"}])


def test_build_reward():
    assert build_reward("Given", {"value": 2}).value == 2
    with pytest.raises(RewardError, match=r"'Broken' raised ValueError: .*at .*given\.py:\d+$"):
        build_reward("Broken", {})
    with pytest.raises(UserError, match=r"did you mean 'Broken'"):
        build_reward("Brokn", {})
    RewardFactory.classes["Text"] = type("Text", (), {})
    with pytest.raises(UserError, match=r"subclass of BaseReward"):
        build_reward("Text", {})


# -- no score


def test_a_sum_beyond_all_numbers_is_no_crash():
    parts = [{"id": "Given", "args": {"value": 1.5e308}}] * 2
    assert score_dialogues(CompositeReward(parts), DIALOGUES[:1]).total == [math.inf]


# -- a reward without an end


def test_paths_of_models_are_asked_of_the_classes(judges):
    intent = {"id": "Intent", "args": {"intent_model": "acts"}}
    nlp = {"id": "NLPReward", "args": {"intent_model": "more"}}
    node = yaml_inside(2, intent, {"id": "Judge", "args": {"folder": "own"}}, nlp)
    assert model_paths(node["id"], node["args"]) == {
        "act classifier": "acts",
        "judge": "own",
        "act classifier_2": "more",
    }
    for args in ({"intent_model": "x", "intent_coef": 0}, {"intent_model": "x", "intent_coef": "0e0"}, {}):
        assert model_paths("NLPReward", args) == {}
    for args in ({}, {"parts": 3}, {"parts": [3, {}, {"id": []}, {"id": "Intent", "args": 3}, {"id": "gone"}]}, None):
        assert model_paths("CompositeReward", args) == {}  # what builds the reward says what is wrong
    with pytest.raises(RewardError, match=r"reward 'Judge' raised KeyError: 'folder' at .*judges\.py:\d+"):
        model_paths("CompositeReward", {"parts": [{"id": "Judge"}]})


class Inside(BaseReward):
    """Another reward, whose needs it does not declare."""

    name = "inside"

    def __init__(self, inner):
        self.inner = inner

    def children(self):
        return [self.inner]


def test_a_reward_inside_another_one_reads_the_reference_too():
    meteor, copies = (Inside(build_reward(name, {})) for name in ("Meteor", "CopyPrice"))
    assert [reads_reference(one) for one in (meteor, copies, meteor.inner)] == [True, False, True]
