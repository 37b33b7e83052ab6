"""Scores of relevance models: against a slow second implementation, and independent of what is computed beside them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.relevance import COPY_UNIT, RelevanceSizes, TurnTable, is_relevance_folder, load_relevance
from tests.parts.poisoned import edit
from tests.parts.relevance_models import BANK, LETTERS, letter_model, save_letters

CONTEXTS = [["a b", "c"], ["d e f"], ["g", "h", "i j", "k l"], ["c"]]
REPLIES = ["b c", "", "i j"]


def by_hand(member, context, reply):
    """The score of one pair in plain Python and one text at a time."""
    ids = lambda text: [4 + LETTERS.index(letter) for letter in text.split()]  # noqa: E731

    def vector(text):
        rows = [member.embedding.weight[i] for i in ids(text)]
        if member.convolution is not None and rows:
            padded = [torch.zeros(8), *rows, torch.zeros(8)]
            around = [torch.cat(padded[i : i + 3]) for i in range(len(rows))]
            rows = [row + member.convolution(x).relu() for row, x in zip(rows, around, strict=True)]
        return sum(rows) / len(rows) if rows else torch.zeros(8)

    newest = [*context[::-1], "", "", ""][:3]
    before = member.of_context(torch.cat([vector(turn) for turn in newest]))
    said = member.of_reply(vector(reply))
    score = member.log_scale.exp() * before @ said / before.norm() / said.norm()
    for turn, weights in zip(newest, member.copying, strict=False):
        grams = [(set(ids(x)), set(zip(ids(x), ids(x)[1:], strict=False))) for x in (reply, turn)]
        shares = [len(own & there) / max(len(own), 1) for own, there in zip(*grams, strict=True)]
        score = score + COPY_UNIT * sum(w * x for w, x in zip(weights, [*shares, *(x**2 for x in shares)], strict=True))
    return score.item()


@pytest.mark.parametrize("architecture", ["bag", "convolution"])
def test_the_scores_of_a_dual_encoder_by_hand(architecture):
    model = letter_model(architecture, copied_turns=3)
    candidates = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [2, 2, 0, 1]])
    found = model.scores(CONTEXTS, REPLIES, candidates)
    assert found.shape == (2, 3, 4)
    for m, member in enumerate(model.members):
        for b, reply in enumerate(REPLIES):
            expected = [by_hand(member, CONTEXTS[c], reply) for c in candidates[b].tolist()]
            assert found[m, b].tolist() == pytest.approx(expected, abs=1e-4)
    assert model.scores([], [], torch.zeros(0, 5, dtype=torch.long)).shape == (2, 0, 5)


def test_training_and_use_compute_the_same_scores():
    model = letter_model(dropout=0.0, word_dropout=0.0)
    table, member = model.table(), model.members[0].train()
    contexts, replies = table.contexts(CONTEXTS), table.replies(REPLIES)
    with torch.no_grad():
        every = member.all_scores(member.encode(table, contexts), member.encode(table, replies))
    assert torch.allclose(every, model.scores(CONTEXTS, REPLIES, torch.arange(4).expand(3, 4))[0], atol=1e-4)


def test_a_table_numbers_each_text_once():
    table = TurnTable(letter_model().tokenizer, RelevanceSizes(context_size=2, max_turn_tokens=4))
    assert table.contexts([["a", "b"], ["b"], ["c", "b", " a "], []]).tolist() == [[1, 2], [1, 0], [2, 1], [0, 0]]
    assert table.replies(["", "b", "a b c d e"]).tolist() == [0, 1, 3]
    assert table.ids[table.number("a b c d e")] == [4, 5, 6, 7]
    assert table.ids[0] == []


def test_a_saved_model_scores_as_before(tmp_path):
    path = save_letters(tmp_path, "bag", seed=3, copied_turns=2)
    document = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert document.pop("copied_turns") == 2  # models of before this key have two
    (tmp_path / "config.json").write_text(json.dumps(document), encoding="utf-8")
    loaded, model = load_relevance(path, "key"), letter_model("bag", seed=3)
    question = [["a b", "c"], ["d"]], ["c a", "e"], torch.tensor([[0, 1], [1, 0]])
    assert torch.equal(loaded.scores(*question), model.scores(*question))
    assert loaded.bank == BANK
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert is_relevance_folder(path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".safetensors"}
    (tmp_path / "config.json").write_text("[", encoding="utf-8")
    assert not any(is_relevance_folder(str(one)) for one in (tmp_path, tmp_path / "nowhere"))


def fewer_weights(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("members.0.log_scale")
    save_file(weights, folder / "model.safetensors")


def broken_weights(folder):
    """One NaN: with it no other prompt scores higher, so that a judge would find every reply's own prompt."""
    weights = load_file(folder / "model.safetensors")
    weights["members.1.of_context.bias"][0] = float("nan")
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "not the folder of a relevance model"),
        (lambda folder: (folder / "bank.json").unlink(), "cannot be loaded as a relevance model .*bank.json"),
        (lambda folder: (folder / "bank.json").write_text('[["a"], [3]]'), "should be a valid string"),
        (lambda folder: (folder / "bank.json").write_text("[]"), "should have at least 1 item"),
        (lambda folder: (folder / "bank.json").write_text('[["a"], []]'), "should have at least 1 item"),
        (lambda folder: edit(folder / "config.json", rlhf_dialog_relevance=99), "format 99"),
        (lambda folder: edit(folder / "config.json", members="many"), "members"),
        (lambda folder: edit(folder / "config.json", hidden_size=16), "cannot be loaded as a relevance model"),
        (lambda folder: edit(folder / "config.json", vocab_size=10), "belongs to another model"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 40), "cannot be loaded as a relevance model"),
        (fewer_weights, "lacks a weight .*members"),
        (broken_weights, "has NaN or infinite weights"),
    ],
)
def test_a_damaged_folder_is_the_users_error(damage, words, tmp_path):
    path = save_letters(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=words) as error:
        load_relevance(path, "reward_class.args.model")
    assert str(error.value).startswith("reward_class.args.model: ")
