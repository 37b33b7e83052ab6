"""Replies of an agent, and replies that no model wrote, to the same held-out prompts, and every metric of them. B prompts."""

import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from rich.progress import track

from rlhf_dialog import intervals
from rlhf_dialog.chat import ChatAgent
from rlhf_dialog.dialogue import Dialogue
from rlhf_dialog.generation import Sampling, evaluate, respond
from rlhf_dialog.intervals import Array, Interval, Statistic
from rlhf_dialog.metrics.acts import NUM_ACTS, act_counts, macro_f1
from rlhf_dialog.metrics.meteor import meteor
from rlhf_dialog.metrics.overlap import ROUGE_KINDS, bleu_counts, bleu_of, rouge
from rlhf_dialog.metrics.text import blocked_distinct_n, copied, others
from rlhf_dialog.prompts import collate
from rlhf_dialog.rewards.base import BaseReward, Purpose
from rlhf_dialog.rewards.intent import Intent, act_classifier
from rlhf_dialog.rewards.meteor import wordnet_of
from rlhf_dialog.rewards.needs import ACTS
from rlhf_dialog.rewards.scoring import STOPPING, ScoringRules, begin_scoring, scored
from rlhf_dialog.rollout import answered, encode_prompts

BLOCK = 100
T = TypeVar("T")
CONSTANT_REPLY = "Yes , I am ."
LONG_CONSTANT_REPLY = "I don't know , but I think it is a good idea for you to do that ."
INFORM_REPLY = "It is on the second floor ."
LEGACY_END = " <EOU>"
INFORM = 0  # the classifier's class of act 1


@dataclass
class Replies:
    """The replies of one system to B prompts, and their lengths in policy tokens.

    `reference_nll` (B, 2): the summed negative log-likelihood in nats of the prompt's reference under the system, and its
    number of tokens; None for a system without a model. `always_act`: the class that the system's replies count as.
    """

    dialogues: list[Dialogue]
    num_tokens: list[int]
    reference_nll: Array | None = None
    always_act: int | None = None


@dataclass
class Judges:
    """What is measured beside lengths and distinct-n, and with what; everything is optional.

    `reward` the run's own; `intent` a classifier of acts; `wordnet` what `load_wordnet` returned. `legacy_eou`: the
    published way, where the text `<EOU>` stands behind references and finished replies. `seed` draws the other prompts
    of `meteor_shuffled`. `rules`: what becomes of a reply without a score, which by default is an error. `purpose` and
    `iteration` are passed to the reward before it scores.
    """

    reward: BaseReward | None = None
    intent: Intent | None = None
    wordnet: object | None = None
    legacy_eou: bool = False
    seed: int = 0
    rules: ScoringRules = STOPPING
    purpose: Purpose = "evaluation"
    iteration: int = 0


def judges_of(reward: BaseReward | None) -> Judges:
    """A reward, the first act classifier among its parts, and METEOR with WordNet when the reward or this machine has it."""
    return Judges(reward, act_classifier(reward), wordnet_of(reward))


def generate_replies(
    agent: ChatAgent,
    prompts: list[Dialogue],
    sampling: Sampling,
    seed: int = 0,
    batch_size: int = 64,
    title: str = "replies",
) -> Replies:
    """Answer every prompt; the same seed, prompts and batch size give the same replies."""
    torch.manual_seed(seed)
    dialogues: list[Dialogue] = []
    lengths: list[int] = []
    device = agent.policy.lm.device
    for batch in batches(prompts, batch_size, title):
        prompt_ids, prompt_mask = (x.to(device) for x in encode_prompts(agent.encoder, batch))
        responses = respond(agent.policy, prompt_ids, prompt_mask, sampling, agent.stop, agent.encoder.pad_id)
        dialogues += answered(batch, responses, agent.encoder)
        lengths += responses.mask.sum(dim=1).tolist()
    return Replies(dialogues, lengths)


