"""Learning from what was met before: whole dialogues are kept, and turns or dialogues are drawn from them. N turns."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.json_files import FAULTS, damage_as_user_error
from rlhf_dialog.task_oriented.policies import network
from rlhf_dialog.task_oriented.policies.arguments import STRICT, Sizes, ranged, read_arguments
from rlhf_dialog.task_oriented.policies.base import Actions, Episode, Extras, Features, Masks, PolicySpec
from rlhf_dialog.task_oriented.policies.episode_stack import Columns, EpisodeStack

REPLAY = "replay.safetensors"
IN_MEMORY = 200_000  # turns; older ones are on disk


class Replay:
    """The newest whole dialogues, `capacity` turns at most, of which the newest `in_memory` turns are in memory.

    A dialogue that comes in pieces is held back until its end is there, so that the observation and the mask after a turn are
    those of the next turn, and nothing follows the last one.
    """

    def __init__(self, capacity: int, in_memory: int = IN_MEMORY):
        self.stack = EpisodeStack(capacity, in_memory)
        self._held: dict[int, Columns] = {}

    def __len__(self) -> int:
        return len(self.stack)

    def add(self, episode: Episode) -> bool:
        """Take in a dialogue or a piece of one; returns whether a dialogue is whole now. Raises UserError for a full disk."""
        whole = self.join(episode)
        if whole is not None:
            self.stack.append(whole)
        return whole is not None

    def join(self, episode: Episode) -> Columns | None:
        """The columns of the whole dialogue, which is not kept here, or None: its end is not there, so the piece is held."""
        names = ("observations", "masks", "actions", "logprobs", "rewards")
        columns: Columns = {name: getattr(episode, name) for name in names} | episode.extras
        columns["turn"] = np.arange(episode.start, episode.start + len(episode))
        held = self._held.pop(episode.dialogue, None)
        if held is not None and held["turn"][-1] + 1 == episode.start:
            columns = {name: np.concatenate([held[name], column]) for name, column in columns.items()}
        if not episode.ended:
            self._held[episode.dialogue] = columns
        return columns if episode.ended else None

    def turns(self, num: int, generator: torch.Generator) -> dict[str, Tensor]:
        """`num` turns: their columns, and what was seen after them, `next_observations`, `next_masks` (of no use at an end)."""
        rows = torch.randint(len(self), (num,), generator=generator)
        after = self.stack.rows((rows + 1).clamp_max(len(self) - 1), ("observations", "masks"))
        return self._read_rows(rows) | {f"next_{name}": torch.from_numpy(column) for name, column in after.items()}

    def whole(self, num: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The turns of `num` dialogues, one after the other."""
        starts = np.concatenate([[0], self.stack.ends])
        numbers = torch.randint(len(self.stack.ends), (num,), generator=generator).tolist()
        return self._read_rows(np.concatenate([np.arange(starts[n], starts[n + 1]) for n in numbers]))

    def newest(self, num: int) -> dict[str, Tensor]:
        """The turns of the `num` dialogues that ended last."""
        return self._read_rows(np.arange(len(self) - self.stack.lengths[-num:].sum(), len(self)))

    def _read_rows(self, rows: Any) -> dict[str, Tensor]:
        """The columns of these rows (N,); `ended` (N,) is True in the last turn of each dialogue."""
        ends = self.stack.ends
        ended = ends[np.searchsorted(ends, rows, side="right")] == np.asarray(rows) + 1
        return {name: torch.from_numpy(column) for name, column in (self.stack.rows(rows) | {"ended": ended}).items()}

    def save(self, folder: Path) -> None:
        held, lengths = list(self._held.values()), self.stack.lengths.tolist()
        numbers = np.array([-1] * len(lengths) + list(self._held), dtype=np.int64)
        lengths = np.array(lengths + [len(columns["turn"]) for columns in held], dtype=np.int64)
        self.stack.save(folder / REPLAY, held, {"lengths": lengths, "held": numbers})

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises UserError when the file is damaged; a checkpoint's hash has told of wrong numbers."""
        stack, held = EpisodeStack(self.stack.capacity, self.stack.in_memory), dict[int, Columns]()
        with (
            damage_as_user_error(f"{folder / REPLAY}: is damaged: ", faults=(*FAULTS, SafetensorError)),
            safe_open(folder / REPLAY, "np") as opened,
        ):
            lengths, numbers = opened.get_tensor("lengths"), opened.get_tensor("held")
            slices = {name: opened.get_slice(name) for name in set(opened.keys()) - {"lengths", "held"}}
            stops = lengths.cumsum()
            for number, start, stop in zip(numbers.tolist(), stops - lengths, stops, strict=True):
                columns = {name: column[int(start) : int(stop)] for name, column in slices.items()}
                if number == -1:
                    stack.append(columns)
                else:
                    held[number] = columns
        self.stack, self._held = stack, held


