"""The trunk of a language model: the part that returns hidden states, which a value head reads."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel


def trunk_of(lm: Any) -> Any:
    """The base model; where the library has the model itself for that, the part of it that holds the input embedding."""
    if lm.base_model is not lm:
        return lm.base_model
    parts = [part for part in lm.children() if isinstance(part, PreTrainedModel)]
    embedding: nn.Module | None = lm.get_input_embeddings()
    return next((part for part in parts if any(x is embedding for x in part.modules())), lm)
