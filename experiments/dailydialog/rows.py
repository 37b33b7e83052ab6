"""The replies of each row of a table, and their numbers:  python -m experiments.dailydialog.rows PLAN

A row is two files as soon as it is finished, NAME.replies.jsonl and NAME.npz, and is not made again. Replies and numbers are
those that `rlhf-dialog evaluate` has for the same prompts, sampling and seed. N prompts.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from experiments.dailydialog.numbers import BLOCK, RowFile
from experiments.dailydialog.pretrained import columns
from experiments.dailydialog.sizes import BIAS_RATES, START
from experiments.divergence import kl_by_token, log_ratios
from experiments.frontier import best_of_n_kl
from experiments.learned_bias import NUM_PROMPTS, BiasTraining, learn_bias
from experiments.logit_bias_baseline import LogitBias, choose_scale, fit_bias
from experiments.matching import MATCHING_STEPS, match_distinct_2
from experiments.mutual_information import MutualInformation
from experiments.prediction import predict
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.evaluation import measure, replies
from rlhf_dialog.evaluation.measure import Judges
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent, settle_separator
from rlhf_dialog.models.generation import Sampling, at_temperature
from rlhf_dialog.models.relevance import load_relevance
from rlhf_dialog.rewards import CompositeReward, EncoderSimilarity, Intent, LikelihoodPrice, Scorer
from rlhf_dialog.rewards.base import BaseReward, Part, reads_reference
from rlhf_dialog.rewards.composite import build_reward

BATCH = 64


class Row(BaseModel):
    """One row: a `model`, with its YAML for its settings; the `best` of several draws of the start, or of the model whose rows
    begin with the name `of`; the start with the mean logit `shift` of a model, or with a `learned` bias; the start at the
    temperature that gives it the mean distinct-2 of other rows, `matched` to `like`; the start, `greedy`; or replies that were
    `said` without a model, by their name in `baseline_replies`.

    learn_from: the number of draws from which a prediction of the score is learned, which chooses the best reply; 0: the score
    chooses."""

    name: str
    kind: str
    model: str = ""
    config: str = ""
    seed: int = 0
    count: int = 1
    learn_from: int = 0
    of: str = START
    like: list[str] = []


class Plan(BaseModel):
    """What is measured, on what, with what. `config`: the YAML of the start, whose reward scores.

    `seed_columns`: also those of `pretrained.columns`, with the acts by `second_judge`; `match_prompts`, `match_steps`: how many
    prompts choose the temperature of a matched row (None: all), and in how many steps; `bias_step`: prompts of a bias's step.
    """

    data: str
    split: str
    prompts: int | None
    seed: int
    temperature: float
    config: str
    start: str
    folder: str
    rows: list[Row]
    bias_prompts: int
    bias_tokens: int
    bias_rates: tuple[float, ...] = BIAS_RATES
    bias_step: int = NUM_PROMPTS
    relevance: list[str] = []
    act_judge: str | None = None
    encoder: str | None = None
    language_model: str | None = None
    seed_columns: bool = False
    second_judge: str | None = None
    top_k: int = 0
    min_new_tokens: int = 0
    match_prompts: int | None = None
    match_steps: int = MATCHING_STEPS


class Table:
    """The prompts, the judges, and one model at a time beside the start."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.config = settle_separator(load_config(plan.config, {"model_path": plan.start}))
        self.prompts = whole_dialogues(self.some_prompts(plan.split), plan.prompts, plan.seed)
        self.folder = Path(plan.folder)
        self.loaded: tuple[str, ChatAgent] | None = None
        self.scores: dict[str, list[measure.Array]] = {}  # of the draws of a model, from which the best are chosen

    def some_prompts(self, split: str) -> list[Dialogue]:
        config = self.config
        prompts = PromptRules.from_keys(config).load(self.plan.data, split)
        return list(prompts)

    @cached_property
    def start(self) -> ChatAgent:
        return ChatAgent.load(self.plan.start, settings=settings_of(self.config))

    @cached_property
    def judges(self) -> Judges:
        """The reward, and the judges that the plan names."""
        plan, config = self.plan, self.config
        judges = measure.default_judges(scorer_of(config))
        names = ("relevance", *(f"relevance_{number}" for number in range(2, len(plan.relevance) + 1)))
        for name, folder in zip(names, plan.relevance, strict=False):
            judges.relevance[name] = load_relevance(folder, "--relevance_model")
        judges.judge = Intent(plan.act_judge, precision="fp32") if plan.act_judge else None
        if plan.encoder:
            judges.user_judges["encoder_similarity"] = EncoderSimilarity(plan.encoder)
        if plan.language_model:
            judges.user_judges["likelihood"] = LikelihoodPrice(plan.language_model, None)
            judges.user_judges["mutual_information"] = MutualInformation(plan.language_model)
        judges.seed = plan.seed
        return judges

    def make(self, row: Row) -> None:
        """Answer and measure, unless the row is there, or there is no such temperature."""
        file = RowFile(self.folder, row.name)
        if file.is_there():
            return
        began = time.monotonic()
        answers, agent = self.answers(row)
        if answers is None:
            return
        measured = measure.measure(answers, self.judges)
        if self.plan.seed_columns:
            columns.add(measured, answers.dialogues, self.second_judge, self.plan.seed)
        if agent is not None and row.seed == 0 and not self.plan.top_k:
            measured.per_prompt["kl"] = self.kl(agent, answers, _kl_by_reply)
        if row.kind == "best":  # of independent draws
            moved = self.kl(self.agent(row) if row.model else self.start, answers, log_ratios)
            measured.per_prompt["kl"] = moved + best_of_n_kl(row.count)
        file.write(measured, {"seconds": time.monotonic() - began})

    def answers(self, row: Row) -> tuple[Replies | None, ChatAgent | None]:
        """The replies, and the agent of which the start's distance is measured."""
        if row.kind == "model":
            agent = self.agent(row)
            return self.kept(row.name, lambda: self.generate(agent, row.seed)), agent
        if row.kind == "best":
            return self.kept(row.name, lambda: self.best_of(row)), None
        if row.kind == "matched":
            return self.stored(row.name) or self.matched(row), None
        if row.kind == "greedy":
            return self.kept(row.name, lambda: self.drawn(replace(self.sampling(self.start), greedy=True))), None
        if row.kind == "shift":
            return self.kept(row.name, lambda: self.shifted(self.agent(row), row.seed)), None
        if row.kind == "learned":
            return self.kept(row.name, lambda: self.biased(self.learned_bias(row.seed), row.seed)), None
        return self.kept(row.name, lambda: self.said[row.name]), None

    @cached_property
    def said(self) -> dict[str, Replies]:
        """The replies that no model wrote."""
        training = [one for one in self.some_prompts("train") if one.reference]
        return replies.baseline_replies(self.prompts, training, self.start, self.plan.seed)

    @cached_property
    def second_judge(self) -> Intent | None:
        return Intent(self.plan.second_judge, precision="fp32") if self.plan.second_judge else None

    def agent(self, row: Row) -> ChatAgent:
        if row.model == self.plan.start:
            return self.start
        if self.loaded is None or self.loaded[0] != row.model:
            settings = settings_of(load_config(row.config)) if row.config else settings_of(self.config)
            self.loaded = row.model, ChatAgent.load(row.model, settings=settings)
        return self.loaded[1]

    def sampling(self, agent: ChatAgent) -> Sampling:
        sampling = at_temperature(self.plan.temperature, agent.sampling)
        if not self.plan.top_k:
            return sampling
        return replace(sampling, top_k=self.plan.top_k, min_new_tokens=self.plan.min_new_tokens)

    def drawn(self, sampling: Sampling) -> Replies:
        """The start's replies with this sampling."""
        return replies.generate_replies(self.start, self.prompts, sampling, 0, BATCH)

    def generate(self, agent: ChatAgent, seed: int) -> Replies:
        return replies.generate_replies(agent, self.prompts, self.sampling(agent), seed, BATCH)

    def kept(self, name: str, write: Callable[[], Replies]) -> Replies:
        """The replies of this name that are in the folder, else those that `write` gives, which are kept."""
        stored = self.stored(name)
        if stored is None:
            stored = write()
            RowFile(self.folder, name).keep(stored)
        return stored

    def stored(self, name: str) -> Replies | None:
        """The replies of this name that are in the folder."""
        rows = RowFile(self.folder, name).replies()
        if rows is None:
            return None
        said = [
            prompt.with_reply(one["response"], one["truncated"]) for prompt, one in zip(self.prompts, rows, strict=True)
        ]
        return Replies(said, [one["tokens"] for one in rows])

    def best_of(self, row: Row) -> Replies:
        """Of the first draws of a model the best one by the `chooser` or its prediction; a draw is scored once for all counts."""
        agent, scores = self.agent(row) if row.model else self.start, self.scores.setdefault(row.of, [])
        count = max(row.count, row.learn_from)
        draws = [self.kept(f"{row.of}_{i}", lambda i=i: self.generate(agent, i)) for i in range(count)]  # type: ignore[misc]
        for some in draws[len(scores) :]:
            scores.append(measure.score_replies(some, self.judges, self.chooser))
        by = list(predict(agent, draws, np.stack(scores[:count], axis=1)).T) if row.learn_from else scores
        return measure.highest(draws[: row.count], by[: row.count])

    def matched(self, row: Row) -> Replies | None:
        """The start at the temperature with the mean distinct-2 of the rows that it is like; None where there is none."""
        wanted = np.mean([RowFile(self.folder, name).read()[f"{BLOCK}distinct_2"].mean() for name in row.like])
        prompts = replies.pick_prompts(self.prompts, self.plan.match_prompts, self.plan.seed)
        sampling = self.sampling(self.start)
        match = match_distinct_2(self.start, prompts, sampling, float(wanted), self.plan.match_steps, BATCH)
        if match is None:
            return None
        print(match.title, flush=True)
        answers = match.answers
        if len(prompts) < len(self.prompts):
            answers = self.drawn(replace(sampling, temperature=match.temperature))
        RowFile(self.folder, row.name).keep(answers)
        return answers

    def shifted(self, agent: ChatAgent, seed: int) -> Replies:
        """The start with the agent's mean logit shift, at the scale with the best score on validation prompts."""
        training = replies.pick_prompts(self.some_prompts("train"), self.plan.bias_prompts, seed)
        shift = fit_bias(agent, self.start, training, self.sampling(self.start), seed)
        return self.biased(choose_scale(shift, lambda scaled: self.validation_score(scaled, seed)), seed)

    def learned_bias(self, seed: int) -> LogitBias:
        """The bias that is learned from the reward, as PPO samples, with the rate of the best score on validation prompts."""
        training, learned = self.some_prompts("train"), list[LogitBias]()
        for rate in self.plan.bias_rates:
            how = BiasTraining(rate, tokens=self.plan.bias_tokens, seed=seed, num_prompts=self.plan.bias_step)
            learned.append(learn_bias(self.start, training, scorer_of(self.config), self.start.sampling, how))
        return max(learned, key=lambda bias: self.validation_score(bias, seed)) if len(learned) > 1 else learned[0]

    def validation_score(self, bias: LogitBias, seed: int) -> float:
        prompts = replies.pick_prompts(self.some_prompts("validation"), self.plan.bias_prompts, seed)
        return measure.measure(self.biased(bias, seed, prompts), Judges(self.judges.scorer)).points()["score"]

    def biased(self, bias: LogitBias, seed: int, prompts: list[Dialogue] | None = None) -> Replies:
        """The start with the bias."""
        sampling = bias.apply_to(self.sampling(self.start))
        return replies.generate_replies(self.start, prompts or self.prompts, sampling, seed, BATCH)

    def kl(self, agent: ChatAgent, answers: Replies, distance: Callable[..., measure.Array]) -> measure.Array:
        """The distance of each reply from the start in nats, at the temperature of the row; NaN where the two have different
        tokens."""
        if agent is self.start:
            return np.zeros(len(self.prompts))
        if agent.encoder.tokenizer.get_vocab() != self.start.encoder.tokenizer.get_vocab():
            return np.full(len(self.prompts), np.nan)
        return distance(agent, self.start, answers, BATCH, self.plan.temperature)

    @cached_property
    def chooser(self) -> Scorer:
        """What chooses the best of several replies: the reward without the parts that read the reference, if any is left."""
        scorer = self.judges.scorer
        assert scorer is not None
        without = WithoutNeeds(scorer.reward)
        return replace(scorer, reward=without) if without.weighted_parts else scorer


