"""A run that trains a dialogue policy: sample turns, let the policy learn, evaluate, log, save; and go on after a kill."""

import logging
import math
import time
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Literal

from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.plot import plot_success
from rlhf_dialog.runs.checkpoint import iteration_of, newest_checkpoint
from rlhf_dialog.runs.metrics_file import cut_metrics, read_metrics
from rlhf_dialog.runs.services.base import Metrics, after_iteration, end_iteration, end_with
from rlhf_dialog.runs.services.interrupts import Interrupts
from rlhf_dialog.runs.services.trackers import LiveLine, TrackerService
from rlhf_dialog.task_oriented.policies.built_in import build_handcrafted
from rlhf_dialog.task_oriented.policies.ppo import PPO, imitate
from rlhf_dialog.task_oriented.policies.sampling.environments import Processes
from rlhf_dialog.task_oriented.policies.sampling.measures import VALIDATION_SEED, means
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from rlhf_dialog.task_oriented.runs.act_run import ActRun
from rlhf_dialog.task_oriented.runs.settings import PolicyConfig
from rlhf_dialog.task_oriented.runs.training_world import open_world
from rlhf_dialog.terminal import Console

logger = logging.getLogger(__name__)
SHOWN = ("iteration", "dialogues", "success", "reward", "turns", "FPS")


class PolicyConsole(LiveLine):
    """A tracker for `Trackers`: a `live` line with the remaining time on a terminal, else lines of the log."""

    def __init__(self, live: bool):
        super().__init__(Console(stderr=True), live, "sampling the first dialogues", transient=True)

    def log(self, step: int, metrics: Metrics) -> None:
        """A line for the evaluation if there was one, and one for the iteration if it has metrics."""
        if "eval/success" in metrics:
            rules = ""
            if "eval/handcrafted_success" in metrics:
                rules = " (handcrafted: {eval/handcrafted_success:.3f}, {eval/handcrafted_reward:.2f})"
            text = "evaluation of iteration %d: success {eval/success:.3f}, reward {eval/reward:.2f}" + rules
            logger.info(text.format(**metrics), step)
        if "success" in metrics:
            text = "iteration %d  dialogues %d  success %.3f  reward %.2f  turns %.1f  %.0f turns a second"
            numbers = [metrics[name] for name in SHOWN]
            if self.live:
                self.text = text % tuple(numbers)
            else:
                logger.info(text, *numbers)


PLOT = "plot.png"
IMITATION_SEED = 2**30 + 2**29  # added to the run's seed


