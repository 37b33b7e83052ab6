"""A night: what it changes and when nothing changes, kills at any step, nights one after the other, and what can go wrong."""

import json
import os
import random
import shutil
from collections import Counter
from contextlib import closing

import pytest
import torch

from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.feedback.learning import night as night_module
from rlhf_dialog.feedback.learning.gate import GateComparison
from rlhf_dialog.feedback.learning.guards import GuardLimit, GuardMeasurement
from rlhf_dialog.feedback.learning.learner import Learner, NightSizes
from rlhf_dialog.feedback.learning.night import learn, take_snapshot
from rlhf_dialog.feedback.learning.report import AnswerChange, ChangedAnswers, NightReport
from rlhf_dialog.feedback.store import examples
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.settings import read_settings
from rlhf_dialog.runs.lock import lock_folder
from tests.parts.folders import contents
from tests.parts.taught_bots import set_keys, talk_to
from tests.parts.tiny import write_data

PASSED = GuardLimit("KL", 0.1, 1.0, True)
CHANGED = ChangedAnswers(50, [AnswerChange("Hello .", "Yes .", "Why ?")] * 5)


@pytest.fixture(scope="module")
def bot_of_a_night(tmp_path_factory, bot_of_a_day):
    """After a night, and another day."""
    bot = Bot(shutil.copytree(bot_of_a_day.folder, tmp_path_factory.mktemp("later") / "bot"))
    assert learn(bot).promoted
    talk_to(bot, 40, seed=1)
    return bot


@pytest.fixture
def later(tmp_path, bot_of_a_night):
    return Bot(shutil.copytree(bot_of_a_night.folder, tmp_path / "bot"))


def files(folder):
    """Every file that is data; not the store, which SQLite's journal surrounds."""
    found = contents(folder)
    return {path: x for path, x in found.items() if not path.name.startswith(("feedback.sqlite", ".lineage"))}


def versions(bot):
    return bot.lineage()["versions"]


def made_of(bot, version):
    """All that a night made, but for the time."""
    record = {key: value for key, value in versions(bot)[version].items() if key != "created"}
    return files(bot.version_folder(version)), record


def verdict(monkeypatch):
    """Let every candidate pass the gate."""
    found = GateComparison(40, 0.5, 0.6, 0.05, 0.03)
    monkeypatch.setattr(night_module, "_measure", lambda *_: (found, CHANGED))
    monkeypatch.setattr(GuardMeasurement, "measure", lambda _: [PASSED])


def test_a_night_makes_a_champion_and_consumes_no_held_out_feedback(later, tmp_path):
    record = versions(later)["0002"]
    assert (later.champion(), record["status"], record["parent"]) == ("0002", "champion", "0001")
    assert record["gate"]["promoted"]
    assert record["gate"]["concordance"] > record["gate"]["champion"] == 0.5
    assert record["last_event"] == 60
    assert len(record["people"]) == 4
    folder = later.version_folder("0002")
    assert {path.name for path in folder.iterdir()} == {"agent", "learner"}
    (tmp_path / "again").mkdir()
    Learner(later, read_settings(later.settings_path)).save(tmp_path / "again")
    assert files(tmp_path / "again") == files(folder / "learner")  # what the next night starts from
    assert not (later.folder / "night").exists()
    with closing(later.store()) as store:
        heldout = {one.id for one in store.dialogues() if one.heldout}
        events = {event.id for event in store.feedback(upto=60) if event.dialogue not in heldout}
    state = json.loads((folder / "learner" / "learner.json").read_text())
    numbers = (state["num_nights"], state["num_steps"])
    assert (set(state["consumed"]), *numbers) == (events, 1, record["num_events"]["steps"])


def test_without_new_feedback_nothing_changes_and_old_versions_are_removed(later, monkeypatch):
    set_keys(later, keep_last=1)
    verdict(monkeypatch)
    assert set(learn(later).removed) <= {"0002"}
    before = files(later.folder)
    report = learn(later)
    assert report.version is None
    assert report.why.startswith("nothing changed: there is no new feedback to learn from")
    assert files(later.folder) == before


