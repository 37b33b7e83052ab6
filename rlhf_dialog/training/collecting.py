"""How a rollout comes about on every rank: played, scored, checked, without the episodes that no score was found for."""

import time
from collections.abc import Callable

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import warn_about_cut
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.placement import Placement
from rlhf_dialog.distributed.world import World
from rlhf_dialog.environments.single_turn import SingleTurn
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.chat_agent import Speaker
from rlhf_dialog.models.loading import Models
from rlhf_dialog.rewards.scoring import Scorer, begin_scoring
from rlhf_dialog.training.checks import KEPT_CHECKPOINT, check_numbers
from rlhf_dialog.training.episodes import newest_turns
from rlhf_dialog.training.noise import Noise, check_type, differences, noise_of
from rlhf_dialog.training.rollout import Rollout, collect, without_unscored
from rlhf_dialog.training.simulated import Simulated


class Collector:
    """Collects rollouts with the policy as it is; `simulated`: the dialogues with environments, where the run has them.

    `noise` is what rounding does to log-probabilities, measured with the first rollout.
    """

    def __init__(
        self,
        config: Config,
        models: Models,
        speaker: Speaker,
        scorer: Scorer,
        placement: Placement,
        world: World,
        simulated: Simulated | None,
    ):
        self.config, self.models, self.speaker, self.scorer = config, models, speaker, scorer
        self.placement, self.world, self.simulated = placement, world, simulated
        self.group_size = config.num_responses_per_prompt if config.estimator.needs_groups else 1
        self.keep_features = config.kl_in == "loss"
        self.noise, self.is_measured = Noise(), False
        self.is_first = True

    def collect(self, prompts: list[Dialogue], iteration: int) -> Rollout:
        """A rollout with finite numbers; under `on_reward_error: skip` without the episodes that have no score.

        Raises RunStopped when no episode is left, or when a model's numbers are not finite; RewardError when the reward fails.
        """
        with self.world.fail_together():
            begin_scoring(self.scorer.reward, "rollout", iteration)

        def of_this_rank() -> Rollout:
            rollout = self.play(prompts)
            check_numbers(rollout, iteration)
            return without_unscored(rollout, self.group_size)

        rollout = self.on_every_rank(of_this_rank)
        if self.is_first:
            newest = [text for dialogue in rollout.dialogues for text in newest_turns(dialogue)]
            warn_about_cut(self.speaker.encoder, newest, self.world.gather)
            self.is_first = False
        left, dropped = self.world.sum_numbers([len(rollout), rollout.num_dropped])
        if not left:
            groups = " or their groups" if self.config.estimator.needs_groups else ""
            raise RunStopped(
                f"iteration {iteration}: all {dropped:.0f} episodes are dropped, because the reward "
                f"'{self.scorer.reward.name}' gave them{groups} no score; {KEPT_CHECKPOINT}"
            )
        return rollout

    def play(self, prompts: list[Dialogue]) -> Rollout:
        """This rank's episodes, played and scored."""
        if self.simulated:
            return self.simulated.collect(prompts, self.speaker, self.scorer, self.models, self.keep_features)
        environments = [SingleTurn(prompt) for prompt in prompts]
        return collect(environments, self.speaker, self.scorer, self.models, keep_features=self.keep_features)

    def on_every_rank(self, of_this_rank: Callable[[], Rollout]) -> Rollout:
        """This rank's part of a rollout; the first one measures the noise of the arithmetic.

        When one rank fails, all ranks raise. `time/wait` is how long this rank waited for the others.
        """
        num_bits = 16 if self.placement.reduced_precision else 32
        if not self.is_measured:
            check_type(self.models.ref_policy, num_bits)
        with self.world.fail_together(), self.placement.rollout():
            rollout = of_this_rank()
            rounding = (
                None if self.is_measured else differences(self.models.ref_policy, rollout, self.config.temperature)
            )
            collected = time.perf_counter()
        if rounding is not None:
            self.noise, self.is_measured = noise_of(rounding, self.world, self.config.temperature, num_bits), True
        if self.world.size > 1:
            rollout.seconds["wait"] = time.perf_counter() - collected
        return rollout
