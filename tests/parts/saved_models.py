"""Models in folders, and two episodes to feed them."""

import torch

from tests.parts.tiny import byte_tokenizer

CPU = torch.device("cpu")
PROMPT, MASK = torch.tensor([[256, 5, 6, 7], [8, 9, 10, 11]]), torch.tensor([[False, True, True, True], [True] * 4])
RESPONSE = torch.tensor([[20, 21, 22], [23, 24, 257]])
EPISODES = (PROMPT, MASK, RESPONSE, torch.ones_like(RESPONSE, dtype=torch.bool))


def save(folder, lm):
    lm.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)
