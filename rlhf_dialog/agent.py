"""PPOAgent and main(): what train_ppo.py calls. Checks everything that can be checked, then trains, logs and saves."""

import contextlib
import io
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import rlhf_dialog.metrics
import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from rlhf_dialog import launch
from rlhf_dialog.chat import ChatAgent
from rlhf_dialog.checkpoint import load_checkpoint, mark_best, replace_text, save_agent, save_checkpoint
from rlhf_dialog.cli import FLAGS, exit_code_of, exit_on_sigterm, flag_lines, set_up_logging, show_help
from rlhf_dialog.config import dump_yaml, find_config, load_config, parse_arguments, replace_keys
from rlhf_dialog.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import load_models, trained_parameters
from rlhf_dialog.prompts import load_prompts
from rlhf_dialog.registry import VecInfoFactory
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.composite import RewardError, build_reward
from rlhf_dialog.schema import Config
from rlhf_dialog.tracking import Trackers, cut_metrics
from rlhf_dialog.trainer import PPOTrainer
from rlhf_dialog.validation import Validation, load_validation_prompts

logger = logging.getLogger(__name__)
RUN_FILES = (
    "config.yaml",
    "metrics.jsonl",
    "evaluation.json",
    "error.log",
    "agent",
    "best_agent",
    "checkpoints",
    "tensorboard",
    "wandb",
)
TRAIN_FLAGS = FLAGS | {
    "overwrite": "replace the run that the run folder holds",
    "resume": "continue the run that the run folder holds from its newest checkpoint",
    "smoke": "pass two prompts through every stage, from the data to a reply of the saved agent, and leave nothing behind",
}
STAGES = ("config", "data", "models", "rollout", "reward", "update", "evaluation", "checkpoint", "chat")


USAGE = """Train a dialog model with PPO. Metrics, checkpoints and the trained agent go to <run_dir>/<experiment_name>.

usage: python train_ppo.py --config FILE [--key value] [--a.b value]
       e.g. python train_ppo.py --config nlp_ppo.yaml --lr 1e-5 --reward_class.args.intent_coef 0.3
  --config FILE   YAML: as given, else configs/FILE, else beside the script"""