class PolicyRun(ActRun):
    """Trains the policy of a `PolicyConfig`: leaves metrics, checkpoints, `agent/` and a plot in the run folder."""

    extra_files = (PLOT,)

    def __init__(self, config: PolicyConfig, overwrite: bool = False, resume: bool | Literal["auto"] = False):
        super().__init__(config, overwrite, resume)
        self.iteration = self.num_dialogues = 0
        self.imitation: Metrics = {}

    def transcripts(self, number: int) -> list[str]:
        """The first dialogues of the validation with the policy as it is, one text each, without exploration."""
        episodes = run_dialogues(self.policy, self.training_world.make, VALIDATION_SEED, range(number))
        return [self.training_world.transcript(episode) for episode in episodes]

    def _build(self) -> None:
        self.training_world = open_world(self.config.model_dump())
        super()._build()
        has_rules = self.training_world.domain or self.config.imitation_dialogues
        self.rules: Any = build_handcrafted(self.setting) if has_rules else None

    def _restore(self, state: dict[str, Any] | None, stack: ExitStack) -> None:
        config, make = self.config, self.training_world.make
        processes = config.process_num
        host = Processes(make, config.seed, config.num_envs, processes) if processes else None
        self.sampler = stack.enter_context(closing(Sampler(make, config.seed, config.num_envs, host)))
        if state is not None:
            self.iteration, self.num_dialogues = state["iteration"], state["num_dialogues"]
            self.imitation = state["imitation"]
            self.sampler.load_state_dict(state["sampler"])
        self._position = self.sampler.state_dict()
        cut_metrics(self.folder / "metrics.jsonl", self.iteration)

    def _loop(self, stack: ExitStack) -> None:
        config = self.config
        console = partial(PolicyConsole, config.use_rich_handler)
        self.services = (
            TrackerService(config, self.folder, self.world, bool(self.start.resume), console),
            Interrupts(config.grace_seconds),
        )
        end_with(stack, self.services)
        what = "domain" if self.training_world.domain else "environment"
        logger.info(
            "run folder: %s; %s %s (hash %.12s)", self.folder, what, self.training_world.name, self.training_world.hash
        )
        for service in self.services:
            service.begin(self)
        self._iterations()
        self._save_agent()
        logger.info("agent saved; measure it: rlhf-dialog evaluate-policy --agent %s", self.folder / "agent")
        self._finish()

    @property
    def progress(self) -> float:
        return self.iteration / self.config.epoch

    @property
    def done(self) -> bool:
        return self.iteration >= self.config.epoch

    def _iterations(self) -> None:
        """Iterations until the end; what raises while turns are sampled, such as a process that dies, saves first."""
        config = self.config
        is_compared = config.eval_interval and self.training_world.domain
        self.baseline = self._evaluate(self.rules, "handcrafted_") if is_compared else {}
        if self.iteration == 0 and config.imitation_dialogues:
            self.imitation = self._imitate()
        while not self.done:
            metrics = self._iterate() | (self.imitation if self.iteration == 1 else {})
            after_iteration(self, self.services, metrics)
            end_iteration(self, self.services, self.iteration % config.save_interval == 0, self._save)

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
        self._position = self.sampler.state_dict()
        counts = {"dialogues": self.num_dialogues, "time_steps": self.iteration * config.batchsz}
        metrics = {"iteration": self.iteration, **counts, **means(ended), **learned, **seconds}
        metrics["FPS"] = config.batchsz / sum(seconds.values())
        if config.eval_interval and (self.iteration % config.eval_interval == 0 or self.iteration == config.epoch):
            metrics |= self._evaluate(self.policy, "") | self.baseline
        return metrics

    def _evaluate(self, policy: Any, prefix: str) -> Metrics:
        """Means over the dialogues of the validation, without exploration."""
        episodes = run_dialogues(policy, self.training_world.make, VALIDATION_SEED, range(self.config.eval_dialogues))
        return {f"eval/{prefix}{name}": value for name, value in means(episodes).items()}

    def _imitate(self) -> Metrics:
        """Fit the policy to dialogues of the handcrafted one, which the run itself never meets."""
        config = self.config
        if not isinstance(self.policy, PPO):
            raise UserError(f"imitation_dialogues: the registered policy {config.policy.id!r} is not ours; use 0")
        seed = IMITATION_SEED + config.seed
        episodes = run_dialogues(self.rules, self.training_world.make, seed, range(config.imitation_dialogues))
        metrics = imitate(self.policy, episodes, config.seed)
        text = "imitated %d dialogues of the handcrafted policy: %.1f %% of its actions"
        logger.info(text, len(episodes), 100 * metrics["imitation/accuracy"])
        return metrics

    def _counters(self) -> dict[str, Any]:
        counters = {"iteration": self.iteration, "num_dialogues": self.num_dialogues, "imitation": self.imitation}
        return {**counters, "sampler": self._position}

    def _rescue(self) -> None:
        """Save the last finished iteration, whose policy has not changed since, unless it is saved."""
        newest = newest_checkpoint(self.checkpoints)
        if self.iteration and (newest is None or iteration_of(newest) < self.iteration):
            self._save()
            logger.info("saved after iteration %d; go on with --resume", self.iteration)

    def _finish(self) -> None:
        """Draw the run, and say in one line what came out."""
        rows, plot = read_metrics(self.folder / "metrics.jsonl"), self.folder / PLOT
        plot_success(rows, str(self.folder), plot)
        result = "no evaluation (eval_interval: 0)"
        if evaluated := [row for row in rows if row.get("eval/reward") is not None]:
            numbers = {name.removeprefix("eval/"): math.nan if x is None else x for name, x in evaluated[-1].items()}
            result = "success {success:.3f}, reward {reward:.2f}, turns {turns:.1f}".format(**numbers)
            if self.baseline:
                result += " (handcrafted: {handcrafted_success:.3f}, {handcrafted_reward:.2f})".format(**numbers)
        counts = f"{self.iteration} iterations, {self.num_dialogues} dialogues"
        logger.info("done after %s: %s; plot: %s", counts, result, plot)
