"""Feudal dialogue management (Casanueva et al., 1803.03232): a master leaves each turn to one of two workers.

N rows, D features of an observation, A actions, S slots, F features of a slot, G of a dialogue.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import Domain
from rlhf_dialog.task_oriented.policies.arguments import STRICT, Sizes
from rlhf_dialog.task_oriented.policies.base import PolicyFactory, PolicySpec
from rlhf_dialog.task_oriented.policies.dqn import DQN, DQNArguments, best
from rlhf_dialog.task_oriented.policies.network import mlp
from rlhf_dialog.task_oriented.world.summary import NUM_COUNTS, OF_SLOTS, Layout, accepted_above, action_names

NUM_TOP, EMPTY = 3, -1  # EMPTY: the column that is always 0


class SlotFeatures(nn.Module):
    """An observation without the names of slots and values: (N, D) -> of each slot (N, S, F), and of the dialogue (N, G).

    Of a slot: its largest probabilities, `none`, `dontcare`, entropy, whether a value is accepted, whether it is requested, and
    how large it is. Of the dialogue: method, discourse act, venue offered, nothing found, counts of the entities that fit all
    that is accepted, sum and largest of what is requested, and mean, largest and smallest of each feature of the slots.
    """

    num_of_slot = NUM_TOP + 6

    def __init__(self, domain: Domain):
        super().__init__()
        layout, requested = Layout(domain), list(domain.requestable)
        parts = [range(part.start, part.stop) for part in layout.slots.values()]
        width = max(NUM_TOP, *map(len, parts))
        self.values = torch.tensor([[*part[:-1], *[EMPTY] * (width - len(part) + 1)] for part in parts])
        self.dontcare, self.none = torch.tensor([part[-2:] for part in map(list, parts)]).T
        start = layout.requested.start
        self.asked = torch.tensor([start + requested.index(s) if s in requested else EMPTY for s in layout.slots])
        self.requested = layout.requested
        counts = range(layout.counts.stop - NUM_COUNTS, layout.counts.stop)
        ends = [layout.offer_happened, layout.nothing_found, *counts]
        self.alone = torch.tensor([*range(layout.method.start, layout.discourse_act.stop), *ends])
        self.logs = torch.tensor([math.log(len(part)) for part in parts])
        self.least = torch.tensor([accepted_above(len(values)) for values in domain.constraints.values()])
        self.num_of_dialogue = len(self.alone) + 2 + 3 * self.num_of_slot

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        x = functional.pad(observations, (0, 1))
        values, none = x[:, self.values], x[:, self.none]
        top = values.topk(NUM_TOP, dim=2).values
        entropy = -(values.xlogy(values).sum(dim=2) + none.xlogy(none)) / self.logs
        accepted = (top[:, :, 0] > self.least) & (top[:, :, 0] >= none)
        size = (self.logs / 5).expand_as(none)
        more = [none, x[:, self.dontcare], entropy, accepted.float(), x[:, self.asked], size]
        slots = torch.cat([top, torch.stack(more, dim=2)], dim=2)
        asked = x[:, self.requested]
        of_asked = torch.stack([asked.sum(dim=1), asked.amax(dim=1)], dim=1)
        of_slots = [slots.mean(dim=1), slots.amax(dim=1), slots.amin(dim=1)]
        return slots, torch.cat([x[:, self.alone], of_asked, *of_slots], dim=1)


class FeudalNetwork(nn.Module):
    """Three Q-functions: (N, D) -> (N, A + 2), of all actions, then of an act about a slot and of another act.

    The weights do not depend on the number of slots, nor on their sizes.
    """

    def __init__(self, domain: Domain, hidden_sizes: Sequence[int], generator: torch.Generator):
        super().__init__()
        self.features = SlotFeatures(domain)
        of_slot, of_dialogue = self.features.num_of_slot, self.features.num_of_dialogue
        num_give = len(action_names(domain)) - len(OF_SLOTS) * len(domain.constraints)
        self.master = mlp([of_dialogue, *hidden_sizes, 2], generator, 0.1, nn.ReLU)
        self.give = mlp([of_dialogue, *hidden_sizes, num_give], generator, 0.1, nn.ReLU)
        self.request = mlp([of_slot + of_dialogue, *hidden_sizes, len(OF_SLOTS)], generator, 0.1, nn.ReLU)

    def forward(self, observations: Tensor) -> Tensor:
        slots, dialogue = self.features(observations)
        beside = dialogue[:, None].expand(-1, slots.shape[1], -1)
        request = self.request(torch.cat([slots, beside], dim=2)).flatten(1)
        return torch.cat([request, self.give(dialogue), self.master(dialogue)], dim=1)


@dataclass(frozen=True, config=STRICT)
class FeudalArguments(DQNArguments):
    """hidden_sizes: of the master and of each worker"""

    hidden_sizes: Sizes = (130, 50)


@PolicyFactory.register("feudal")
class Feudal(DQN):
    """A master values `request` (an act about a slot) and `give` (the others); the worker that it prefers chooses the action.

    The worker of `request` has the same weights for each slot. All three learn from the same rewards, by double Q-learning.
    Raises UserError without a single domain, or where observations and actions are not those of the domain.
    """

    arguments = FeudalArguments

    def __init__(self, setting: PolicySpec, **args: Any):
        domain, problem = setting.domain, "policy feudal: it needs the observations and actions of one domain, found"
        if not isinstance(domain, Domain):
            raise UserError(f"{problem} {'none' if domain is None else 'several'}; choose another policy")
        names = action_names(domain)
        if (Layout(domain).size, len(names)) != (setting.num_features, setting.num_actions):
            raise UserError(f"{problem} others; choose another policy")
        self.domain, self.gives = domain, torch.arange(len(names)) >= len(OF_SLOTS) * len(domain.constraints)
        super().__init__(setting, **args)

    @torch.no_grad()
    def targets(self, turns: dict[str, Tensor]) -> Tensor:
        """(N,): reward, and after a turn that is not the last, the slow master's value of the worker that this one prefers."""
        after = turns["next_observations"]
        worker = self._worker(self.learner.policy(after), turns["next_masks"])
        values = self.learner.slow(after)[:, -2:].gather(1, worker[:, None])[:, 0]
        return turns["rewards"] + self.args.gamma * values.masked_fill(turns["ended"], 0.0)

    def _network(self, sizes: Sequence[int], generator: torch.Generator) -> nn.Module:
        return FeudalNetwork(self.domain, sizes[1:-1], generator)

    def _worker(self, values: Tensor, masks: Tensor) -> Tensor:
        """(N,): 0 `request`, 1 `give`, among those that have an allowed action."""
        return best(values[:, -2:], torch.stack([(masks & x).any(dim=1) for x in (~self.gives, self.gives)], dim=1))

    def _best(self, values: Tensor, masks: Tensor) -> Tensor:
        """The actions (N,) of the workers that the master prefers."""
        gives = self._worker(values, masks)[:, None].bool()
        return best(values[:, :-2], masks & (self.gives == gives))

    def _loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """The squared errors of the action and of the master's choice; a worker learns from its own turns."""
        turns = self.replay.turns(self.args.batch_size, generator)
        values, targets, actions = self.learner.policy(turns["observations"]), self.targets(turns), turns["actions"]
        of_action = values.gather(1, actions[:, None])[:, 0]
        of_worker = values[:, -2:].gather(1, self.gives[actions, None].long())[:, 0]
        loss = functional.mse_loss(of_action, targets) + functional.mse_loss(of_worker, targets)
        return loss, {"feudal/value": of_worker.mean().item()}
