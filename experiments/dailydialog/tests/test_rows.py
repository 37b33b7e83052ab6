"""The rows of a table: the numbers of `evaluate`, the distance from the start by hand, and what is kept."""

import json

import numpy as np
import pytest
import torch

from experiments.dailydialog import rows
from experiments.dailydialog.numbers import RowFile
from experiments.dailydialog.rows import Plan, Table
from experiments.dailydialog.systems import System
from experiments.matching import Match
from rlhf_dialog.commands import evaluate
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation import measure
from rlhf_dialog.evaluation.replies import generate_replies
from tests.parts.byte_agents import token_by_token


def plan(world, folder, some, **changes):
    places = {"data": str(world / "data"), "config": str(world / "reward.yaml"), "start": str(world / "start")}
    given = {"split": "validation", "prompts": None, "seed": 0, "temperature": 0.7, "folder": str(folder)}
    given |= {"bias_prompts": 4, "bias_tokens": 300, "rows": some, **places}
    return Plan(**given | changes)


def row(world, name, seed=0):
    return {"name": f"{name}_{seed}", "kind": "model", "model": str(world / name), "seed": seed}


@pytest.fixture(scope="module")
def made(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    some = [
        *(row(world, "start", seed) for seed in (0, 1)),
        row(world, "agent"),
        {"name": "best_of_2", "kind": "best", "count": 2},
        {**row(world, "agent"), "name": "mean_logit_shift_0", "kind": "shift"},
        {"name": "learned_bias", "kind": "learned"},
        {"name": "true_replies", "kind": "said"},
    ]
    path = folder / "plan.json"
    path.write_text(plan(world, folder, some).model_dump_json())
    rows.main(path)
    return folder


def test_a_row_has_the_numbers_of_evaluate(world, made, tmp_path):
    words = ["--agent", world / "agent", "--baseline", world / "start", "--config", world / "reward.yaml"]
    words += ["--temperature", "0.7", "--output", tmp_path / "evaluation.json"]
    # an agent without settings of its own gets those of the YAML here, and in evaluate those of its folder
    for name in ("agent", "start"):
        (world / name / "rlhf_dialog.json").write_text('{"format_version": 1, "max_new_tokens": 7}')
    assert evaluate.main([str(word) for word in words]) == 0
    wanted = json.loads((tmp_path / "evaluation.json").read_text())
    pairs = {"start_0": "before", "agent_0": "after"}
    for name, system in pairs.items():
        of_row = System.read(name, made, [[name]])
        for metric in ("score", "copied_two", "mean_words", "meteor_margin", "distinct_2", "sacrebleu", "truncated"):
            assert of_row.interval(metric) == pytest.approx(wanted[system][metric], abs=1e-9), (name, metric)
    true = System.read("true", made, [["true_replies"]]).point("mean_words")
    assert true == pytest.approx(wanted["baselines"]["true_replies"]["mean_words"]["mean"], abs=1e-9)


def test_the_distance_from_the_start_by_hand(world, made):
    table = Table(plan(world, made, []))
    replies, kl = RowFile(made, "agent_0").replies(), RowFile(made, "agent_0").read()["kl"]
    assert np.abs(RowFile(made, "start_0").read()["kl"]).max() == 0
    assert "kl" not in RowFile(made, "start_1").read()  # of the first draw alone
    assert RowFile(made, "best_of_2").read()["kl"] == pytest.approx(np.log(2) - 0.5)
    for number, prompt in list(enumerate(table.prompts))[:3]:
        responders = [rows.ChatAgent.load(world / name) for name in ("agent", "start")]
        reply = prompt.with_reply(replies[number]["response"], replies[number]["truncated"])
        pairs = [logprobs for _, logprobs in token_by_token(responders, reply, 0.7)]
        total = sum(float((ours.exp() * (ours - theirs)).sum()) for ours, theirs in pairs)
        assert kl[number] == pytest.approx(total, abs=1e-4)


def test_the_start_with_the_distinct_2_of_other_rows(world, made, monkeypatch):
    table, asked = Table(plan(world, made, [])), []

    def matched(start, prompts, sampling, wanted, steps, batch_size):
        asked.append((start, sampling.temperature, wanted, steps))
        return Match(0.6, wanted, wanted, table.stored("start_1"))

    like = {"name": "matched", "kind": "matched", "like": ["start_0", "agent_0"]}
    monkeypatch.setattr(rows, "match_distinct_2", matched)
    table.make(rows.Row(**like))
    parts = [RowFile(made, name).read()["block:distinct_2"].mean() for name in like["like"]]
    assert asked == [(table.start, 0.7, pytest.approx(sum(parts) / 2), 12)]
    RowFile(made, "matched").numbers.unlink()
    table.make(rows.Row(**like))  # measured from the replies that were kept
    assert len(asked) == 1
    ours, theirs = (RowFile(made, name).read()["mean_words"] for name in ("matched", "start_1"))
    assert np.array_equal(ours, theirs)
    monkeypatch.setattr(rows, "match_distinct_2", lambda *_: None)
    table.make(rows.Row(**{**like, "name": "nowhere"}))
    assert not RowFile(made, "nowhere").is_there()


def test_the_learned_bias_is_that_of_the_better_rate(world, tmp_path, monkeypatch):
    """Learned as the run samples, from a reward of its own; chosen on validation prompts at the temperature of the row."""
    table, rates, asked = Table(plan(world, tmp_path, [], split="test", bias_step=3)), [], []
    letters = dict(zip(rows.BIAS_RATES, "ba", strict=True))

    def learn(start, prompts, scorer, sampling, training):
        assert (sampling.temperature, training.tokens, training.num_prompts) == (1.0, 300, 3)
        assert scorer.reward is not table.judges.scorer.reward
        assert prompts == table.some_prompts("train")
        rates.append(training.rate)
        vector = torch.zeros(259, dtype=torch.float64)
        vector[start.encoder.tokenizer(letters[training.rate])["input_ids"][-1]] = 50.0
        return rows.LogitBias(vector, vector)

    def generate(responder, prompts, sampling, *words):
        asked.append((prompts, sampling.temperature))
        return generate_replies(responder, prompts, sampling, *words)

    def score(answers, judges):  # the letter a is better
        return measure.Measured({"score": np.array([float("b" not in one.response) for one in answers.dialogues])})

    monkeypatch.setattr(rows, "learn_bias", learn)
    monkeypatch.setattr(rows.replies, "generate_replies", generate)
    with monkeypatch.context() as patch:
        patch.setattr(rows.measure, "measure", score)
        best = table.learned_bias(0)
    some = rows.replies.pick_prompts(table.some_prompts("validation"), 4, 0)
    assert asked == [(some, 0.7)] * 2
    assert rates == list(rows.BIAS_RATES)
    assert {one.response for one in table.biased(best, 0).dialogues} == {"aaaaaaa"}
    assert asked[-1] == (table.prompts, 0.7)


def test_prompts_are_those_of_whole_dialogues():
    prompts = [Dialogue([f"{i} {j}"], meta={"dialogue": i}) for i in range(20) for j in range(3)]
    some = rows.whole_dialogues(prompts, 20, 0)
    taken = {prompt.meta["dialogue"] for prompt in some}
    assert len(some) == 18
    assert len(taken) == 6
    assert some == [prompt for prompt in prompts if prompt.meta["dialogue"] in taken]
    assert rows.whole_dialogues(prompts, None, 0) == prompts
    assert {p.meta["dialogue"] for p in rows.whole_dialogues(prompts, 20, 1)} != taken
