"""`learn --candidate`: an agent that was trained elsewhere passes the gate of a night, or not; the recipe of FEEDBACK.md."""

import json
import random
import re
import shlex
from contextlib import closing

import pytest
from safetensors.torch import load_file

from rlhf_dialog.commands.dispatcher import main
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.learning import night as night_module
from rlhf_dialog.feedback.learning.gate import GateComparison
from rlhf_dialog.feedback.learning.guards import GuardMeasurement
from rlhf_dialog.feedback.learning.night import learn, learn_from_candidate
from rlhf_dialog.feedback.learning.report import ChangedAnswers
from rlhf_dialog.feedback.store.store import Rating
from tests.parts.processes import ROOT
from tests.parts.taught_bots import dialogue_id, new_bot, set_keys, talk_to
from tests.parts.tiny import byte_tokenizer, gpt2


def save_agent(folder, seed=1, tokenizer=byte_tokenizer, **sizes):
    gpt2(seed, **({"n_embd": 16, "n_layer": 1, "n_positions": 128} | sizes)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def other_words():
    tokenizer = byte_tokenizer(separator_token=False)
    tokenizer.add_tokens(["word"])
    return tokenizer


def test_a_promoted_candidate_answers_and_has_learned_from_all_feedback(day, tmp_path, monkeypatch):
    found = GateComparison(8, 0.5, 0.6, 0.05, 0.03)
    monkeypatch.setattr(night_module, "_measure", lambda *_: (found, ChangedAnswers(0, [])))
    monkeypatch.setattr(GuardMeasurement, "measure", lambda _: [])
    agent = save_agent(tmp_path / "agent")
    assert learn_from_candidate(day, agent).promoted
    record = day.lineage()["versions"]["0002"]
    assert (day.champion(), record["method"], record["parent"]) == ("0002", "candidate", "0001")
    ours, theirs = (load_file(f"{folder}/model.safetensors") for folder in (day.agent_folder("0002"), agent))
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert learn(day).why.startswith("nothing changed: there is no new feedback")


@pytest.mark.slow
def test_the_champion_itself_is_refused_and_a_night_can_follow(day):
    """It may have been trained on all that is stored, also on what is held out."""
    with closing(day.store()) as store:
        dialogue = store.begin("held out", "terminal", dialogue_id(random.Random(1), heldout=True))
        store.add_turn(dialogue, 0, "user", "Hello .")
        store.add_feedback(dialogue, "held out", Rating("thumb", store.add_turn(dialogue, 1, "agent", "Why ?"), 1))
        people = store.people()
    report = learn_from_candidate(day, str(day.agent_folder("0001")))
    assert report.why.startswith("refused: 0002 agrees no more with the held-out feedback")
    assert day.champion() == "0001"
    assert set(day.lineage()["versions"]["0002"]["people"]) == people
    assert "to learn from" not in "\n".join(report.lines())
    assert learn(day, dry_run=True).why == "dry run: nothing was changed"
    set_keys(day, min_heldout=500)
    assert learn_from_candidate(day, str(day.agent_folder("0001"))).why.startswith("nothing changed")
    assert day.versions() == ["0001", "0002"]


@pytest.mark.parametrize(
    ("sizes", "keys", "message"),
    [
        ({"n_layer": 2}, {}, r"--candidate: .* has another network or vocabulary than version 0001"),
        ({"tokenizer": other_words}, {}, "has another network or vocabulary"),
        ({}, {"use_lora": True}, "use_lora: true, but --candidate replaces all weights"),
        (None, {}, "--candidate: there is no folder"),
    ],
)
def test_a_candidate_that_does_not_fit(day, tmp_path, sizes, keys, message):
    set_keys(day, **keys)
    agent = str(tmp_path / "none") if sizes is None else save_agent(tmp_path / "agent", **sizes)
    with pytest.raises(UserError, match=message):
        learn_from_candidate(day, agent)
    assert day.versions() == ["0001"]


@pytest.mark.slow
def test_the_recipe_of_the_page(tmp_path, monkeypatch, capsys):
    """Its commands and its program, with a tiny bot and few steps."""
    bot = new_bot(tmp_path / "runs", guard_prompts=2)
    talk_to(bot, 40)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "FEEDBACK.md").read_text(encoding="utf-8")
    recipe = page.partition("## A reward model and PPO\n")[2].partition("\n## ")[0]
    few = {
        "train_preference_model.py": "--max_steps 1 --num_samples 0 --device cpu",
        "train_ppo.py": "--max_iterations 1 --rollout_batch_size 16 --max_prompt_length 100 --device cpu",
    }
    programs = {
        "python -m rlhf_dialog.feedback": "feedback",
        "python reward_models/train_preference_model.py": f"train-preference-model {few['train_preference_model.py']}",
        "python train_ppo.py": f"train {few['train_ppo.py']}",
    }
    for language, text in re.findall(r"```(bash|python)\n(.*?)```", recipe, re.DOTALL):
        if language == "python":
            exec(text, {})
            rows = [json.loads(line) for line in (tmp_path / "runs/bot_ratings.jsonl").read_text().splitlines()]
            assert 0 < len(rows) < 40  # without the held-out ones
            continue
        for line in text.replace("\\\n", " ").replace("$(cat runs/bot/champion)", "0001").splitlines():
            program = next(name for name in programs if line.startswith(name))
            words = shlex.split(line.removeprefix(program))
            assert main([*programs[program].split(), *words]) == 0, capsys.readouterr().err
    assert bot.lineage()["versions"]["0002"]["method"] == "candidate"
