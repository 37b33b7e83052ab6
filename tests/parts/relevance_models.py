"""Small relevance models on letters."""

import torch

from rlhf_dialog.models.relevance import RelevanceModel, RelevanceSizes, save_relevance
from tests.parts.classifiers import LETTERS, word_tokenizer  # noqa: F401  LETTERS: of these models too

BANK = [["a b", "c d"], ["e f"], ["g", "h i", "j"], ["k l m"], ["a", "n o"], ["p q"], ["r s t", "b"]]


def letter_model(architecture="bag", seed=0, **sizes):
    """Random networks that score different texts differently."""
    torch.manual_seed(seed)
    small = {"members": 2, "context_size": 3, "hidden_size": 8, "vocab_size": 24}
    sizes = RelevanceSizes(architecture=architecture, **{**small, **sizes})
    model = RelevanceModel(sizes, word_tokenizer(), BANK)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model.eval()


def save_letters(folder, *args, **options):
    folder.mkdir(parents=True, exist_ok=True)
    save_relevance(letter_model(*args, **options), folder)
    return str(folder)
