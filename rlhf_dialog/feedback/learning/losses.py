"""KTO and DPO on log-ratios to the fixed first version, as TRL computes them; and the likelihood of replies of the SFT data.

B answers or pairs. A log-ratio is log pi(answer | prompt) - log pi_first(answer | prompt), summed over the answer's tokens.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def kto_losses(
    log_ratios: Tensor, liked: Tensor, baseline: Tensor, beta: float, desirable_weight: float, undesirable_weight: float
) -> Tensor:
    """The loss of each answer (B,): equation 7 of Ethayarajh et al. 2024, arXiv 2402.01306, less the constant.

    `log_ratios` (B,); `liked` (B,), bool; `baseline`: a scalar, z_ref, through which no gradient flows. A liked answer costs
    1 - sigmoid(beta (r - z)), a disliked one 1 - sigmoid(beta (z - r)), each times its weight.
    """
    signs = torch.where(liked, 1.0, -1.0).to(log_ratios.dtype)
    weights = torch.where(liked, desirable_weight, undesirable_weight).to(log_ratios.dtype)
    return weights * (1 - torch.sigmoid(beta * signs * (log_ratios - baseline.detach())))


def kl_baseline(mismatched_log_ratios: Tensor) -> Tensor:
    """z_ref, a scalar: the mean log-ratio (B,) of answers to the prompts of others, at least 0."""
    return mismatched_log_ratios.detach().mean().clamp(min=0)


def dpo_losses(chosen_log_ratios: Tensor, rejected_log_ratios: Tensor, beta: float) -> Tensor:
    """The loss of each pair (B,): equation 7 of Rafailov et al. 2023, arXiv 2305.18290, -log sigmoid(beta (r_c - r_r))."""
    return -logsigmoid(beta * (chosen_log_ratios - rejected_log_ratios))


def balance_weights(
    liked: float, disliked: float, desirable: float | None, undesirable: float | None
) -> tuple[float, float]:
    """KTO's weights of liked and disliked answers, which together weigh `liked` and `disliked` by their people's weights.

    One that is None lets both kinds weigh the same in sum, within 1/4 and 4.

    (Equation 8 of arXiv 2402.01306 asks for a ratio of these sums of 1 to 4/3.) Of two, the mean weight of an answer is 1.
    """
    total = liked + disliked
    if desirable is None and undesirable is None:
        both = liked and disliked
        return (_bound_ratio(total, 2 * liked), _bound_ratio(total, 2 * disliked)) if both else (1.0, 1.0)
    if desirable is None:
        assert undesirable is not None
        return undesirable * _bound_ratio(disliked, liked), undesirable
    if undesirable is None:
        return desirable, desirable * _bound_ratio(liked, disliked)
    return desirable, undesirable


def _bound_ratio(top: float, bottom: float) -> float:
    """The ratio, within 1/4 and 4; 1 where one of the numbers is 0."""
    return min(4.0, max(0.25, top / bottom)) if top and bottom else 1.0
