"""One agent, or two on the same prompts, next to sharper sampling and to replies that no model wrote."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation import divergence, frontier, logit_bias_baseline, measure, replies
from rlhf_dialog.evaluation.logit_bias_baseline import BiasPrompts, LogitBias
from rlhf_dialog.evaluation.measure import Judges, Measured
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.rewards.base import READS_REFERENCE, reads_reference
from rlhf_dialog.rewards.composite import WithoutNeeds

logger = logging.getLogger(__name__)
NOTHING = {"mean": None, "low": None, "high": None}
MATCHED_BETWEEN = (0.3, 1.5)
MATCHED_WITHIN = 0.001  # of distinct-2
MATCHING_STEPS = 12
SWEEP: dict[str, dict[str, Any]] = {
    "temperature 0.9": {"temperature": 0.9, "greedy": False},
    "temperature 0.7": {"temperature": 0.7, "greedy": False},
    "top-k 20": {"top_k": 20, "greedy": False},
    "greedy": {"greedy": True},
}


@dataclass(frozen=True)
class Match:
    """The baseline's replies at the temperature at which its `distinct_2` is closest to `target`."""

    temperature: float
    distinct_2: float
    target: float
    answers: Replies

    @property
    def miss(self) -> float:
        return abs(self.distinct_2 - self.target)

    @property
    def title(self) -> str:
        found = f"temperature {self.temperature:g}, distinct-2 {self.distinct_2:.3f} against {self.target:.3f}"
        return f"before, distinct-2 matched ({found})"