@torch.no_grad()
def reference_nll(agent: ChatAgent, prompts: list[Dialogue], batch_size: int = 64) -> Array:
    """What the agent's model makes of each prompt's first reference with its end: (B, 2), nats and tokens.

    Where both do not fit into the model's positions, the prompt loses tokens from the left.
    """
    positions = getattr(agent.policy.lm.config, "max_position_embeddings", None)
    device, pad_id = agent.policy.lm.device, agent.encoder.pad_id
    sums: list[list[float]] = []
    for batch in batches(prompts, batch_size, "reference perplexity"):
        targets = [
            agent.encoder.encode_reply(prompt.reference or "")[: positions and positions - 1] for prompt in batch
        ]
        lengths = torch.tensor([len(target) for target in targets], device=device)
        ids = torch.full((len(batch), int(lengths.max())), pad_id, device=device)
        for row, target in enumerate(targets):
            ids[row, : len(target)] = torch.tensor(target, device=device)
        room = positions and positions - ids.shape[1]
        asked = [agent.encoder.encode_prompt(prompt.prompt_turns) for prompt in batch]
        prompt_ids, prompt_mask = (x.to(device) for x in collate([p[-room:] if room else p for p in asked], pad_id))
        counts = torch.arange(ids.shape[1], device=device) < lengths.unsqueeze(1)
        found = evaluate(agent.policy, prompt_ids, prompt_mask, ids, counts, temperature=1.0, with_entropy=False)
        nll = -found.logprobs.sum(dim=1)
        sums += torch.stack([nll, lengths], dim=1).tolist()
    return np.asarray(sums)


def batches(prompts: list[Dialogue], size: int, title: str) -> Iterable[list[Dialogue]]:
    """The prompts in their order, `size` at a time, with a progress bar."""
    starts = range(0, len(prompts), size)
    return (prompts[start : start + size] for start in progress(starts, title))


def progress(items: Sequence[T], title: str) -> Iterable[T]:
    """The items, with a bar on a terminal."""
    return track(items, description=title, transient=True, disable=not sys.stdout.isatty())


def baseline_replies(
    prompts: list[Dialogue], train_replies: list[str], agent: ChatAgent, seed: int = 0
) -> dict[str, Replies]:
    """Replies without a model: what any trained agent has to beat. The random ones are drawn by `seed`.

    Those that are made of references are there only when every prompt has one, `random_train_reply` only when there is
    any. `always_inform` counts as act 1 whatever a classifier sees in it: the accuracy of the commonest act.
    """
    draw = random.Random(seed)
    texts: dict[str, Iterable[str]] = {
        "constant_reply": [CONSTANT_REPLY] * len(prompts),
        "long_constant_reply": [LONG_CONSTANT_REPLY] * len(prompts),
        "repeat_last_turn": [prompt.prompt_turns[-1] for prompt in prompts],
        "always_inform": [INFORM_REPLY] * len(prompts),
    }
    if train_replies:
        texts["random_train_reply"] = draw.choices(train_replies, k=len(prompts))
    if have_references(prompts):
        references = [prompt.reference or "" for prompt in prompts]
        texts["true_replies"] = references
        if len(prompts) > 1:
            texts["random_reference"] = [references[i] for i in others(len(prompts), seed, step=-1)]
    found = {name: _as_replies(prompts, list(replies), agent) for name, replies in texts.items()}
    found["always_inform"].always_act = INFORM
    return found


def have_references(prompts: Sequence[Dialogue]) -> bool:
    return all(prompt.reference is not None for prompt in prompts)


def have_acts(prompts: Sequence[Dialogue]) -> bool:
    return all(prompt.act is not None for prompt in prompts)


def _as_replies(prompts: list[Dialogue], texts: list[str], agent: ChatAgent) -> Replies:
    dialogues = [replace(prompt, response=text) for prompt, text in zip(prompts, texts, strict=True)]
    return Replies(dialogues, [len(agent.encoder.encode_reply(text)) for text in texts])


@dataclass
class Measured:
    """The numbers of one system: means over B prompts, means over blocks of 100 replies, and metrics of sums."""

    per_prompt: dict[str, Array]  # B numbers each
    per_block: dict[str, Array] = field(default_factory=dict)  # one number for each block
    pooled: dict[str, Statistic] = field(default_factory=dict)  # BLEU, macro-F1, perplexity

    def statistics(self) -> dict[str, Statistic]:
        """Every metric by name."""
        means = {name: intervals.mean_of(values) for name, values in (self.per_prompt | self.per_block).items()}
        return means | self.pooled

    def points(self) -> dict[str, float]:
        """The point estimate of every metric."""
        return {name: statistic.point for name, statistic in self.statistics().items()}


def measure(replies: Replies, judges: Judges) -> Measured:
    """Every metric that can be had; those of references are left out when a prompt has none, those of acts likewise.

    Raises RewardError when the reward fails.
    """
    dialogues = replies.dialogues
    texts = [dialogue.response for dialogue in dialogues]
    found = Measured(
        {
            "mean_length": np.asarray(replies.num_tokens, dtype=np.float64),
            "mean_words": _array(len(text.split()) for text in texts),
            "truncated": _array(dialogue.truncated for dialogue in dialogues),
            "copied": _array(copied(d.prompt_turns[-1], d.response) for d in dialogues),
        },
        {f"distinct_{n}": _array(blocked_distinct_n(texts, n, BLOCK)) for n in (1, 2)},
    )
    if judges.reward:
        begin_scoring(judges.reward, judges.purpose, judges.iteration)
        found.per_prompt |= _of_reward(dialogues, judges.reward, judges.rules)
    if have_references(dialogues):
        _add_overlap(found, dialogues, judges)
    if judges.intent and have_acts(dialogues):
        _add_acts(found, replies, judges.intent)
    if replies.reference_nll is not None:
        found.pooled["reference_perplexity"] = Statistic(replies.reference_nll, perplexity)
    return found


