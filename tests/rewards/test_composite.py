"""Rewards of rewards: weighted sums by hand, every fault of their parts, the models inside, and what reads the reference."""

import pytest

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import CompositeReward, RewardError, Scorer, build_reward
from rlhf_dialog.rewards.base import models_inside, needs_device, reads_reference, reference_lists, walk
from rlhf_dialog.rewards.composite import model_paths
from rlhf_dialog.rewards.length import LengthMatch
from tests.parts.given import DIALOGUES
from tests.parts.judges import DEPTHS, Halved, Judge, Words, inside, summed, yaml_inside

pytestmark = pytest.mark.usefixtures("own_rewards")


def test_weighted_sum_and_parts_by_hand():
    reward = CompositeReward(
        [
            {"id": "Meteor", "args": {"meteor_wordnet": "off"}},
            {"id": "LengthMatch", "weight": 0.5},
            {"id": "Given", "weight": "-1e-1", "args": {"value": 3}},  # PyYAML reads -1e-1 as text
        ]
    )
    scores = Scorer(reward).score(DIALOGUES)
    raw = {"meteor_exact_stem": [0, 0, 1 / 3], "length_match": [-0.5, -1.0, 0.0], "given": [3.0] * 3}
    weighted = {"meteor_exact_stem": [0, 0, 1 / 3], "length_match": [-0.25, -0.5, 0.0], "given": [-0.3] * 3}
    assert list(scores.parts) == list(raw)
    for name, part in scores.parts.items():
        assert part.raw == pytest.approx(raw[name])
        assert part.weighted == pytest.approx(weighted[name])
    assert scores.total == pytest.approx([-0.55, -0.8, 1 / 3 - 0.3])
    assert reward(DIALOGUES) == scores.total
    assert reward.needs == ("reference", "act")


def test_equal_names_get_a_number():
    parts = [{"id": "Given", "args": {"value": value}} for value in (1, 1, 3)]
    scores = Scorer(CompositeReward(parts)).score(DIALOGUES[:1])
    assert {name: part.raw for name, part in scores.parts.items()} == {"given": [1], "given_2": [1], "given_3": [3]}
    assert scores.total == [5]


def test_every_fault_of_the_parts_is_told_at_once():
    faults = [
        ({"weight": 1}, "id is missing"),
        ({"id": "Meteor", "wieght": 2}, "'weight'"),
        ({"id": "Meteor", "weight": "high"}, "weight 'high'"),
        ({"id": "Meteor", "weight": float("inf")}, "weight inf"),
        ({"id": "Meteor", "weight": True}, "weight True"),
        ({"id": "Metoer"}, "'Meteor'"),
        ({"id": "Meteor", "args": {"meteor_word": "off"}}, "wrong arguments"),
        ("Meteor", "'Meteor' must be a mapping"),
        ({"id": "Meteor", "args": ["off"]}, "args ['off']"),
    ]
    with pytest.raises(UserError) as caught:
        CompositeReward([*(part for part, _ in faults), {"id": "Meteor", "args": None, "weight": 2}])
    lines = str(caught.value).splitlines()
    for i, ((_, words), line) in enumerate(zip(faults, lines, strict=True)):
        assert line.startswith(f"reward_class.args.parts[{i}]: ")
        assert words in line


def test_an_error_inside_a_part_names_the_part():
    inner = {"id": "Meteor", "args": {"meteor_wordnet": "on"}}
    nested = {"id": "CompositeReward", "args": {"parts": [{"id": "Given"}, inner]}}
    place = r"^reward_class\.args\.parts\[{}\]{}"
    for kind, parts, where in (
        (UserError, [{"id": "Given"}, inner], place.format(1, r"\.args\.meteor_wordnet: 'on'")),
        (UserError, [nested], place.format(0, r"\.args\.parts\[1\]\.args\.meteor_wordnet: 'on'")),
        (RewardError, [{"id": "Broken"}], place.format(0, ": reward 'Broken' raised ValueError")),
    ):
        with pytest.raises(kind, match=where):
            CompositeReward(parts)


def test_build_reward():
    assert build_reward("Given", {"value": 2}).value == 2
    with pytest.raises(RewardError, match=r"'Broken' raised ValueError: .*at .*given\.py:\d+$"):
        build_reward("Broken", {})
    with pytest.raises(UserError, match=r"did you mean 'Broken'"):
        build_reward("Brokn", {})
    RewardFactory.classes["Text"] = type("Text", (), {})
    with pytest.raises(UserError, match=r"subclass of BaseReward"):
        build_reward("Text", {})


# -- the models inside, for placement, identity and the memory forecast


@DEPTHS
def test_a_model_is_moved_to_the_device_which_its_reward_waits_for(depth):
    judge = Judge()
    reward = inside(depth, Halved(judge))
    assert reward.move_to("meta") is reward
    assert {p.device.type for p in judge.model.parameters()} == {"meta"}
    assert needs_device(reward)
    assert not needs_device(inside(depth, Halved(Words())))


def test_every_reward_and_every_model_is_met_once():
    judge, other = Judge(), Judge()
    shared = Halved(judge)
    shared.frozen_models = lambda: {"shared": judge.model}
    reward = summed(judge, Words(), inside(1, shared), other)
    met = list(walk(reward))
    assert len(met) == len({id(one) for one in met}) == 7
    found = models_inside(reward)
    assert {name: holder for name, (holder, _) in found.items()} == {"judge": judge, "judge_2": other}


def test_paths_of_models_are_asked_of_the_classes(judges):
    intent = {"id": "Intent", "args": {"intent_model": "acts"}}
    nlp = {"id": "NLPReward", "args": {"intent_model": "more"}}
    node = yaml_inside(2, intent, {"id": "Judge", "args": {"folder": "own"}}, nlp)
    paths = {"act classifier": "acts", "judge": "own", "act classifier_2": "more"}
    assert model_paths(node["id"], node["args"]) == paths
    for args in ({"intent_model": "x", "intent_coef": 0}, {"intent_model": "x", "intent_coef": "0e0"}, {}):
        assert model_paths("NLPReward", args) == {}
    for args in ({}, {"parts": 3}, {"parts": [3, {}, {"id": []}, {"id": "Intent", "args": 3}, {"id": "gone"}]}, None):
        assert model_paths("CompositeReward", args) == {}  # what builds the reward says what is wrong
    with pytest.raises(RewardError, match=r"reward 'Judge' raised KeyError: 'folder' at .*judges\.py:\d+"):
        model_paths("CompositeReward", {"parts": [{"id": "Judge"}]})


# -- references


def test_a_reward_inside_another_one_reads_the_reference_too():
    meteor, copies = (Halved(build_reward(name, {})) for name in ("Meteor", "CopyPrice"))
    assert [reads_reference(one) for one in (meteor, copies, meteor.inner)] == [True, False, True]


def test_references_of_dialogues_that_have_them():
    one = Dialogue(["Hi ."], reference="Ho .")
    two = Dialogue(["Bye ."], reference="So long .", references=["So long .", "See you ."])
    assert reference_lists([one, two], LengthMatch()) == [["Ho ."], ["So long .", "See you ."]]
    assert reference_lists([], LengthMatch()) == []
    with pytest.raises(UserError, match=r"2 of 3 prompts of here have no reference.*'length_match'"):
        LengthMatch().check_prompts([one, Dialogue(["Where ?"]), Dialogue(["Who ?"])], " of here")
    with pytest.raises(UserError, match="1 of 1 prompts"):
        reference_lists([Dialogue(["Where ?"])], LengthMatch())