class PPOAgent:
    """A PPO run from Python.

    >>> agent = PPOAgent.from_config("nlp_ppo.yaml", model_path="./my_model")
    >>> agent.train(total_time_steps=100_000, use_wandb=True)
    >>> agent.save("./ppo_agent")
    """

    def __init__(self, config: Config, overwrite: bool = False, resume: bool = False):
        self.config, self.overwrite, self.resume = config, overwrite, resume
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
        return Path(self.config.run_dir) / str(self.config.experiment_name)

    def train(
        self, total_time_steps: int | None = None, use_wandb: bool | None = None, use_tensorboard: bool | None = None
    ) -> dict[str, float]:
        """Train to the end, leaving metrics, checkpoints and `agent/` in the run folder; returns the last metrics.

        Arguments that are given replace the keys of the same names. Raises UserError for whatever the user can mend, and
        RunStopped when a check of the run fails.
        """
        given = {"total_time_steps": total_time_steps, "use_wandb": use_wandb, "use_tensorboard": use_tensorboard}
        self.config = replace_keys(self.config, {key: value for key, value in given.items() if value is not None})
        self._check_folder()
        metrics = self._run()
        self._tell_best()
        logger.info("agent saved; talk to it: python chat.py --agent %s", self.run_folder / "agent")
        return metrics

    def smoke(self) -> dict[str, float]:
        """Pass two prompts through every stage of this run, in a folder that is removed again; returns seconds by stage.

        Raises what `train` would raise.
        """
        start = time.perf_counter()
        self._check_folder()
        with _folder_beside(self.run_folder) as folder:
            small = PPOAgent(_two_prompts(self.config, folder))
            small._seconds["config"] = time.perf_counter() - start
            metrics = small._train()
            small._answer_once()
        for stage, name in (("rollout", "rollout"), ("reward", "reward"), ("update", "update"), ("evaluation", "eval")):
            if f"time/{name}" in metrics:
                small._seconds[stage] += metrics[f"time/{name}"]
        return {stage: small._seconds[stage] for stage in STAGES if stage in small._seconds}

    def _run(self) -> dict[str, float]:
        try:
            return self._train()
        except RewardError as error:
            self._leave_traceback(error)
            raise

    def _train(self) -> dict[str, float]:
        trainer = self.trainer = self._build()
        if self.resume:
            self._restore(trainer)
        self._open_folder()
        trackers = Trackers(self.config, self.run_folder)
        try:
            metrics = self._loop(trainer, trackers)
        finally:
            trackers.close()
        with self._timed("checkpoint"):
            self.save(self.run_folder / "agent")
        return metrics

    def save(self, folder: str | Path) -> None:
        """Write the trained agent, as `agent/` of the run folder holds it. Raises UserError before any training."""
        if self.trainer is None:
            raise UserError("there is nothing to save yet; call train() first")
        save_agent(Path(folder), self.trainer.models.policy, self.trainer.models.tokenizer, self.config)

    def _answer_once(self) -> None:
        """Load the agent that was saved, as chat.py does, and let it reply to a prompt."""
        if self.trainer is None:
            raise UserError("there is no agent yet; call train() first")
        turns, device = self.trainer.prompts[0].prompt_turns, str(self.trainer.models.policy.lm.device)
        self.trainer = self.validation = None  # one model at a time in the memory of the device
        with self._timed("chat"):
            ChatAgent.load(self.run_folder / "agent", device=device).chat(turns[-1], turns[:-1])

    def _leave_traceback(self, error: RewardError) -> None:
        path = self.run_folder / "error.log"
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
            logger.info("the traceback is in %s", path)

    def _tell_best(self) -> None:
        if not self.validation:
            return
        best = self.validation.best
        if not best:
            logger.warning("eval/%s was never a number, so there is no best agent", self.config.eval_metric)
        else:
            logger.info(
                "best eval/%s: %.4f after iteration %d; its agent: %s",
                best.metric,
                best.value,
                best.iteration,
                self.run_folder / "best_agent",
            )

    @contextlib.contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Count the wall time of the block as `stage`."""
        start = time.perf_counter()
        yield
        self._seconds[stage] += time.perf_counter() - start

    def _check_folder(self) -> None:
        """What can be known of the run folder before anything is loaded."""
        folder = self.run_folder
        metrics = folder / "metrics.jsonl"
        finished_something = metrics.is_file() and metrics.stat().st_size > 0
        holds_run = finished_something or any(
            (folder / name).exists() for name in ("agent", "checkpoints", "evaluation.json")
        )
        if holds_run and not (self.overwrite or self.resume):
            raise UserError(
                f"{folder}: holds a run already; replace it with --overwrite, continue it with --resume, or choose another "
                "name with --experiment_name"
            )
        if self.resume and not (folder / "checkpoints" / "latest").is_file():
            raise UserError(f"{folder}: holds no checkpoint to resume from; start without --resume")
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise UserError(f"run_dir: {folder} cannot be written: {existing} is no folder that you may write to")

    def _build(self) -> PPOTrainer:
        """Everything that a run needs, cheap checks first."""
        config = self.config
        launch.check_processes(config)
        device = launch.pick_device(config)
        launch.set_threads(config)
        launch.seed_everything(config.seed)
        with self._timed("reward"):
            reward = build_reward(config.reward_class.id, config.reward_class.args)
        vec_info = VecInfoFactory.create(config.vec_info_class.id, config.vec_info_class.args)
        with self._timed("data"):
            prompts = self._load_prompts(reward)
        with self._timed("models"):
            models = load_models(config, device)
            reward.to(str(device))
        trainer = PPOTrainer(config, models, prompts, reward, vec_info)
        count = trained_parameters(m for m in (models.policy, models.critic) if m is not None)
        logger.info("%d prompts; %.1f million trained parameters on %s", len(prompts), count / 1e6, device)
        logger.info("%s", trainer.plan.text)
        return trainer

    def _load_prompts(self, reward: BaseReward) -> list[Dialogue]:
        """The prompts to train on; those to validate on, if there are any, are checked with the reward at once."""
        config = self.config
        prompts = load_prompts(
            config.env.args.data_path, "train", config.context_size, config.min_context_size, config.drop_overlap
        )
        check_needs(reward, prompts)
        if config.eval_interval:
            held_out = load_validation_prompts(config)
            check_needs(reward, held_out, " of the validation split (eval_interval)")
            self.validation = Validation(config, held_out, reward)
            self.validation.check()
        return prompts

    def _open_folder(self) -> None:
        folder = self.run_folder
        try:
            for name in RUN_FILES if self.overwrite and not self.resume else ():
                path = folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            replace_text(folder / "config.yaml", dump_yaml(self.config))
        except OSError as error:
            raise UserError(f"run_dir: {folder} cannot be written: {error}") from error
        logger.info("run folder: %s", folder)

    def _restore(self, trainer: PPOTrainer) -> None:
        device = trainer.models.policy.lm.device
        state = load_checkpoint(self.run_folder / "checkpoints", self._modules(trainer), trainer.optimizers, device)
        trainer.load_state_dict(state)
        if self.validation:
            self.validation.load_state_dict(state.get("validation", {"best": None}))
            if self.validation.is_best(trainer.iteration):  # the run may have been killed before it said so
                mark_best(self.run_folder / "checkpoints", trainer.iteration)
                self.save(self.run_folder / "best_agent")
        cut_metrics(self.run_folder / "metrics.jsonl", trainer.iteration)
        logger.info("resumed after iteration %d", trainer.iteration)

    def _loop(self, trainer: PPOTrainer, trackers: Trackers) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for metrics in trainer.train():
            best = False
            if self.validation and self.validation.due(trainer.iteration, trainer.done):
                with trackers.console.paused():
                    metrics |= self.validation.measure(trainer)
                best = self.validation.is_best(trainer.iteration)
            trackers.log(trainer.iteration, metrics)
            trackers.console.advance(trainer.progress)
            if self.config.sample_interval and trainer.iteration % self.config.sample_interval == 0 and trainer.rollout:
                trackers.console.show_samples(trainer.rollout, trainer.iteration)
            if best or trainer.done or trainer.iteration % self.config.save_interval == 0:
                with self._timed("checkpoint"):
                    self._save_state(trainer, best)
        return metrics

    def _save_state(self, trainer: PPOTrainer, best: bool) -> None:
        """The checkpoint of this iteration; after the best one so far also its agent."""
        state = trainer.state_dict()
        if self.validation:
            state["validation"] = self.validation.state_dict()
        folder = self.run_folder / "checkpoints"
        save_checkpoint(folder, self.config, state, self._modules(trainer), trainer.optimizers, best)
        if best:
            self.save(self.run_folder / "best_agent")

    @staticmethod
    def _modules(trainer: PPOTrainer) -> dict[str, torch.nn.Module]:
        modules: dict[str, torch.nn.Module] = {"policy": trainer.models.policy}
        if trainer.models.critic is not None:
            modules["critic"] = trainer.models.critic
        return modules


def check_needs(reward: BaseReward, prompts: list[Dialogue], where: str = "") -> None:
    """Raises UserError when the reward wants a reference or an act and a prompt (of `where`) has none."""
    for need in reward.needs:
        missing = sum(getattr(prompt, need) is None for prompt in prompts)
        if missing:
            raise UserError(
                f"env.args.data_path: {missing} of {len(prompts)} prompts{where} have no {need}, but the reward '{reward.name}' "
                "needs it; use data that has it, or another reward_class"
            )


def _two_prompts(config: Config, folder: str) -> Config:
    """The same run with one iteration of two prompts that writes below `folder` and to no tracker."""
    few = {"max_iterations": 1, "rollout_batch_size": 2 * config.responses_per_prompt, "eval_episodes": 2}
    every = {"sample_interval": 1, "save_interval": 1, "eval_interval": min(config.eval_interval, 1)}
    quiet = {"run_dir": folder, "use_wandb": False, "use_tensorboard": False, "log_interval": 1}
    return replace_keys(config, few | every | quiet)


def _folder_beside(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder where the run folder will be, so that it meets the same disk."""
    beside = next(parent for parent in folder.absolute().parents if parent.exists())
    return tempfile.TemporaryDirectory(prefix=".smoke_", dir=beside if os.access(beside, os.W_OK) else None)


