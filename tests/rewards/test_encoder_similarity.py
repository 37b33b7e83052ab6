"""The cosine of a sentence encoder: by hand on each text alone, what is empty, and what cannot work."""

import pytest
import torch
from transformers import BertConfig, BertModel

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.encoder_similarity import MODEL, EncoderSimilarity
from tests.parts.poisoned import edit
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


@pytest.fixture
def judge(folder):
    return EncoderSimilarity(str(folder))


def test_it_is_the_cosine_of_the_mean_states_and_0_without_a_text(judge):
    wanted = [torch.cosine_similarity(by_hand(judge, TURN), by_hand(judge, reply), dim=0).item() for reply in REPLIES]
    assert judge(DIALOGUES) == pytest.approx(wanted, abs=1e-5)
    assert judge(DIALOGUES * 40) == pytest.approx(wanted * 40, abs=1e-5)
    assert max(wanted[0], wanted[1], wanted[3]) < 0.9999 < wanted[2]
    assert judge([Dialogue(["Hello ."], response=" "), Dialogue([" "], response="Hello .")]) == [0, 0]
    assert judge([]) == []
    first, second = (judge([Dialogue([TURN], response="x " * length)])[0] for length in (200, 2000))
    assert first == pytest.approx(second, abs=1e-5)  # a long text is cut


def test_texts_of_the_last_call_are_not_read_again(judge, monkeypatch):
    first, read, vectors = judge(DIALOGUES), [], judge._vectors
    monkeypatch.setattr(judge, "_vectors", lambda texts: read.extend(texts) or vectors(texts))
    assert judge([*DIALOGUES, Dialogue(["Hello .", TURN], response="Over there .")])[:-1] == first
    assert read == ["Over there ."]
    judge([Dialogue(["Good bye ."], response="Bye .")])
    assert set(judge.known) == {"Good bye .", "Bye ."}  # no more than one call is kept


def test_the_model_is_frozen_named_and_has_a_padding_token(judge, tmp_path):
    assert not any(p.requires_grad for p in judge.frozen_models()[MODEL].parameters())
    assert EncoderSimilarity.model_paths({"model": "x"}) == {MODEL: "x"}
    assert EncoderSimilarity.model_paths({}) == {}
    gpt2().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    edit(tmp_path / "tokenizer_config.json", pad_token=None)
    with pytest.raises(UserError, match="has no padding token"):
        EncoderSimilarity(str(tmp_path))
