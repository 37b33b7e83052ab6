"""Who judges the acts, and what is said about it below the tables."""

import json
import shutil

import pytest
import torch
from relevance_models import letter_model, save_letters
from transformers import AutoModelForSequenceClassification

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.judging import is_the_rewards, notes, num_dialogues
from rlhf_dialog.evaluation.measure import Judges, judges_of
from rlhf_dialog.models.relevance_folder import load_relevance
from rlhf_dialog.rewards import CompositeReward, Intent, LengthMatch, RelevanceReward
from rlhf_dialog.rewards.scoring import Scorer

PROMPTS = [Dialogue(["a"], act=1, meta={"dialogue": number}) for number in (4, 4, 9)]


@pytest.fixture(scope="module")
def another(classifier, tmp_path_factory):
    """A folder whose classifier has one other weight."""
    folder = tmp_path_factory.mktemp("another") / "classifier"
    shutil.copytree(classifier, folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.bias[2] += 0.01
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def judges(classifier):
    """A reward with a classifier deep inside."""
    inner = {"id": "CompositeReward", "args": {"parts": [{"id": "Intent", "args": {"intent_model": classifier}}]}}
    return judges_of(Scorer(CompositeReward(parts=[{"id": "LengthMatch"}, inner])))


def test_the_same_weights_in_another_folder_are_the_same_judge(judges, classifier, another, tmp_path):
    shutil.copytree(classifier, tmp_path / "copy")
    for folder, same in ((classifier, True), (str(tmp_path / "copy"), True), (another, False)):
        judges.judge = Intent(folder)
        assert is_the_rewards(judges, folder, []) is same


def test_the_same_folder_is_the_same_judge_where_the_reward_is_not_loaded(another, tmp_path):
    (tmp_path / "link").symlink_to(another)
    judges = Judges(judge=Intent(another))
    assert is_the_rewards(judges, str(tmp_path / "link"), [another])
    assert not is_the_rewards(judges, another, [str(tmp_path)])


def test_notes(judges, classifier, another):
    first, second = notes(PROMPTS, judges, None, [classifier])
    assert first.startswith("Intervals: 1,000 resamples of 2 dialogues")
    assert "are of this one run" in first
    assert "judged by the reward's own act classifier" in second
    assert "--judge" in second
    judges.judge = Intent(another)
    assert notes(PROMPTS, judges, another, [classifier]) == [first]
    judges.judge = Intent(classifier)
    assert f"The judge {classifier} is the same model as the reward's own" in notes(PROMPTS, judges, classifier, [])[1]


def test_nothing_is_said_of_acts_that_nobody_judges_or_that_the_reward_does_not_know(another):
    without = Judges(Scorer(LengthMatch()))
    assert len(notes(PROMPTS, without, None, [])) == 1
    without.intent = Intent(another)
    assert len(notes(PROMPTS, without, None, [])) == 1
    without.judge = Intent(another)
    assert notes(PROMPTS, without, another, [])[1].endswith(
        "is the same model as the classifier of intent_accuracy: it adds nothing."
    )
    of_the_reward = judges_of(Scorer(Intent(another)))
    assert len(notes(PROMPTS, of_the_reward, None, [])) == 2
    assert len(notes([Dialogue(["a"])], of_the_reward, None, [])) == 1


def test_prompts_that_name_no_dialogue_are_one_each():
    assert num_dialogues(PROMPTS) == 2
    assert num_dialogues([*PROMPTS, Dialogue(["b"]), Dialogue(["b"])]) == 4


def test_a_relevance_model_of_the_reward_is_no_independent_judge(tmp_path):
    judges = Judges(Scorer(RelevanceReward(save_letters(tmp_path, seed=1))))
    judges.relevance = {"relevance": letter_model(seed=2), "relevance_2": letter_model(seed=1)}
    found = [note for note in notes([Dialogue(["a"])], judges, None, []) if "same model" in note]
    assert len(found) == 1
    assert found[0].startswith("The relevance model of relevance_2_r1 is the same model as the reward's")


@pytest.mark.parametrize(
    ("ours", "theirs", "warned"),
    [
        (("d", "odd"), ("d", "even"), False),
        (("d", "even"), ("d", "even"), True),
        (("d", "all"), ("d", "even"), True),
        (("d", "all"), ("other", "all"), False),
        (None, ("d", "even"), False),
    ],
)
def test_a_relevance_model_of_the_same_dialogues_is_pointed_out(ours, theirs, warned, tmp_path):
    def folder(name, seed, source):
        path = save_letters(tmp_path / name, seed=seed)
        if source:
            settings = dict(zip(("data_path", "half"), source, strict=True))
            (tmp_path / name / "report.json").write_text(json.dumps({"settings": settings}), encoding="utf-8")
        return path

    judges = Judges(Scorer(RelevanceReward(folder("reward", 1, theirs))))
    judges.relevance = {"relevance": load_relevance(folder("judge", 2, ours), "key")}
    found = notes([Dialogue(["a"])], judges, None, [])
    assert [note.startswith("The relevance model of relevance_r1 and that") for note in found[1:]] == [True] * warned
