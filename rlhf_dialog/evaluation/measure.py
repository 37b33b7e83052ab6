"""Every metric of replies, with intervals and differences. B prompts or replies, C prompts to choose from."""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.intervals import Array, Interval, Numbers, Statistic
from rlhf_dialog.evaluation.replies import Replies, have_acts, have_references
from rlhf_dialog.metrics.acts import NUM_ACTS, act_counts, macro_f1
from rlhf_dialog.metrics.evaluate_modules import EvaluateModule
from rlhf_dialog.metrics.overlap import ROUGE_KINDS, bleu_counts, corpus_bleu, rouge
from rlhf_dialog.metrics.text import blocked_distinct_n, copied_from, others
from rlhf_dialog.models.part_sizes import PartSizes
from rlhf_dialog.models.precision import without_tf32
from rlhf_dialog.models.relevance import RelevanceModel
from rlhf_dialog.rewards.base import ACTS, BaseReward, Purpose
from rlhf_dialog.rewards.intent import Intent, act_classifier
from rlhf_dialog.rewards.meteor import meteor, reward_wordnet
from rlhf_dialog.rewards.scoring import Scorer, begin_scoring

logger = logging.getLogger(__name__)
BLOCK = 100
LEGACY_END = " <EOU>"
UNKNOWN = {"mean": math.nan, "low": math.nan, "high": math.nan}


@dataclass
class Judges:
    """What is measured beside lengths and distinct-n, and with what; every field is optional.

    `scorer`: the run's own reward, with its truncation penalty and the rule for a reply without a score (by default an error);
    `intent`: a classifier of acts, usually the reward's own; `judge`: one that the reward never saw; `relevance`: models that
    say whether a reply fits its prompt, by the names of their metrics; `user_judges`: what else gives each reply a number, by the
    name of its metric; `modules`: those of the `evaluate` library; `wordnet`: the result of `load_wordnet`; `legacy_eou`: as in
    the published results, the text `<EOU>` is appended to references and finished replies; `seed` determines the other prompts
    of `meteor_shuffled` and of the recall.
    `purpose` and `iteration` are passed to the reward before it scores. `sizes`: how many dialogues a judge reads at a time.
    """

    scorer: Scorer | None = None
    intent: Intent | None = None
    judge: Intent | None = None
    relevance: dict[str, RelevanceModel] = field(default_factory=dict)
    user_judges: dict[str, BaseReward] = field(default_factory=dict)
    modules: list[EvaluateModule] = field(default_factory=list)
    wordnet: object | None = None
    legacy_eou: bool = False
    seed: int = 0
    purpose: Purpose = "evaluation"
    iteration: int = 0
    sizes: PartSizes = field(default_factory=PartSizes)

    @property
    def own_metrics(self) -> list[str]:
        """The names of the metrics of `relevance`, `user_judges` and `modules`, of these once they are measured."""
        of_modules = [name for module in self.modules for name in module.names]
        return [f"{name}_r{k}" for name in self.relevance for k in KS] + list(self.user_judges) + of_modules


def default_judges(scorer: Scorer | None) -> Judges:
    """A reward, the first act classifier among its parts, and METEOR with WordNet when the reward or this machine has it."""
    reward = scorer.reward if scorer else None
    return Judges(scorer, act_classifier(reward), wordnet=reward_wordnet(reward))


@dataclass
class Measured:
    """The numbers of one system: means over B prompts, means over blocks of 100 replies, and metrics of sums."""

    per_prompt: dict[str, Array]  # B numbers each; NaN for a prompt without one
    per_block: dict[str, Array] = field(default_factory=dict)  # one number for each block
    pooled: dict[str, Statistic] = field(default_factory=dict)  # BLEU, macro-F1, perplexity: B rows each
    scalars: dict[str, float] = field(default_factory=dict)  # one number of all replies, which has no interval
    dialogues: Numbers | None = None  # B numbers from 0: the dialogue of each prompt; None: each is one by itself

    def statistics(self) -> dict[str, Statistic]:
        """Every metric by name."""
        means = {name: intervals.mean_statistic(values) for name, values in (self.per_prompt | self.per_block).items()}
        return {
            name: statistic if name in self.per_block else replace(statistic, units=self.dialogues)
            for name, statistic in (means | self.pooled).items()
        }

    def points(self) -> dict[str, float]:
        """The point estimate of every metric."""
        return {name: statistic.point for name, statistic in self.statistics().items()} | self.scalars


