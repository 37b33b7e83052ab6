"""A relevance model: its losses, checkpoints and report."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.relevance.model import RelevanceTraining, dual_loss, fit, markdown, next_rows
from rlhf_dialog.training.supervised.relevance.pairs import batch_of, number_pairs
from rlhf_dialog.training.supervised.settings import RelevanceConfig
from tests.parts.relevance_models import letter_model, save_letters


def learned(architecture):
    model = letter_model(architecture, dropout=0.0, word_dropout=0.0)
    turns = [["a b", "c d", "e"], ["f g", "h", "i j"], ["k", "l m", "n"]]
    pairs = [
        Dialogue(some[:i], response=some[i], meta={"dialogue": number})
        for number, some in enumerate(turns)
        for i in (1, 2)
    ]
    return model, number_pairs(pairs, model.table(), seed=0)


def pair_score(model, pairs, context, reply):
    """The first member's score of one pair of numbers."""
    names = list(pairs.table.numbers)
    turns = [names[n] for n in context.tolist() if n][::-1]
    return model.scores([turns], [names[reply]], torch.zeros(1, 1, dtype=torch.long))[0, 0, 0].item()


def cross_entropy(scores, weights):
    """-log of the share of the first one, in plain Python."""
    terms = [weight * math.exp(score) for score, weight in zip(scores, weights, strict=True)]
    return -math.log(terms[0] / sum(terms))


def test_the_loss_of_a_dual_encoder_by_hand():
    model, pairs = learned("bag")
    batch = batch_of(pairs, torch.tensor([1, 2, 5]), 30.0)
    found = dual_loss(model.members[0], pairs, batch).item()
    expected = []
    for i in range(3):
        order = [i, *(j for j in range(len(batch.replies)) if j != i)]
        scores = [pair_score(model, pairs, batch.contexts[i], int(batch.replies[j])) for j in order]
        expected.append(cross_entropy(scores, batch.reply_weights[i, order].exp().tolist()))
        order = [i, *(j for j in range(len(batch.contexts)) if j != i)]
        scores = [pair_score(model, pairs, batch.contexts[j], int(batch.replies[i])) for j in order]
        expected.append(cross_entropy(scores, batch.context_weights[i, order].exp().tolist()))
    assert found == pytest.approx(sum(expected) / 6, abs=1e-3)


def test_every_pair_is_read_once_an_epoch():
    batches, order = [], torch.empty(0, dtype=torch.long)
    for _ in range(6):
        rows, order = next_rows(order, 10, 3)
        batches.append(rows.tolist())
    assert [len(rows) for rows in batches] == [3] * 6
    for epoch in (batches[:3], batches[3:]):
        assert len({row for rows in epoch for row in rows}) == 9
    assert len(next_rows(order, 2, 5)[0]) == 2


def test_the_time_left_is_of_all_members():
    model, pairs = learned("bag")
    config = RelevanceConfig(data_path="d", output="o", members=2, max_steps=5, batch_size=3)
    left = SimpleNamespace(shares=[])
    left.text = lambda share: left.shares.append(share) or ""
    for number in range(2):
        fit(config, number, model.members[0], pairs, left)
    of_steps = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert left.shares == pytest.approx([*of_steps, *(0.5 + share for share in of_steps)])


def test_the_report_has_the_recall_of_the_saved_model(tmp_path):
    """Each reply is compared with one prompt of the other dialogue, so that all rank among the best ten."""
    turns = [(["a b", "c"], "d", 0), (["e"], "f g", 0), (["h", "i j"], "k", 1)]
    pairs = [Dialogue(prompt, response=reply, meta={"dialogue": number}) for prompt, reply, number in turns]
    save_letters(tmp_path)
    stage = RelevanceTraining(RelevanceConfig(data_path="d", output="o", device="cpu"), tmp_path, print)
    found = stage.measure_split(pairs)
    assert (found["num_pairs"], found["num_dialogues"], found["r10"]["mean"]) == (3, 2, 1.0)
    lines = markdown("test", found | {"r1": {"mean": 1 / 3, "low": 0.0, "high": 1.0}}).splitlines()
    assert lines[0] == "## test: 3 prompts of 2 dialogues"
    assert lines[4:] == ["| R@1 of 100 | 0.333 | 0.000 to 1.000 |", "| R@10 of 100 | 1.000 | 1.000 to 1.000 |"]


def test_a_few_prompts_without_a_true_reply_are_left_out_and_more_are_an_error(tmp_path):
    rows = [{"prompt": f"Question {n} ?", "reference": None if n == 3 else "Yes ."} for n in range(10)]
    for split, some in (("train", rows), ("validation", rows[1:])):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    lines: list[str] = []
    stage = RelevanceTraining(RelevanceConfig(data_path=str(tmp_path), output="x"), tmp_path, lines.append)
    assert len(stage.pairs("train")) == 9
    assert "1 of 10 prompts" in lines[0]
    with pytest.raises(UserError, match="1 of 9 prompts"):
        stage.pairs("validation")
