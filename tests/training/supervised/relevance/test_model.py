"""A relevance model: its losses, checkpoints and report."""

import copy
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


def test_a_member_is_trained_as_by_a_plain_loop_and_the_time_left_is_of_all_members():
    """Two steps of a linear warm-up, then a cosine; the norm of the gradient is at most 1."""
    model, pairs = learned("bag")
    keys = {"max_steps": 4, "batch_size": 3, "warmup_ratio": 0.5, "learning_rate": 0.1, "weight_decay": 0.3}
    config, plain = (
        RelevanceConfig(data_path="d", output="o", members=2, **keys),
        copy.deepcopy(model.members[0]).train(),
    )
    left = SimpleNamespace(shares=[])
    left.text = lambda share: left.shares.append(share) or ""
    torch.manual_seed(0)
    fit(config, 1, model.members[0], pairs, left)
    assert left.shares == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0])
    torch.manual_seed(0)
    optimizer, order, norms = torch.optim.AdamW(plain.parameters(), weight_decay=0.3), torch.empty(0).long(), []
    for optimizer.param_groups[0]["lr"] in (0, 0.05, 0.1, 0.05):
        rows, order = next_rows(order, len(pairs.replies), 3)
        gradients = torch.autograd.grad(
            dual_loss(plain, pairs, batch_of(pairs, rows, 30.0, 0.0)), [*plain.parameters()]
        )
        norms.append(math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients)))
        for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
            parameter.grad = gradient / max(1.0, norms[-1])
        optimizer.step()
    assert max(norms) > 2
    for trained, expected in zip(model.members[0].parameters(), plain.parameters(), strict=True):
        assert torch.allclose(trained, expected, atol=1e-4)


def test_after_a_kill_the_members_that_are_left_are_trained_each_with_its_seed(tmp_path, monkeypatch):
    seen = []

    def recorded(config, number, *_):
        seen.append((number, torch.initial_seed()))
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("rlhf_dialog.training.supervised.relevance.model.fit", recorded)
    config = RelevanceConfig(data_path="d", output=str(tmp_path / "o"), members=3, seed=5, device="cpu")
    stage = RelevanceTraining(config, tmp_path, print)
    stage.model = letter_model(members=3)
    stage.training = [Dialogue(["a"], response=reply, meta={"dialogue": n}) for n, reply in enumerate("bc")]
    with pytest.raises(KeyboardInterrupt):
        stage.learn()
    stage.learn()
    assert seen == [(0, 5), (1, 6), (1, 6), (2, 7)]


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
    assert ("1 of 10 prompts" in lines[0], "train: 9 pairs" in lines[1]) == (True, True)
    with pytest.raises(UserError, match="1 of 9 prompts"):
        stage.pairs("validation")