@without_tf32()
def measure(replies: Replies, judges: Judges) -> Measured:
    """Every metric that the data allows: those of references, or of acts, are left out when a prompt has none.

    Raises RewardError when the reward fails.
    """
    dialogues = replies.dialogues
    texts = [dialogue.response for dialogue in dialogues]
    measured = Measured(
        {
            "mean_length": np.asarray(replies.num_tokens, dtype=np.float64),
            "mean_words": _array(len(text.split()) for text in texts),
            "truncated": _array(dialogue.truncated for dialogue in dialogues),
            "copied": _array(copied_from(d.prompt_turns[-1:], d.response) for d in dialogues),
            "copied_two": _array(copied_from(d.turns_before[-2:], d.response) for d in dialogues),
        },
        {f"distinct_{n}": _array(blocked_distinct_n(texts, n, BLOCK)) for n in (1, 2)},
        dialogues=dialogue_numbers(dialogues),
    )
    if judges.scorer:
        begin_scoring(judges.scorer.reward, judges.purpose, judges.iteration)
        measured.per_prompt |= _reward_numbers(replies, judges.scorer)
    _add_own(measured, dialogues, judges)
    if have_references(dialogues):
        _add_overlap(measured, dialogues, judges)
    for name, classifier in (("intent", judges.intent), ("judge", judges.judge)):
        if classifier and have_acts(dialogues):
            _add_acts(measured, replies, classifier, name, judges.sizes)
    if replies.reference_nll is not None:
        measured.pooled["reference_perplexity"] = Statistic(replies.reference_nll, perplexity)
    return measured


def average_draws(draws: Sequence[Measured]) -> Measured:
    """Several samples to each prompt as one system: the mean of a prompt's (or block's) numbers, sums of what is pooled."""
    first = draws[0]
    return Measured(
        {name: np.mean([one.per_prompt[name] for one in draws], axis=0) for name in first.per_prompt},
        {name: np.mean([one.per_block[name] for one in draws], axis=0) for name in first.per_block},
        {
            name: replace(statistic, rows=np.sum([one.pooled[name].rows for one in draws], axis=0))
            for name, statistic in first.pooled.items()
        },
        {name: float(np.mean([one.scalars[name] for one in draws])) for name in first.scalars},
        first.dialogues,
    )


@without_tf32()
def score_replies(replies: Replies, judges: Judges, scorer: Scorer) -> Array:
    """(B,): the score of each reply. Raises RewardError when the reward fails."""
    begin_scoring(scorer.reward, judges.purpose, judges.iteration)
    return _reward_numbers(replies, scorer)["score"]


