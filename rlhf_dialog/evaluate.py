"""Metrics of replies to held-out prompts, with 95 % intervals, beside replies that no model wrote. B prompts."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track

from rlhf_dialog.chat import ChatAgent
from rlhf_dialog.dialogue import Dialogue
from rlhf_dialog.generation import Sampling, respond
from rlhf_dialog.metrics.text import blocked_distinct_n
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.composite import scored
from rlhf_dialog.rollout import answered, encode_prompts

NUM_RESAMPLES = 1000
BLOCK = 100
CONSTANT_REPLY = "Yes , I am ."
LONG_CONSTANT_REPLY = "I don't know , but I think it is a good idea for you to do that ."
Interval = dict[str, float]
Array = NDArray[np.float64]


@dataclass
class Replies:
    """The replies of one system to B prompts, and their lengths in policy tokens."""

    dialogues: list[Dialogue]
    num_tokens: list[int]


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
    for start in track(range(0, len(prompts), batch_size), description=title, transient=True):
        batch = prompts[start : start + batch_size]
        prompt_ids, prompt_mask = (x.to(device) for x in encode_prompts(agent.encoder, batch))
        responses = respond(agent.policy, prompt_ids, prompt_mask, sampling, agent.stop, agent.encoder.pad_id)
        dialogues += answered(batch, responses, agent.encoder)
        lengths += responses.mask.sum(dim=1).tolist()
    return Replies(dialogues, lengths)


def baseline_replies(
    prompts: list[Dialogue], train_replies: list[str], agent: ChatAgent, seed: int = 0
) -> dict[str, Replies]:
    """Replies without a model: what any trained agent has to beat. The random ones are drawn by `seed`."""
    draw = random.Random(seed)
    references = [prompt.reference or "" for prompt in prompts]
    shift = draw.randrange(1, max(len(prompts), 2))
    texts: dict[str, Iterable[str]] = {
        "constant_reply": [CONSTANT_REPLY] * len(prompts),
        "long_constant_reply": [LONG_CONSTANT_REPLY] * len(prompts),
        "repeat_last_turn": [prompt.prompt_turns[-1] for prompt in prompts],
        "random_reference": references[shift:] + references[:shift],
        "random_train_reply": draw.choices(train_replies, k=len(prompts)),
        "true_replies": references,
    }
    return {name: _as_replies(prompts, list(replies), agent) for name, replies in texts.items()}


def _as_replies(prompts: list[Dialogue], texts: list[str], agent: ChatAgent) -> Replies:
    dialogues = [replace(prompt, response=text) for prompt, text in zip(prompts, texts, strict=True)]
    return Replies(dialogues, [len(agent.encoder.encode_target(text)) - 1 for text in texts])


@dataclass
class Measured:
    """The numbers of one system: `per_prompt` metrics have B of them, `per_block` one for each 100 replies."""

    per_prompt: dict[str, Array]
    per_block: dict[str, Array]

    def all(self) -> dict[str, Array]:
        return self.per_prompt | self.per_block


def measure(replies: Replies, reward: BaseReward) -> Measured:
    """`score` (the run's own reward without KL) and its parts, lengths, truncation, distinct-1 and distinct-2."""
    scores = scored(reward, replies.dialogues)
    texts = [dialogue.response for dialogue in replies.dialogues]
    per_prompt = {
        "score": scores.total,
        **{PART_NAMES.get(name, name): part.raw for name, part in scores.parts.items()},
    }
    per_prompt["mean_length"] = [float(n) for n in replies.num_tokens]
    per_prompt["mean_words"] = [float(len(text.split())) for text in texts]
    per_prompt["truncated"] = [float(dialogue.truncated) for dialogue in replies.dialogues]
    per_block = {f"distinct_{n}": blocked_distinct_n(texts, n, BLOCK) for n in (1, 2)}
    return Measured(_arrays(per_prompt), _arrays(per_block))


PART_NAMES = {"meteor_exact_stem": "meteor", "intent": "intent_accuracy"}  # the METEOR variant stands in the settings


def _arrays(columns: dict[str, list[float]]) -> dict[str, Array]:
    return {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}


def intervals(measured: Measured, seed: int = 0) -> dict[str, Interval]:
    """Mean and 95 % bootstrap interval of every metric: 1,000 resamples of prompts, or of blocks for distinct-n."""
    return {name: interval(values, seed) for name, values in measured.all().items()}


def differences(before: Measured, after: Measured, seed: int = 0) -> dict[str, Interval]:
    """After minus before, paired by prompt (by block for distinct-n), with intervals."""
    first, second = before.all(), after.all()
    return {name: interval(second[name] - first[name], seed) for name in first}


def interval(values: Array, seed: int = 0) -> Interval:
    """Mean of `values` and the 2.5 % and 97.5 % quantiles of its resampled means (Efron's percentile bootstrap)."""
    rows = np.random.default_rng(seed).integers(0, len(values), (NUM_RESAMPLES, len(values)))
    low, high = np.quantile(values[rows].mean(axis=1), [0.025, 0.975])
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}


def pick_prompts(prompts: list[Dialogue], max_prompts: int | None, seed: int = 0) -> list[Dialogue]:
    """At most `max_prompts` of them, drawn by `seed`, in their order."""
    if max_prompts is None or max_prompts >= len(prompts):
        return prompts
    chosen: Callable[[range, int], list[int]] = random.Random(seed).sample
    return [prompts[i] for i in sorted(chosen(range(len(prompts)), max_prompts))]
