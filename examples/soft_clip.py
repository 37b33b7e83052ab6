"""A policy loss of your own: SAPO (Gao et al. 2025, arXiv 2511.20347), which weighs a ratio far from 1 less and clips none.

python train_ppo.py --config quickstart.yaml --register examples/soft_clip.py --policy_loss soft_clip
"""

import torch
from torch import Tensor

from rlhf_dialog import LossFactory
from rlhf_dialog.training.ppo import LossInputs

RISING, FALLING = 1.0, 1.05  # temperatures of tokens that are to become more, and less, probable


@LossFactory.register("soft_clip", paper="Gao et al. 2025, arXiv 2511.20347")
def soft_clip(x: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, a scalar, and `ppo/ratio`, the mean ratio: sums over the tokens divided by `num_tokens`."""
    ratio = torch.exp(torch.where(x.mask, x.logprobs - x.old_logprobs, 0.0))
    advantages = torch.where(x.mask, x.advantages, 0.0)
    temperature = torch.where(advantages > 0, RISING, FALLING)
    gate = 4 / temperature * torch.sigmoid(temperature * (ratio - 1))
    loss = torch.where(x.mask, -gate * advantages * x.weights, 0.0).sum() / x.num_tokens
    return loss, {"ratio": torch.where(x.mask, ratio, 0.0).sum() / x.num_tokens}
