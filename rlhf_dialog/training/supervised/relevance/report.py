"""What a relevance model has learned, on held-out prompts: recall, and the margins of true and of adversarial replies."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.intervals import Array, Numbers
from rlhf_dialog.evaluation.measure import dialogue_numbers, recalls
from rlhf_dialog.evaluation.replies import CONSTANT_REPLY, LONG_CONSTANT_REPLY, pick_prompts
from rlhf_dialog.metrics.text import others
from rlhf_dialog.rewards.relevance import RelevanceReward

NUM_MEASURED = {"bag": 2000, "convolution": 2000, "cross_encoder": 200}  # prompts, drawn by the seed
CROSS_BANK = 32  # prompts of the bank that a cross-encoder reads with each reply


def measure(folder: str, pairs: list[Dialogue], device: str, seed: int) -> dict[str, Any]:
    """R@1 and R@10 of the true replies among 100 prompts, and the reward of several kinds of replies, with intervals.

    The model is loaded and used exactly as the reward does. Intervals are 95 % over dialogues.
    """
    reward = RelevanceReward(folder)
    model = reward.model.to(device)
    pairs = pick_prompts(pairs, NUM_MEASURED[model.sizes.architecture], seed)
    if model.sizes.architecture == "cross_encoder":
        reward.bank = reward.bank[:CROSS_BANK]
    numbers = dialogue_numbers(pairs)
    measures: dict[str, Any] = {
        "num_pairs": len(pairs),
        "num_dialogues": len(set(numbers.tolist())),
        "bank": len(reward.bank),
    }
    for name, values in recalls(model, pairs, numbers.tolist(), seed).items():
        measures[name] = _interval(values, numbers)
    return measures | {"reward": {name: _paid(reward, said) for name, said in kinds_of_replies(pairs, seed).items()}}


def kinds_of_replies(pairs: list[Dialogue], seed: int) -> dict[str, list[Dialogue]]:
    """The pairs with replies of several kinds; an older turn needs a prompt that has it."""
    foreign = others(len(pairs), seed)
    answers: dict[str, Callable[[int, Dialogue], str]] = {
        "true_reply": lambda _, pair: pair.response,
        "random_reply": lambda i, _: pairs[foreign[i]].response,
        "last_turn": lambda _, pair: pair.prompt_turns[-1],
        "turn_before_last": lambda _, pair: pair.prompt_turns[-2],
        "third_last_turn": lambda _, pair: pair.prompt_turns[-3],
        "fourth_last_turn": lambda _, pair: pair.prompt_turns[-4],
        "constant_reply": lambda *_: CONSTANT_REPLY,
        "long_constant_reply": lambda *_: LONG_CONSTANT_REPLY,
        "empty_reply": lambda *_: "",
    }
    long_enough = {"turn_before_last": 2, "third_last_turn": 3, "fourth_last_turn": 4}
    return {
        name: [
            replace(pair, response=answer(i, pair))
            for i, pair in enumerate(pairs)
            if len(pair.prompt_turns) >= long_enough.get(name, 1)
        ]
        for name, answer in answers.items()
    }


def _paid(reward: RelevanceReward, said: list[Dialogue]) -> dict[str, float]:
    return _interval(np.asarray(reward(said)), dialogue_numbers(said)) if said else {}


def _interval(values: Array, numbers: Numbers) -> dict[str, float]:
    return intervals.interval(replace(intervals.mean_statistic(values), units=numbers))


def markdown(split: str, result: dict[str, Any]) -> str:
    """The measures of one split as a Markdown table."""
    rows = {"R@1 of 100": result["r1"], "R@10 of 100": result["r10"]}
    rows |= {f"reward of {name}": found for name, found in result["reward"].items() if found}
    lines = [
        f"| {name} | {found['mean']:.3f} | {found['low']:.3f} to {found['high']:.3f} |" for name, found in rows.items()
    ]
    head = f"## {split}: {result['num_pairs']} prompts of {result['num_dialogues']} dialogues"
    return "\n".join([head, "", "| | mean | 95 % interval of this one run |", "|---|---|---|", *lines, ""])
