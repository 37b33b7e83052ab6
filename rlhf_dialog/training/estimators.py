"""The functions that compute the advantage estimators; `config.estimators` says what each of them needs."""

from collections.abc import Callable

from torch import Tensor

from rlhf_dialog.training import ppo

AdvantageFunction = Callable[[Tensor, Tensor, Tensor, Tensor, ppo.Credit], tuple[Tensor, Tensor]]

ADVANTAGES: dict[str, AdvantageFunction] = {  # (paid, penalties, values, response_mask, credit) -> advantages, returns
    "gae": ppo.gae_advantages,
    "grpo": ppo.grpo_advantages,
    "rloo": ppo.rloo_advantages,
    "reinforce_pp": ppo.reinforce_pp_advantages,
}
