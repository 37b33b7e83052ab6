"""Nights with a preference model and PPO: which pairs they make, what they continue, and that a kill changes nothing."""

import json
import random
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.learning import night as night_module
from rlhf_dialog.feedback.learning import preference_night
from rlhf_dialog.feedback.learning.gate import GateComparison
from rlhf_dialog.feedback.learning.night import learn
from rlhf_dialog.feedback.learning.preference_night import preference_rows
from rlhf_dialog.feedback.learning.report import ChangedAnswers
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.examples import AnswerPair, RatedAnswer
from rlhf_dialog.training.rollout import Collector
from rlhf_dialog.training.supervised.preference_model import PreferenceModel
from tests.parts.taught_bots import new_bot, set_keys, talk_to

KEYS = {
    "method": "reward_model_ppo",
    "reward_members": 2,
    "reward_learning_rate": 1e-3,
    "reward_epochs": 1,
    "ppo_iterations": 3,
    "ppo_responses": 8,
    "ppo_minibatches": 2,
    "ppo_learning_rate": 1e-3,
}


def answer(number, prompt, text, liked, kind="thumb"):
    return RatedAnswer(prompt, text, liked, kind, "p", "d", number)


# --- pairs ---


def test_edits_and_choices_are_pairs_with_the_turns_that_the_agent_sees():
    pair = AnswerPair(("One .", "Two .", "Three ."), "Good .", "Bad .", "edit", "p", "d", 1)
    assert preference_rows([pair], 2, random.Random(0)) == [
        {"chosen": ["Two .", "Three .", "Good ."], "rejected": ["Two .", "Three .", "Bad ."]}
    ]


def test_liked_and_disliked_answers_to_one_prompt_are_a_pair():
    some = [answer(1, ("Hi .",), "Good .", True), answer(2, ("Hi .",), "Bad .", False)]
    assert preference_rows(some, 2, random.Random(0)) == [{"chosen": ["Hi .", "Good ."], "rejected": ["Hi .", "Bad ."]}]


def test_answers_to_other_prompts_are_compared_with_their_own_prompts_and_within_their_kind():
    some = [answer(i, (f"Prompt {i} .",), f"Answer {i} .", i % 3 == 0) for i in range(9)]
    some += [answer(20, ("Score .",), "Well .", True, "score")]  # nothing of its kind is disliked
    rows = preference_rows(some, 2, random.Random(0))
    assert len({str(row) for row in rows}) == len(rows)
    for row in rows:
        chosen, rejected = (int(row[side][0].split()[1]) for side in ("chosen", "rejected"))
        assert (chosen % 3 == 0, rejected % 3 == 0) == (True, False)
        assert row["chosen"] == [f"Prompt {chosen} .", f"Answer {chosen} ."]
    assert {int(row["rejected"][0].split()[1]) for row in rows} == {1, 2, 4, 5, 7, 8}  # everybody is heard
    assert 6 <= len(rows) <= 2 * 6


def test_nothing_is_compared_with_itself():
    some = [answer(1, ("Hi .",), "Same .", True), answer(2, ("Hi .",), "Same .", False)]
    assert preference_rows(some, 2, random.Random(0)) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"num_train_pairs": 3, "accuracy": 1}'])
