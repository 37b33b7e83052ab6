"""A run of a policy of acts in its folder: check, build, lock, begin, loop, save; users and persons alike teach in one."""

from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch

from rlhf_dialog.atomic_files import disk_errors_as_user_errors, replace_text
from rlhf_dialog.config.loading import dump_yaml
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.runs.checkpoint import describe_kept, save_checkpoint
from rlhf_dialog.runs.folder import Start
from rlhf_dialog.runs.lock import lock_folder
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import build_policy
from rlhf_dialog.task_oriented.runs.checkpoint import load_policy_checkpoint, save_policy_agent
from rlhf_dialog.task_oriented.runs.settings import OF_AGENT, PolicyConfig
from rlhf_dialog.task_oriented.runs.training_world import TrainingWorld


class ActRun(ABC):
    """The stages of every such run; a subclass says what is restored, and what its loop is.

    `resume`: go on after the newest checkpoint; `auto`: where there is a run, else begin one.
    """

    training_world: TrainingWorld  # where the policy acts; there before `_build`
    extra_files: tuple[str, ...] = ()  # of the run folder, which `overwrite` removes too
    rollout = None  # for the services of the run: it has no responses of a language model

    def __init__(self, config: PolicyConfig, overwrite: bool = False, resume: bool | Literal["auto"] = False):
        self.config, self.start, self.world = config, Start(overwrite, resume), World()
        self.folder, self.checkpoints = config.run_folder, config.run_folder / "checkpoints"
        self.save_interval = config.save_interval  # iterations between checkpoints
        self.num_updates: int | None = config.epoch  # how often the run calls `update`; None: nobody knows

    def run(self) -> None:
        """From the folder as it is to the saved agent.

        Raises UserError for what the user can correct, and RunStopped when a check of the run fails.
        """
        if self.config.pytorch_threads:
            torch.set_num_threads(self.config.pytorch_threads)
        self._check_folder()
        self._build()
        try:
            with ExitStack() as stack:
                stack.enter_context(lock_folder(self.folder))
                stack.enter_context(disk_errors_as_user_errors(self.folder))
                self._check_folder()
                self._begin(stack)
                self._loop(stack)
        except RunStopped as error:
            error.args = (f"{error}; {describe_kept(self.checkpoints)}",)
            raise

    @abstractmethod
    def _restore(self, state: dict[str, Any] | None, stack: ExitStack) -> None:
        """What is needed beside the policy, as `state` of a checkpoint has it, or as it begins."""

    @abstractmethod
    def _loop(self, stack: ExitStack) -> None:
        """Learn to the end, and save the agent."""

    @abstractmethod
    def _counters(self) -> dict[str, Any]:
        """What a checkpoint holds beside the policy; JSON with the key "iteration"."""

    def _check_folder(self) -> None:
        self.start.settle(self.folder, self.world)
        self.start.check(self.folder, self.save_interval)

    def _build(self) -> None:
        """The policy, before anything is written."""
        config, world = self.config, self.training_world
        self.setting = PolicySpec(world.num_features, len(world.names), config.seed, world.domain, self.num_updates)
        self.policy = build_policy(config.policy.id, config.policy.args, self.setting)
        self.identity = config.identity(world.hash)

    def _begin(self, stack: ExitStack) -> None:
        """Prepare the folder to start, or to go on after the newest checkpoint."""
        source = self.start.prepare(self.folder, extra_files=self.extra_files)
        state = None
        if source:
            state = load_policy_checkpoint(source, self.policy, self.identity, self.training_world)
        self._restore(state, stack)
        replace_text(self.folder / "config.yaml", dump_yaml(self.config))

    def _save(self) -> None:
        state = self._counters() | {"identity": self.identity, "domain": self.training_world.name}
        state["settings"] = self.config.model_dump()
        save_checkpoint(self.checkpoints, state, self._fill, self.config.keep_checkpoints)

    def _fill(self, checkpoint: Path) -> dict[str, Any]:
        self.policy.save(checkpoint)
        return {}

    def _save_agent(self) -> None:
        settings = self.config.model_dump(include=set(OF_AGENT))
        save_policy_agent(self.folder / "agent", self.policy, settings, self.training_world)
