"""A run that trains a dialogue policy: sample turns, let the policy learn, evaluate, log, save; and go on after a kill."""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import torch

from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.config.loading import dump_yaml
from rlhf_dialog.data.domains import AnyDomain, MultiDomain, open_domain
from rlhf_dialog.environments.act_level import ActLevel
from rlhf_dialog.environments.multi_domain.act_level import END_REWARD, MultiActLevel
from rlhf_dialog.errors import UserError
from rlhf_dialog.policies.base import Episode, Setting
from rlhf_dialog.policies.built_in import build_policy, handcrafted
from rlhf_dialog.policies.imitation import imitate
from rlhf_dialog.policies.measures import VALIDATION_SEED, means
from rlhf_dialog.policies.ppo import PPO
from rlhf_dialog.policies.sampling import Sampler, hosts, play
from rlhf_dialog.policies.transcripts import transcript
from rlhf_dialog.runs import folder as run_folder
from rlhf_dialog.runs.checkpoint import iteration_of, newest_checkpoint
from rlhf_dialog.runs.interrupts import Interrupts
from rlhf_dialog.runs.lock import check_unlocked, locked
from rlhf_dialog.runs.policy_checkpoint import load_policy_checkpoint, save_policy_agent, save_policy_checkpoint
from rlhf_dialog.runs.policy_settings import PolicyConfig
from rlhf_dialog.runs.tracking import JsonlTracker, Metrics, cut_metrics

logger = logging.getLogger(__name__)
IMITATION_SEED = 2**30 + 2**29  # added to the run's seed


