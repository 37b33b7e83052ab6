"""What is measured of replies, by hand. What whole dialogues are worth, by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.dialogues import Played, cell, compare_dialogues, means, measure_dialogues, transcript
from rlhf_dialog.evaluation.measure import (
    Judges,
    Measured,
    average_draws,
    differences,
    draw_candidates,
    measure,
    recalls,
    with_intervals,
)
from rlhf_dialog.evaluation.replies import Replies, reference_nll
from rlhf_dialog.rewards import BaseReward, CompositeReward, Meteor
from rlhf_dialog.rewards.scoring import Scorer
from tests.parts.evaluations import COUNTS, LENGTH, OVERLAP
from tests.parts.relevance_models import LETTERS, letter_model


class Share(BaseReward):
    """The share of words that are `yes`."""

    name = "share"

    def __call__(self, dialogues):
        return [d.response.split().count("yes") / max(len(d.response.split()), 1) for d in dialogues]


def test_measures_by_hand():
    dialogues = [Dialogue(["a", "no yes sir"], response="yes no yes"), Dialogue(["b"], response="", truncated=True)]
    found = measure(Replies(dialogues, [4, 9]), Judges(Scorer(Share(), truncation_penalty=0.25)))
    assert {name: values.tolist() for name, values in found.per_prompt.items()} == {
        "score": [pytest.approx(2 / 3), -0.25],  # less the penalty of a response that was cut
        "share": [pytest.approx(2 / 3), 0.0],
        "mean_length": [4.0, 9.0],
        "mean_words": [3.0, 0.0],
        "truncated": [0.0, 1.0],
        "copied": [0.5, 0.0],
        "copied_two": [0.5, 0.0],
    }
    assert {name: values.tolist() for name, values in found.per_block.items()} == {
        "distinct_1": [pytest.approx(2 / 3)],
        "distinct_2": [1.0],
    }
    points = found.points()
    assert average_draws([found]).points() == points
    assert points["mean_length"] == 6.5
    assert points["truncated"] == 0.5
    assert with_intervals(found)["mean_length"]["mean"] == 6.5
    grows = Scorer(Share(), truncation_penalty=1.0, overlong_penalty_tokens=4, max_new_tokens=6)
    scores = measure(Replies(dialogues, [4, 9]), Judges(grows)).per_prompt["score"]
    assert scores.tolist() == [pytest.approx(2 / 3 - 0.5), -1.0]


def test_distinct_n_is_the_mean_over_blocks_of_100():
    """100 times `a b` (2 of 200 words, 1 of 100 bigrams), 100 different words (100 of 100), and a rest of 50."""
    texts = ["a b"] * 100 + [f"w{i}" for i in range(100)] + ["rest"] * 50
    found = measure(Replies([Dialogue(["p"], response=text) for text in texts], [1] * 250), Judges(Scorer(Share())))
    assert found.per_block["distinct_1"].tolist() == [0.01, 1.0]
    assert found.per_block["distinct_2"].tolist() == [0.01, 0.0]
    assert found.points()["distinct_1"] == pytest.approx(0.505)


def test_meteor_is_called_meteor_whatever_its_variant():
    dialogues = [Dialogue(["a"], response="so it is", reference="so it is")]
    parts = CompositeReward(parts=[{"id": "Meteor", "args": {"meteor_wordnet": "off"}}, LENGTH])
    found = measure(Replies(dialogues, [4]), Judges(Scorer(parts))).per_prompt
    assert set(found) == (COUNTS | OVERLAP | {"score", "length_match"}) - {"sacrebleu", "distinct_1", "distinct_2"}
    assert found["meteor"][0] == pytest.approx(1 - 0.5 * (1 / 3) ** 3)  # one chunk of three words


def test_the_prompts_of_a_dialogue_are_resampled_together():
    """Two dialogues of alike prompts: a resample has 0, 1 or 2 of the first one, whatever number of prompts that is."""
    texts = ["yes"] * 30 + ["no"] * 10
    dialogues = [
        Dialogue(["a"], response=text, reference="yes", act=1, meta={"dialogue": 7 if text == "yes" else 2})
        for text in texts
    ]
    replies = Replies(dialogues, [1] * 40, np.stack([np.arange(40.0), np.ones(40)], axis=1))
    judges = Judges(Scorer(Share()), intent=FakeIntent())
    found = with_intervals(measure(replies, judges))
    assert found["share"] == {"mean": 0.75, "low": 0.0, "high": 1.0}
    assert found["rouge1"] == {"mean": 0.75, "low": 0.0, "high": 1.0}
    assert found["sacrebleu"]["low"] == 0.0
    assert found["reference_perplexity"] == pytest.approx(
        {"mean": math.exp(19.5), "low": math.exp(14.5), "high": math.exp(34.5)}
    )
    apart = [replace(dialogue, meta={}) for dialogue in dialogues]  # each is a dialogue by itself
    alone = with_intervals(measure(replace(replies, dialogues=apart), judges))["share"]
    assert (alone["mean"], alone["low"] > 0.5, alone["high"] < 0.95) == (0.75, True, True)


def test_a_difference_leaves_out_prompts_that_one_side_lacks(caplog):
    nan = float("nan")
    before = Measured({"score": np.array([1.0, 2.0, nan, nan]), "mean_words": np.ones(4), "gone": np.ones(4)})
    after = Measured({"score": np.array([nan, 2.5, 30.0, nan]), "mean_words": np.ones(4)}, {}, {})
    found = differences(before, after)
    assert found["score"] == {"mean": 0.5, "low": 0.5, "high": 0.5, "left_out": 2}  # the second prompt alone has both
    assert found["mean_words"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert all(math.isnan(value) for value in found["gone"].values())
    assert all(math.isnan(value) for value in differences(after, before)["gone"].values())
    assert "difference of score: 2 prompts are left out, because one side has no number" in caplog.text


def test_every_reference_of_a_prompt_counts():
    dialogue = Dialogue(["a"], response="so it is", reference="no way", references=["no way", "so it is"])
    one = replace(dialogue, references=[])
    best, first = (measure(Replies([d], [4]), Judges()).points() for d in (dialogue, one))
    assert best["rouge1"] == best["rougeLsum"] == 1.0
    assert best["meteor"] == pytest.approx(1 - 0.5 * (1 / 3) ** 3)
    assert first["rouge1"] == first["meteor"] == 0.0
    assert math.isnan(best["meteor_shuffled"])  # there is no other prompt
    assert Meteor("off")([dialogue, one]) == [best["meteor"], 0.0]


class FakeIntent:
    """Sees a question in whatever ends with `?`, else inform."""

    def predict(self, dialogues):
        return [int(d.response.endswith("?")) for d in dialogues]


def test_acts_by_hand():
    """Questions: one of two found. Inform: found once where it was wanted. Commissive: taken for inform."""
    cases = [("why ?", 2), ("well .", 2), ("so .", 1), ("yes .", 4)]
    dialogues = [Dialogue(["a"], response=text, act=act) for text, act in cases]
    always_inform = SimpleNamespace(predict=lambda asked: [0] * len(asked))
    points = measure(Replies(dialogues, [2] * 4), Judges(intent=FakeIntent(), judge=always_inform)).points()
    assert (points["intent_accuracy"], points["judge_accuracy"]) == (0.5, 0.25)
    assert points["intent_accuracy_question"] == 0.5
    assert points["intent_accuracy_inform"] == 1.0
    assert points["intent_accuracy_commissive"] == 0.0
    assert math.isnan(points["intent_accuracy_directive"])  # nobody wanted one
    assert points["intent_macro_f1"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    bare = [Dialogue(["a"], response="so it is"), dialogues[0]]  # metrics that lack their data are left out
    assert set(measure(Replies(bare, [4, 2]), Judges(intent=FakeIntent())).points()) == COUNTS
    always = measure(Replies(dialogues, [2] * 4, always_act=0), Judges(intent=FakeIntent())).points()
    assert always["intent_accuracy"] == 0.25


def test_the_published_way_counts_the_separator():
    """`<EOU>` in both texts gives ROUGE a free word; a reply that was cut off does not get it."""
    finished = Dialogue(["a"], response="yes", reference="no")
    cut = replace(finished, truncated=True)
    for dialogue, expected in ((finished, 2 * 1 / (2 + 2)), (cut, 0.0)):
        found = measure(Replies([dialogue], [2]), Judges(legacy_eou=True)).points()
        assert found["rouge1"] == pytest.approx(expected)
        assert measure(Replies([dialogue], [2]), Judges()).points()["rouge1"] == 0.0


def test_perplexity_agrees_with_one_reference_at_a_time(agent, prompts):
    """Without padding and batches, by the model's own forward."""
    nll, count = 0.0, 0
    short = [p for p in prompts if len(" <EOU> ".join(p.prompt_turns)) < 120]  # 128 bytes go in uncut
    for prompt in short:
        ids = agent.encoder.tokenizer(" <EOU> ".join(prompt.prompt_turns) + " <EOU>")["input_ids"]
        target = agent.encoder.tokenizer(" " + prompt.reference + " <EOU>")["input_ids"]
        logits = agent.policy.lm(torch.tensor([ids + target])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
        nll -= logits.gather(1, torch.tensor(target).unsqueeze(1)).sum().item()
        count += len(target)
    replies = Replies(short, [1] * len(short), reference_nll(agent, short, batch_size=7))
    assert measure(replies, Judges()).points()["reference_perplexity"] == pytest.approx(math.exp(nll / count), rel=1e-4)


class Counting:
    """Scores a pair by how many letters of the reply its last turn has; two members, of which the second agrees."""

    def scores(self, contexts, replies, candidates):
        found = [
            [len(set(contexts[c][-1]) & set(r)) for c in row]
            for r, row in zip(replies, candidates.tolist(), strict=True)
        ]
        return torch.tensor([found, found], dtype=torch.float32)


def test_candidates_are_the_own_prompt_and_those_of_other_dialogues():
    groups = [i // 3 for i in range(330)]
    rows = draw_candidates([], groups, seed=1)
    assert rows.shape == (330, 100)
    for row, candidates in enumerate(rows.tolist()):
        assert candidates[0] == row
        assert len(set(candidates)) == 100
        assert all(groups[other] != groups[row] for other in candidates[1:])
    assert torch.equal(rows, draw_candidates([], groups, seed=1))
    assert not torch.equal(rows, draw_candidates([], groups, seed=2))


def test_recall_by_hand():
    """Twelve prompts of one letter each: the first reply has its own letter, the second another one, the third none."""
    dialogues = [Dialogue([letter], response=letter) for letter in LETTERS[:12]]
    dialogues[1].response, dialogues[2].response = "a", "t"
    found = recalls(Counting(), dialogues, range(12))
    assert found["r1"].tolist() == [1, 0, 0] + [1] * 9
    assert found["r10"].tolist() == [1, 0, 0] + [1] * 9  # all others score like the own prompt: they rank above it


def test_a_model_ranks_by_the_mean_of_its_members():
    model = letter_model()
    dialogues = [
        Dialogue([f"{a} {b}"], response=f"{b} {c}") for a, b, c in zip(LETTERS, LETTERS[5:], LETTERS[9:], strict=False)
    ]
    count = len(dialogues)
    scores = model.scores(
        [d.prompt_turns for d in dialogues], [d.response for d in dialogues], torch.arange(count).expand(count, -1)
    )
    mean = scores.mean(dim=0)
    ranks = [sum(mean[i, j].item() >= mean[i, i].item() - 1e-6 for j in range(count) if j != i) for i in range(count)]
    alone = recalls(model, dialogues[:2], [0, 0])  # without another dialogue there is no recall
    assert all(np.isnan(values).all() and len(values) == 2 for values in alone.values())
    found = recalls(model, dialogues, range(count))
    assert found["r1"].tolist() == [rank < 1 for rank in ranks]
    assert found["r10"].tolist() == [rank < 10 for rank in ranks]


def dialogue(success, *replies, truncated=False):
    """A dialogue with these replies of the policy; between them the user says `so ?`."""
    found = Dialogue(["Hi ?"])
    for reply in replies:
        found = found.with_reply(reply).with_user_turn("so ?")
    found.truncated = truncated
    found.meta = {} if success is None else {"info": {"success": success, "goal": {"tea": "green"}}}
    return found


SOME = [Played(dialogue(True, "a b", "c d e f"), 18.0), Played(dialogue(False, "a b c", truncated=True), -1.0)]


def test_the_measures_by_hand():
    assert means(SOME) == {
        **{"success": 0.5, "reward": 8.5, "turns": 1.5, "words": 3.0, "truncated": 0.5},
        **{"distinct_1": pytest.approx(6 / 9), "distinct_2": pytest.approx(5 / 6)},  # of a b, c d e f, a b c
    }
    assert measure_dialogues(SOME)["reward"]["mean"] == 8.5
    better = [Played(one.dialogue, one.reward + 2) for one in SOME]
    assert compare_dialogues(SOME, better)["reward"] == {"mean": 2.0, "low": 2.0, "high": 2.0}


def test_success_is_that_of_the_dialogues_that_say_it_and_they_are_counted():
    some = [*SOME, Played(dialogue(None, "a"), 0.0), SOME[0]]
    assert means(some)["success"] == pytest.approx(2 / 3)
    assert means(some)["success_of"] == measure_dialogues(some)["success"]["of"] == 3
    assert cell(measure_dialogues(some)["success"], "{:.2f}").startswith("0.67\n\\[")
    assert cell(measure_dialogues(some)["success"], "{:.2f}").endswith("]\nof 3 that say it")
    assert cell(measure_dialogues(some[2:3])["success"], "{:.2f}") == "not said"
    assert cell({"mean": 1.0, "low": 0.0, "high": 2.0}, "{:.1f}") == "1.0\n\\[0.0, 2.0]"
    assert cell(None, "{:.1f}") == ""


def test_a_dialogue_as_lines():
    whole = Dialogue(["Well .", "Hi ?"], meta={"info": {"success": True}}).with_reply("Ho .").with_user_turn("Bye .")
    assert transcript(whole) == ["agent: Well .", "user: Hi ?", "agent: Ho .", "user: Bye .", "(success: True)"]
    assert transcript(Dialogue(["Hi ?"]).with_reply("Ho .")) == ["user: Hi ?", "agent: Ho ."]
