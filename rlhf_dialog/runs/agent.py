"""PPOAgent: a run from its configuration to the saved agent. Checks what can be checked, then trains, logs and saves."""

import contextlib
import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rlhf_dialog.config.loading import find_config, load_config, replace_keys
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed import launcher_warnings, process_group
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.runs import folder as run_folder
from rlhf_dialog.runs.building import load, prepare
from rlhf_dialog.runs.checkpointing import RunCheckpointer, keep_precision
from rlhf_dialog.runs.lock import locked
from rlhf_dialog.runs.packages import check_packages
from rlhf_dialog.runs.publish import check_push, push_agent
from rlhf_dialog.runs.services.interrupts import Interrupts, leave
from rlhf_dialog.runs.services.ledger import rows_of
from rlhf_dialog.runs.services.rescue import Rescue, failures_recorded
from rlhf_dialog.runs.services.run_log import RunLog, report_best
from rlhf_dialog.runs.services.validation import Validation
from rlhf_dialog.runs.services.wandb_tracker import wants_wandb
from rlhf_dialog.runs.shared_disk import check_shared
from rlhf_dialog.runs.sources import read_source
from rlhf_dialog.runs.stage_times import StageTimes
from rlhf_dialog.runs.start import Start
from rlhf_dialog.training.simulated import Simulated
from rlhf_dialog.training.trainer import PPOTrainer

logger = logging.getLogger(__name__)


