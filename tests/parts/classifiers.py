"""A classifier of acts on words of one letter."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

PAD, UNK, CLS, SEP = range(4)
LETTERS = "abcdefghijklmnopqrst"


def word_tokenizer(**options):
    """One token a letter: a is 4, b is 5 ..; [CLS] x [SEP] or [CLS] x [SEP] y [SEP]."""
    vocab = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{**names, **inputs, **options})


def save_classifier(folder, tokenizer=None, **config):
    """A random BERT whose weights are large enough that it gives different classes to different texts."""
    sizes = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    rest = {"num_attention_heads": 2, "max_position_embeddings": 24, "num_labels": 4, "initializer_range": 0.6}
    torch.manual_seed(1)
    BertForSequenceClassification(BertConfig(**{**sizes, **rest, **config})).save_pretrained(folder)
    (tokenizer or word_tokenizer()).save_pretrained(folder)
    return str(folder)


def letters(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return " ".join(LETTERS[i] for i in torch.randint(len(LETTERS), (count,), generator=generator).tolist())


@pytest.fixture(scope="module")
def pair_folder(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("classifier") / "pair", rlhf_dialog_input="pair")
