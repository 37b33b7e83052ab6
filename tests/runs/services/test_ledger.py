"""The ledger: a row for each response, whose parts add up to its score; cut like metrics.jsonl; texts only if asked for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.base import BaseReward, JudgedScore, NoScore, Part
from rlhf_dialog.runs.services import ledger
from rlhf_dialog.runs.services.base import PPORun
from rlhf_dialog.runs.services.ledger import (
    Ledger,
    LedgerService,
    cut_ledger,
    keep_some_texts,
    markdown_table,
    read_ledger,
    rows_of,
    table_of,
)
from tests.parts.trainers import Holes, Places, Share, make_trainer

RUN = Path("run_results/ppo")


class Sum(BaseReward):
    """A sum of the user's own."""

    name = "sum"

    def __init__(self):
        self.weighted_parts = {"share": Part(0.5, Share()), "places": Part(-2.0, Places())}


class Answers(BaseReward):
    """None for the first dialogue, a reason for the second."""

    name = "answers"

    def __call__(self, dialogues):
        return [1.0] * len(dialogues)

    def score_available(self, dialogues):
        return [None, NoScore("no answer within 5 seconds"), *[1.0] * (len(dialogues) - 2)]


def stepped(reward, **keys):
    trainer = make_trainer(reward, **keys)
    metrics = trainer.step()
    return trainer, metrics, rows_of(trainer.rollout, 1, trainer.config)


def read(folder=RUN):
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_penalty_that_grows_is_in_the_rows_as_in_the_scores():
    keys = {"truncation_penalty": 0.5, "overlong_penalty_tokens": 3, "max_new_tokens": 4}
    _, metrics, found = stepped(Sum(), **keys)
    assert {row["length"] for row in found} > {1}
    for row in found:
        assert row["penalty"] == pytest.approx(0.5 * (row["length"] - 1) / 3)
        assert row["score"] == pytest.approx(0.5 * row["reward/share"] - 2.0 * row["reward/places"] - row["penalty"])
    assert sum(row["score"] for row in found) / 6 == pytest.approx(metrics["objective/score"], rel=1e-6)


def test_the_rows_have_what_the_metrics_are_means_of():
    trainer, metrics, found = stepped(Sum(), truncation_penalty=0.25, ref_seed=1, ref_model="another", max_new_tokens=2)
    assert [row["index"] for row in found] == [dialogue.meta["index"] for dialogue in trainer.rollout.dialogues]
    assert [row["reward/places"] for row in found] == [-1.5, 0.5, 2.5, -0.5, 1.5, -1.5]  # (7 i) mod 5 - 1.5
    replies = [dialogue.response for dialogue in trainer.rollout.dialogues]
    assert [row["reward/share"] for row in found] == [text.count("e") / max(len(text), 1) for text in replies]
    for row in found:
        assert (row["reward/share_weight"], row["reward/places_weight"], row["used"]) == (0.5, -2.0, True)
        assert row["penalty"] == (0.25 if row["truncated"] else 0)
        parts = 0.5 * row["reward/share"] - 2.0 * row["reward/places"] - row["penalty"]
        assert row["score"] == pytest.approx(parts, abs=1e-6)
        assert row["time/reward_share"] >= 0
    tokens = sum(row["length"] for row in found)
    assert {row["truncated"] for row in found} == {True, False}
    assert tokens / 6 == pytest.approx(metrics["response/length"])
    assert sum(row["kl"] * row["length"] for row in found) / tokens == pytest.approx(metrics["objective/kl"], rel=1e-5)
    assert abs(metrics["objective/kl"]) > 1e-3
    assert sum(row["score"] for row in found) / 6 == pytest.approx(metrics["objective/score"], rel=1e-6)


def test_what_was_left_out_is_in_its_place_with_the_reason():
    keys = {"on_reward_error": "skip", "advantage_estimator": "rloo", "num_responses_per_prompt": 2}
    trainer, _, found = stepped(Answers(), **keys)
    assert (len(trainer.rollout), len(found)) == (4, 6)
    assert [row["used"] for row in found] == [False, False, True, True, True, True]
    assert [row["score"] for row in found] == [None, None, 1.0, 1.0, 1.0, 1.0]
    assert [row.get("failure/answers") for row in found[:3]] == ["gave no score", "no answer within 5 seconds", None]
    _, _, found = stepped(Holes([2], float("inf")), **keys)
    assert [row["used"] for row in found] == [True, True, False, False, True, True]
    assert [row["score"] for row in found] == [-1.5, 0.5, None, -0.5, 1.5, -1.5]
    assert found[2]["failure/holes"] == "gave inf"
    assert json.dumps(found, allow_nan=False)


