"""From the batch numbers of a configuration to responses, minibatches and optimizer steps."""

import math
from dataclasses import dataclass

from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError

MOST_RESPONSES = 10**6  # an iteration, as of rollout_batch_size


@dataclass(frozen=True)
class BatchPlan:
    """How the numbers of the configuration become responses, minibatches and optimizer steps of one iteration.

    All counts are those of all processes together. `text` shows the arithmetic and a table of what each number means. `fits`:
    the numbers divide without a rest, so that every minibatch has the size that was asked for.
    """

    num_prompts: int
    num_responses: int
    num_minibatches: int
    num_optimizer_steps: int
    text: str
    fits: bool

    @property
    def line(self) -> str:
        """The responses and steps of an iteration in one line."""
        n, steps = self.num_responses // self.num_prompts, _count(self.num_optimizer_steps, "optimizer step")
        each = f" ({n} to each of {self.num_prompts} prompts)" if n > 1 else ""
        return f"{_count(self.num_responses, 'response')}{each} and {steps} an iteration"


def batch_plan(config: Config, world_size: int = 1) -> BatchPlan:
    """The arithmetic of DECISIONS: minibatches count responses, at most one minibatch per response.

    Raises UserError with the table and a number that fits when there are fewer prompts than processes, and when the default
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
    responses = prompts * n
    minibatches = min(config.num_mini_batch, responses)
    sizes = _shares(responses, minibatches)
    source = (
        f"rollout_batch_size {config.rollout_batch_size}"
        if config.rollout_batch_size
        else f"episode_length {config.episode_length} x env_num {config.env_num} tokens / max_new_tokens {config.max_new_tokens}"
    )
    steps = minibatches * config.ppo_epoch
    lines = [
        f"iteration: {responses} responses ({source}{f', {n} for each of {prompts} prompts' if n > 1 else ''})",
        f"{_count(config.num_mini_batch, 'minibatch')} asked, {_count(responses, 'response')}: {sizes}",
        f"{_count(config.ppo_epoch, 'epoch')} x {_count(minibatches, 'minibatch')} = {_count(steps, 'optimizer step')} an "
        "iteration",
    ]
    table = _batch_table(config, prompts, minibatches, world_size)
    if prompts < world_size:
        raise UserError(
            f"{prompts} prompts an iteration are too few for {world_size} processes:\n{table}\nset "
            f"rollout_batch_size: {world_size * n}, or start at most {prompts} processes"
        )
    fits = responses == num_asked and responses % config.num_mini_batch == 0
    return BatchPlan(prompts, responses, minibatches, steps, "\n".join([*lines, table]), fits)


def _batch_table(config: Config, prompts: int, minibatches: int, world_size: int) -> str:
    """One line for each of the numbers that people mix up."""
    n, micro = config.num_responses_per_prompt, config.microbatch_size
    least, most = prompts // world_size, math.ceil(prompts / world_size)
    each = f"{most} prompts each" if least == most else f"{least} or {most} prompts each"
    part = math.ceil(most * n / minibatches)
    rows = {
        "responses": f"{prompts * n} an iteration, {n} to each of {prompts} prompts (rollout_batch_size)",
        "tokens": f"at most {prompts * n * config.max_new_tokens} an iteration, {config.max_new_tokens} a response "
        "(max_new_tokens)",
        "world": "1 process" if world_size == 1 else f"{world_size} processes with {each}",
        "minibatch": f"{minibatches} an epoch: {_shares(prompts * n, minibatches)} responses; one optimizer step of all "
        "processes each (num_mini_batch)",
        "microbatch": f"at most {micro} responses in a forward pass (per_device_microbatch_size)",
        "accumulation": f"{_accumulation(part, micro, n)} of a process for a step",
    }
    return "\n".join(f"  {name:<14}{meaning}" for name, meaning in rows.items())


def _accumulation(part: int, micro: int, n: int) -> str:
    """How many microbatches `part` responses make; those to one prompt stay together, so that some are not full."""
    if n == 1 or micro < n:
        return f"at most {_count(math.ceil(part / micro), 'microbatch')}"
    return f"about {_count(math.ceil(math.ceil(part / n) / (micro // n)), 'microbatch')}"


def _count(number: int, name: str) -> str:
    """`1 epoch`, `2 minibatches`."""
    ending = "" if number == 1 else "es" if name.endswith("batch") else "s"
    return f"{number} {name}{ending}"


def _shares(total: int, parts: int) -> str:
    """`2 of 4 and 1 of 3`: how 11 are divided into 3 parts."""
    small, extra = divmod(total, parts)
    return f"{parts} of {small}" if not extra else f"{extra} of {small + 1} and {parts - extra} of {small}"
