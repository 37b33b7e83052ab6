"""PPOAgent: a run from its configuration to the saved agent. Checks what can be checked, then trains, logs and saves."""

import contextlib
import logging
import os
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import rlhf_dialog.metrics
import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.loading import find_config, load_config, replace_keys
from rlhf_dialog.config.registry import VecInfoFactory
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import warn_of_marks
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed import launch, launchers
from rlhf_dialog.distributed.memory import forecast
from rlhf_dialog.distributed.placement import check_placement, deepspeed_setting
from rlhf_dialog.distributed.random_states import seed_rank
from rlhf_dialog.distributed.world import OtherRankFailed, World
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.metrics.base import VecInfo
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.loading import load_models, trained_parameters
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.rewards.scoring import RewardError
from rlhf_dialog.rewards.timeout import RewardTimeout
from rlhf_dialog.runs import folder as run_folder
from rlhf_dialog.runs import identity
from rlhf_dialog.runs.checkpoint import save_agent
from rlhf_dialog.runs.interrupts import Interrupts, leave
from rlhf_dialog.runs.lock import check_unlocked, locked
from rlhf_dialog.runs.packages import check_packages
from rlhf_dialog.runs.publish import check_push, push_agent
from rlhf_dialog.runs.rescue import Rescue
from rlhf_dialog.runs.run import RunState, keep_precision, two_prompts
from rlhf_dialog.runs.shared_disk import check_shared
from rlhf_dialog.runs.sources import read_source
from rlhf_dialog.runs.tracking import Trackers
from rlhf_dialog.runs.validation import Best, Validation
from rlhf_dialog.runs.wandb_tracker import WandbTracker, open_wandb, wants_wandb
from rlhf_dialog.training.simulated import Simulated
from rlhf_dialog.training.trainer import PPOTrainer