def test_an_environment_pays_a_part_of_its_own():
    trainer, _, _ = stepped(Places())
    rollout = trainer.rollout
    config = trainer.config.model_copy(update={"environment": {"id": "restaurant"}})
    assert [row["environment"] for row in rows_of(rollout, 1, config)] == [0] * 6
    turn_rewards = torch.zeros_like(rollout.logprobs)
    turn_rewards[3, 0] = 2.0
    found = rows_of(replace(rollout, turn_rewards=turn_rewards), 1, config)
    assert [row["environment"] for row in found] == [0, 0, 0, 2, 0, 0]
    assert found[3]["score"] == -0.5 + 2


def test_the_words_of_a_judge_are_texts_and_cannot_steer_a_terminal():
    trainer, _, _ = stepped(Answers(), on_reward_error="skip")
    raw = trainer.rollout.whole.reward_scores.parts["answers"].raw
    raw[0], raw[3] = NoScore("none", "\x1b[2J I do not know."), JudgedScore(4.0, "Score: 4" + "!" * 5000)
    for texts, number in (("none", 0), ("all", 2)):
        found = rows_of(trainer.rollout, 1, trainer.config.model_copy(update={"ledger_texts": texts}))
        assert len([row for row in found if "words/answers" in row]) == number
    assert found[0]["words/answers"] == "\\x1b[2J I do not know."
    assert (found[3]["reward/answers"], len(found[3]["words/answers"])) == (4.0, 2000)
    assert "words/answers" in table_of(found)[0]
    assert not {"prompt", "reply", "words/answers"} & set(table_of(found, texts=False)[0])
    keep_some_texts(rows := found * 3)
    assert [row.keys() & {"reply", "words/answers"} for row in rows[8:]] == [set()] * 10


def test_texts_only_where_they_are_asked_for():
    trainer, _, _ = stepped(Places())
    found = rows_of(trainer.rollout, 1, trainer.config.model_copy(update={"ledger_texts": "none"}))
    assert not [name for row in found for name in row if isinstance(row[name], str | list)]
    rollout = trainer.rollout
    talk = Dialogue(["Hi ."], meta=rollout.dialogues[0].meta).with_reply("Yes ?").with_user_turn("Tea .")
    rollout.dialogues[0] = talk.with_reply("No .")
    found = rows_of(rollout, 1, trainer.config.model_copy(update={"ledger_texts": "all"}))
    assert (found[0]["prompt"], found[0]["reply"]) == (["Hi .", "Yes ?", "Tea ."], "No .")
    assert found[1]["prompt"] == rollout.dialogues[1].prompt_turns


@pytest.mark.parametrize(
    ("texts", "in_file", "in_table"), [("all", True, True), ("some", True, False), ("none", False, False)]
)
def test_each_iteration_is_recorded_once_and_every_second_one_as_a_table(tmp_path, texts, in_file, in_table):
    trainer, tables = make_trainer(ledger_texts=texts, sample_interval=2), []
    run = PPORun(trainer.config, tmp_path, trainer)
    service = LedgerService(trainer.config, lambda *one: tables.append(one))
    service.begin(run)
    trainer.step()
    assert service.after_iteration(run, {}) == {}
    assert service.complete(run, {})
    trainer.step()  # then another service fails
    assert service.complete(run, {})
    service.end(None)
    assert [row["iteration"] for row in read(tmp_path)] == [1] * 6 + [2] * 6
    assert all(("reply" in row) == in_file for row in read(tmp_path))
    ((iteration, columns, cells),) = tables
    assert (iteration, len(cells), "reply" in columns) == (2, 6, in_table)


# -- the file


def lines_of(*iterations):
    return "".join(json.dumps({"iteration": one, "score": number}) + "\n" for number, one in enumerate(iterations))


