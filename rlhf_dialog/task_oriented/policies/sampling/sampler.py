"""Episodes from many dialogues side by side: an exact number of turns for an update, or given dialogues for an evaluation.

The place of a dialogue is fixed: environment i of n plays the dialogues i, i + n, i + 2n ..., and every dialogue has its own
random streams for user, channel and policy. Which process hosts an environment therefore changes no number.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from rlhf_dialog.task_oriented.policies.base import DialoguePolicy, Episode, choose, stream
from rlhf_dialog.task_oriented.policies.sampling.environments import NOTHING, EnvAnswer, Make, VectorEnv


class _Place:
    """One environment from the sampler's side: its dialogue, and the turns of it that are in no episode yet."""

    def __init__(self, number: int, dialogue: int):
        self.number = number
        self.open(dialogue)

    def open(self, dialogue: int) -> None:
        self.dialogue = dialogue
        self.now = EnvAnswer(None, None)
        self.first = 0
        self.total_reward = 0.0
        self.actions: list[int] = []
        self.rows: list[tuple[Any, ...]] = []  # observation, mask, action, reward, extras

    @property
    def is_open(self) -> bool:
        return self.now.observation is not None

    def take(self, action: int, extras: dict[str, Any], turn: EnvAnswer) -> None:
        """Note one turn; `turn` is what followed."""
        self.actions.append(action)
        self.total_reward += turn.reward
        self.rows.append((self.now.observation, self.now.mask, action, turn.reward, extras))
        self.now = turn

    def episode(self, following: int) -> Episode | None:
        """What was noted, if anything; after the end of the dialogue, `following` is the next one."""
        rows, turn, start, dialogue, total_reward = self.rows, self.now, self.first, self.dialogue, self.total_reward
        ended = turn.terminated or turn.truncated
        last = turn.last_observation if ended else turn.observation
        self.rows, self.first = [], len(self.actions)
        if ended:
            self.open(following)
            self.now = EnvAnswer(turn.observation, turn.mask)
        if not rows or last is None:
            return None
        observations, masks, actions, rewards, row_extras = zip(*rows, strict=True)
        extras = {name: np.stack([each[name] for each in row_extras]) for name in row_extras[0]}
        zeros = np.zeros(len(rows), dtype=np.float32)
        success = turn.info.get("success") if ended else False
        return Episode(
            observations=np.stack(observations),
            masks=np.stack(masks),
            actions=np.array(actions, dtype=np.int64),
            logprobs=extras.pop("logprobs", zeros),
            rewards=np.array(rewards, dtype=np.float32),
            values=extras.pop("values", zeros),
            terminated=turn.terminated,
            truncated=turn.truncated,
            last_observation=last,
            dialogue=dialogue,
            success=success if success is None else bool(success),
            info=turn.info,
            start=start,
            total_reward=total_reward,
            extras=extras,
        )


class Sampler:
    """`num_envs` dialogues side by side that go on from one call to the next.

    make: builds an environment (Gymnasium's `reset` and `step`, `options["dialogue"]`, `info["action_mask"]`)
    host: where the environments are, such as `Processes`; None: in this process
    """

    def __init__(self, make: Make, seed: int, num_envs: int, host: Any = None):
        self.seed, self.num_envs = seed, num_envs
        self.host = VectorEnv(make, seed, num_envs) if host is None else host
        self.places = [_Place(number, number) for number in range(num_envs)]

    def sample(self, policy: DialoguePolicy, num_turns: int) -> list[Episode]:
        """Episodes of exactly `num_turns` turns together, with exploration, in the order of their ends.

        Dialogues that have not ended are cut: they are the last episodes, and go on in the next call.
        """
        self._open_all()
        episodes: list[Episode | None] = []
        while num_turns > 0:
            turning = self.places[:num_turns]
            following = [place.dialogue + self.num_envs for place in turning]
            episodes += self._turn(policy, turning, following, deterministic=False)
            num_turns -= len(turning)
        episodes += [place.episode(NOTHING) for place in self.places]
        return [episode for episode in episodes if episode is not None]

    def close(self) -> None:
        self.host.close()

    def state_dict(self) -> dict[str, Any]:
        """The dialogues and their actions so far, from which `load_state_dict` plays them again."""
        return {"dialogues": [[place.dialogue, list(place.actions)] for place in self.places]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Open the dialogues, and make their actions again; no policy is asked."""
        self.places = [_Place(number, dialogue) for number, (dialogue, _) in enumerate(state["dialogues"])]
        todo = [deque(actions) for _, actions in state["dialogues"]]
        self._open_all()
        while any(todo):
            orders = [(actions.popleft() if actions else NOTHING, NOTHING) for actions in todo]
            for place, (action, _), turn in zip(self.places, orders, self.host.step(orders), strict=True):
                if action != NOTHING:
                    place.take(action, {}, turn)
        for place in self.places:
            place.episode(NOTHING)

    def _open_all(self) -> None:
        if not all(place.is_open for place in self.places):
            turns = self.host.step([(NOTHING, place.dialogue) for place in self.places])
            for place, turn in zip(self.places, turns, strict=True):
                place.now = turn

    def _turn(
        self, policy: DialoguePolicy, turning: Sequence[_Place], following: Sequence[int], deterministic: bool
    ) -> list[Episode | None]:
        """One action for each of these places; where a dialogue ends, it is returned, and the one that follows is opened."""
        observations = np.stack([place.now.observation for place in turning])  # type: ignore[misc]
        masks = np.stack([place.now.mask for place in turning])  # type: ignore[misc]
        streams = [stream(self.seed, place.dialogue, len(place.actions)) for place in turning]
        actions, extras = choose(policy, observations, masks, deterministic, streams)
        orders = [(NOTHING, NOTHING)] * len(self.places)
        for place, action, then in zip(turning, actions.tolist(), following, strict=True):
            orders[place.number] = (action, then)
        answers = self.host.step(orders)
        for row, place in enumerate(turning):
            row_extras = {name: column[row] for name, column in extras.items()}
            place.take(orders[place.number][0], row_extras, answers[place.number])
        pairs = zip(turning, following, strict=True)
        return [place.episode(then) for place, then in pairs if place.now.terminated or place.now.truncated]


def run_dialogues(
    policy: DialoguePolicy,
    make: Make,
    seed: int,
    dialogues: Iterable[int],
    num_envs: int = 8,
    deterministic: bool = True,
) -> list[Episode]:
    """These dialogues from their beginning to their end, in this order, without exploration; all in this process."""
    numbers = list(dialogues)
    num_envs = min(num_envs, len(numbers))
    after = dict(zip(numbers, numbers[num_envs:], strict=False))
    with closing(Sampler(make, seed, num_envs)) as sampler:
        sampler.places = [_Place(number, dialogue) for number, dialogue in enumerate(numbers[:num_envs])]
        sampler._open_all()
        episodes: dict[int, Episode] = {}
        while turning := [place for place in sampler.places if place.is_open]:
            following = [after.get(place.dialogue, NOTHING) for place in turning]
            ended = sampler._turn(policy, turning, following, deterministic)
            episodes |= {episode.dialogue: episode for episode in ended if episode}
        return [episodes[number] for number in numbers]