@dataclass
class Comparison:
    """What is compared, on what, and how.

    `systems` is {"metrics": agent} for one agent, or {"after": agent, "before": baseline}; `beside` are more agents, which get
    rows of their own. `draws`: samples of each of these to each prompt, of which the mean counts. `answers` holds the replies of
    every system once they are written, those of the baselines too, and `seconds` what each row took.
    """

    systems: dict[str, ChatAgent]
    prompts: list[Dialogue]
    judges: Judges
    sampling: Sampling
    seed: int = 0
    batch_size: int = 64
    beside: dict[str, ChatAgent] = field(default_factory=dict)
    draws: int = 1
    answers: dict[str, Replies] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    draws_by_system: dict[str, list[Replies]] = field(default_factory=dict)
    chosen_without: list[str] = field(default_factory=list)

    def run(
        self,
        training: list[Dialogue],
        with_sweep: bool = False,
        best_of: Sequence[int] = (),
        bias_prompts: BiasPrompts | None = None,
        system_prompts: Sequence[str | None] = (),
    ) -> dict[str, Any]:
        """Every metric of every system with its interval, as `evaluation.json` holds them.

        With `best_of`, the sweep also has the best of these numbers of replies by the score, with `bias_prompts` what needs no
        training: the start with the mean logit shift, `kl_reply`, the best replies chosen without a look at references; with
        `system_prompts` the start (without one, the agent) behind each of these (None: the template's own). `training` are the
        prompts whose references two baselines take. `preferred` says of each judge for which share of the prompts the agent's
        reply has more than that of the start, or of a row of the sweep. Raises RewardError when the reward fails.
        """
        measured = {name: self._measure(agent, name) for name, agent in self.systems.items()}
        positions = self._add_kl(measured) if bias_prompts and "before" in self.systems else None
        result: dict[str, Any] = {name: measure.with_intervals(draws, self.seed) for name, draws in measured.items()}
        names = list(next(iter(result.values())))
        if "before" in self.systems:
            result["difference"] = self._difference(measured)
        ours = measured["after" if "after" in measured else "metrics"]
        swept = {name: self._measure(agent, name) for name, agent in self.beside.items()}
        if "before" in measured and swept:
            result["beside"] = {
                name: measure.differences(measured["before"], one, self.seed) for name, one in swept.items()
            }
        if swept or with_sweep or best_of or bias_prompts or system_prompts:
            swept |= self._sweep(ours) if with_sweep else {}
            swept |= self._best_replies(best_of, measured, bool(bias_prompts))
            if bias_prompts:
                swept |= self._shifted_start(bias_prompts, measured)
            swept |= self._with_system_prompts(system_prompts)
            result["sweep"] = {name: self._complete(answers, names) for name, answers in swept.items()}
            result["sweep_difference"] = {
                name: measure.differences(answers, ours, self.seed) for name, answers in swept.items()
            }
        if self.judges.user_judges and (rivals := {k: x for k, x in (measured | swept).items() if x is not ours}):
            result["preferred"] = {
                name: measure.preference_shares(rival, ours, self.judges.user_judges, self.seed)
                for name, rival in rivals.items()
            }
        if positions:
            result["kl_by_position"] = positions
            result["frontier"] = frontier.points(result, best_of, self.judges.own_metrics)
            result["worth"] = frontier.worth(result["frontier"])
        if self.chosen_without:
            result["chosen_without"] = self.chosen_without
        baselines = replies.baseline_replies(self.prompts, training, next(iter(self.systems.values())), self.seed)
        result["baselines"] = {
            name: self._complete(measure.measure(answers, self.judges), names)
            for name, answers in replies.progress(list(baselines.items()), "baselines")
        }
        self.answers |= baselines
        if bias_prompts:
            result["seconds"] = {name: round(seconds, 1) for name, seconds in self.seconds.items()}
        return result

    def _generate(self, agent: ChatAgent, prompts: list[Dialogue], sampling: Sampling, title: str) -> Replies:
        return replies.generate_replies(agent, prompts, sampling, self.seed, self.batch_size, title)

    @contextmanager
    def _time(self, row: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[row] = self.seconds.get(row, 0.0) + time.monotonic() - start

    def _measure(self, agent: ChatAgent, name: str) -> Measured:
        """The numbers of an agent, and how likely its model finds the references where all prompts have one."""
        with self._time(name):
            draws = self._draw(agent, name, self.draws)
            if replies.have_references(self.prompts):
                nll = replies.reference_nll(agent, self.prompts, self.batch_size)
                draws = [replace(one, reference_nll=nll) for one in draws]
            titles = [name, *(f"{name}, draw {number}" for number in range(2, self.draws + 1))]
            self.answers |= dict(zip(titles, draws, strict=True))
            return measure.average_draws([measure.measure(one, self.judges) for one in draws])

    def _draw(self, agent: ChatAgent, name: str, count: int) -> list[Replies]:
        """So many replies of the agent to each prompt, each drawn with a seed of its own; none is drawn twice."""
        draws = self.draws_by_system.setdefault(name, [])
        for i in range(len(draws), count):
            title = name if count == 1 else f"{name}, reply {i + 1}"
            draws.append(
                replies.generate_replies(agent, self.prompts, self.sampling, self.seed + i, self.batch_size, title)
            )
        return draws[:count]

    def _add_kl(self, measured: dict[str, Measured]) -> list[dict[str, float]]:
        """Add `kl_reply` to the numbers of the agent and its start; returns the KL by position, none for two tokenizers."""
        agent, start = self.systems["after"], self.systems["before"]
        if agent.encoder.tokenizer.get_vocab() != start.encoder.tokenizer.get_vocab():
            logger.warning("no KL: the two agents have different tokenizers")
            return []
        kl = divergence.kl_by_token(
            agent, start, self.draws_by_system["after"][0], self.batch_size, self._kl_temperature
        )
        measured["after"].per_prompt["kl_reply"] = np.nansum(kl, axis=1)
        measured["before"].per_prompt["kl_reply"] = np.zeros(len(self.prompts))
        return divergence.by_position(kl)

    @property
    def _kl_temperature(self) -> float:
        return 1.0 if self.sampling.greedy else self.sampling.temperature

    def _difference(self, measured: dict[str, Measured]) -> dict[str, Any]:
        """After minus before; metrics that count tokens have no difference between two tokenizers."""
        compared: dict[str, Any] = measure.differences(measured["before"], measured["after"], self.seed)
        first, second = (self.systems[name].encoder.tokenizer.get_vocab() for name in ("before", "after"))
        if first != second:
            logger.warning(
                "the two agents have different tokenizers: mean_length and reference_perplexity count different tokens and "
                "are not compared"
            )
            compared |= {name: NOTHING for name in ("mean_length", "reference_perplexity") if name in compared}
        return compared

    def _complete(self, measured: Measured, names: list[str]) -> dict[str, Any]:
        """The metrics of a baseline; what a system without a model cannot have is null."""
        found: dict[str, Any] = measure.with_intervals(measured, self.seed)
        return {name: found.get(name, NOTHING) for name in names}

    def _sweep(self, ours: Measured) -> dict[str, Measured]:
        """Every agent at sharper sampling, by names such as `before, greedy`; `ours` are the numbers of the agent."""
        rows = {}
        for system, agent in self.systems.items():
            for how, changes in SWEEP.items():
                title = f"{system}, {how}"
                sharper = replace(self.sampling, **changes)
                with self._time(title):
                    rows[title] = measure.measure(self._generate(agent, self.prompts, sharper, title), self.judges)
        if "before" in self.systems and (match := self.match_distinct_2(ours.points()["distinct_2"])):
            rows[match.title] = measure.measure(match.answers, self.judges)
        return rows

    def _best_replies(self, counts: Sequence[int], measured: dict[str, Measured], blind: bool) -> dict[str, Measured]:
        """Every agent with the best of so many replies to each prompt, by names such as `before, best of 4`.

        A name says so where a reward that reads the reference has chosen. `measured`: the numbers of the systems; `blind`: no
        part of the reward that reads references chooses.
        """
        if not counts:
            return {}
        assert self.judges.scorer is not None
        scorer = self.judges.scorer
        if blind:
            reward = WithoutNeeds(scorer.reward)
            if not reward.parts:
                logger.warning("no rows of the best of several replies: every part of the reward reads the reference")
                return {}
            self.chosen_without = reward.left_out
            scorer = replace(scorer, reward=reward)
        rows, chooser = {}, READS_REFERENCE if reads_reference(scorer.reward) else ""
        for count in counts:
            for system, agent in self.systems.items():
                title = f"{system}, best of {count}{chooser}"
                with self._time(title):
                    chosen = measure.choose_best(self._draw(agent, system, count), self.judges, scorer)
                    rows[title] = measure.measure(chosen, self.judges)
                    if "kl_reply" in measured[system].per_prompt:
                        start = self.systems["before"]
                        moved = divergence.log_ratios(agent, start, chosen, self.batch_size, self._kl_temperature)
                        rows[title].per_prompt["kl_reply"] = moved + frontier.best_of_n_kl(count)
        return rows

    def _shifted_start(self, prompts: BiasPrompts, measured: dict[str, Measured]) -> dict[str, Measured]:
        """The start with the mean logit shift, at the scale that is best on validation prompts; nothing for two tokenizers."""
        agent, start = self.systems["after"], self.systems["before"]
        if agent.encoder.tokenizer.get_vocab() != start.encoder.tokenizer.get_vocab():
            logger.warning("no row for the mean logit shift: the two agents have different tokenizers")
            return {}

        def answers(bias: LogitBias, asked: list[Dialogue]) -> Measured:
            return measure.measure(self._generate(start, asked, bias.apply_to(self.sampling), "shift"), self.judges)

        begun = time.monotonic()
        bias = logit_bias_baseline.fit_bias(agent, start, prompts.training, self.sampling, self.seed, self.batch_size)
        bias = logit_bias_baseline.choose_scale(bias, lambda bias: answers(bias, prompts.validation).points()["score"])
        shifted = answers(bias, self.prompts)
        points = {name: one.points()["score"] for name, one in (measured | {"shifted": shifted}).items()}
        share = logit_bias_baseline.gain_share(points["shifted"], points["after"], points["before"])
        reached = "" if share is None else f", {share:.0%} of the gain"
        title = f"before, mean logit shift (scale {bias.scale:g}{reached})"
        self.seconds[title] = time.monotonic() - begun
        return {title: shifted}

    def _with_system_prompts(self, system_prompts: Sequence[str | None]) -> dict[str, Measured]:
        """The start behind each system prompt, by names such as `before, system prompt 1`."""
        name, start = [*self.systems.items()][-1]
        rows = {}
        for number, text in enumerate(system_prompts, start=1):
            title = f"{name}, system prompt {number}"
            answers = self.answers[title] = self._generate(
                start.with_system_prompt(text), self.prompts, self.sampling, title
            )
            rows[title] = measure.measure(answers, self.judges)
        return rows

    def match_distinct_2(self, target: float, steps: int = MATCHING_STEPS) -> Match | None:
        """The baseline at the temperature that gives it the `target` distinct-2, by bisection on all prompts.

        The bisection ends at a distance of 0.001, or after `steps` with the closest one. None, with a notice, when there is none
        between temperature 0.3 and 1.5.
        """
        low, high = MATCHED_BETWEEN
        ends = [self._baseline_at(temperature, target) for temperature in (low, high)]
        if not ends[0].distinct_2 <= target < ends[1].distinct_2:
            logger.warning("no temperature from %g to %g gives --baseline a distinct-2 of %.3f", low, high, target)
            return None
        best = min(ends, key=lambda match: match.miss)
        for _ in range(steps):
            if best.miss <= MATCHED_WITHIN:
                break
            match = self._baseline_at(round((low + high) / 2, 4), target)
            best = min(best, match, key=lambda match: match.miss)
            low, high = (low, match.temperature) if match.distinct_2 > target else (match.temperature, high)
        return best

    def _baseline_at(self, temperature: float, target: float) -> Match:
        how = replace(self.sampling, temperature=temperature, greedy=False)
        title = f"matching distinct-2, temperature {temperature:g}"
        answers = self._generate(self.systems["before"], self.prompts, how, title)
        return Match(temperature, measure.distinct(answers, 2), target, answers)


def sampling_like(sampling: Sampling, chosen: dict[str, Any], min_new_tokens: int, greedy: bool) -> Sampling:
    """The agent's sampling with the `chosen` filters that are not None. Raises UserError when one is out of range."""
    filters = {name: getattr(sampling, name) if value is None else value for name, value in chosen.items()}
    if not (filters["temperature"] >= 1e-4 and filters["top_k"] >= 0 and 0 < filters["top_p"] <= 1):
        raise UserError(
            f"{filters}: temperature must be at least 0.0001, top_k at least 0, top_p above 0 and at most 1"
        )
    return Sampling(sampling.max_new_tokens, **filters, min_new_tokens=min_new_tokens, greedy=greedy)
