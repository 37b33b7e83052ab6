"""PPOAgent and main(): what train_ppo.py calls. Checks everything that can be checked, then trains, logs and saves."""

import contextlib
import io
import logging
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import rlhf_dialog.metrics
import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from rlhf_dialog import identity, launch, memory, run_folder
from rlhf_dialog.chat import ChatAgent
from rlhf_dialog.checkpoint import (
    damage_told,
    load_checkpoint,
    load_weights,
    mark_best,
    newest_checkpoint,
    read_state,
    replace_text,
    save_agent,
    save_checkpoint,
)
from rlhf_dialog.cli import FLAGS, exit_code_of, exit_on_sigterm, flag_lines, set_up_logging, show_help
from rlhf_dialog.config import dump_yaml, find_config, load_config, parse_arguments, replace_keys
from rlhf_dialog.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.interrupts import Interrupts
from rlhf_dialog.models import load_models, trained_parameters
from rlhf_dialog.prompts import load_prompts
from rlhf_dialog.registry import VecInfoFactory
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.composite import RewardError, build_reward
from rlhf_dialog.rewards.limit import RewardTimeout
from rlhf_dialog.schema import Config
from rlhf_dialog.tracking import Trackers, cut_metrics
from rlhf_dialog.trainer import PPOTrainer
from rlhf_dialog.validation import Validation, load_validation_prompts

logger = logging.getLogger(__name__)
TRAIN_FLAGS = FLAGS | {
    "overwrite": "replace the run that the run folder holds; on a terminal you are asked to type the folder's name",
    "resume": "continue the run that the run folder holds from its newest checkpoint",
    "smoke": "pass two prompts through every stage, from the data to a reply of the saved agent, and leave nothing behind",
}
STAGES = ("config", "data", "models", "rollout", "reward", "update", "evaluation", "checkpoint", "chat")


USAGE = """Train a dialog model with PPO. Metrics, checkpoints and the trained agent go to <run_dir>/<experiment_name>.

usage: python train_ppo.py --config FILE [--key value] [--a.b value]
       e.g. python train_ppo.py --config nlp_ppo.yaml --lr 1e-5 --reward_class.args.intent_coef 0.3
  --config FILE   YAML: as given, else configs/FILE, else beside the script
  --resume_weights_only RUN_FOLDER
                  a new run, in a folder of its own, that begins with the weights of that run's newest checkpoint; optimizer,
                  counters, position in the data and KL controller begin anew, and nothing in RUN_FOLDER is changed"""