logger = logging.getLogger(__name__)
NO_BEST_AGENT = "none, because its checkpoint was removed before the run went back"
STAGES = ("config", "data", "models", "rollout", "reward", "update", "evaluation", "checkpoint", "chat")


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
        resume_from: str | int | None = None,
    ):
        """`resume_from` names a checkpoint of the run folder (`iter_000004` or 4): the run goes back to it, as `resume` does to
        the newest. `resume="auto"`: continue the run in the folder if there is one, else begin one."""
        self.config, self.overwrite = config, overwrite
        self.resume: bool | Literal["auto"] = resume if resume_from is None else True
        self.resume_from = None if resume_from is None else str(resume_from)
        self.weights_from = None if weights_from is None else Path(weights_from)
        self.world = World()
        self._identity: dict[str, Any] = {}
        self._trackers: Trackers | None = None  # rank 0 has them
        self._wandb: WandbTracker | None = None  # rank 0 has it
        self._is_trial = False  # of two prompts, in a folder that is removed
        self.trainer: PPOTrainer | None = None
        self.validation: Validation | None = None
        self._seconds: dict[str, float] = defaultdict(float)

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
        self._start()
        with self._failures_recorded(), contextlib.ExitStack() as stack:
            trainer = stack.enter_context(contextlib.closing(self.build(stack)))
            with run_folder.disk_errors_told(self.run_folder):
                state = self._begin(trainer)
                metrics = self._loop(state)
                self._save_agent()
        self._report_end()
        return metrics

    def smoke(self) -> dict[str, float]:
        """Pass two prompts through every stage of this run, in a folder that is removed again; returns seconds by stage.

        Raises what `train` would raise.
        """
        start = time.perf_counter()
        self._start()
        check_placement(self.config, self.world.device)  # with the numbers of the run itself
        with contextlib.ExitStack() as stack:
            folder = self.world.on_main(lambda: stack.enter_context(run_folder.folder_beside(self.run_folder)))
            small = PPOAgent(two_prompts(self.config, folder, self.world.size))
            small._is_trial = True
            small._seconds["config"] = time.perf_counter() - start
            metrics = small.train()
            self.world.on_main(small._answer_once)
        for stage, name in (("rollout", "rollout"), ("reward", "reward"), ("update", "update"), ("evaluation", "eval")):
            if f"time/{name}" in metrics:
                small._seconds[stage] += metrics[f"time/{name}"]
        return {stage: small._seconds[stage] for stage in STAGES if stage in small._seconds}

    def _start(self) -> None:
        """Meet the other processes, and check what can be known of the run folder before anything is loaded."""
        self.world = launch.start(self.config)
        launchers.report(self.config.grace_seconds, self.world.is_main and not self._is_trial)
        self._find_out_whether_to_resume()
        self.world.on_main(self._check_folder)
        check_shared(self.run_folder, self.world)

    @contextlib.contextmanager
    def _failures_recorded(self) -> Iterator[None]:
        """What a user's reward or another rank raises in the block leaves its traceback in `error.log`."""
        try:
            yield
        except (UserError, RunStopped) as error:
            is_foreign = isinstance(error, RewardError | RewardTimeout) or isinstance(error.__cause__, OtherRankFailed)
            if is_foreign and not self._is_trial:
                self._leave_traceback(error)
            raise

    @contextlib.contextmanager
    def _locked_folder(self) -> Iterator[None]:
        """The run folder belongs to this run while the block lasts; the trackers in it are closed at the end."""
        with contextlib.ExitStack() as stack:
            self.world.on_main(lambda: stack.enter_context(locked(self.run_folder)))
            stack.callback(self._close_trackers)
            self.world.on_main(self._check_folder)  # for what another run has left there since
            self.world.on_main(self._open_wandb)
            yield

    def _begin(self, trainer: PPOTrainer) -> RunState:
        """The state that the run starts from: a new one, that of a checkpoint, or the weights of another run."""
        state = RunState(self.config, self.run_folder, trainer, self.validation, self._identity)
        kept = self._wandb.files if self._wandb else None
        state.begin(self.overwrite, bool(self.resume), self.weights_from, self.resume_from, kept)
        return state

    def _loop(self, state: RunState) -> dict[str, float]:
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

    def _open_wandb(self) -> None:
        goes_on = bool(self.resume) and self.resume_from is None  # a branch has a run of wandb of its own
        self._wandb = open_wandb(self.config, self.run_folder, goes_on)

    def _open_trackers(self, done: int) -> None:
        self._trackers = Trackers(self.config, self.run_folder, done, self._wandb)

    def _close_trackers(self) -> None:
        """At the very end, because wandb waits until all metrics are uploaded."""
        trackers, wandb = self._trackers, self._wandb
        self._trackers = self._wandb = None
        if trackers:
            trackers.close()
        elif wandb:
            with contextlib.suppress(Exception):
                wandb.close()

    def _iterate(self, state: RunState, interrupts: Interrupts) -> dict[str, float]:
        """Iterations until the end; evaluates, logs and saves after those where it is time. All ranks decide the same."""
        metrics: dict[str, float] = {}
        trainer, validation, world = state.trainer, state.validation, self.world
        rescue = Rescue(state, self._complete_line)
        for metrics in rescue.iterations():
            is_best = False
            with rescue.after(metrics):
                if validation and validation.due(trainer.iteration, trainer.done):
                    metrics |= validation.run(trainer, self._trackers)
                    is_best = validation.is_best(trainer.iteration)
                world.on_main(partial(self._log, trainer, metrics))
            is_asked = interrupts.agree(world.gather(interrupts.signum))
            is_due = is_best or trainer.done or is_asked or trainer.iteration % self.config.save_interval == 0
            if is_due:
                with self._timed("checkpoint"):
                    state.save(is_best)
            interrupts.iteration_ended(trainer.iteration, saved=is_due and (is_asked or world.size == 1))
        return metrics

    def _log(self, trainer: PPOTrainer, metrics: dict[str, float]) -> None:
        if self._trackers is None:
            return
        self._trackers.log(trainer.iteration, metrics)
        self._trackers.advance(trainer.progress)
        if trainer.rollout and self.config.sample_interval and trainer.iteration % self.config.sample_interval == 0:
            self._trackers.show_samples(trainer.rollout, trainer.iteration)

    def _complete_line(self, iteration: int, metrics: dict[str, float]) -> bool:
        return self._trackers is not None and self._trackers.complete(iteration, metrics)

    def _save_agent(self) -> None:
        with self._timed("checkpoint"):
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

    def _answer_once(self) -> None:
        """Load the agent that was saved, as chat.py does, and let it reply to a prompt."""
        if self.trainer is None or self.trainer.rollout is None:
            raise UserError("there is no agent yet; call train() first")
        turns, device = self.trainer.rollout.dialogues[0].prompt_turns, str(self.trainer.models.policy.lm.device)
        self.trainer = self.validation = None  # one model at a time in the memory of the device
        with self._timed("chat"):
            trust = self.config.trust_remote_code
            agent = ChatAgent.load(self.run_folder / "agent", device=device, trust_remote_code=trust)
            agent.chat(turns[-1], turns[:-1])

    def _leave_traceback(self, error: Exception) -> None:
        if not self.world.is_main:
            return
        path = self.run_folder / "error.log"
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
            logger.info("the traceback is in %s", path)

    def _report_end(self) -> None:
        if self._is_trial:
            return
        if self.validation:
            self._report_best(self.validation.best)
        logger.info("agent saved; talk to it: rlhf-dialog chat --agent %s", self.run_folder / "agent")
        if self.world.is_main:  # the others need not wait: nothing follows
            push_agent(self.config, self.run_folder)

    def _report_best(self, best: Best | None) -> None:
        if best is None:
            logger.warning("eval/%s was never a number, so there is no best agent", self.config.eval_metric)
            return
        folder = self.run_folder / "best_agent"
        logger.info(
            "best eval/%s: %.4f after iteration %d; its agent: %s",
            *(best.metric, best.value, best.iteration, folder if folder.exists() else NO_BEST_AGENT),
        )

    @contextlib.contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Count the wall time of the block as `stage`."""
        start = time.perf_counter()
        yield
        self._seconds[stage] += time.perf_counter() - start

    def _find_out_whether_to_resume(self) -> None:
        """Decide for `resume="auto"`: continue the run that is there, or begin one, with the weights that were asked for.

        A run that was killed before it had saved those weights has nothing to continue, and is replaced.
        """
        if self.resume != "auto":
            return
        self.resume = self.world.on_main(lambda: run_folder.has_begun(self.run_folder))
        if self.resume and self.weights_from is not None:
            if self.world.on_main(lambda: run_folder.has_results(self.run_folder)):
                self.weights_from = None
            else:
                self.resume, self.overwrite = False, True

    def _check_folder(self) -> None:
        """What can be known of the run folder before anything is loaded."""
        check_packages(self.config)
        check_push(self.config)
        check_unlocked(self.run_folder)
        if self.overwrite and self.resume_from is not None:
            raise UserError("--overwrite replaces the run, --resume_from goes on with it; give one of them")
        run_folder.check_folder(
            self.run_folder, self.overwrite, bool(self.resume), self.config.save_interval, self.resume_from
        )
        if self.weights_from is None:
            return
        if self.resume:
            raise UserError(
                "--resume_weights_only begins a new run, --resume and --resume_from go on with an old one; give one of them"
            )
        run_folder.check_source(self.weights_from, self.run_folder)

    def build(self, locks: contextlib.ExitStack | None = None) -> PPOTrainer:
        """The trainer with everything that a run needs, on the run's device; cheap checks first. Raises UserError as `train`.

        `train` passes `locks`, in which the lock of the run folder is: wandb opens before the models are loaded, since its key
        may be wrong, and writes to the folder, so the lock comes first then; else the models do, since they may be refused.
        """
        self.world = launch.start(self.config)
        if self.resume:
            keep_precision(self.config, self.world, self.run_folder / "checkpoints", self.resume_from)
        prepared, early = self._prepare(), wants_wandb(self.config)
        if locks and early:
            locks.enter_context(self._locked_folder())
        trainer = self._load(*prepared)
        if locks and not early:
            locks.enter_context(self._locked_folder())
        return trainer

    def _prepare(self) -> tuple[BaseReward, VecInfo, list[Dialogue] | Simulated]:
        """The parts that are checked before any model is loaded."""
        config, device = self.config, self.world.device
        seed_rank(config.seed, self.world)
        batch_plan(config, self.world.size)
        check_placement(config, device)
        forecast.report_forecast(config, device, deepspeed_setting(config, self.world))  # before anything is loaded
        with self.world.fail_together():
            with self._timed("reward"):
                reward = build_reward(config.reward_class.id, config.reward_class.args)
            vec_info = VecInfoFactory.create(config.vec_info_class.id, config.vec_info_class.args)
            with self._timed("data"):
                prompts, self.validation = self._read_source(reward)
        if self.validation:
            self.world.on_main(self.validation.check)
        return reward, vec_info, prompts

    def _read_source(self, reward: BaseReward) -> tuple[list[Dialogue] | Simulated, Validation | None]:
        return read_source(self.config, reward)

    def _load(self, reward: BaseReward, vec_info: VecInfo, source: list[Dialogue] | Simulated) -> PPOTrainer:
        config, device = self.config, self.world.device
        with self._timed("models"), self.world.fail_together():
            models = load_models(config, device)
            reward.to(str(device))
        prompts = [] if isinstance(source, Simulated) else source
        self._identity = identity.identity_of(config, models, prompts, reward)
        identity.refuse_other_ranks(config, self._identity, self.world)
        trainer = self.trainer = PPOTrainer(config, models, source, reward, vec_info, self.world)
        warn_of_marks(trainer.speaker.encoder, [*prompts, *(self.validation.prompts if self.validation else ())])
        count = trained_parameters(m for m in (models.policy, models.critic) if m is not None)
        what = f"environment {config.environment.id}" if config.environment else f"{len(prompts)} prompts"
        logger.info("%s; %.1f million trained parameters on %s", what, count / 1e6, device)
        logger.info("%s", trainer.plan.text)
        return trainer
