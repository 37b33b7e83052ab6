"""A run whose policy learns from a person, dialogue by dialogue; it goes on for months, and each day where the last one ended."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.runs.metrics_file import read_metrics
from rlhf_dialog.runs.services.interrupts import WhileWaiting, leave
from rlhf_dialog.runs.services.trackers import Metrics
from rlhf_dialog.task_oriented.policies.base import Episode
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.runs.act_run import ActRun
from rlhf_dialog.task_oriented.runs.settings import PolicyConfig
from rlhf_dialog.task_oriented.runs.training_world import open_person_world
from rlhf_dialog.task_oriented.world.users.teacher import Teacher


class PersonRun(ActRun):
    """Learns from a teacher in the run folder of a `PolicyConfig`, until the teacher leaves; goes on where the last day ended.

    show: shows a line to the person; interrupts: of the signals while the teacher is waited for

    A dialogue counts when it has ended, and, if the teacher leaves in the middle of it, when something in it was rewarded.
    The policy learns from dialogues in which something was rewarded. Each dialogue that counts is saved at once.
    """

    def __init__(
        self,
        config: PolicyConfig,
        teacher: Teacher,
        show: Callable[[str], None],
        interrupts: WhileWaiting,
        overwrite: bool = False,
    ):
        super().__init__(config, overwrite, resume=False if overwrite else "auto")
        self.save_interval, self.num_updates = 1, None  # each dialogue; nobody knows how long the person stays
        self.training_world = open_person_world(config.model_dump(), teacher)
        self.teacher, self.show, self.interrupts = teacher, show, interrupts
        self.num_dialogues = self.num_rewarded = 0

    def _restore(self, state: dict[str, Any] | None, stack: ExitStack) -> None:
        if state is not None:
            self.num_dialogues, self.num_rewarded = state["iteration"], state["rewarded"]

    def _loop(self, stack: ExitStack) -> None:
        so_far = f"{_count(self.num_dialogues)} so far, {self.num_rewarded} of them rewarded"
        where = f"{self.config.policy.id} learns in {self.folder} (domain {self.training_world.name})"
        self.show(f"{so_far}; {where}")
        with self.interrupts:
            while not (self.teacher.left or self.interrupts.asked):
                self.show(f"--- dialogue {self.num_dialogues + 1} ---")
                (episode,) = run_dialogues(
                    self.policy, self.training_world.make, self.config.seed, [self.num_dialogues], deterministic=False
                )
                was_rewarded = any(reward is not None for reward in episode.info["rewards"])
                if was_rewarded or not episode.info["left"]:
                    self._learn(episode, was_rewarded)
            if self.num_dialogues:
                self._save_agent()
            self.show(f"{_count(self.num_dialogues)} kept in {self.folder}; the same command goes on from there")
            if self.interrupts.signum is not None:
                leave(self.interrupts.signum)

    def _counters(self) -> dict[str, Any]:
        return {"iteration": self.num_dialogues, "rewarded": self.num_rewarded}

    def _learn(self, episode: Episode, was_rewarded: bool) -> None:
        """Learn from a dialogue, if anything in it was rewarded, and save it with its line of metrics.jsonl."""
        learned: Metrics = {}
        if was_rewarded:
            self.policy.observe(episode)
            learned = self.policy.update()
        self.num_dialogues += 1
        self.num_rewarded += was_rewarded
        path = self.folder / "metrics.jsonl"
        earlier = read_metrics(path)[: self.num_dialogues - 1] if path.exists() else []
        numbers = {
            "success": float(bool(episode.success)),
            "reward": episode.total_reward,
            "turns": float(len(episode)),
        }
        counts = {"iteration": self.num_dialogues, "dialogues": self.num_dialogues, "rewarded": int(was_rewarded)}
        rows = [*earlier, {**counts, **numbers, **learned}]
        replace_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))
        self._save()
        self.show("(learned, and saved)" if was_rewarded else "(saved; without a reward, nothing was learned)")


def _count(number: int) -> str:
    return f"{number} dialogue{'' if number == 1 else 's'}"
