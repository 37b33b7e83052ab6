"""Tokenizers learned from the training data, and models with random weights that fit them."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlhf_dialog.data.dialogue import Dialogue, render_reply
from rlhf_dialog.errors import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def new_tokenizer(
    dialogues: Sequence[Dialogue], vocab_size: int, separator: str, max_length: int, with_prompts: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE of the replies in `dialogues`, with <pad>, <eos> and `separator` as one special token each.

    `with_prompts`: the last turns of the prompts are learned from, too. The separator takes the space before it, so that
    `" <EOU>"` and `"<EOU>"` are the same token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<eos>", AddedToken(separator, lstrip=True, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    replies = (dialogue.reference or "" for dialogue in dialogues)
    texts = chain(replies, (dialogue.prompt_turns[-1] for dialogue in dialogues) if with_prompts else ())
    tokenizer.train_from_iterator(map(render_reply, texts), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", model_max_length=max_length
    )


def new_causal_lm(
    architecture: str,
    tokenizer: PreTrainedTokenizerBase,
    n_layer: int,
    n_head: int,
    n_embd: int,
    n_positions: int,
    dropout: float,
) -> transformers.PreTrainedModel:
    """A GPT-2, or a Llama (tied embeddings, dropout in the attention alone), with random weights and the tokenizer's vocabulary.

    Raises UserError when `n_embd` is not a multiple of `n_head`, or for a Llama of twice `n_head`: rotary positions turn pairs
    of numbers.
    """
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    if architecture == "llama":
        if n_embd % (2 * n_head):
            raise UserError(f"n_embd: {n_embd} is not a multiple of twice n_head {n_head}")
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                num_hidden_layers=n_layer,
                num_attention_heads=n_head,
                num_key_value_heads=n_head,
                hidden_size=n_embd,
                intermediate_size=8 * n_embd // 3,  # the size of GPT-2's two matrices in three
                max_position_embeddings=n_positions,
                vocab_size=len(tokenizer),
                attention_dropout=dropout,
                tie_word_embeddings=True,
                **ends,
            )
        )
    if n_embd % n_head:
        raise UserError(f"n_embd: {n_embd} is not a multiple of n_head {n_head}")
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=n_layer,
            n_head=n_head,
            n_embd=n_embd,
            n_positions=n_positions,
            vocab_size=len(tokenizer),
            activation_function="gelu_pytorch_tanh",  # GPT-2's own function in one kernel
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            **ends,
        )
    )


def new_pair_tokenizer(texts: list[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """A lower-case WordPiece that joins two turns as `[CLS] last_turn [SEP] response [SEP]`, types 0 and 1.

    The same texts give the same vocabulary in every process: the trainer would number the continuing characters (`##a`) in the
    order of a random hash, and break ties between equally frequent pairs by those numbers, so they are given to it, sorted.
    """
    tokenizer = _lower_case_words(models.WordPiece(unk_token="[UNK]"))
    normalize, split = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str
    characters = sorted({character for text in texts for word, _ in split(normalize(text)) for character in word})
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL, *(f"##{character}" for character in characters)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer = _lower_case_words(tokenizer.model)  # without the characters as special tokens
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def _lower_case_words(model: models.WordPiece) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def new_bert(
    tokenizer: PreTrainedTokenizerBase,
    num_layers: int,
    num_heads: int,
    hidden_size: int,
    max_length: int,
    **labels: Any,
) -> transformers.BertForSequenceClassification:
    """A BERT classifier with random weights; `labels` are `id2label` and `label2id`.

    Raises UserError when `hidden_size` is not a multiple of `num_heads`.
    """
    if hidden_size % num_heads:
        raise UserError(f"hidden_size: {hidden_size} is not a multiple of num_heads {num_heads}")
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            intermediate_size=4 * hidden_size,
            max_position_embeddings=max_length,
            pad_token_id=tokenizer.pad_token_id,
            **labels,
        )
    )
