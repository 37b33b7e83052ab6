"""How large a language model is: the tokens that it knows, chooses among and sees."""

from typing import Any

from transformers import PreTrainedModel

from rlhf_dialog.models import network


def num_embeddings(lm: PreTrainedModel) -> int:
    """The number of rows of the input embedding, or of logits of a user's network; token ids must be smaller."""
    if isinstance(lm, network.NetworkLM):
        return int(lm.config.vocab_size)
    embedding: Any = lm.get_input_embeddings()
    return int(embedding.weight.shape[0])


def num_logits(lm: PreTrainedModel) -> int:
    """The number of tokens among which the model chooses."""
    return num_embeddings(lm) if network.spec_of(lm) else int(lm.get_output_embeddings().out_features)


def num_positions(lm: PreTrainedModel) -> int | None:
    """How many tokens of a row the model can see, None where its configuration sets no limit."""
    sizes = lm.config.get_text_config()
    return getattr(sizes, "max_position_embeddings", None) or getattr(sizes, "n_positions", None)
