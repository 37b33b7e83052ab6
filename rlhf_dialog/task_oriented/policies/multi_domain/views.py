"""What a policy of one domain sees of a dialogue about several. N observations, T turns, D features, A actions."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import MultiDomain
from rlhf_dialog.task_oriented.domains.domain import check_known
from rlhf_dialog.task_oriented.policies.base import DialoguePolicy, Episode, Features, PolicySpec
from rlhf_dialog.task_oriented.policies.replay import Replay
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiLayout

Rows = NDArray[np.int64]
OF_EPISODE = ("logprobs", "values")


class View:
    """One domain of several, as if it were alone: `setting` is that of its policy, with a `MultiDomain` of this domain only.

    columns (D',): where the policy's features are in a whole observation; actions (A',): the numbers of its actions
    """

    def __init__(self, setting: PolicySpec, domain: MultiDomain, name: str):
        whole, layout = MultiLayout(domain), MultiLayout(domain.only([name]))
        self.name, self.layout = name, layout
        self.actions: Rows = np.array([whole.names.index(action) for action in layout.names], dtype=np.int64)
        said_last = whole.last_action.start + self.actions
        self.columns: Rows = np.array([*whole.places[name].values(), *said_last, whole.turn], dtype=np.int64)
        self.setting = replace(setting, domain=layout.domain, num_features=layout.size, num_actions=len(layout.names))  # type: ignore[arg-type]

    def seen(self, part: Episode, first: int = 0) -> Episode:
        """The turns of the domain from number `first` on, as its policy saw them; its extras have its name before them."""
        numbers = np.zeros(part.masks.shape[1], dtype=np.int64)
        numbers[self.actions] = np.arange(len(self.actions))
        observations, masks = part.observations.take(self.columns, axis=1), part.masks.take(self.actions, axis=1)
        columns = {"observations": observations, "masks": masks}
        columns |= {"actions": numbers[part.actions], "rewards": part.rewards}
        columns |= {name: getattr(part, name) for name in OF_EPISODE}
        prefix, last = f"{self.name}/", part.last_observation[self.columns]
        extras = {name.removeprefix(prefix): x[first:] for name, x in part.extras.items() if name.startswith(prefix)}
        taken: dict[str, Any] = {name: column[first:] for name, column in columns.items()}
        return replace(part, **taken, extras=extras, start=first, last_observation=last)


class Views:
    """The views of all domains, by name, and which one is active."""

    def __init__(self, setting: PolicySpec, policy: str):
        """Raises UserError, with the name of the policy, for a setting of one domain, or of none."""
        domain = setting.domain
        if not isinstance(domain, MultiDomain) or MultiLayout(domain).size != setting.num_features:
            raise UserError(f"policy {policy}: needs several domains; use domain: multiwoz, or another policy")
        self.domain, layout = domain, MultiLayout(domain)
        self.by_name = {name: View(setting, domain, name) for name in domain.services}
        self._current = [places["current"] for places in layout.places.values()]
        self.num_actions = setting.num_actions

    def check(self, names: Iterable[Any], where: str) -> None:
        """Raises UserError, with the place where it was named, for a domain that is unknown."""
        for name in names:
            check_known(f"{where}:", name, self.by_name)

    def groups(self, observations: Features) -> Iterator[tuple[View, Rows]]:
        """The views of the domains of which the user spoke last (the first one where there is none), each with its rows."""
        active = observations[:, self._current].argmax(axis=1)
        yield from ((view, np.flatnonzero(active == n)) for n, view in enumerate(self.by_name.values()) if n in active)

    def split(self, whole: Episode) -> Iterator[tuple[View, Episode]]:
        """For each domain its view, and its turns of a whole dialogue as an episode, still with whole observations.

        Its last reward has that of the dialogue's end added to it, where the dialogue ended in another domain.
        """
        for view, rows in self.groups(whole.observations):
            rewards = whole.rewards[rows]
            if rows[-1] != len(whole) - 1:
                rewards[-1] += whole.rewards[-1]
            taken: dict[str, Any] = {
                name: getattr(whole, name)[rows] for name in ("observations", "masks", "actions", "logprobs", "values")
            }
            extras = {name: column[rows] for name, column in whole.extras.items()}
            yield view, replace(whole, **taken, rewards=rewards, extras=extras, total_reward=float(rewards.sum()))


class EpisodeBuffer(Replay):
    """Holds pieces of dialogues back until their end is there."""

    def __init__(self) -> None:
        super().__init__(1)

    def join_episode(self, episode: Episode) -> Episode | None:
        """The whole dialogue, once its last piece has come; one whose beginning was not seen begins with what was seen."""
        columns = self.join(replace(episode, extras=episode.extras | {"values": episode.values}))
        if columns is None:
            return None
        start, values = int(columns.pop("turn")[0]), columns.pop("values")
        names = "observations", "masks", "actions", "logprobs", "rewards"
        turns: dict[str, Any] = {name: columns.pop(name) for name in names}
        return replace(episode, **turns, values=values, extras=columns, start=start)


def save_parts(folder: Path, parts: Mapping[str, DialoguePolicy]) -> None:
    """Write each policy into a folder of its name."""
    for name, policy in parts.items():
        (folder / name).mkdir(exist_ok=True)
        policy.save(folder / name)
