"""New tokenizers and models for a training from nothing."""

import subprocess
import sys

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.new_tokenizers import new_bert, new_gpt2, new_pair_tokenizer, new_tokenizer

DIALOGUES = [Dialogue(["Hi ."], reference=text) for text in ("The ladder is blue .", "The ladder is here .") * 4]


def test_a_separator_of_ones_own_is_one_token_that_takes_the_space_before_it():
    tokenizer = new_tokenizer(DIALOGUES, 300, "<turn>", 64)
    separator = tokenizer.convert_tokens_to_ids("<turn>")
    assert tokenizer(" <turn>")["input_ids"] == tokenizer("<turn>")["input_ids"] == [separator]
    assert len({separator, tokenizer.pad_token_id, tokenizer.eos_token_id}) == 3
    assert (len(tokenizer) <= 300, tokenizer.model_max_length) == (True, 64)
    assert len(tokenizer(" ladder")["input_ids"]) < len(" ladder")  # it learned from the replies
    assert tokenizer.decode(tokenizer("Grüße 🙂")["input_ids"]) == "Grüße 🙂"  # and any byte is a token


def test_a_gpt2_has_the_vocabulary_of_its_tokenizer():
    tokenizer = new_tokenizer(DIALOGUES, 300, "<EOU>", 64)
    lm = new_gpt2(tokenizer, n_layer=1, n_head=2, n_embd=8, n_positions=64, dropout=0.0)
    assert lm.get_input_embeddings().num_embeddings == len(tokenizer)
    assert (lm.config.eos_token_id, lm.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    with pytest.raises(UserError, match="n_embd: 9 is not a multiple of n_head 2"):
        new_gpt2(tokenizer, 1, 2, 9, 64, 0.0)


def test_a_pair_is_joined_in_lower_case_with_types():
    tokenizer = new_pair_tokenizer(["where is the ladder", "the ladder is here"], 60, 32)
    found = tokenizer("Where", "HERE")
    words = tokenizer.convert_ids_to_tokens(found["input_ids"])
    assert "".join(word.removeprefix("##") for word in words) == "[CLS]where[SEP]here[SEP]"
    second = words.index("[SEP]") + 1
    assert found["token_type_ids"] == [0] * second + [1] * (len(words) - second)
    bert = new_bert(tokenizer, 1, 2, 8, 32, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    assert (bert.config.vocab_size, bert.num_labels) == (len(tokenizer), 2)
    with pytest.raises(UserError, match="hidden_size: 9 is not a multiple of num_heads 2"):
        new_bert(tokenizer, 1, 2, 9, 32)


@pytest.mark.slow
def test_every_process_learns_the_same_vocabulary():
    """tokenizers alone numbers `##a`, and breaks ties, in the order of a hash that differs from process to process."""
    texts = [f"{a}{b}{c} {c}{a}b{b}" for a in "abcdefgh" for b in "mnopqrst" for c in "uvwxyz"]
    program = f"""
from rlhf_dialog.training.supervised.new_tokenizers import new_pair_tokenizer
print(sorted(new_pair_tokenizer({texts}, 150, 32).get_vocab().items()))
"""
    ours = sorted(new_pair_tokenizer(texts, 150, 32).get_vocab().items())
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == f"{ours}\n"
    assert "##a" in dict(ours)


def test_a_continuing_character_in_a_text_is_not_a_special_token():
    tokenizer = new_pair_tokenizer(["where is the ladder", "# # no . 5"], 60, 32)
    assert set(tokenizer.all_special_tokens) == {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}
    assert tokenizer.tokenize("##a") == ["#", "#", "a"]