def test_a_dry_run_says_it_all_and_writes_nothing(day, monkeypatch):
    before = files(day.folder)
    monkeypatch.setattr(night_module, "Learner", None)  # no model is loaded
    report = learn(day, dry_run=True)
    assert files(day.folder) == before
    text = "\n".join(report.lines())
    assert "new and 0 older examples of 4 people" in text
    people = Counter(one.person for one in take_snapshot(day, read_settings(day.settings_path)).training.all)
    most, least = people.total() - min(people.values()), min(people.values())
    assert f"person_cap: {most} examples of people with many ratings count as {3 * least}, " in text
    assert "more than 25% of the weight" in text
    assert text.endswith("dry run: nothing was changed")
    set_keys(day, min_heldout=500)
    before = files(day.folder)
    why = learn(day).why
    assert [
        word for word in ("of which 12 are", "with 500 held-out ratings (min_heldout)", "about 2500") if word not in why
    ] == []
    assert files(day.folder) == before


def test_a_night_of_other_weights_is_another_night(day, monkeypatch):
    settings = read_settings(day.settings_path)
    before = take_snapshot(day, settings)
    assert take_snapshot(day, settings).fingerprint == before.fingerprint
    monkeypatch.setattr(examples, "cap_weights", lambda counts, cap: dict.fromkeys(counts, 0.5))
    after = take_snapshot(day, settings)
    assert after.training.all == before.training.all
    assert after.fingerprint != before.fingerprint


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "promoted: "),
        ({"low": -0.011}, "-1.1 is not above -1.0"),  # a third of the standard error, which is 3 points
        ({"difference": -0.01}, "agrees no more with the held-out feedback than the champion"),
        (
            {"changed": ChangedAnswers(50, CHANGED.changes[:4])},
            "answers only 4 of the newest 50 lines (8%) differently",
        ),
        ({"guards": [PASSED, GuardLimit("KL", 2.0, 1.0, True)]}, "fails a guard: KL 2"),
        ({"guards": [GuardLimit("KL", float("nan"), 1.0, True)]}, "fails a guard: KL nan"),
    ],
)
def test_why_a_candidate_is_promoted_or_refused(keys, why):
    given = {"difference": 0.1, "low": 0.05, "guards": [PASSED], "changed": CHANGED} | keys
    found = GateComparison(40, 0.5, 0.5 + given["difference"], given["low"], 0.03)
    is_promoted, text = night_module._decision(found, given["guards"], given["changed"])
    assert why in text
    assert is_promoted is why.startswith("promoted")


def test_the_report_says_what_the_points_are_and_what_became_of_the_answers():
    found = GateComparison(40, 0.5, 0.847, 0.2, 0.05)
    report = NightReport("bot", "0001", 9, {}, {}, "", "promoted", comparison=found, changed=CHANGED)
    text = "\n".join(report.lines())
    words = ["+34.7 points", "more in 85 (50 for the champion)", "5 of the newest 50 lines (10%)", "other 45 answers"]
    assert [word for word in words if word not in text] == []
    assert "answers that changed: 2.0 before, 2.0 after" in text


def test_a_night_that_changes_no_answer_is_refused(day):
    """With a rate so small that every answer stays as it was, and none is ranked otherwise; the caller's random states stay."""
    set_keys(day, learning_rate=1e-9, steps=2)
    before = torch.random.get_rng_state()
    report = learn(day)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert report.why.startswith("refused: 0002 agrees no more")
    assert (day.champion(), versions(day)["0002"]["gate"]["changed_lines"]) == ("0001", [0, 50])


@pytest.mark.slow
def test_a_night_that_goes_too_far_goes_back_to_where_the_guards_pass(day, tmp_path, monkeypatch):
    """At step 8 of checkpoints at 4, 8, 12 ...; also when it is killed afterwards. Without such a checkpoint it is refused."""
    monkeypatch.setattr(
        GuardMeasurement, "measure", lambda self: [GuardLimit("KL", float(self.learner.num_steps), 9.0, True)]
    )
    set_keys(day, epochs=6, checkpoint_steps=4)
    for name in ("killed", "refused"):
        shutil.copytree(day.folder, tmp_path / name)
    report = learn(day)
    assert report.went_back.startswith("went back to step 8,")
    assert "KL" in report.went_back
    assert report.went_back in report.lines()
    assert report.metrics["steps"] == report.used["steps"] > 12
    assert report.guards == [GuardLimit("KL", 8.0, 9.0, True)]

    killed = Bot(tmp_path / "killed")
    with pytest.raises(Killed):
        learn(killed, watch=kill_after(12))
    learn(killed)
    assert made_of(killed, "0002") == made_of(day, "0002")

    refused = Bot(tmp_path / "refused")
    set_keys(refused, epochs=6, checkpoint_steps=100)
    report = learn(refused)
    assert (report.promoted, report.went_back) == (False, "")
    assert "fails a guard: KL" in report.why