def highest(drawn: Sequence[Replies], totals: Sequence[Array]) -> Replies:
    """Of several replies to each prompt the one with the highest of `totals`, (B,) for each of `drawn`; ties: the first."""
    scores = np.nan_to_num(np.stack(totals), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    pairs = [(drawn[i], row) for row, i in enumerate(scores.argmax(axis=0).tolist())]
    return Replies([some.dialogues[row] for some, row in pairs], [some.num_tokens[row] for some, row in pairs])


def dialogue_numbers(dialogues: Sequence[Dialogue]) -> Numbers:
    """B numbers from 0: which prompts belong to one dialogue of the data; a prompt that does not say so is one by itself."""
    names = [dialogue.origin_of("dialogue", f"prompt {i}") for i, dialogue in enumerate(dialogues)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.asarray([numbers[name] for name in names], dtype=np.int64)


PART_NAMES = {"meteor_exact_stem": "meteor", "intent": "intent_accuracy"}  # the settings name the METEOR variant


def _reward_numbers(replies: Replies, scorer: Scorer) -> dict[str, Array]:
    """The score, as training has it, and the parts of the reward."""
    dialogues, lengths = replies.dialogues, _array(replies.num_tokens)
    scores, truncated = scorer.score(dialogues), _array(dialogue.truncated for dialogue in dialogues)
    parts = {PART_NAMES.get(name, name): _array(part.raw) for name, part in scores.parts.items()}
    return {"score": scorer.subtract_truncation_penalty(_array(scores.total), truncated, lengths), **parts}


def _add_own(measured: Measured, dialogues: list[Dialogue], judges: Judges) -> None:
    """Recall by the relevance models, and the numbers of rewards and metrics of the user's."""
    groups = dialogue_numbers(dialogues).tolist()
    for name, model in judges.relevance.items():
        recalled = recalls(model, dialogues, groups, judges.seed)
        measured.per_prompt |= {f"{name}_{metric}": values for metric, values in recalled.items()}
    for name, reward in judges.user_judges.items():
        begin_scoring(reward, judges.purpose, judges.iteration)
        scorer = Scorer(reward, skip_unscored=True, sizes=judges.sizes)
        measured.per_prompt[name] = _array(scorer.score(dialogues).total)
    for module in judges.modules:
        for name, value in module.compute(dialogues).items():
            if isinstance(value, list):
                measured.per_prompt[name] = _array(value)
            else:
                measured.scalars[name] = value


def _add_overlap(measured: Measured, dialogues: list[Dialogue], judges: Judges) -> None:
    """ROUGE, BLEU, METEOR, and METEOR against the references of another prompt."""
    end = LEGACY_END if judges.legacy_eou else ""
    references = [[text + end for text in d.references or [d.reference or ""]] for d in dialogues]
    foreign = [references[i] for i in others(len(references), judges.seed)]
    replies = [d.response + ("" if d.truncated else end) for d in dialogues]
    rouges = [rouge(texts, reply) for texts, reply in zip(references, replies, strict=True)]
    measured.per_prompt |= {kind: _array(scores[kind] for scores in rouges) for kind in ROUGE_KINDS}
    for name, wanted in (("meteor", references), ("meteor_shuffled", foreign)):
        pairs = zip(wanted, replies, strict=True)
        measured.per_prompt[name] = _array(meteor(texts, reply, judges.wordnet) for texts, reply in pairs)
    if len(references) == 1:
        measured.per_prompt["meteor_shuffled"] = np.full(1, np.nan)  # there is no other prompt
    measured.per_prompt["meteor_margin"] = measured.per_prompt["meteor"] - measured.per_prompt["meteor_shuffled"]
    counts = [bleu_counts(texts, reply) for texts, reply in zip(references, replies, strict=True)]
    measured.pooled["sacrebleu"] = Statistic(np.asarray(counts, dtype=np.float64), corpus_bleu)


def _add_acts(measured: Measured, replies: Replies, classifier: Intent, name: str, sizes: PartSizes) -> None:
    """`<name>_accuracy` of the wanted act over all prompts and for each act, and `<name>_macro_f1`."""
    acts = [dialogue.act or 0 for dialogue in replies.dialogues]
    fixed = replies.always_act
    parts = sizes.in_parts(name, len(acts), replies.dialogues, classifier.predict) if fixed is None else []
    classes = [found for part in parts for found in part] if fixed is None else [fixed] * len(acts)
    counts = act_counts(classes, acts)
    hits, _, num_true = np.split(counts, 3, axis=1)
    measured.per_prompt[f"{name}_accuracy"] = hits.sum(axis=1)
    measured.pooled[f"{name}_macro_f1"] = Statistic(counts, macro_f1)
    for i in range(NUM_ACTS):
        columns = np.stack([hits[:, i], num_true[:, i]], axis=1)
        measured.pooled[f"{name}_accuracy_{ACTS[i + 1]}"] = Statistic(columns, intervals.ratio)


def perplexity(sums: Array) -> Array:
    """exp(nats / tokens) of summed `reference_nll` (..., 2)."""
    return np.exp(intervals.ratio(sums))


def _array(values: Iterable[float]) -> Array:
    return np.asarray(list(values), dtype=np.float64)


def with_intervals(measured: Measured, seed: int = 0) -> dict[str, Interval]:
    """Mean and 95 % interval of every metric, over dialogues, or over blocks for distinct-n."""
    found = {name: intervals.interval(statistic, seed) for name, statistic in measured.statistics().items()}
    return found | {name: UNKNOWN | {"mean": value} for name, value in measured.scalars.items()}


def differences(before: Measured, after: Measured, seed: int = 0) -> dict[str, Interval]:
    """After minus before with intervals, paired by dialogue (by block for distinct-n), on the prompts that both have.

    `left_out` is the number of the other prompts; a metric that one side lacks is NaN.
    """
    first = _on_common_prompts(before, after).statistics()
    second = _on_common_prompts(after, before).statistics()
    compared = {}
    for name in first | second:
        both = name in first and name in second
        compared[name] = intervals.difference(first[name], second[name], seed) if both else dict(UNKNOWN)
        left_out = 0
        if name in before.per_prompt and name in after.per_prompt:
            left_out = int((np.isfinite(before.per_prompt[name]) != np.isfinite(after.per_prompt[name])).sum())
        if left_out:
            compared[name]["left_out"] = left_out
            logger.warning("difference of %s: %d prompts are left out, because one side has no number", name, left_out)
    for name in before.scalars | after.scalars:
        change = after.scalars.get(name, math.nan) - before.scalars.get(name, math.nan)
        compared[name] = UNKNOWN | {"mean": change}
    return compared


def _on_common_prompts(measured: Measured, other: Measured) -> Measured:
    """The same numbers, with NaN for the prompts for which the other system has none."""
    common = {
        name: np.where(np.isfinite(other.per_prompt[name]), values, np.nan) if name in other.per_prompt else values
        for name, values in measured.per_prompt.items()
    }
    return replace(measured, per_prompt=common)


NUM_CONTEXTS = 100
KS = (1, 10)


def recalls(
    model: RelevanceModel, dialogues: Sequence[Dialogue], groups: Sequence[int], seed: int = 0
) -> dict[str, Array]:
    """`r1` and `r10`, (B,) each: 1 where the reply's own prompt is among the k best of 100, else 0.

    The 99 others are drawn by `seed` from the prompts of other dialogues (`groups`: the dialogue of each), all of them where
    there are fewer; NaN where there are none. A prompt that scores like the own one ranks above it.
    """
    contexts, replies = [d.turns_before for d in dialogues], [d.response for d in dialogues]
    scores = model.scores(contexts, replies, draw_candidates(dialogues, groups, seed)).mean(dim=0)
    ranks = (scores[:, 1:] >= scores[:, :1]).sum(dim=1).numpy()
    alone = scores.shape[1] == 1
    return {f"r{k}": np.full(len(ranks), np.nan) if alone else (ranks < k).astype(np.float64) for k in KS}


def draw_candidates(dialogues: Sequence[Dialogue], groups: Sequence[int], seed: int) -> Tensor:
    """(B, C): the row of the own prompt, then those of the others."""
    numbers = np.asarray(groups)
    generator = np.random.default_rng(seed)
    most = min([NUM_CONTEXTS - 1, *(int((numbers != group).sum()) for group in set(groups))])
    rows = []
    for row, group in enumerate(numbers):
        others = np.flatnonzero(numbers != group)
        rows.append([row, *generator.choice(others, most, replace=False)])
    return torch.tensor(np.asarray(rows, dtype=np.int64)).reshape(len(rows), most + 1)
