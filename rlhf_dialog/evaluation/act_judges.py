"""Who judges the acts of an evaluation, and the notes that its tables need."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import nn

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.learned_half import are_apart, learned_half
from rlhf_dialog.evaluation.intervals import FEW, NUM_RESAMPLES
from rlhf_dialog.evaluation.measure import BLOCK, Judges, dialogue_numbers
from rlhf_dialog.evaluation.replies import have_acts
from rlhf_dialog.rewards.base import walk
from rlhf_dialog.rewards.intent import Intent
from rlhf_dialog.rewards.relevance import RelevanceReward

NO_JUDGE = "it is not an independent judge. Train another one on other dialogues (reward_models/README.md)."
NOT_KNOWN = (
    "is not known to be independent of the reward's model: their reports do not say that they learned from different halves of "
    "the same dialogues, so their mistakes may be alike. Train one with half: reward, the other with half: judge."
)


def notes(
    prompts: Sequence[Dialogue], judges: Judges, judge_path: str | None, reward_paths: Iterable[str]
) -> list[str]:
    """What a reader of the tables has to know: what an interval leaves out, and who judges the acts.

    `judge_path`: the folder of `judges.judge`, if there is one; `reward_paths`: the folders of the reward's classifiers.
    """
    lines = [
        f"Intervals: {NUM_RESAMPLES:,} resamples of {num_dialogues(prompts):,} dialogues, each with all its prompts "
        f"(distinct-n: of blocks of {BLOCK} replies; Student's t where there are fewer than {FEW}). They are of this one run: an "
        "agent of another training seed may differ by more."
    ]
    if scalars := [name for module in judges.modules for name in module.names if name in module.scalars]:
        lines.append(f"Without an interval, because its module gives one number for all replies: {', '.join(scalars)}.")
    parts = list(walk(judges.scorer.reward)) if judges.scorer else []
    rewards = [one for one in parts if isinstance(one, RelevanceReward)]
    classifiers = [one for one in parts if isinstance(one, Intent)]
    for name, model in judges.relevance.items():
        if any(same_weights(model, one.model) for one in rewards):
            lines.append(f"The relevance model of {name}_r1 is the same model as the reward's: {NO_JUDGE}")
        elif not all(are_apart(model.learned_half, one.model.learned_half) for one in rewards):
            lines.append(f"The relevance model of {name}_r1 {NOT_KNOWN}")
    if not have_acts(prompts):
        return lines
    judge, paths = judges.judge, list(reward_paths)
    if not judge:
        if judges.intent in classifiers:
            lines.append(
                "The acts (intent_accuracy, intent_macro_f1) are judged by the reward's own act classifier; name one that the "
                "reward never saw with --judge."
            )
        return lines
    halves = [*(one.learned_half for one in classifiers), *map(learned_half, paths)]
    halves += [one.next_act.learned_half for one in classifiers if one.next_act]
    is_in_its_folder = judge_path is not None and Path(judge_path).resolve() in {Path(path).resolve() for path in paths}
    if is_in_its_folder or any(same_weights(judge.model, one.model) for one in classifiers):
        lines.append(f"The judge {judge_path} is the same model as the reward's own act classifier: {NO_JUDGE}")
    elif judges.intent and same_weights(judge.model, judges.intent.model):
        lines.append(f"The judge {judge_path} is the same model as the classifier of intent_accuracy: it adds nothing.")
    elif not all(are_apart(judge.learned_half, half) for half in halves):
        lines.append(f"The judge {judge_path} {NOT_KNOWN}")
    return lines


def num_dialogues(prompts: Sequence[Dialogue]) -> int:
    """The number of dialogues that the prompts come from."""
    return len(set(dialogue_numbers(prompts).tolist()))


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    """Whether two models have equal parameters of the same names."""
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(x.cpu(), theirs[name].cpu()) for name, x in ours.items())