class PPOAgent:
    """A PPO run from Python.

    >>> agent = PPOAgent.from_config("nlp_ppo.yaml", model_path="./my_model")
    >>> agent.train(total_time_steps=100_000, use_wandb=True)
    >>> agent.save("./ppo_agent")
    """

    def __init__(
        self, config: Config, overwrite: bool = False, resume: bool = False, weights_from: str | Path | None = None
    ):
        self.config, self.overwrite, self.resume = config, overwrite, resume
        self.weights_from = None if weights_from is None else Path(weights_from)
        self._identity: dict[str, Any] = {}
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
        with run_folder.folder_beside(self.run_folder) as folder:
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
        except (RewardError, RewardTimeout) as error:
            self._leave_traceback(error)
            raise

    def _train(self) -> dict[str, float]:
        trainer = self.trainer = self._build()
        with run_folder.locked(self.run_folder), run_folder.disk_errors_told(self.run_folder):
            self._check_folder()  # what another run has left there since
            self._begin(trainer)
            return self._go_on(trainer)

    def _go_on(self, trainer: PPOTrainer) -> dict[str, float]:
        """Train to the end from the state that the trainer is in, and save the agent."""
        with Interrupts(self.config.grace_seconds) as interrupts:
            trackers = Trackers(self.config, self.run_folder)
            try:
                metrics = self._loop(trainer, trackers, interrupts)
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

    def _leave_traceback(self, error: Exception) -> None:
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
        run_folder.check_unlocked(self.run_folder)
        run_folder.check_folder(self.run_folder, self.overwrite, self.resume, self.config.save_interval)
        if self.weights_from is None:
            return
        if self.resume:
            raise UserError(
                "--resume_weights_only begins a new run, --resume goes on with an old one; give one of them"
            )
        run_folder.check_source(self.weights_from, self.run_folder)

    def _build(self) -> PPOTrainer:
        """Everything that a run needs, cheap checks first."""
        config = self.config
        launch.check_processes(config)
        device = launch.pick_device(config)
        launch.set_threads(config)
        launch.seed_everything(config.seed)
        memory.tell_forecast(config, device)  # before the reward loads its classifier
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

    def _begin(self, trainer: PPOTrainer) -> None:
        """Bring trainer and folder to where the run begins or goes on."""
        config, models = self.config, trainer.models
        self._identity = identity.identity_of(config, models, trainer.prompts, trainer.reward)
        if self.overwrite and not self.resume:
            run_folder.clear(self.run_folder)
        run_folder.mend(self.run_folder)
        if self.resume and newest_checkpoint(self.run_folder / "checkpoints"):
            self._restore(trainer)
        elif self.resume:
            cut_metrics(self.run_folder / "metrics.jsonl", 0)
            logger.info("%s: ended before its first checkpoint; the run starts from the beginning", self.run_folder)
        with run_folder.disk_errors_told(self.run_folder / "config.yaml"):
            replace_text(self.run_folder / "config.yaml", dump_yaml(config))
        logger.info("run folder: %s", self.run_folder)
        if self.weights_from is not None:
            self._take_weights(trainer, self.weights_from)

    def _restore(self, trainer: PPOTrainer) -> None:
        folder, device = self.run_folder / "checkpoints", trainer.models.policy.lm.device
        source, state = read_state(folder)
        self._compare(source, state)
        load_checkpoint(folder, self._modules(trainer), trainer.optimizers, device)
        with damage_told(source):
            trainer.load_state_dict(state)
            if self.validation:
                self.validation.load_state_dict(state.get("validation", {"best": None}))
        trainer.starts_from_reference = False
        if self.validation and self.validation.is_best(trainer.iteration):  # a kill may have come before it was said
            mark_best(folder, trainer.iteration)
            self.save(self.run_folder / "best_agent")
        cut_metrics(self.run_folder / "metrics.jsonl", trainer.iteration)
        logger.info("resumed after iteration %d", trainer.iteration)

    def _compare(self, source: Path, state: dict[str, Any]) -> None:
        """Refuse the checkpoint of another run; tell what may be different and is."""
        if "identity" not in state:
            logger.warning("%s: is of an earlier version and does not say what it was made with", source)
            return
        identity.refuse_another_run(self._identity, state["identity"], source)
        if changes := identity.changed_settings(self.config, state.get("settings")):
            logger.info("resumed with other settings: %s", "; ".join(changes))

    def _take_weights(self, trainer: PPOTrainer, run: Path) -> None:
        """Begin with the weights of another run's newest checkpoint, and save that beginning, so that it can be resumed."""
        source, state = read_state(run / "checkpoints")
        fresh = load_weights(source, self._modules(trainer), trainer.models.policy.lm.device)
        trainer.starts_from_reference = False
        anew = ", ".join(["the optimizer", "the counters", "the position in the data", "the KL controller", *fresh])
        logger.info("weights of %s; %s begin anew", source, anew)
        if found := identity.differences(self._identity, state.get("identity")):
            logger.info("other than in that run: %s", "; ".join(found))
        self._save_state(trainer, best=False)

    def _loop(self, trainer: PPOTrainer, trackers: Trackers, interrupts: Interrupts) -> dict[str, float]:
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
            due = best or trainer.done or interrupts.asked or trainer.iteration % self.config.save_interval == 0
            if due:
                with self._timed("checkpoint"):
                    self._save_state(trainer, best)
            interrupts.iteration_ended(trainer.iteration, saved=due)
        return metrics

    def _save_state(self, trainer: PPOTrainer, best: bool) -> None:
        """The checkpoint of this iteration; after the best one so far also its agent."""
        state = trainer.state_dict()
        state |= identity.record(self.config, self._identity)
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
    weights = overrides.pop("resume_weights_only", None)
    if weights is True or weights == "":
        raise UserError("--resume_weights_only: name the folder of the run whose weights the new one begins with")
    config = load_config(path, overrides)
    if "print_config" in flags:
        sys.stdout.write(dump_yaml(config))
        return
    agent = PPOAgent(
        config, overwrite="overwrite" in flags, resume="resume" in flags, weights_from=weights and str(weights)
    )
    if "smoke" not in flags:
        if agent.overwrite and not agent.resume:
            run_folder.confirm_overwrite(agent.run_folder)
        agent.train()
        return
    seconds = ", ".join(f"{stage} {value:.1f} s" for stage, value in agent.smoke().items())
    logger.info("smoke test passed with 2 prompts: %s", seconds)
