"""One agent, or two on the same prompts, next to other agents, the best of several replies, and replies that no model wrote."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation import measure, replies
from rlhf_dialog.evaluation.measure import Judges, Measured
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.rewards.base import READS_REFERENCE, reads_reference

logger = logging.getLogger(__name__)
NOTHING = {"mean": None, "low": None, "high": None}
OF_TOKENS = ("mean_length", "reference_perplexity")  # what two tokenizers count differently


@dataclass
class Comparison:
    """What is compared, on what, and how.

    `systems` is {"metrics": agent} for one agent, or {"after": agent, "before": baseline}; `beside` are more agents, which get
    rows of their own. `draws`: samples of each of these to each prompt, of which the mean counts. `best_of`: each of `systems`
    also with the best of so many replies by the score. `answers` holds the replies of every system once they are written, those
    of the baselines too.
    """

    systems: dict[str, ChatAgent]
    prompts: list[Dialogue]
    judges: Judges
    sampling: Sampling
    seed: int = 0
    batch_size: int = 64
    beside: dict[str, ChatAgent] = field(default_factory=dict)
    draws: int = 1
    best_of: int | None = None
    answers: dict[str, Replies] = field(default_factory=dict)

    def run(self, training: Sequence[Dialogue]) -> dict[str, Any]:
        """Every metric of every system with its interval, as `evaluation.json` holds them.

        `training` are the prompts whose references two baselines take. Raises RewardError when the reward fails.
        """
        drawn = {name: self._draw(agent, name, self.best_of or 1) for name, agent in self.systems.items()}
        measured = {name: self._measure(agent, name, drawn[name]) for name, agent in self.systems.items()}
        rows = {name: self._measure(agent, name, self._draw(agent, name)) for name, agent in self.beside.items()}
        rows |= self._best_replies(drawn) if self.best_of else {}
        agent, start = measured["after" if "after" in measured else "metrics"], measured.get("before")
        result: dict[str, Any] = {name: measure.with_intervals(one, self.seed) for name, one in measured.items()}
        names = list(next(iter(result.values())))
        if start:
            result["difference"] = self._difference(start, agent)
        if rows:
            result["sweep"] = {name: self._complete(one, names) for name, one in rows.items()}
            result["sweep_difference"] = {
                name: measure.differences(one, agent, self.seed) for name, one in rows.items()
            }
        baselines = replies.baseline_replies(self.prompts, training, next(iter(self.systems.values())), self.seed)
        result["baselines"] = {
            name: self._complete(measure.measure(answers, self.judges), names)
            for name, answers in replies.progress(list(baselines.items()), "baselines")
        }
        self.answers |= baselines
        return result

    def _draw(self, agent: ChatAgent, name: str, least: int = 1) -> list[Replies]:
        """`draws` replies of the agent to each prompt, or `least` if that is more, each drawn with a seed of its own."""
        count = max(self.draws, least)
        titles = [name] if count == 1 else [f"{name}, reply {number}" for number in range(1, count + 1)]
        return [
            replies.generate_replies(agent, self.prompts, self.sampling, self.seed + i, self.batch_size, title)
            for i, title in enumerate(titles)
        ]

    def _measure(self, agent: ChatAgent, name: str, drawn: list[Replies]) -> Measured:
        """The numbers of an agent, and how likely its model finds the references where all prompts have one."""
        draws = drawn[: self.draws]
        if replies.have_references(self.prompts):
            nll = replies.reference_nll(agent, self.prompts, self.batch_size)
            draws = [replace(one, reference_nll=nll) for one in draws]
        titles = [name, *(f"{name}, draw {number}" for number in range(2, self.draws + 1))]
        self.answers |= dict(zip(titles, draws, strict=True))
        return measure.average_draws([measure.measure(one, self.judges) for one in draws])

    def _best_replies(self, drawn: dict[str, list[Replies]]) -> dict[str, Measured]:
        """Every agent with the best of several replies, by names such as `before, best of 4`.

        A name says so where a reward that reads the reference has chosen.
        """
        scorer = self.judges.scorer
        assert scorer is not None
        chooser = READS_REFERENCE if reads_reference(scorer.reward) else ""
        rows = {}
        for name, draws in drawn.items():
            some = draws[: self.best_of]
            chosen = measure.highest(some, [measure.score_replies(one, self.judges, scorer) for one in some])
            rows[f"{name}, best of {self.best_of}{chooser}"] = measure.measure(chosen, self.judges)
        return rows

    def _difference(self, before: Measured, after: Measured) -> dict[str, Any]:
        """After minus before; metrics that count tokens have no difference between two tokenizers."""
        compared: dict[str, Any] = measure.differences(before, after, self.seed)
        first, second = (self.systems[name].encoder.tokenizer.get_vocab() for name in ("before", "after"))
        if first != second:
            logger.warning(
                "the two agents have different tokenizers: mean_length and reference_perplexity count different tokens and "
                "are not compared"
            )
            compared |= {name: NOTHING for name in OF_TOKENS if name in compared}
        return compared

    def _complete(self, measured: Measured, names: list[str]) -> dict[str, Any]:
        """The metrics of a row; what a system without a model cannot have is null."""
        found: dict[str, Any] = measure.with_intervals(measured, self.seed)
        return {name: found.get(name, NOTHING) for name in names}
