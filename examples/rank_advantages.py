"""An advantage estimator of your own: a response counts by its rank among those to the same prompt, not by its reward.

python train_ppo.py --config quickstart.yaml --register examples/rank_advantages.py --advantage_estimator ranks
"""

import torch
from torch import Tensor

from rlhf_dialog import AdvantageFactory
from rlhf_dialog.training.ppo import Credit


@AdvantageFactory.register("ranks", needs_groups=True)
def rank_advantages(
    rewards: Tensor, penalties: Tensor, values: Tensor, response_mask: Tensor, credit: Credit
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, each (B, T): 1 on the tokens of the best response of a group, -1 on those of the worst.

    `rewards` and the KL `penalties` (B, T) are those of each token. The responses to one prompt are neighbours.
    """
    n = credit.num_responses_per_prompt
    totals = torch.where(response_mask, rewards + penalties, 0.0).sum(dim=1).view(-1, n)
    ranks = torch.sign(totals.unsqueeze(2) - totals.unsqueeze(1)).sum(dim=2) / (n - 1)
    advantages = torch.where(response_mask, ranks.view(-1, 1), 0.0)
    return advantages, advantages
