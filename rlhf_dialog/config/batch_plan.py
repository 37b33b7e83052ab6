"""From the batch numbers of a configuration to responses, minibatches and optimizer steps."""

import math
from dataclasses import dataclass

from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError

MOST_RESPONSES = 10**6  # an iteration, as of rollout_batch_size


@dataclass(frozen=True)
class BatchPlan:
    """How the numbers of the configuration become one iteration. All counts are those of all processes together."""

    num_prompts: int
    num_responses: int
    num_minibatches: int
    num_optimizer_steps: int
    notice: str  # how the minibatches differ from what was asked for; empty if they do not

    @property
    def line(self) -> str:
        """The responses and steps of an iteration in one line."""
        n, steps = self.num_responses // self.num_prompts, _count(self.num_optimizer_steps, "optimizer step")
        each = f" ({n} to each of {self.num_prompts} prompts)" if n > 1 else ""
        return f"{_count(self.num_responses, 'response')}{each} and {steps} an iteration"


def batch_plan(config: Config, world_size: int = 1) -> BatchPlan:
    """Minibatches count responses, at most one minibatch per response.

    Raises UserError with a number that fits when there are fewer prompts than processes, and when the default
    of rollout_batch_size is above MOST_RESPONSES.
    """
    n = config.num_responses_per_prompt
    num_asked = config.rollout_batch_size or math.ceil(config.episode_length * config.env_num / config.max_new_tokens)
    if num_asked > MOST_RESPONSES:
        raise UserError(
            f"episode_length {config.episode_length} x env_num {config.env_num} tokens / max_new_tokens "
            f"{config.max_new_tokens} are {num_asked} responses an iteration, but at most {MOST_RESPONSES} are possible; set "
            "rollout_batch_size"
        )
    prompts = math.ceil(num_asked / n)
    if prompts < world_size:
        raise UserError(
            f"{prompts} prompts an iteration are too few for {world_size} processes; set rollout_batch_size: "
            f"{world_size * n}, or start at most {prompts} processes"
        )
    responses = prompts * n
    minibatches = min(config.num_mini_batch, responses)
    notice = ""
    if responses != num_asked or responses % config.num_mini_batch:
        small, extra = divmod(responses, minibatches)
        sizes = f"{extra} of {small + 1} and {minibatches - extra} of {small}" if extra else f"{minibatches} of {small}"
        notice = f"{_count(config.num_mini_batch, 'minibatch')} asked, {_count(responses, 'response')}: {sizes}"
    return BatchPlan(prompts, responses, minibatches, minibatches * config.ppo_epoch, notice)


def _count(number: int, name: str) -> str:
    """`1 epoch`, `2 minibatches`."""
    ending = "" if number == 1 else "es" if name.endswith("batch") else "s"
    return f"{number} {name}{ending}"