def main(argv: list[str] | None = None) -> int:
    """The command line of train_ppo.py; returns the exit code. `argv` is `sys.argv[1:]` by default."""
    words = sys.argv[1:] if argv is None else argv
    set_up_logging()
    exit_on_sigterm()
    speaks = contextlib.nullcontext() if launch.rank() == 0 else contextlib.redirect_stderr(io.StringIO())
    with speaks:
        return exit_code_of(lambda: _main(words), debug="--debug" in words)


def _main(words: list[str]) -> None:
    name, overrides, flags = parse_arguments(words, TRAIN_FLAGS)
    if "help" in flags:
        usage = f"{USAGE}\n{flag_lines(TRAIN_FLAGS)}"
        show_help(Config, usage)
        return
    if name is None:
        raise UserError("--config is missing: python train_ppo.py --config nlp_ppo.yaml")
    path = find_config(name)
    logger.info("config: %s", path)
    config = load_config(path, overrides)
    if "print_config" in flags:
        sys.stdout.write(dump_yaml(config))
        return
    agent = PPOAgent(config, overwrite="overwrite" in flags, resume="resume" in flags)
    if "smoke" not in flags:
        agent.train()
        return
    seconds = ", ".join(f"{stage} {value:.1f} s" for stage, value in agent.smoke().items())
    logger.info("smoke test passed with 2 prompts: %s", seconds)
