"""Which responses each optimizer step uses on each rank, so that all ranks make the same steps. B episodes, T response tokens."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlhf_dialog.distributed.world import World
from rlhf_dialog.models.microbatches import Microbatch, microbatches
from rlhf_dialog.training.rollout import Rollout


def minibatch_sizes(num_responses: Sequence[int], num_minibatches: int) -> list[list[int]]:
    """The number of responses of each rank in each minibatch: one list per rank.

    The responses of all ranks are dealt out one by one, so that the sizes of the minibatches, and those of each rank's shares,
    differ by at most one response. For a single rank these are the sizes of `Tensor.tensor_split`.

    >>> minibatch_sizes([3, 2], 4)
    [[1, 1, 1, 0], [1, 0, 0, 1]]
    """
    sizes, dealt = [], 0
    for count in num_responses:
        own = [0] * num_minibatches
        for place in range(dealt, dealt + count):
            own[place % num_minibatches] += 1
        sizes.append(own)
        dealt += count
    return sizes


def shuffled(prompt_numbers: Tensor) -> Tensor:
    """All rows (B,), on the host, in a random order of the groups that have the same prompt; the rows of one stay in order."""
    number = prompt_numbers.unique(return_inverse=True)[1]
    place = torch.randperm(int(number.max()) + 1 if len(number) else 0).argsort()
    return place[number].argsort(stable=True)


def microbatches_of(rollout: Rollout, rows: Tensor, size: int, world: World) -> list[tuple[Rollout, Microbatch]]:
    """The microbatches of the rows, which are on the host, filled up with blank ones to the number of the rank with the most."""
    microbatches = [(rollout, own) for own in _microbatches(rollout, rows, size)]
    missing = max(world.gather(len(microbatches))) - len(microbatches)
    return microbatches + [blank_microbatch(rollout)] * missing if missing else microbatches


def _microbatches(rollout: Rollout, rows: Tensor, size: int) -> list[Microbatch]:
    if not len(rows):
        return []
    device, numbers = rollout.response_ids.device, rollout.prompt_numbers
    return list(microbatches(*rollout.masks_on_host, rows, size, device, numbers))


def blank_microbatch(rollout: Rollout) -> tuple[Rollout, Microbatch]:
    """A microbatch of one blank episode, which adds nothing to any loss or statistic."""
    episode, row = blank(rollout), torch.zeros(1, dtype=torch.long)
    episode.masks_on_host = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.bool)
    return episode, Microbatch(torch.zeros_like(row, device=rollout.response_ids.device), slice(0, 1), slice(0, 1), row)


def blank(rollout: Rollout) -> Rollout:
    """One episode with one prompt token and one masked response token: all its losses and gradients are 0."""
    zeros, ids = rollout.logprobs.new_zeros(1, 1), rollout.response_ids.new_zeros(1, 1)
    false, features = torch.zeros_like(ids, dtype=torch.bool), rollout.ref_features
    return replace(
        rollout,
        dialogues=[],
        prompt_ids=ids,
        prompt_mask=~false,
        prompt_numbers=torch.zeros(1, dtype=torch.long),
        response_ids=ids,
        response_mask=false,
        support=None if rollout.support is None else ids.unsqueeze(2),
        logprobs=zeros,
        values=zeros,
        ref_features=None if features is None else features.new_zeros(1, 1, *features.shape[2:]),
        advantages=zeros,
        targets=zeros,
    )
