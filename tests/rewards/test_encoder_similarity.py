"""The cosine of a sentence encoder: by hand on each text alone, what is empty, and what cannot work."""

import json

import pytest
import torch
from transformers import BertConfig, BertModel

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.encoder_similarity import MODEL, EncoderSimilarity
from tests.parts.tiny import byte_tokenizer, gpt2

TURN = "Where is it ?"
REPLIES = ["Inside , please .", "It is here , behind the long wall .", TURN, "A", "Inside , please ."]
DIALOGUES = [Dialogue(["Hello .", TURN], response=reply) for reply in REPLIES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("models") / "encoder"
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(target)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=300, **sizes)).save_pretrained(target)
    return target


def by_hand(judge, text):
    """The mean of the last hidden states of one text alone."""
    ids = judge.tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return judge.encoder(input_ids=ids).last_hidden_state[0].mean(0)


def test_it_is_the_cosine_of_the_mean_states(folder):
    judge = EncoderSimilarity(str(folder))
    wanted = [torch.cosine_similarity(by_hand(judge, TURN), by_hand(judge, reply), dim=0).item() for reply in REPLIES]
    assert judge(DIALOGUES) == pytest.approx(wanted, abs=1e-5)
    assert judge(DIALOGUES * 40) == pytest.approx(wanted * 40, abs=1e-5)
    assert judge(DIALOGUES)[2] == pytest.approx(1, abs=1e-5)  # a copy is paid most: a judge, no reward
    assert max(wanted[0], wanted[1], wanted[3]) < 0.9999


def test_texts_of_the_last_call_are_not_read_again(folder, monkeypatch):
    judge = EncoderSimilarity(str(folder))
    first, read, vectors = judge(DIALOGUES), [], judge._vectors
    monkeypatch.setattr(judge, "_vectors", lambda texts: read.extend(texts) or vectors(texts))
    more = [*DIALOGUES, Dialogue(["Hello .", TURN], response="Over there .")]
    assert judge(more)[:-1] == first
    assert read == ["Over there ."]
    judge([Dialogue(["Good bye ."], response="Bye .")])
    assert set(judge.known) == {"Good bye .", "Bye ."}  # no more than one call is kept


def test_an_empty_text_is_near_to_nothing(folder):
    judge = EncoderSimilarity(str(folder))
    assert judge([Dialogue(["Hello ."], response=" "), Dialogue([" "], response="Hello .")]) == [0, 0]
    assert judge([]) == []


def test_a_long_text_is_cut(folder):
    judge = EncoderSimilarity(str(folder))
    texts = ["x " * 200, "x " * 2000]
    assert len({round(judge([Dialogue([TURN], response=text)])[0], 5) for text in texts}) == 1


def test_the_model_is_frozen_and_named(folder):
    judge = EncoderSimilarity(str(folder))
    assert not any(p.requires_grad for p in judge.frozen_models()[MODEL].parameters())
    assert EncoderSimilarity.model_paths({"model": "x"}) == {MODEL: "x"}
    assert EncoderSimilarity.model_paths({}) == {}


def test_a_model_that_cannot_work(folder, tmp_path):
    gpt2().save_pretrained(tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in settings.items() if name != "pad_token"}))
    with pytest.raises(UserError, match="has no padding token"):
        EncoderSimilarity(str(tmp_path))