class PolicyRun:
    """Trains the policy of a `PolicyConfig` in its run folder."""

    def __init__(self, config: PolicyConfig, overwrite: bool = False, resume: bool = False):
        self.config, self.overwrite, self.resume = config, overwrite, resume
        self.folder, self.checkpoints = config.run_folder, config.run_folder / "checkpoints"
        self.iteration = self.num_dialogues = 0
        self.imitation: Metrics = {}

    def train(self) -> Metrics:
        """Train to the end, leaving metrics, checkpoints and `agent/` in the run folder; returns the last metrics.

        Raises UserError for what the user can correct, and RunStopped when a check of the run fails.
        """
        if self.config.pytorch_threads:
            torch.set_num_threads(self.config.pytorch_threads)
        self._check_folder()
        self._build()
        with ExitStack() as stack:
            stack.enter_context(locked(self.folder))
            stack.enter_context(run_folder.disk_errors_told(self.folder))
            self._check_folder()
            self._begin(stack)
            with Interrupts(self.config.grace_seconds, run=self.folder) as interrupts:
                metrics = self._loop(interrupts)
            self._save_agent()
        return metrics

    def _check_folder(self) -> None:
        check_unlocked(self.folder)
        run_folder.check_folder(self.folder, self.overwrite, self.resume, self.config.save_interval)

    def _build(self) -> None:
        """Domain and policy, before anything is written."""
        config = self.config
        self.domain = open_domain(config.domain, config.data_path)
        self.make = environment_of(config.model_dump(), self.domain)
        environment = self.make()
        self.names = environment.names
        sizes = environment.layout.size, len(self.names)
        self.setting = Setting(*sizes, seed=config.seed, domain=self.domain, num_updates=config.epoch)
        self.policy = build_policy(config.policy.id, config.policy.args, self.setting)
        self.identity = config.identity(self.domain.hash)

    def _begin(self, stack: ExitStack) -> None:
        """Prepare folder and sampler to start, or to go on after the newest checkpoint."""
        config = self.config
        if self.overwrite and not self.resume:
            run_folder.clear(self.folder)
        run_folder.mend(self.folder)
        source = newest_checkpoint(self.checkpoints) if self.resume else None
        state = load_policy_checkpoint(source, self.policy, self.identity, self.domain) if source else None
        host = hosts(self.make, config.seed, config.num_envs, config.process_num, config.step_timeout_s)
        self.sampler = stack.enter_context(closing(Sampler(self.make, config.seed, config.num_envs, host)))
        if state is not None:
            self.iteration, self.num_dialogues = state["iteration"], state["num_dialogues"]
            self.imitation = state["imitation"]
            self.sampler.load_state_dict(state["sampler"])
        self._note_position()
        cut_metrics(self.folder / "metrics.jsonl", self.iteration)
        replace_text(self.folder / "config.yaml", dump_yaml(config))
        self.tracker = stack.enter_context(closing(JsonlTracker(self.folder / "metrics.jsonl")))
        logger.info("run folder: %s; domain %s (hash %.12s)", self.folder, self.domain.name, self.domain.hash)

    def _loop(self, interrupts: Interrupts) -> Metrics:
        """Iterations until the end. What raises while turns are sampled, such as a process that dies, saves first."""
        config, metrics = self.config, Metrics()
        self.baseline = self._evaluated(handcrafted(self.setting), "handcrafted_") if config.eval_interval else {}
        if self.iteration == 0 and config.imitation_dialogues:
            self.imitation = self._imitate()
        while self.iteration < config.epoch:
            metrics = self._iterate() | (self.imitation if self.iteration == 1 else {})
            self.tracker.log(self.iteration, metrics)
            self._report(metrics)
            is_due = self.iteration % config.save_interval == 0 or self.iteration == config.epoch or interrupts.asked
            if is_due:
                self._save()
            interrupts.iteration_ended(self.iteration, saved=is_due)
        return metrics

    def _iterate(self) -> Metrics:
        """Sample `batchsz` turns, learn from them, and evaluate where it is time."""
        config, start = self.config, time.perf_counter()
        try:
            episodes = self.sampler.sample(self.policy, config.batchsz)
        except BaseException:
            self._rescue()
            raise
        sampled = time.perf_counter()
        for episode in episodes:
            self.policy.observe(episode)
        learned = self.policy.update()
        seconds = {"time/sample": sampled - start, "time/update": time.perf_counter() - sampled}
        ended = [episode for episode in episodes if episode.ended]
        self.iteration += 1
        self.num_dialogues += len(ended)
        self._note_position()
        counts = {"dialogues": self.num_dialogues, "time_steps": self.iteration * config.batchsz}
        metrics = {"iteration": self.iteration, **counts, **means(ended), **learned, **seconds}
        metrics["FPS"] = config.batchsz / sum(seconds.values())
        if config.eval_interval and (self.iteration % config.eval_interval == 0 or self.iteration == config.epoch):
            metrics |= self._evaluated(self.policy, "") | self.baseline
        if ended and config.sample_interval and self.iteration % config.sample_interval == 0:
            self._show(ended)
        return metrics

    def _evaluated(self, policy: Any, prefix: str) -> Metrics:
        """Means over the dialogues of the validation, without exploration."""
        episodes = play(policy, self.make, VALIDATION_SEED, range(self.config.eval_dialogues))
        return {f"eval/{prefix}{name}": value for name, value in means(episodes).items()}

    def _imitate(self) -> Metrics:
        """Fit the policy to dialogues of the handcrafted one, which the run itself never meets."""
        config = self.config
        if not isinstance(self.policy, PPO):
            raise UserError(f"imitation_dialogues: the registered policy {config.policy.id!r} is not ours; use 0")
        seed = IMITATION_SEED + config.seed
        episodes = play(handcrafted(self.setting), self.make, seed, range(config.imitation_dialogues))
        found = imitate(self.policy, episodes, config.seed)
        logger.info(
            "imitated %d dialogues of the handcrafted policy: %.1f %% of its actions",
            *(len(episodes), 100 * found["imitation/accuracy"]),
        )
        return found

    def _report(self, metrics: Metrics) -> None:
        if "eval/success" in metrics:
            own, rules = (
                [metrics[f"eval/{kind}{name}"] for name in ("success", "reward")] for kind in ("", "handcrafted_")
            )
            logger.info(
                "evaluation of iteration %d: success %.3f, reward %.2f (handcrafted: %.3f, %.2f)",
                *(self.iteration, *own, *rules),
            )
        if self.iteration % self.config.log_interval == 0:
            text = "iteration %d  dialogues %d  success %.3f  reward %.2f  turns %.1f  %.0f turns a second"
            logger.info(text, *(metrics[k] for k in ("iteration", "dialogues", "success", "reward", "turns", "FPS")))

    def _show(self, ended: list[Episode]) -> None:
        """A dialogue that was sampled whole in this iteration, if there is one."""
        whole = next((episode for episode in ended if episode.start == 0), None)
        if whole is not None:
            logger.info("sample of iteration %d\n%s", self.iteration, transcript(self.domain, self.names, whole))

    def _note_position(self) -> None:
        """Remember the dialogues as they are between two iterations."""
        self._position = self.sampler.state_dict()

    def _save(self) -> None:
        counters = {"iteration": self.iteration, "num_dialogues": self.num_dialogues, "imitation": self.imitation}
        known = {"identity": self.identity, "domain": self.domain.name, "settings": self.config.model_dump()}
        state = {**counters, "sampler": self._position, **known}
        save_policy_checkpoint(self.checkpoints, self.policy, state, self.config.keep_checkpoints)

    def _rescue(self) -> None:
        """Save the last finished iteration, whose policy has not changed since, unless it is saved."""
        newest = newest_checkpoint(self.checkpoints)
        if self.iteration and (newest is None or iteration_of(newest) < self.iteration):
            self._save()
            logger.info("saved after iteration %d; go on with --resume", self.iteration)

    def _save_agent(self) -> None:
        keys = ("domain", "data_path", "error_rate", "user", "max_turns", "end_reward", "policy")
        settings = {key: value for key, value in self.config.model_dump().items() if key in keys}
        save_policy_agent(self.folder / "agent", self.policy, settings, self.domain)
        logger.info("agent saved; measure it: rlhf-dialog evaluate-policy --agent %s", self.folder / "agent")


def environment_of(settings: dict[str, Any], domain: AnyDomain) -> Callable[[], Any]:
    """Builds environments from error_rate, max_turns, user and end_reward of the settings; can be sent to another process.

    Raises UserError for settings that the domain has no use for.
    """
    user: Any = settings["user"]
    if isinstance(domain, MultiDomain):
        if settings["error_rate"]:
            raise UserError(
                f"error_rate: with several domains nobody is misunderstood, found {settings['error_rate']}; use 0"
            )
        return partial(MultiActLevel, domain, settings["max_turns"], user, settings.get("end_reward") or END_REWARD)
    if settings.get("end_reward"):
        raise UserError("end_reward: only the domain multiwoz has one; leave it out")
    return partial(ActLevel, domain, settings["error_rate"], settings["max_turns"], user)
