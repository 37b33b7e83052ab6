"""A run whose policy learns from a person, dialogue by dialogue; it goes on for months, and each day where the last one ended."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.config.loading import dump_yaml
from rlhf_dialog.runs import folder as run_folder
from rlhf_dialog.runs.checkpoint import newest_checkpoint
from rlhf_dialog.runs.interrupts import WhileWaiting, leave
from rlhf_dialog.runs.lock import check_unlocked, locked
from rlhf_dialog.runs.tracking import Metrics, read_metrics
from rlhf_dialog.task_oriented.policies.base import Episode, Setting
from rlhf_dialog.task_oriented.policies.built_in import build_policy
from rlhf_dialog.task_oriented.policies.sampling.sampler import play
from rlhf_dialog.task_oriented.runs.checkpoint import load_policy_checkpoint, save_policy_agent, save_policy_checkpoint
from rlhf_dialog.task_oriented.runs.scene import Scene
from rlhf_dialog.task_oriented.runs.settings import PolicyConfig
from rlhf_dialog.task_oriented.world.users.teacher import Teacher, given


class PersonRun:
    """Learns from the teacher of a scene in the run folder of a `PolicyConfig`, until the teacher leaves.

    scene: where the teacher talks (`policy_scene.taught_scene`)
    show: shows a line to the person; interrupts: of the signals while the teacher is waited for
    today: the date, which is kept beside the number of dialogues

    A dialogue counts when it has ended, and, if the teacher leaves in the middle of it, when something in it was rewarded.
    The policy learns from dialogues in which something was rewarded. Each dialogue that counts is saved at once.
    """

    def __init__(
        self,
        config: PolicyConfig,
        scene: Scene,
        teacher: Teacher,
        show: Callable[[str], None],
        interrupts: WhileWaiting,
        overwrite: bool = False,
        today: Callable[[], str] = lambda: date.today().isoformat(),
    ):
        self.config, self.scene, self.teacher, self.show, self.overwrite = config, scene, teacher, show, overwrite
        self.interrupts, self.today, self.folder = interrupts, today, config.run_folder
        self.num_dialogues = self.num_rewarded = 0
        self.days: list[str] = []
        self._last: Episode | None = None

    def talk(self) -> None:
        """Go on where the last day ended, or begin; returns when the teacher leaves.

        Raises UserError for what the user can correct, RunStopped when a number is not finite, and what a signal raises when all
        is saved.
        """
        if self.config.pytorch_threads:
            torch.set_num_threads(self.config.pytorch_threads)
        self._check_folder()
        self._build()
        with ExitStack() as stack:
            stack.enter_context(locked(self.folder))
            stack.enter_context(run_folder.disk_errors_as_user_errors(self.folder))
            self._check_folder()
            self._begin()
            self._before = Path(stack.enter_context(TemporaryDirectory()))
            with self.interrupts:
                self._converse()
                self._end()

    def undo(self) -> None:
        """Ask again for the last reward of the dialogue that ended last, and learn from it with that one instead."""
        episode = self._last
        if episode is None:
            self.show("(there is no dialogue of today to correct)")
            return
        rewards, cost = episode.info["rewards"], episode.info["cost"]
        after = self.teacher.correct()
        if self.teacher.left or after == rewards[-1]:
            return
        episode.paid += (after or 0.0) - (rewards[-1] or 0.0)
        rewards[-1] = after
        episode.rewards[-1] = cost + given(rewards[len(episode) - 1 :])
        if not (self.scene.domain and self.config.show_goal):
            episode.success = given(rewards) > 0
        self.policy.load(self._before)
        self.num_dialogues -= 1
        self.num_rewarded -= self._was_rewarded
        self._learn(episode)

    def _check_folder(self) -> None:
        check_unlocked(self.folder)
        self.resumes = run_folder.has_begun(self.folder) and not self.overwrite
        run_folder.check_folder(self.folder, self.overwrite, self.resumes, save_interval=1)

    def _build(self) -> None:
        """The policy, before anything is written."""
        config, scene = self.config, self.scene
        setting = Setting(scene.num_features, len(scene.names), seed=config.seed, domain=scene.domain)
        self.policy = build_policy(config.policy.id, config.policy.args, setting)
        self.identity = config.identity(scene.hash)

    def _begin(self) -> None:
        """Prepare the folder, and restore what was learned."""
        if self.overwrite:
            run_folder.clear(self.folder)
        run_folder.repair(self.folder)
        source = newest_checkpoint(self.folder / "checkpoints") if self.resumes else None
        if source:
            state = load_policy_checkpoint(source, self.policy, self.identity, self.scene)
            self.num_dialogues, self.num_rewarded, self.days = (state[key] for key in ("iteration", "rewarded", "days"))
        replace_text(self.folder / "config.yaml", dump_yaml(self.config))
        self.show(self._so_far())

    def _so_far(self) -> str:
        """Which day it is, and how many dialogues there were."""
        known = [*self.days, *([] if self.today() in self.days else [self.today()])]
        counts = (
            f"{_count(self.num_dialogues)} so far, {self.num_rewarded} of them rewarded"
            if self.days
            else "no dialogue yet"
        )
        where = f"{self.config.policy.id} learns in {self.folder} (domain {self.scene.name})"
        return f"day {len(known)}: {counts}; {where}"

    def _converse(self) -> None:
        while not (self.teacher.left or self.interrupts.asked):
            self.show(f"--- dialogue {self.num_dialogues + 1} ---")
            (episode,) = play(self.policy, self.scene.make, self.config.seed, [self.num_dialogues], deterministic=False)
            if not episode.info["left"] or _is_rewarded(episode):
                self._learn(episode)

    def _learn(self, episode: Episode) -> None:
        """Learn from a dialogue, if anything in it was rewarded, and save."""
        self.policy.save(self._before)
        self._last, self._was_rewarded = episode, _is_rewarded(episode)
        learned: Metrics = {}
        if self._was_rewarded:
            self.policy.observe(episode)
            learned = self.policy.update()
        self.num_dialogues += 1
        self.num_rewarded += self._was_rewarded
        self.days += [] if self.today() in self.days else [self.today()]
        self._log(episode, learned)
        known = {"identity": self.identity, "domain": self.scene.name, "settings": self.config.model_dump()}
        state = {"iteration": self.num_dialogues, "rewarded": self.num_rewarded, "days": self.days, **known}
        save_policy_checkpoint(self.folder / "checkpoints", self.policy, state, self.config.keep_checkpoints)
        self.show("(learned, and saved)" if self._was_rewarded else "(saved; without a reward, nothing was learned)")

    def _log(self, episode: Episode, learned: Metrics) -> None:
        """The line of this dialogue in metrics.jsonl, in one atomic step; it may take the place of an earlier one."""
        path = self.folder / "metrics.jsonl"
        earlier = read_metrics(path)[: self.num_dialogues - 1] if path.exists() else []
        own = {"success": float(episode.success), "reward": episode.paid, "turns": float(len(episode))}
        counts = {"iteration": self.num_dialogues, "dialogues": self.num_dialogues, "day": len(self.days)}
        row = {**counts, "rewarded": int(self._was_rewarded), **own, **learned}
        replace_text(path, "".join(f"{json.dumps(one)}\n" for one in [*earlier, row]))

    def _end(self) -> None:
        """Save the agent, and say how to go on."""
        if self.num_dialogues:
            save_policy_agent(self.folder / "agent", self.policy, self.config.of_agent(), self.scene)
        self.show(f"{_count(self.num_dialogues)} kept in {self.folder}; the same command goes on from there")
        if self.interrupts.signum is not None:
            leave(self.interrupts.signum)


def _is_rewarded(episode: Episode) -> bool:
    return any(reward is not None for reward in episode.info["rewards"])


def _count(number: int) -> str:
    return f"{number} dialogue{'' if number == 1 else 's'}"
