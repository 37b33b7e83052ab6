"""The advantage estimators: what each one needs, and which function of `ppo` computes it.

A new estimator is one function in `ppo`, with the signature of the others, and one line in the table.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimator:
    """One way to turn token rewards into advantages.

    >>> Estimator("rloo", needs_critic=False, needs_groups=True, advantages="rloo_advantages", paper="...")
    """

    name: str  # as in `advantage_estimator`
    needs_critic: bool  # values (B, T), and a value loss
    needs_groups: (
        bool  # at least two responses to each prompt, side by side; where one has no score, its group is dropped
    )
    advantages: str  # function of `ppo`: (rewards, values, response_mask, credit) -> advantages, returns, each (B, T)
    paper: str

    @property
    def num_responses_per_prompt(self) -> int:
        """The default of `num_responses_per_prompt`."""
        return 4 if self.needs_groups else 1


ESTIMATORS = {
    estimator.name: estimator
    for estimator in (
        Estimator("gae", True, False, "gae_advantages", "Schulman et al. 2015, arXiv 1506.02438"),
        Estimator("grpo", False, True, "grpo_advantages", "Shao et al. 2024, arXiv 2402.03300"),
        Estimator("rloo", False, True, "rloo_advantages", "Ahmadian et al. 2024, arXiv 2402.14740"),
        Estimator("reinforce_pp", False, False, "reinforce_pp_advantages", "Hu et al. 2025, arXiv 2501.03262"),
    )
}


def names(needs: str) -> list[str]:
    """The estimators for which `needs` (`needs_critic`, `needs_groups`) holds, in the order of the table."""
    return [name for name, estimator in ESTIMATORS.items() if getattr(estimator, needs)]
