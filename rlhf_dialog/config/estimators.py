"""The advantage estimators: what each one needs.

A new estimator is one function in `training.ppo`, with the signature of the others, a line here, and one in
`training.trainer.ADVANTAGES`. The schema reads this table, so it must not import torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimator:
    """One way to turn token rewards into advantages."""

    name: str  # as in `advantage_estimator`
    needs_critic: bool  # values (B, T), and a value loss
    # at least two responses to each prompt, side by side; where one has no score, its group is dropped
    needs_groups: bool
    paper: str

    @property
    def num_responses_per_prompt(self) -> int:
        """The default of `num_responses_per_prompt`."""
        return 4 if self.needs_groups else 1


ESTIMATORS = {
    estimator.name: estimator
    for estimator in (
        Estimator("gae", True, False, "Schulman et al. 2015, arXiv 1506.02438"),
        Estimator("grpo", False, True, "Shao et al. 2024, arXiv 2402.03300"),
        Estimator("rloo", False, True, "Ahmadian et al. 2024, arXiv 2402.14740"),
        Estimator("reinforce_pp", False, False, "Hu et al. 2025, arXiv 2501.03262"),
    )
}


def names(needs: str) -> list[str]:
    """The estimators for which `needs` (`needs_critic`, `needs_groups`) holds, in the order of the table."""
    return [name for name, estimator in ESTIMATORS.items() if getattr(estimator, needs)]