@pytest.mark.slow
def test_all_stored_lines_are_guarded_at_the_end_and_fifty_at_checkpoints(day, monkeypatch):
    """`auto`: the bot of the day was asked 60 different lines; a number in config.yaml means held-out lines alone."""
    numbers = []
    monkeypatch.setattr(GuardMeasurement, "measure", lambda self: numbers.append(len(self.prompts)) or [PASSED])
    set_keys(day, guard_prompts="auto", steps=4)
    learn(day)
    assert numbers == [50, 60]


# --- a night goes on while what people like becomes likelier ---


def falls_until(step):
    """1 nat per step, then nothing more."""
    return lambda self: float(-min(self.learner.num_steps, step))


@pytest.mark.parametrize(("step", "wanted"), [(0, 4), (2, 4), (5, 8), (99, 12)])
def test_a_night_goes_on_while_held_out_liked_replies_become_likelier(day, monkeypatch, step, wanted):
    """Steps of the plan: 4. It is made three times at most, in parts of two steps, of which the last one changed nothing."""
    monkeypatch.setattr(GuardMeasurement, "liked_surprise", falls_until(step))
    monkeypatch.setattr(NightSizes, "of", lambda settings, weight, _: NightSizes.of_steps(settings, weight, 4))
    report = learn(day)
    assert report.metrics["steps"] == report.used["steps"] == wanted


@pytest.mark.parametrize(("steps", "promoted"), [(7, True), (9, False)])
def test_a_night_that_goes_back_to_before_half_of_it_was_learned_is_refused(day, monkeypatch, steps, promoted):
    """At step 4; each step has learned as much as the others."""
    found = GateComparison(40, 0.5, 0.6, 0.05, 0.03)
    monkeypatch.setattr(night_module, "_measure", lambda *_: (found, CHANGED))
    monkeypatch.setattr(GuardMeasurement, "liked_surprise", falls_until(99))
    monkeypatch.setattr(
        GuardMeasurement, "measure", lambda self: [GuardLimit("KL", float(self.learner.num_steps), 5.0, True)]
    )
    set_keys(day, steps=steps, checkpoint_steps=2)
    report = learn(day)
    assert report.went_back.startswith("went back to step 4,")
    assert (report.promoted, day.champion()) == ((True, "0002") if promoted else (False, "0001"))
    assert ("it has 44%" in report.why) is not promoted


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, 8, 9, 14])
def test_a_night_that_goes_on_can_be_killed(day, tmp_path, monkeypatch, step):
    monkeypatch.setattr(GuardMeasurement, "liked_surprise", falls_until(13))
    monkeypatch.setattr(NightSizes, "of", lambda settings, weight, _: NightSizes.of_steps(settings, weight, 8))
    bot = Bot(shutil.copytree(day.folder, tmp_path / "killed"))
    learn(day)
    with pytest.raises(Killed):
        learn(bot, watch=kill_after(step))
    learn(bot)
    assert made_of(bot, "0002") == made_of(day, "0002")


# --- kills ---


@pytest.mark.slow
def test_killed_at_a_random_step_and_continued(later, tmp_path):
    """Bit for bit the night that nobody killed: weights, moments, random states, the decision."""
    bot = Bot(shutil.copytree(later.folder, tmp_path / "killed"))
    report = learn(later)
    assert report.used["replayed"] > 0  # it starts from the last one
    state = json.loads((later.version_folder("0003") / "learner" / "learner.json").read_text())
    before = versions(later)["0002"]["num_events"]["steps"]
    assert (state["num_nights"], state["num_steps"]) == (2, before + report.used["steps"])
    step = random.SystemRandom().randrange(1, report.used["steps"])
    with pytest.raises(Killed):
        learn(bot, watch=kill_after(step))
    torch.manual_seed(step)  # the random states of another process
    assert bot.champion() == "0002"
    assert (bot.folder / "night").exists() == (step > 2)
    learn(bot)
    assert made_of(bot, "0003") == made_of(later, "0003"), step
    assert not (bot.folder / "night").exists()


