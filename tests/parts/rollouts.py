"""Models with strong opinions and prompts for a rollout, and its numbers one token at a time."""

import torch
from torch import nn

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompt_ids import PromptEncoder
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.policy import Critic, Policy
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.training.rollout import Collected, Rollout
from tests.parts.tiny import byte_tokenizer, gpt2

PAD, EOS, EOU = 256, 257, 258
PROMPTS = [
    Dialogue(["Where is the ladder ?"], reference="Here .", act=1, meta={"index": 0}),
    Dialogue(["Hi .", "Who is there ?"], reference="Ada .", act=1, meta={"index": 1}),
    Dialogue(["Go !"], reference="No .", act=4, meta={"index": 2}),
]


class Recording(BaseReward):
    """Remembers the dialogues and scores them 10, 20, 30 ..."""

    name = "recording"

    def __call__(self, dialogues):
        self.seen = dialogues
        return [10.0 * (i + 1) for i in range(len(dialogues))]


def world(ref_seed=0, value_head=True, critic=False):
    """Policy, reference and critic with strong opinions, and an encoder."""
    lm = gpt2(initializer_range=0.3).eval()
    policy = Policy(lm, with_value_head=value_head).eval()
    ref_policy = Policy(gpt2(ref_seed, initializer_range=0.3)).eval().requires_grad_(False)
    apart = Critic(gpt2(7, initializer_range=0.3)).eval() if critic else None
    for module in (policy, apart):
        if module is not None and module.value_head is not None:
            nn.init.normal_(module.value_head.weight)
    tokenizer = byte_tokenizer()
    return Models(policy, apart, ref_policy, tokenizer), PromptEncoder(tokenizer, "<EOU>", 64)


def with_credit(collected: Collected, **columns: torch.Tensor) -> Rollout:
    """The rollout with this credit; 0 in the columns that are left out, and loss weights of 1."""
    zeros = torch.zeros_like(collected.logprobs)
    credit = dict.fromkeys(("rewards", "advantages", "returns", "targets"), zeros) | {"loss_weights": zeros + 1}
    return Rollout(**vars(collected), **(credit | columns))


def ids_of(text):
    return byte_tokenizer(separator_token=False)(text)["input_ids"]


def slow(models, rollout, temperature, model, b, t):
    """Log-probs (V,) of token t of episode b, from one unpadded sequence."""
    tokens = rollout.tokens
    prompt = tokens.prompt_ids[b][tokens.prompt_mask[b]]
    sequence = torch.cat([prompt, tokens.response_ids[b, :t]]).unsqueeze(0)
    return (model.lm(sequence).logits[0, -1] / temperature).log_softmax(0)