class WithoutNeeds(CompositeReward):
    """The parts of a reward that read neither the reference nor its act, with their weights."""

    def __init__(self, reward: BaseReward):
        parts = reward.weighted_parts if isinstance(reward, CompositeReward) else {reward.name: Part(1.0, reward)}
        self._set_parts([part for part in parts.values() if not reads_reference(part.reward)])
        self.left_out = [name for name, part in parts.items() if reads_reference(part.reward)]


def _kl_by_reply(*arguments: Any) -> measure.Array:
    """The sum of `kl_by_token` over each reply, (B,)."""
    return np.nansum(kl_by_token(*arguments), axis=1)


def scorer_of(config: Config) -> Scorer:
    """The reward of a run, built anew."""
    reward = build_reward(config.reward_class.id, config.reward_class.args)
    return Scorer(reward, truncation_penalty=config.truncation_penalty)


def settings_of(config: Config) -> AgentSettings:
    """How the models of a run answer."""
    names = AgentSettings.model_fields.keys() & Config.model_fields.keys() - {"model_class"}
    return AgentSettings(**{name: getattr(config, name) for name in names})


def whole_dialogues(prompts: list[Dialogue], most: int | None, seed: int) -> list[Dialogue]:
    """At most this number of prompts, in their order: all those of dialogues that are drawn by the seed until one is too many."""
    if most is None or most >= len(prompts):
        return prompts
    numbers = measure.dialogue_numbers(prompts)
    sizes, taken, count = np.bincount(numbers), list[int](), 0
    for number in np.random.default_rng(seed).permutation(len(sizes)).tolist():
        if count + sizes[number] > most:
            break
        taken.append(number)
        count += int(sizes[number])
    kept = np.isin(numbers, taken)
    return [prompt for prompt, is_kept in zip(prompts, kept, strict=True) if is_kept]


def main(path: Path) -> None:
    plan = Plan(**json.loads(path.read_text(encoding="utf-8")))
    table = Table(plan)
    for number, row in enumerate(plan.rows, start=1):
        table.make(row)
        print(f"row {number} of {len(plan.rows)}: {row.name}", flush=True)
    replace_json(Path(plan.folder) / "rows.json", [row.name for row in plan.rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