PART_NAMES = {"meteor_exact_stem": "meteor", "intent": "intent_accuracy"}  # the METEOR variant stands in the settings


def _of_reward(dialogues: list[Dialogue], reward: BaseReward, rules: ScoringRules) -> dict[str, Array]:
    scores = scored(reward, dialogues, rules)
    parts = {PART_NAMES.get(name, name): _array(part.raw) for name, part in scores.parts.items()}
    return {"score": _array(scores.total), **parts}


def _add_overlap(found: Measured, dialogues: list[Dialogue], judges: Judges) -> None:
    """ROUGE, BLEU, METEOR, and METEOR against the references of another prompt."""
    end = LEGACY_END if judges.legacy_eou else ""
    own = [[text + end for text in d.references or [d.reference or ""]] for d in dialogues]
    foreign = [own[i] for i in others(len(own), judges.seed)]
    replies = [d.response + ("" if d.truncated else end) for d in dialogues]
    rouges = [rouge(texts, reply) for texts, reply in zip(own, replies, strict=True)]
    found.per_prompt |= {kind: _array(scores[kind] for scores in rouges) for kind in ROUGE_KINDS}
    for name, wanted in (("meteor", own), ("meteor_shuffled", foreign)):
        pairs = zip(wanted, replies, strict=True)
        found.per_prompt[name] = _array(meteor(texts, reply, judges.wordnet) for texts, reply in pairs)
    if len(own) == 1:
        found.per_prompt["meteor_shuffled"] = np.full(1, np.nan)  # there is no other prompt
    found.per_prompt["meteor_margin"] = found.per_prompt["meteor"] - found.per_prompt["meteor_shuffled"]
    counts = [bleu_counts(texts, reply) for texts, reply in zip(own, replies, strict=True)]
    found.pooled["sacrebleu"] = Statistic(np.asarray(counts, dtype=np.float64), bleu_of)


def _add_acts(found: Measured, replies: Replies, intent: Intent) -> None:
    """Accuracy of the wanted act over all prompts and for each act, and macro-F1."""
    acts = [dialogue.act or 0 for dialogue in replies.dialogues]
    fixed = replies.always_act
    classes = intent.predict(replies.dialogues) if fixed is None else [fixed] * len(acts)
    counts = act_counts(classes, acts)
    hits, _, wanted = np.split(counts, 3, axis=1)
    found.per_prompt["intent_accuracy"] = hits.sum(axis=1)
    found.pooled["intent_macro_f1"] = Statistic(counts, macro_f1)
    for i in range(NUM_ACTS):
        columns = np.stack([hits[:, i], wanted[:, i]], axis=1)
        found.pooled[f"intent_accuracy_{ACTS[i + 1]}"] = Statistic(columns, intervals.ratio)


def perplexity(sums: Array) -> Array:
    """exp of nats by tokens, of summed `reference_nll` (..., 2)."""
    return np.exp(intervals.ratio(sums))


def _array(values: Iterable[float]) -> Array:
    return np.asarray(list(values), dtype=np.float64)


def with_intervals(measured: Measured, seed: int = 0) -> dict[str, Interval]:
    """Mean and 95 % bootstrap interval of every metric: 1,000 resamples of prompts, or of blocks for distinct-n."""
    return {name: intervals.interval(statistic, seed) for name, statistic in measured.statistics().items()}


def differences(before: Measured, after: Measured, seed: int = 0) -> dict[str, Interval]:
    """After minus before, paired by prompt (by block for distinct-n), with intervals."""
    first, second = before.statistics(), after.statistics()
    return {name: intervals.difference(first[name], second[name], seed) for name in first}


def pick_prompts(prompts: list[Dialogue], max_prompts: int | None, seed: int = 0) -> list[Dialogue]:
    """At most `max_prompts` of them, drawn by `seed`, in their order."""
    if max_prompts is None or max_prompts >= len(prompts):
        return prompts
    chosen = random.Random(seed).sample(range(len(prompts)), max_prompts)
    return [prompts[i] for i in sorted(chosen)]
