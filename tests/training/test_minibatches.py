"""Which responses each optimizer step sees on each rank, and the blank ones that fill up."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.training.update import blank_microbatch, minibatch_sizes, shuffle_groups
from tests.parts.trainers import make_trainer


def shuffled(groups):
    return shuffle_groups(SimpleNamespace(prompt_groups=groups))


class Beside(World):
    """The other rank has this many microbatches."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def gather(self, x):
        return [x, self.count]


def test_the_responses_to_a_prompt_stay_together():
    """Groups of 3, 3, 1 and 3 responses, one of which a rank has dropped: numbers need not follow each other."""
    numbers = torch.tensor([5, 5, 5, 9, 9, 9, 0, 2, 2, 2])
    torch.manual_seed(2)
    orders = {tuple(shuffled(numbers).tolist()) for _ in range(200)}
    groups = [(0, 1, 2), (3, 4, 5), (6,), (7, 8, 9)]
    assert orders == {sum(some, ()) for some in itertools.permutations(groups)}
    assert shuffled(numbers[:0]).tolist() == []


def test_without_groups_the_order_is_a_plain_permutation():
    torch.manual_seed(4)
    expected = torch.randperm(9)
    torch.manual_seed(4)
    assert torch.equal(shuffled(torch.arange(9)), expected)


@pytest.mark.parametrize(
    ("counts", "minibatches"), [([16, 16], 20), ([3, 2], 4), ([7], 3), ([0, 5], 2), ([4, 4, 4], 1), ([1, 0, 9], 10)]
)
def test_minibatch_sizes(counts, minibatches):
    sizes = minibatch_sizes(counts, minibatches)
    assert [sum(own) for own in sizes] == counts
    together = [sum(own[i] for own in sizes) for i in range(minibatches)]
    for some in (*sizes, together):
        assert max(some) - min(some) <= 1
    if len(counts) == 1:
        assert sizes[0] == [len(part) for part in torch.arange(counts[0]).tensor_split(minibatches)]


def test_a_blank_microbatch_fills_up_to_the_rank_with_the_most_rows():
    trainer = make_trainer(top_k=5)
    trainer.step()
    rollout = trainer.rollout
    rows, nothing = torch.tensor([0, 3, 4]), torch.tensor([], dtype=torch.long)
    parts = split(trainer, rollout, rows, Beside(4))
    assert [len(part.tokens) for part in parts] == [2, 1, 1, 1]
    assert [part.rollout is rollout for part in parts] == [True, True, False, False]
    assert len(split(trainer, rollout, rows, Beside(2))) == len(split(trainer, rollout, rows, World())) == 2
    assert [len(part.tokens) for part in split(trainer, rollout, nothing, Beside(1))] == [1]
    losses, statistics = trainer.update.losses(parts[-1], num_tokens=torch.tensor(9), is_first=True)
    losses["policy"].backward()
    gradients = [p.grad for p in trainer.models.policy.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)
    assert {value.item() for value in statistics.values()} == {0.0}
    assert blank_microbatch(rollout).tokens.support.shape == (1, 1, 1)


def split(trainer, rollout, rows, world):
    """The microbatches of two rows at most beside the other rank."""
    trainer.update.world = world
    microbatches, _ = trainer.update.add_gradient(rollout, rows, torch.tensor(9), is_first=False, size=2)
    for engine in trainer.engines.values():
        engine.zero_grad()
    return microbatches


def test_a_rank_without_any_episode_has_blank_microbatches_under_kl_in_loss():
    """All of its episodes were dropped, so there is no reference's feature to take the shape from."""
    trainer = make_trainer(kl_in="loss")
    trainer.step()
    (part,) = split(trainer, trainer.rollout.select([]), torch.tensor([], dtype=torch.long), Beside(1))
    losses, statistics = trainer.update.losses(part, num_tokens=torch.tensor(9), is_first=True)
    assert losses["policy"].item() == statistics["ppo/kl_loss"].item() == 0.0