@dataclass(frozen=True, config=STRICT)
class ReplayArguments:
    """What the learners from replay take.

    capacity: turns that are kept; in_memory: turns of these in memory, the older ones lie in a temporary folder
    batch_size: turns or dialogues for each step
    steps_per_dialogue: optimizer steps for each dialogue that has ended, made in the next update; 0.5: one for two dialogues
    """

    hidden_sizes: Sizes = (200, 75)
    lr: float = ranged(5e-4, 1e-9, 1.0)
    gamma: float = ranged(0.99, 0.0, 1.0)
    capacity: int = ranged(6000, 1, 10**9)
    in_memory: int = ranged(IN_MEMORY, 1, 10**9)
    batch_size: int = ranged(16, 1, 10**6)
    steps_per_dialogue: float = ranged(1.0, 0.0, 1e6)
    max_grad_norm: float = ranged(10.0, 1e-9, 1e6)


class ReplayCounters(BaseModel):
    """What the file of a learner has besides tensors."""

    num_dialogues: int
    num_steps: Annotated[int, Field(ge=0, le=2**53)]
    due: Annotated[float, Field(ge=0, le=1e5)]


class ReplayLearner:
    """What the learners from replay share: drawing actions, steps that are due when dialogues end, and files.

    A subclass has `arguments`, `_networks` and a `_loss`.
    """

    arguments: type[ReplayArguments]
    args: ReplayArguments

    def __init__(self, setting: PolicySpec, **args: Any):
        self.setting, self.args = setting, read_arguments(self.arguments, args)
        self.replay = Replay(self.args.capacity, self.args.in_memory)
        self.learner = self._networks(torch.Generator().manual_seed(setting.seed))
        self.num_dialogues = self.num_steps = 0
        self.due = 0.0

    @torch.inference_mode()
    def act(
        self, observations: Features, masks: Masks, deterministic: bool, streams: Sequence[Random] = ()
    ) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,), their logprobs (N,), and `behaviour` (N, A), all probabilities."""
        logprobs = network.masked_logprobs(self.learner.policy(torch.from_numpy(observations)), torch.from_numpy(masks))
        actions, chosen = network.draw_actions(logprobs, deterministic, streams)
        return actions.numpy(), {"logprobs": chosen.numpy(), "behaviour": logprobs.exp().numpy()}

    def observe(self, episode: Episode) -> None:
        """Keep the episode; steps are due when its dialogue has ended."""
        if self.replay.add(episode):
            self.num_dialogues += 1
            self.due += self.args.steps_per_dialogue

    def update(self) -> dict[str, float]:
        """Make the steps that are due; returns the means of their statistics."""
        steps = []
        while self.due >= 1:
            self.due -= 1
            self.num_steps += 1
            steps.append(self._step(torch.Generator().manual_seed(self.setting.seed * 1_000_003 + self.num_steps)))
        return {name: sum(step[name] for step in steps) / len(steps) for name in (steps or [{}])[0]}

    def save(self, folder: str | Path) -> None:
        counters = {name: getattr(self, name) for name in ("num_dialogues", "num_steps", "due")}
        network.save_networks(self.learner, Path(folder), counters)
        self.replay.save(Path(folder))

    def load(self, folder: str | Path) -> None:
        counters = network.load_networks(self.learner, Path(folder), ReplayCounters)
        self.num_dialogues, self.num_steps = counters["num_dialogues"], counters["num_steps"]
        self.due = counters["due"]
        self.replay.load(Path(folder))

    def _networks(self, generator: torch.Generator) -> network.NetworkPair:
        """What learns, with weights that the generator draws."""
        raise NotImplementedError

    def _loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """What one step lowers, on turns that are drawn with the generator, and statistics."""
        raise NotImplementedError

    def _step(self, generator: torch.Generator) -> dict[str, float]:
        loss, statistics = self._loss(generator)
        if not loss.isfinite():
            raise RunStopped(f"step {self.num_steps}: the loss is {loss.item()}")
        norm = self.learner.step(loss, self.args.max_grad_norm)
        return {"learn/loss": loss.item(), "learn/grad_norm": norm, **statistics}
