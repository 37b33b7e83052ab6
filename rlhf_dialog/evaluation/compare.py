"""One agent, or two on the same prompts, next to sharper sampling and to replies that no model wrote."""

import logging
from dataclasses import dataclass, field, replace
from typing import Any

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation import measure, replies
from rlhf_dialog.evaluation.measure import Judges, Measured
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Sampling

logger = logging.getLogger(__name__)
NOTHING = {"mean": None, "low": None, "high": None}
MATCHED_BETWEEN = (0.3, 1.5)
SWEEP: dict[str, dict[str, Any]] = {
    "temperature 0.9": {"temperature": 0.9, "greedy": False},
    "temperature 0.7": {"temperature": 0.7, "greedy": False},
    "top-k 20": {"top_k": 20, "greedy": False},
    "greedy": {"greedy": True},
}


@dataclass
class Comparison:
    """What is compared, on what, and how.

    `systems` is {"metrics": agent} for one agent, or {"after": agent, "before": baseline}. `answers` holds the replies of every
    system once they are written, those of the baselines too.
    """

    systems: dict[str, ChatAgent]
    prompts: list[Dialogue]
    judges: Judges
    sampling: Sampling
    seed: int = 0
    batch_size: int = 64
    answers: dict[str, Replies] = field(default_factory=dict)

    def run(self, train_replies: list[str], with_sweep: bool = False) -> dict[str, Any]:
        """Every metric of every system with its interval, as `evaluation.json` holds them.

        `train_replies` are what the baseline `random_train_reply` draws from. Raises RewardError when the reward fails.
        """
        self.answers = {name: self._answers_of(agent, name) for name, agent in self.systems.items()}
        measured = {name: measure.measure(found, self.judges) for name, found in self.answers.items()}
        result: dict[str, Any] = {name: measure.with_intervals(found, self.seed) for name, found in measured.items()}
        names = list(next(iter(result.values())))
        if "before" in self.systems:
            result["difference"] = self._difference(measured)
        if with_sweep:
            swept, ours = self._sweep(), measured["after" if "after" in measured else "metrics"]
            result["sweep"] = {name: self._complete(found, names) for name, found in swept.items()}
            result["sweep_difference"] = {
                name: measure.differences(found, ours, self.seed) for name, found in swept.items()
            }
        agent = next(iter(self.systems.values()))
        others = replies.baseline_replies(self.prompts, train_replies, agent, self.seed)
        result["baselines"] = {
            name: self._complete(measure.measure(found, self.judges), names)
            for name, found in replies.progress(list(others.items()), "baselines")
        }
        self.answers |= others
        return result

    def _generate(self, agent: ChatAgent, prompts: list[Dialogue], sampling: Sampling, title: str) -> Replies:
        return replies.generate_replies(agent, prompts, sampling, self.seed, self.batch_size, title)

    def _answers_of(self, agent: ChatAgent, title: str) -> Replies:
        """The agent's replies, and how likely its model finds the references where all prompts have one."""
        found = self._generate(agent, self.prompts, self.sampling, title)
        if replies.have_references(self.prompts):
            found.reference_nll = replies.reference_nll(agent, self.prompts, self.batch_size)
        return found

    def _difference(self, measured: dict[str, Measured]) -> dict[str, Any]:
        """After minus before; metrics that count tokens have no difference between two tokenizers."""
        found: dict[str, Any] = measure.differences(measured["before"], measured["after"], self.seed)
        first, second = (self.systems[name].encoder.tokenizer.get_vocab() for name in ("before", "after"))
        if first != second:
            logger.warning(
                "the two agents have different tokenizers: mean_length and reference_perplexity count different tokens and "
                "are not compared"
            )
            found |= {name: NOTHING for name in ("mean_length", "reference_perplexity") if name in found}
        return found

    def _complete(self, measured: Measured, names: list[str]) -> dict[str, Any]:
        """The metrics of a baseline; what a system without a model cannot have is null."""
        found: dict[str, Any] = measure.with_intervals(measured, self.seed)
        return {name: found.get(name, NOTHING) for name in names}

    def _sweep(self) -> dict[str, Measured]:
        """Every agent at sharper sampling, by names such as `before, greedy`."""
        found = {}
        for system, agent in self.systems.items():
            for how, changes in SWEEP.items():
                title = f"{system}, {how}"
                sharper = replace(self.sampling, **changes)
                found[title] = measure.measure(self._generate(agent, self.prompts, sharper, title), self.judges)
        if "before" in self.systems and (temperature := self.matched_temperature()):
            title = f"before, distinct-2 matched (temperature {temperature:.2f})"
            sharper = replace(self.sampling, temperature=temperature, greedy=False)
            answers = self._generate(self.systems["before"], self.prompts, sharper, title)
            found[title] = measure.measure(answers, self.judges)
        return found

    def matched_temperature(self) -> float | None:
        """The temperature at which the baseline's distinct-2 equals the agent's, by bisection on at most 1,000 prompts.

        None, with a notice, when there is none between 0.3 and 1.5.
        """
        some = replies.pick_prompts(self.prompts, 1000, self.seed)

        def distinct_2(agent: ChatAgent, how: Sampling) -> float:
            answers = self._generate(agent, some, how, "matching distinct-2")
            return measure.measure(answers, Judges()).points()["distinct_2"]

        def too_diverse(temperature: float) -> bool:
            how = replace(self.sampling, temperature=temperature, greedy=False)
            return distinct_2(self.systems["before"], how) > wanted

        wanted, (low, high) = distinct_2(self.systems["after"], self.sampling), MATCHED_BETWEEN
        if too_diverse(low) or not too_diverse(high):
            logger.warning("no temperature from %g to %g gives --baseline a distinct-2 of %.3f", low, high, wanted)
            return None
        for _ in range(6):
            middle = (low + high) / 2
            low, high = (low, middle) if too_diverse(middle) else (middle, high)
        return (low + high) / 2


def sampling_like(own: Sampling, given: dict[str, Any], min_new_tokens: int, greedy: bool) -> Sampling:
    """The agent's `own` sampling with the filters that are `given`; both agents of a comparison get the same.

    Raises UserError when a filter is out of range.
    """
    filters = {name: getattr(own, name) if value is None else value for name, value in given.items()}
    if not (filters["temperature"] >= 1e-4 and filters["top_k"] >= 0 and 0 < filters["top_p"] <= 1):
        raise UserError(
            f"{filters}: temperature must be at least 0.0001, top_k at least 0, top_p above 0 and at most 1"
        )
    return Sampling(own.max_new_tokens, **filters, min_new_tokens=min_new_tokens, greedy=greedy)