def test_a_damaged_report_of_a_preference_model_is_named(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(UserError, match=r"report\.json: is damaged: .*; remove .* and start the night again"):
        preference_night._metrics(tmp_path, [tmp_path])


@pytest.mark.parametrize("text", ["", '{"night": "another"}'])
def test_the_work_of_another_night_or_of_one_that_cannot_be_told_is_removed(tmp_path, text):
    folder = tmp_path / preference_night.WORK
    folder.mkdir()
    (folder / "night.json").write_text(text)
    (folder / "pairs.jsonl").touch()
    night = SimpleNamespace(bot=SimpleNamespace(folder=tmp_path), snapshot=SimpleNamespace(fingerprint="this one"))
    for _ in range(2):
        assert preference_night._work_folder(night) == folder
        assert [path.name for path in folder.iterdir()] == ["night.json"]
        assert json.loads((folder / "night.json").read_text()) == {"night": "this one"}


# --- nights ---


@pytest.fixture(scope="module")
def talked_to(tmp_path_factory):
    """A bot that was talked to."""
    bot = new_bot(tmp_path_factory.mktemp("ppo"), **KEYS)
    talk_to(bot, 60)
    return bot


@pytest.fixture(scope="module")
def after_a_night(talked_to, tmp_path_factory):
    """The same bot after a night whose candidate was promoted, and another day."""
    shutil.copytree(talked_to.folder, folder := tmp_path_factory.mktemp("night") / "bot")
    bot = Bot(folder)
    with pytest.MonkeyPatch.context() as patched:
        promote_all(patched)
        assert learn(bot).promoted
    talk_to(bot, 10, seed=1)
    return bot


def promote_all(patched):
    found = GateComparison(40, 0.5, 0.6, 0.05, 0.03)
    patched.setattr(night_module, "_measure", lambda night: (found, [], ChangedAnswers(0, [])))


@pytest.fixture
def day(tmp_path, talked_to):
    shutil.copytree(talked_to.folder, tmp_path / "bot")
    return Bot(tmp_path / "bot")


@pytest.fixture
def later(tmp_path, after_a_night):
    shutil.copytree(after_a_night.folder, tmp_path / "later")
    return Bot(tmp_path / "later")


def versions(bot):
    return bot.lineage()["versions"]


@pytest.mark.thorough
def test_a_night_says_what_it_did_and_leaves_nothing_behind(later):
    record = versions(later)["0002"]
    assert (record["method"], record["status"]) == ("reward_model_ppo", "champion")
    assert {"pairs", "accuracy", "first_score", "last_score", "kl"} <= set(record["metrics"])
    assert not (later.folder / "preference").exists()
    assert not (later.folder / "night").exists()


@pytest.mark.thorough
def test_the_second_night_continues_the_first_and_its_kl_is_to_the_first_version(later, monkeypatch):
    promote_all(monkeypatch)
    seen = []
    begin = preference_night.NightService.begin

    def watched(self, run):
        begin(self, run)
        moments = [x["exp_avg"].abs().sum().item() for x in run.trainer.optimizers["policy"].state.values()]
        seen.append((run.config.model_path, run.config.ref_model, len(moments), all(moments)))

    monkeypatch.setattr(preference_night.NightService, "begin", watched)
    report = learn(later)
    first, second = (versions(later)[name] for name in ("0002", "0003"))
    assert second["start"] == first["end"] != second["end"]
    ((model, reference, count, moved),) = seen
    assert (model, reference) == (str(later.agent_folder("0002")), str(later.agent_folder("0001")))
    assert count > 0
    assert moved
    assert report.metrics["pairs"] > first["metrics"]["pairs"]  # all feedback again, and the new


class Killed(BaseException):
    """In place of kill -9, which leaves the same files: nothing is caught on the way out."""


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["in the second preference model", "in PPO", "after PPO"])
def test_a_killed_night_ends_as_an_uninterrupted_one(day, later, where, monkeypatch):
    promote_all(monkeypatch)
    calls = []

    def dying(real, after):
        def call(*args, **kwargs):
            calls.append(1)
            if len(calls) == after:
                raise Killed
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patched:
        if where == "in the second preference model":
            patched.setattr(PreferenceModel, "train", dying(PreferenceModel.train, 2))
        elif where == "in PPO":
            patched.setattr(Collector, "collect", dying(Collector.collect, 3))
        else:
            patched.setattr(preference_night, "remove_whole", dying(preference_night.remove_whole, 1))
        with pytest.raises(Killed):
            learn(day)
    assert calls
    assert learn(day).promoted
    ours, theirs = versions(day)["0002"], versions(later)["0002"]
    assert ours["end"] == theirs["end"]
    assert ours["metrics"] == theirs["metrics"]


@pytest.mark.thorough
def test_a_killed_night_leaves_no_text_of_a_person_who_is_forgotten(day, monkeypatch):
    promote_all(monkeypatch)
    real = PreferenceModel.train
    with monkeypatch.context() as patched:
        patched.setattr(PreferenceModel, "train", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            learn(day)
    assert (day.folder / "preference" / "pairs.jsonl").read_text()
    store = day.store()
    person = store.feedback()[0].person
    store.close()
    day.forget(person)
    assert not (day.folder / "preference").exists()
    seen = []
    monkeypatch.setattr(PreferenceModel, "train", lambda *given: seen.append(1) or real(*given))
    assert learn(day).promoted
    assert seen
    assert not (day.folder / "preference").exists()


def test_adapters_are_refused(day):
    set_keys(day, **KEYS, use_lora=True)
    with pytest.raises(UserError, match="use_lora: true, but method: reward_model_ppo trains all weights"):
        learn(day)


def test_the_keys_of_these_nights_are_in_the_settings(day):
    read = yaml.safe_load(day.settings_path.read_text())
    assert KEYS.items() <= read.items()
