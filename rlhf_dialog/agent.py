"""PPOAgent and main(): what train_ppo.py calls. Checks everything that can be checked, then trains, logs and saves."""

import contextlib
import io
import logging
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

import rlhf_dialog.metrics
import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from rlhf_dialog import launch
from rlhf_dialog.checkpoint import load_checkpoint, replace_text, save_agent, save_checkpoint
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

logger = logging.getLogger(__name__)
RUN_FILES = (
    "config.yaml",
    "metrics.jsonl",
    "evaluation.json",
    "error.log",
    "agent",
    "checkpoints",
    "tensorboard",
    "wandb",
)
TRAIN_FLAGS = FLAGS | {
    "overwrite": "replace the run that the run folder holds",
    "resume": "continue the run that the run folder holds from its newest checkpoint",
}


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
        trainer = self.trainer = self._build()
        if self.resume:
            self._restore(trainer)
        self._open_folder()
        trackers = Trackers(self.config, self.run_folder)
        try:
            metrics = self._loop(trainer, trackers)
        except RewardError as error:
            (self.run_folder / "error.log").write_text("".join(traceback.format_exception(error)), encoding="utf-8")
            raise
        finally:
            trackers.close()
        self.save(self.run_folder / "agent")
        logger.info("agent saved; talk to it: python chat.py --agent %s", self.run_folder / "agent")
        return metrics

    def save(self, folder: str | Path) -> None:
        """Write the trained agent, as `agent/` of the run folder holds it. Raises UserError before any training."""
        if self.trainer is None:
            raise UserError("there is nothing to save yet; call train() first")
        save_agent(Path(folder), self.trainer.models.policy, self.trainer.models.tokenizer, self.config)

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
        reward = build_reward(config.reward_class.id, config.reward_class.args)
        vec_info = VecInfoFactory.create(config.vec_info_class.id, config.vec_info_class.args)
        prompts = load_prompts(
            config.env.args.data_path, "train", config.context_size, config.min_context_size, config.drop_overlap
        )
        check_needs(reward, prompts)
        models = load_models(config, device)
        reward.to(str(device))
        trainer = PPOTrainer(config, models, prompts, reward, vec_info)
        count = trained_parameters(m for m in (models.policy, models.critic) if m is not None)
        logger.info("%d prompts; %.1f million trained parameters on %s", len(prompts), count / 1e6, device)
        logger.info("%s", trainer.plan.text)
        return trainer

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
        cut_metrics(self.run_folder / "metrics.jsonl", trainer.iteration)
        logger.info("resumed after iteration %d", trainer.iteration)

    def _loop(self, trainer: PPOTrainer, trackers: Trackers) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for metrics in trainer.train():
            trackers.log(trainer.iteration, metrics)
            trackers.console.advance(trainer.progress)
            if self.config.sample_interval and trainer.iteration % self.config.sample_interval == 0 and trainer.rollout:
                trackers.console.show_samples(trainer.rollout, trainer.iteration)
            if trainer.done or trainer.iteration % self.config.save_interval == 0:
                save_checkpoint(
                    self.run_folder / "checkpoints",
                    self.config,
                    trainer.state_dict(),
                    self._modules(trainer),
                    trainer.optimizers,
                )
        return metrics

    @staticmethod
    def _modules(trainer: PPOTrainer) -> dict[str, torch.nn.Module]:
        modules: dict[str, torch.nn.Module] = {"policy": trainer.models.policy}
        if trainer.models.critic is not None:
            modules["critic"] = trainer.models.critic
        return modules


def check_needs(reward: BaseReward, prompts: list[Dialogue]) -> None:
    """Raises UserError when the reward wants a reference or an act and a prompt has none."""
    for need in reward.needs:
        missing = sum(getattr(prompt, need) is None for prompt in prompts)
        if missing:
            raise UserError(
                f"env.args.data_path: {missing} of {len(prompts)} prompts have no {need}, but the reward '{reward.name}' "
                "needs it; use data that has it, or another reward_class"
            )


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
    PPOAgent(config, overwrite="overwrite" in flags, resume="resume" in flags).train()
