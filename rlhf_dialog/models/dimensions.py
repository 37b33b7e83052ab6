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
