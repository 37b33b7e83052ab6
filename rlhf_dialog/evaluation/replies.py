"""Replies of an agent, and of baselines that need no model, to the same held-out prompts. B prompts."""

import logging
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from rich.progress import track

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.intervals import Array
from rlhf_dialog.evaluation.retrieval_baseline import nearest_replies
from rlhf_dialog.metrics.text import others
from rlhf_dialog.models.chat_agent import Responder
from rlhf_dialog.models.generation import Sampling, random_numbers
from rlhf_dialog.models.policy import num_positions, teacher_forced
from rlhf_dialog.terminal import each_logged

logger = logging.getLogger(__name__)
T = TypeVar("T")
CONSTANT_REPLY = "Yes , I am ."
LONG_CONSTANT_REPLY = "I don't know , but I think it is a good idea for you to do that ."
INFORM_REPLY = "It is on the second floor ."
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


def generate_replies(
    speaker: Responder,
    prompts: list[Dialogue],
    sampling: Sampling,
    seed: int = 0,
    batch_size: int = 64,
    title: str = "replies",
    only: range | None = None,
) -> Replies:
    """Answer every prompt, or only those of these numbers; the same seed, prompts and batch size give the same replies."""
    torch.manual_seed(seed)
    speaker, rows_of_rank = (
        Responder(speaker.policy, speaker.encoder, sampling, speaker.stop),
        range(len(prompts)) if only is None else only,
    )
    dialogues, num_tokens = [], []
    for start in progress(range(0, len(prompts), batch_size), title):
        size = min(batch_size, len(prompts) - start)
        uniform = random_numbers(size, sampling, speaker.policy.lm.device)
        first, end = max(rows_of_rank.start, start), min(rows_of_rank.stop, start + size)
        if first < end:
            replies = speaker.reply(prompts[first:end], uniform[first - start : end - start])
            dialogues += [
                p.with_reply(reply.text, reply.truncated) for p, reply in zip(prompts[first:end], replies, strict=True)
            ]
            num_tokens += [len(reply.ids) for reply in replies]
    return Replies(dialogues, num_tokens)


def join_replies(parts: Sequence[Replies]) -> Replies:
    """The replies of all parts in their order, as `generate_replies` gives them."""
    dialogues = [dialogue for part in parts for dialogue in part.dialogues]
    return Replies(dialogues, [count for part in parts for count in part.num_tokens])


@torch.no_grad()
def reference_nll(speaker: Responder, prompts: list[Dialogue], batch_size: int = 64) -> Array:
    """The negative log-likelihood of each prompt's first reference, with its end token, under the speaker's model.

    (B, 2): nats and tokens. If both do not fit into the model's positions, the prompt loses tokens from the left.
    """
    positions = num_positions(speaker.policy.lm)
    sums: list[list[float]] = []
    for batch in batches(prompts, batch_size, "reference perplexity"):
        targets = [
            speaker.encoder.encode_reply(prompt.reference or "")[: positions and positions - 1] for prompt in batch
        ]
        room = positions and positions - max(map(len, targets))
        prompt_ids = [speaker.encoder.encode_prompt(prompt.prompt_turns) for prompt in batch]
        tokens = speaker.batch([ids[-room:] if room else ids for ids in prompt_ids]).with_replies(targets)
        logprobs = teacher_forced(speaker.policy, tokens, temperature=1.0, with_entropy=False).logprobs
        nll = -logprobs.sum(dim=1)
        sums += torch.stack([nll, tokens.mask.sum(dim=1)], dim=1).tolist()
    return np.asarray(sums)


def batches(prompts: list[Dialogue], size: int, title: str) -> Iterable[list[Dialogue]]:
    """The prompts in their order, `size` at a time, with a progress bar."""
    starts = range(0, len(prompts), size)
    return (prompts[start : start + size] for start in progress(starts, title))


def progress(items: Sequence[T], title: str) -> Iterable[T]:
    """The items, with a progress bar on a terminal, and a line a minute in a log."""
    if sys.stdout.isatty():
        return track(items, description=title, transient=True)
    return each_logged(items, title, logger)


def baseline_replies(
    prompts: list[Dialogue], training: list[Dialogue], speaker: Responder, seed: int = 0
) -> dict[str, Replies]:
    """Replies without a model: what any trained agent has to beat. The random ones are drawn by `seed`.

    Baselines made of references are included only when every prompt has one, those of training replies only when there are
    training prompts, each with a reference. `always_inform` always counts as act 1, without a classifier: it gives the accuracy
    of the most common act.
    """
    draw = random.Random(seed)
    texts: dict[str, Iterable[str]] = {
        "constant_reply": [CONSTANT_REPLY] * len(prompts),
        "long_constant_reply": [LONG_CONSTANT_REPLY] * len(prompts),
        "repeat_last_turn": [prompt.prompt_turns[-1] for prompt in prompts],
        "always_inform": [INFORM_REPLY] * len(prompts),
    }
    if training:
        texts["random_train_reply"] = draw.choices([one.reference or "" for one in training], k=len(prompts))
        texts["nearest_train_reply"] = nearest_replies(prompts, training)
    if have_references(prompts):
        references = [prompt.reference or "" for prompt in prompts]
        texts["true_replies"] = references
        if len(prompts) > 1:
            texts["random_reference"] = [references[i] for i in others(len(prompts), seed, step=-1)]
    baselines = {}
    for name in texts:
        replies = list(texts[name])
        dialogues = [replace(prompt, response=text) for prompt, text in zip(prompts, replies, strict=True)]
        baselines[name] = Replies(dialogues, [len(speaker.encoder.encode_reply(text)) for text in replies])
    baselines["always_inform"].always_act = INFORM
    return baselines


def have_references(prompts: Sequence[Dialogue]) -> bool:
    return all(prompt.reference is not None for prompt in prompts)


def have_acts(prompts: Sequence[Dialogue]) -> bool:
    return all(prompt.act is not None for prompt in prompts)


def pick_prompts(prompts: list[Dialogue], max_prompts: int | None, seed: int = 0) -> list[Dialogue]:
    """At most `max_prompts` of the prompts, drawn by `seed`, in their original order."""
    if max_prompts is None or max_prompts >= len(prompts):
        return prompts
    chosen = random.Random(seed).sample(range(len(prompts)), max_prompts)
    return [prompts[i] for i in sorted(chosen)]
