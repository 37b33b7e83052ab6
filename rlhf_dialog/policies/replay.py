"""Learning from what was met before: whole dialogues are kept, and turns or dialogues are drawn from them. N turns."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.policies.base import Actions, Episode, Extras, Features, Masks, Setting, check_args
from rlhf_dialog.policies.network import Learner, categorical, load_learner, masked_logprobs, save_learner

REPLAY = "replay.safetensors"
Columns = dict[str, NDArray[Any]]


class Replay:
    """The newest whole dialogues, `capacity` turns at most.

    A dialogue that comes in pieces is held back until its end is there, so that the observation and the mask after a turn are
    those of the next turn, and nothing follows the last one.
    """

    def __init__(self, capacity: int):
        self.capacity, self.dialogues = capacity, list[Columns]()
        self._held: dict[int, Columns] = {}
        self._joined: dict[str, Tensor] = {}

    def add(self, episode: Episode) -> bool:
        """Take in a dialogue or a piece of one; returns whether a dialogue is whole now."""
        names = ("observations", "masks", "actions", "logprobs", "rewards")
        columns: Columns = {name: getattr(episode, name) for name in names} | episode.extras
        columns["turn"] = np.arange(episode.start, episode.start + len(episode))
        held = self._held.pop(episode.dialogue, None)
        if held is not None and held["turn"][-1] + 1 == episode.start:
            columns = {name: np.concatenate([held[name], column]) for name, column in columns.items()}
        if not episode.ended:
            self._held[episode.dialogue] = columns
            return False
        self.dialogues.append(columns)
        self._joined = {}
        to_the_end = self._lengths()[::-1].cumsum()[::-1]
        self.dialogues = self.dialogues[int((to_the_end[:-1] > self.capacity).sum()) :]
        return True

    @property
    def columns(self) -> dict[str, Tensor]:
        """All turns (N, ...), one dialogue after the other; `ended` (N,) is True in the last turn of each."""
        if not self._joined:
            joined = {name: np.concatenate([of[name] for of in self.dialogues]) for name in self.dialogues[0]}
            joined["ended"] = np.isin(np.arange(len(joined["turn"])), self._lengths().cumsum() - 1)
            self._joined = {name: torch.from_numpy(column) for name, column in joined.items()}
        return self._joined

    def turns(self, num: int, generator: torch.Generator) -> dict[str, Tensor]:
        """`num` turns: their columns, and what was seen after them, `next_observations`, `next_masks` (of no use at an end)."""
        columns = self.columns
        last = len(columns["turn"]) - 1
        rows = torch.randint(last + 1, (num,), generator=generator)
        after = (rows + 1).clamp_max(last)
        nexts = {f"next_{name}": columns[name][after] for name in ("observations", "masks")}
        return {name: column[rows] for name, column in columns.items()} | nexts

    def whole(self, num: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The turns of `num` dialogues, one after the other."""
        starts = np.concatenate([[0], self._lengths().cumsum()])
        drawn = torch.randint(len(self.dialogues), (num,), generator=generator).tolist()
        rows = torch.from_numpy(np.concatenate([np.arange(starts[n], starts[n + 1]) for n in drawn]))
        return {name: column[rows] for name, column in self.columns.items()}

    def newest(self, num: int) -> dict[str, Tensor]:
        """The turns of the `num` dialogues that ended last."""
        count = int(self._lengths()[-num:].sum())
        return {name: column[-count:] for name, column in self.columns.items()}

    def save(self, folder: Path) -> None:
        """Write all dialogues, those that are held back too."""
        kept = [*self.dialogues, *self._held.values()]
        numbers = [-1] * len(self.dialogues) + list(self._held)
        columns = {name: torch.from_numpy(np.concatenate([of[name] for of in kept])) for name in (kept or [{}])[0]}
        lengths = torch.tensor([len(of["turn"]) for of in kept], dtype=torch.int64)
        save_file({**columns, "lengths": lengths, "held": torch.tensor(numbers, dtype=torch.int64)}, folder / REPLAY)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises UserError when the file is damaged."""
        try:
            found = load_file(folder / REPLAY)
            lengths, numbers = found.pop("lengths").tolist(), found.pop("held").tolist()
            parts = {name: column.split(lengths) for name, column in found.items()}
            kept = [(number, {name: own[n].numpy() for name, own in parts.items()}) for n, number in enumerate(numbers)]
        except (OSError, LookupError, RuntimeError, SafetensorError) as error:
            raise UserError(f"{folder / REPLAY}: is damaged: {error}") from error
        self.dialogues = [of for number, of in kept if number == -1]
        self._held, self._joined = {number: of for number, of in kept if number != -1}, {}

    def _lengths(self) -> NDArray[np.int64]:
        return np.array([len(of["turn"]) for of in self.dialogues], dtype=np.int64)


class ReplayLearner:
    """What the learners from replay share: drawing actions, steps that are due when dialogues end, and files.

    A subclass has a `learner` and a `_loss`.

    steps_per_dialogue: optimizer steps for each dialogue that has ended, made in the next update; 0.5: one for two dialogues
    capacity: turns that are kept; slow_share: how far the slow copy follows in each step
    """

    learner: Learner

    def __init__(
        self,
        setting: Setting,
        capacity: int,
        steps_per_dialogue: float,
        max_grad_norm: float = 1e6,
        slow_share: float = 0.0,
    ):
        check_args(int, 1, 10**9, capacity=capacity)
        check_args(float, 0.0, 1e6, steps_per_dialogue=steps_per_dialogue)
        check_args(float, 1e-9, 1e6, max_grad_norm=max_grad_norm)
        self.setting, self.replay = setting, Replay(capacity)
        self.steps_per_dialogue, self.max_grad_norm, self.slow_share = steps_per_dialogue, max_grad_norm, slow_share
        self.num_dialogues = self.num_steps = 0
        self.due = 0.0

    @torch.inference_mode()
    def act(
        self, observations: Features, masks: Masks, deterministic: bool = False, streams: Sequence[Random] = ()
    ) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,), their logprobs (N,), and `behaviour` (N, A), all probabilities."""
        logprobs = masked_logprobs(self.learner.policy(torch.from_numpy(observations)), torch.from_numpy(masks))
        actions = logprobs.argmax(dim=1) if deterministic else categorical(logprobs, [s.random() for s in streams])
        chosen = logprobs.gather(1, actions[:, None])[:, 0]
        return actions.numpy(), {"logprobs": chosen.numpy(), "behaviour": logprobs.exp().numpy()}

    def observe(self, episode: Episode) -> None:
        """Keep the episode; steps are due when its dialogue has ended."""
        if self.replay.add(episode):
            self.num_dialogues += 1
            self.due += self.steps_per_dialogue

    def update(self) -> dict[str, float]:
        """Make the steps that are due; returns the means of their statistics."""
        steps = []
        while self.due >= 1:
            self.due -= 1
            self.num_steps += 1
            steps.append(self._step(torch.Generator().manual_seed(self.setting.seed * 1_000_003 + self.num_steps)))
        return {name: sum(step[name] for step in steps) / len(steps) for name in (steps or [{}])[0]}

    def save(self, folder: str | Path) -> None:
        """Write networks, optimizer and replay as safetensors, and counters as JSON."""
        counters = {name: getattr(self, name) for name in ("num_dialogues", "num_steps", "due")}
        save_learner(self.learner, Path(folder), counters)
        self.replay.save(Path(folder))

    def load(self, folder: str | Path) -> None:
        """Restore what `save` wrote. Raises UserError when the files are damaged, or of other sizes."""
        vars(self).update(load_learner(self.learner, Path(folder)))
        self.replay.load(Path(folder))

    def _loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """What one step lowers, on turns that are drawn with the generator, and statistics."""
        raise NotImplementedError

    def _step(self, generator: torch.Generator) -> dict[str, float]:
        loss, statistics = self._loss(generator)
        if not loss.isfinite():
            raise RunStopped(f"step {self.num_steps}: the loss is {loss.item()}; the last checkpoint is kept")
        norm = self.learner.step(loss, self.max_grad_norm)
        if self.slow_share:
            self.learner.follow(self.slow_share)
        return {"learn/loss": loss.item(), "learn/grad_norm": norm, **statistics}
