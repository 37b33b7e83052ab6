"""Who judges the acts, and what is said about it below the tables."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.act_judges import notes
from rlhf_dialog.evaluation.measure import Judges, default_judges
from rlhf_dialog.models.relevance import load_relevance
from rlhf_dialog.rewards import CompositeReward, Intent, LengthMatch, RelevanceReward
from rlhf_dialog.rewards.scoring import Scorer
from tests.parts.judges import summed
from tests.parts.relevance_models import letter_model, save_letters

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
    return default_judges(Scorer(CompositeReward(parts=[{"id": "LengthMatch"}, inner])))


def test_the_same_weights_or_the_same_folder_are_the_same_judge(judges, classifier, another, tmp_path):
    """The folder counts where the reward is not loaded."""
    shutil.copytree(classifier, tmp_path / "copy")
    (tmp_path / "link").symlink_to(another)
    unloaded = Judges(judge=Intent(another))
    for some, folder, paths, same in (
        *((judges, path, [], path != another) for path in (classifier, str(tmp_path / "copy"), another)),
        (unloaded, str(tmp_path / "link"), [another], True),
        (unloaded, another, [classifier], False),
    ):
        if some is judges:
            some.judge = Intent(folder)
        found = notes(PROMPTS, some, folder, paths)[1:]
        assert any("the same model as the reward's own" in note for note in found) is same


def test_notes(judges, classifier, another):
    first, second = notes(PROMPTS, judges, None, [classifier])
    assert first.startswith("Intervals: 1,000 resamples of 2 dialogues")
    assert "are of this one run" in first
    assert "judged by the reward's own act classifier" in second
    assert "--judge" in second
    judges.judge = Intent(another)
    assert notes(PROMPTS, judges, another, [classifier])[0] == first


def test_nothing_is_said_of_acts_that_nobody_judges_or_that_the_reward_does_not_know(another):
    without = Judges(Scorer(LengthMatch()))
    assert len(notes(PROMPTS, without, None, [])) == 1
    without.intent = Intent(another)
    assert len(notes(PROMPTS, without, None, [])) == 1
    without.judge = Intent(another)
    assert notes(PROMPTS, without, another, [])[1].endswith(
        "is the same model as the classifier of intent_accuracy: it adds nothing."
    )
    of_the_reward = default_judges(Scorer(Intent(another)))
    assert len(notes(PROMPTS, of_the_reward, None, [])) == 2
    assert len(notes([Dialogue(["a"])], of_the_reward, None, [])) == 1


def test_a_relevance_model_of_the_reward_is_no_independent_judge(tmp_path):
    rewards = [RelevanceReward(save_letters(tmp_path / str(seed), seed=seed)) for seed in (1, 3)]
    judges = Judges(Scorer(summed(*rewards)))
    judges.relevance = {"relevance": letter_model(seed=2), "relevance_2": letter_model(seed=1)}
    found = [note for note in notes([Dialogue(["a"])], judges, None, []) if "same model" in note]
    assert len(found) == 1
    assert found[0].startswith("The relevance model of relevance_2_r1 is the same model as the reward's")


HALVES = [
    (("a", "judge"), ("a", "reward"), True),
    (("a", "judge"), ("a", "judge"), False),
    (None, ("a", "reward"), False),
]


def with_report(folder, half):
    settings = {"data_path": "d", "half": "odd"}  # all that older reports say
    said = {} if half is None else {"learned_half": dict(zip(("assignment", "part"), half, strict=True))}
    (Path(folder) / "report.json").write_text(json.dumps({"settings": settings} | said), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(("ours", "theirs", "apart"), HALVES)
def test_a_judge_is_independent_only_where_the_folders_say_it(ours, theirs, apart, classifier, another, tmp_path):
    """Of the acts, where the reward itself or only the folders of its classifiers are known; and a relevance model."""
    reward, judge = (
        with_report(shutil.copytree(model, tmp_path / name), half)
        for name, model, half in (("reward", classifier, theirs), ("judge", another, ours))
    )
    loaded, unloaded = default_judges(Scorer(Intent(reward))), Judges()
    loaded.judge = unloaded.judge = Intent(judge)
    found = [notes(PROMPTS, loaded, judge, [])[1:], notes(PROMPTS, unloaded, judge, [reward])[1:]]
    reward, judge = (
        with_report(save_letters(tmp_path / f"letters_{seed}", seed=seed), half)
        for seed, half in ((1, theirs), (2, ours))
    )
    relevant = Judges(Scorer(RelevanceReward(reward)), relevance={"relevance": load_relevance(judge, "key")})
    found.append(notes([Dialogue(["a"])], relevant, None, [])[1:])
    for lines in found:
        assert ["is not known to be independent" in line for line in lines] == [True] * (not apart)


def test_a_judge_of_acts_is_independent_of_all_classifiers_or_of_none(another, tmp_path):
    judge = with_report(shutil.copytree(another, tmp_path / "judge"), ("a", "judge"))
    folders = [tmp_path / name for name in ("reward", "unknown")]
    for folder, half in zip(folders, (("a", "reward"), None), strict=True):
        folder.mkdir()
        with_report(folder, half)
    (note,) = notes(PROMPTS, Judges(judge=Intent(judge)), judge, map(str, folders))[1:]
    assert "is not known to be independent" in note