@pytest.mark.parametrize(
    ("text", "iteration", "kept"),
    [
        (lines_of(1, 1, 2, 2), 1, lines_of(1, 1)),
        (lines_of(1, 1, 2, 2), 0, ""),
        (lines_of(1, 1, 2) + '{"iteration": 2, "sc', 2, lines_of(1, 1, 2)),  # a kill in the middle of a line
        (lines_of(1) + "[1]\n\x00\x00\n" + lines_of(2), 1, lines_of(1)),
        (lines_of(1) + "[1]\n" + lines_of(2), 2, lines_of(1) + "[1]\n" + lines_of(2)),  # damage inside stays
    ],
)
def test_it_is_cut_after_an_iteration(tmp_path, text, iteration, kept):
    path = tmp_path / "ledger.jsonl"
    path.write_text(text)
    cut_ledger(path, iteration)
    assert path.read_text() == kept


def test_missing_rows_are_warned_of_and_a_missing_file_is_left_alone(tmp_path, caplog):
    path = tmp_path / "ledger.jsonl"
    cut_ledger(path, 3)
    assert (list(tmp_path.iterdir()), read_ledger(path)) == ([], ([], [], []))
    assert not caplog.records
    path.write_text(lines_of(1, 2))
    cut_ledger(path, 3)
    assert "ends with iteration 2, but the run goes on after 3" in caplog.text


def test_the_newest_rows_and_the_texts_of_the_first_iteration_and_of_prompts_that_came_twice(tmp_path):
    path = tmp_path / "ledger.jsonl"

    def row(iteration, index, reply='a "reply": b'):
        return {"iteration": iteration, "split": "train", "index": index, "reply": reply}

    rows = [row(1, 4), {"iteration": 1, "index": 5}, row(1, 6, ""), row(2, 7), row(2, None), row(3, 7), row(3, None)]
    rows += [row(4, 6, "c"), row(4, 6), row(4, 8)]
    for part in (rows[:2], rows[2:]):
        one = Ledger(path)
        one.write(part)
        one.close()
    assert read_ledger(path) == (rows[7:], [rows[0], rows[2]], [(rows[2], rows[8]), (rows[3], rows[5])])


def test_a_prompt_whose_texts_are_kept_has_them_in_the_next_epoch_too():
    def kept(indices):
        rows = [{"split": "train", "index": index, "prompt": ["a"], "reply": "b"} for index in indices]
        keep_some_texts(rows)
        assert all(("prompt" in row) == ("reply" in row) for row in rows)
        return [row["index"] for row in rows if "reply" in row]

    first = kept(range(40))
    assert len(first) == 8
    assert {*first[:5]} <= {*kept([*first[2:5], *range(30, 40), *first[:2]])}
    several = kept([number for number in range(3) for _ in range(4)])
    assert (len(several), {*several}) == (8, {0, 1, 2})
    assert kept(range(5)) == [0, 1, 2, 3, 4]


def test_a_table_has_all_columns_and_shows_texts_as_they_are(monkeypatch):
    monkeypatch.setattr(ledger, "MAX_TABLE", 2)
    rows = [{"a": 1 / 3, "prompt": ["x", "<b>|"]}, {"a": None, "failure/b": "late"}, {"c": 1}]
    assert table_of(rows, texts=False)[0] == ["a", "failure/b"]
    table = table_of(rows)
    assert table == (["a", "prompt", "failure/b"], [[1 / 3, "x\n<b>|", None], [None, None, "late"]])
    assert markdown_table(*table).splitlines() == [
        "| a | prompt | failure/b |",
        "| --- | --- | --- |",
        "| 0.333333 | x &lt;b>&#124; |  |",
        "|  |  | late |",
    ]


# -- in a run


@pytest.mark.slow
def test_trackers_get_tables_and_texts_where_they_are_wanted(run, wandb):
    assert run("--use_wandb", "true", "--use_tensorboard", "true") == 0
    (table,) = wandb.runs[0].tables.values()
    assert list(wandb.runs[0].tables) == [2]  # `sample_interval`
    assert (len(table.data), table.columns[:3]) == (8, ["iteration", "split", "index"])
    assert "prompt" not in table.columns
    assert run("--ledger_texts", "true", "--overwrite", "--max_iterations", "1") == 0
    assert all(isinstance(row["reply"], str) and row["prompt"] for row in read())
    assert run("--ledger", "false", "--overwrite", "--max_iterations", "1") == 0
    assert not (RUN / "ledger.jsonl").exists()