class PPOAgent:
    """A PPO run from Python. Of several processes each has an agent and calls the same methods; rank 0 alone writes and asks.

    >>> agent = PPOAgent.from_config("nlp_ppo.yaml", model_path="./my_model")
    >>> agent.train(total_time_steps=100_000, use_wandb=True)
    >>> agent.save("./ppo_agent")
    """

    def __init__(
        self,
        config: Config,
        overwrite: bool = False,
        resume: bool | Literal["auto"] = False,
        weights_from: str | Path | None = None,
    ):
        """`resume="auto"`: continue the run in the folder if there is one, else begin one."""
        self.config = config
        self.start = Start(overwrite, resume, None if weights_from is None else Path(weights_from))
        self.world = World()
        self.is_trial = False  # of two prompts, in a folder that is removed
        self.times = StageTimes()
        self.trainer: PPOTrainer | None = None
        self.validation: Validation | None = None
        self.log: RunLog | None = None  # rank 0 has one while the run lasts
        self._identity: dict[str, Any] = {}

    @classmethod
    def from_config(cls, path: str | Path, **overrides: Any) -> "PPOAgent":
        """Read a YAML; overrides are keys, dotted ones as `**{"env.args.data_path": "./data"}`.

        Raises UserError that lists every mistake of the file and the overrides.
        """
        return cls(load_config(find_config(str(path)), overrides))

    @property
    def run_folder(self) -> Path:
        return Path(os.path.expanduser(self.config.run_dir)) / str(self.config.experiment_name)

    def train(
        self, total_time_steps: int | None = None, use_wandb: bool | None = None, use_tensorboard: bool | None = None
    ) -> dict[str, float]:
        """Train to the end, leaving metrics, checkpoints and `agent/` in the run folder; returns the last metrics.

        Arguments that are given replace the keys of the same names. Raises UserError for what the user can correct, and
        RunStopped when a check of the run fails.
        """
        given = {"total_time_steps": total_time_steps, "use_wandb": use_wandb, "use_tensorboard": use_tensorboard}
        self.config = replace_keys(self.config, {key: value for key, value in given.items() if value is not None})
        self.meet()
        with failures_recorded(self.run_folder, self.world, self.is_trial), contextlib.ExitStack() as stack:
            trainer = stack.enter_context(contextlib.closing(self.build(stack)))
            with run_folder.disk_errors_as_user_errors(self.run_folder):
                state = self.begin(trainer)
                metrics = self.loop(state)
                self.save_agent()
        self.report_end()
        return metrics

    def meet(self) -> None:
        """Meet the other processes, and check what can be known of the run folder before anything is loaded."""
        self.world = process_group.start(self.config)
        launcher_warnings.report(self.config.grace_seconds, self.world.is_main and not self.is_trial)
        self.start.settle(self.run_folder, self.world)
        self.world.on_main(self._check_folder)
        check_shared(self.run_folder, self.world)

    def _check_folder(self) -> None:
        check_packages(self.config)
        check_push(self.config)
        self.start.check(self.run_folder, self.config.save_interval)

    def build(self, locks: contextlib.ExitStack | None = None) -> PPOTrainer:
        """The trainer with everything that a run needs, on the run's device; cheap checks first. Raises UserError as `train`.

        `train` passes `locks`, in which the lock of the run folder is: wandb opens before the models are loaded, since its key
        may be wrong, and writes to the folder, so the lock comes first then; else the models do, since they may be refused.
        """
        self.world = process_group.start(self.config)
        if self.start.resume:
            keep_precision(self.config, self.world, self.run_folder / "checkpoints")
        parts, early = prepare(self.config, self.world, self.times, self.read_source), wants_wandb(self.config)
        self.validation = parts.validation
        if locks and early:
            locks.enter_context(self.lock())
        self.trainer, self._identity = load(self.config, self.world, parts, self.times)
        if locks and not early:
            locks.enter_context(self.lock())
        return self.trainer

    def read_source(self, reward: BaseReward) -> tuple[list[Dialogue] | Simulated, Validation | None]:
        """What the run is trained on, and its validation."""
        return read_source(self.config, reward)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """The run folder belongs to this run while the block lasts; the trackers in it are closed at the end."""
        with contextlib.ExitStack() as stack:
            self.world.on_main(lambda: stack.enter_context(locked(self.run_folder)))
            stack.push(self._close_log)
            self.world.on_main(self._check_folder)  # for what another run has left there since
            self.world.on_main(self._open_log)
            yield

    def _open_log(self) -> None:
        self.log = RunLog(self.config, self.run_folder, goes_on=bool(self.start.resume))

    def _open_trackers(self, done: int) -> None:
        if self.log:
            self.log.open(done)

    def _close_log(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        log, self.log = self.log, None
        if log:
            log.close(error)

    def begin(self, trainer: PPOTrainer) -> RunCheckpointer:
        """The state that the run starts from: a new one, that of a checkpoint, or the weights of another run."""
        state = RunCheckpointer(self.config, self.run_folder, trainer, self.validation, self._identity)
        state.begin(self.start, self.log.files if self.log else None)
        return state

    def loop(self, state: RunCheckpointer) -> dict[str, float]:
        """Train to the end; returns the metrics of the last iteration. A signal leaves after it is saved."""
        with Interrupts(self.config.grace_seconds, self.world.is_main, self.run_folder) as interrupts:
            self.world.on_main(partial(self._open_trackers, state.trainer.iteration))
            try:
                with self.world.contact():
                    return self._iterate(state, interrupts)
            except RunStopped:
                if interrupts.signum is not None and self.world.size > 1:  # other ranks have left already
                    leave(interrupts.signum)
                raise

    def _iterate(self, state: RunCheckpointer, interrupts: Interrupts) -> dict[str, float]:
        """Iterations until the end; evaluates, logs and saves after those where it is time. All ranks decide the same."""
        metrics: dict[str, float] = {}
        trainer, validation, world = state.trainer, state.validation, self.world
        rescue = Rescue(state, self._complete_line)
        state.heed_guard()  # of the iteration that was saved last
        for metrics in rescue.iterations():
            is_best = False
            with rescue.after(metrics):
                self._record(trainer)
                if validation and validation.due(trainer.iteration, trainer.done):
                    metrics |= validation.run(trainer, self.log.trackers if self.log else None)
                    is_best = validation.is_best(trainer.iteration)
                    if state.guard:
                        metrics |= state.guard.watch(trainer, metrics)
                world.on_main(partial(self.write_log, trainer, metrics))
            is_asked = interrupts.agree(world.gather(interrupts.signum))
            is_due = is_best or trainer.done or is_asked or trainer.iteration % self.config.save_interval == 0
            is_due = is_due or (state.guard is not None and state.guard.alarm is not None)
            if is_due:
                with self.times.measured("checkpoint"):
                    state.save(is_best)
            interrupts.iteration_ended(trainer.iteration, saved=is_due and (is_asked or world.size == 1))
            state.heed_guard()
        return metrics

    def write_log(self, trainer: PPOTrainer, metrics: dict[str, float]) -> None:
        """What rank 0 writes and shows after an iteration."""
        if self.log:
            self.log.write(trainer, metrics)

    def _record(self, trainer: PPOTrainer) -> None:
        """Write the rows of all ranks into the ledger; each iteration once, and before anything after it can raise."""
        if not self.config.ledger or trainer.rollout is None:
            return
        gathered = self.world.gather(rows_of(trainer.rollout, trainer.iteration, self.config))
        if self.log:
            self.log.record(trainer.iteration, [row for rows in gathered for row in rows])

    def _complete_line(self, iteration: int, metrics: dict[str, float]) -> bool:
        if self.trainer and self.world.size == 1:  # with several ranks nothing can raise before they have recorded
            self._record(self.trainer)
        return self.log is not None and self.log.complete(iteration, metrics)

    def save_agent(self) -> None:
        """Write `agent/` of the run folder. Raises UserError when somebody has removed that folder."""
        with self.times.measured("checkpoint"):
            self.save(self.run_folder / "agent")
        if not (self.run_folder / "config.yaml").exists():
            raise UserError(
                f"{self.run_folder}: was removed or moved before the run had ended; only its agent is there"
            )

    def save(self, folder: str | Path) -> None:
        """Write the trained agent, as `agent/` of the run folder holds it. Raises UserError before any training."""
        if self.trainer is None:
            raise UserError("there is nothing to save yet; call train() first")
        models = self.trainer.models
        with self.trainer.placement.whole_weights():
            self.world.on_main(lambda: save_agent(Path(folder), models.policy, models.tokenizer, self.config))

    def report_end(self) -> None:
        """Say where the best agent and the last one are, and push the agent if the run asks for it."""
        if self.is_trial:
            return
        if self.validation:
            report_best(self.validation.best, self.config.eval_metric, self.run_folder / "best_agent")
        logger.info("agent saved; talk to it: rlhf-dialog chat --agent %s", self.run_folder / "agent")
        if self.world.is_main:  # the others need not wait: nothing follows
            push_agent(self.config, self.run_folder)