class Killed(BaseException):
    """In place of SIGKILL, where the place matters and not the process."""


def kill(*_):
    raise Killed


def kill_after(step):
    def watch(done, _):
        if done == step:
            raise Killed

    return watch


@pytest.mark.slow
@pytest.mark.parametrize("where", ["promote", "drop_night"])
def test_killed_after_the_new_version(day, monkeypatch, where):
    with monkeypatch.context() as patch:
        patch.setattr(Bot, where, kill)
        with pytest.raises(Killed):
            learn(day)
    assert day.champion() == ("0001" if where == "promote" else "0002")
    report = learn(day)
    assert (report.version, day.champion()) == (None, "0002")
    assert (day.versions(), (day.folder / "night").exists()) == (["0001", "0002"], False)


@pytest.mark.slow
def test_an_interrupted_night_begins_again_when_the_feedback_is_another(day, caplog):
    with pytest.raises(Killed):
        learn(day, watch=kill_after(3))
    store = day.store()
    person = store.feedback()[0].person
    store.forget(person)  # `Bot.forget` removes the night too
    store.close()
    report = learn(day)
    assert "it begins again" in caplog.text
    assert person not in versions(day)["0002"]["people"]
    assert report.used["people"] == 3


@pytest.mark.slow
def test_an_interrupted_night_goes_on_without_what_came_since(day, caplog):
    caplog.set_level("INFO", "rlhf_dialog")
    with pytest.raises(Killed):
        learn(day, watch=kill_after(3))
    talk_to(day, 10, seed=4)
    report = learn(day)
    assert "goes on after step 2" in caplog.text
    assert report.last_event == 60
    assert all("Hello 4" not in change.line for change in report.changed.changes)
    assert learn(day).used["new"] > 0


# --- what can go wrong ---


def test_two_at_once(day):
    words = f"process {os.getpid()}.*another learn job is at work"
    with lock_folder(day.folder), pytest.raises(UserError, match=words):
        learn(day)


def test_a_candidate_that_a_rollback_left_behind_is_not_promoted_by_an_earlier_gate(later, monkeypatch):
    verdict(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(Bot, "promote", kill)
        with pytest.raises(Killed):
            learn(later)
    later.rollback("0001")
    later.rollback("0002")
    report = learn(later)
    assert (later.champion(), versions(later)["0003"]["status"]) == ("0002", "refused")
    assert report.why.startswith("nothing changed: version 0003, which is refused, was made of just this feedback")


def test_a_champion_that_does_not_load(later):
    (later.agent_folder("0002") / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"version 0002 cannot be loaded .* `feedback rollback`"):
        learn(later)
    assert later.champion() == "0002"


def test_a_loss_that_is_not_finite_changes_nothing(day):
    set_keys(day, learning_rate=1.0, max_grad_norm=1e6, weight_decay=1000.0, steps=50, warmup_steps=0)
    before = files(day.folder)
    with pytest.raises(RunStopped, match="Lower learning_rate"):
        learn(day)
    (day.folder / "reference.json").unlink()  # of the first version
    assert files(day.folder) == before


@pytest.mark.slow
def test_sft_data_is_replayed(day, tmp_path):
    set_keys(day, sft_data_path=str(write_data(tmp_path / "data", 6)), sft_share=0.3)
    report = learn(day)
    assert report.metrics["nll"] > 0
    assert report.used["sft"] > 0
    assert report.promoted


@pytest.mark.slow
def test_adapters_go_on_from_night_to_night(day, monkeypatch):
    verdict(monkeypatch)
    set_keys(day, use_lora=True, lora_r=2)
    assert learn(day).promoted
    talk_to(day, 30, seed=2)
    learn(day)
    assert (day.version_folder("0003") / "learner" / "adapter.safetensors").exists()
    talk_to(day, 5, seed=3)
    set_keys(day, use_lora=True, lora_r=4)
    with pytest.raises(UserError, match="set lora_r and lora_target_modules back in config"):
        learn(day)
