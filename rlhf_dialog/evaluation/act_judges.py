"""Who judges the acts of an evaluation, and the notes that its tables need."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.learned_half import are_apart, learned_half
from rlhf_dialog.evaluation.intervals import FEW, NUM_RESAMPLES
from rlhf_dialog.evaluation.measure import BLOCK, Judges, dialogue_numbers
from rlhf_dialog.evaluation.replies import have_acts
from rlhf_dialog.rewards.base import BaseReward, walk
from rlhf_dialog.rewards.intent import Intent
from rlhf_dialog.rewards.relevance import RelevanceReward

R = TypeVar("R", bound=BaseReward)
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
    reward_models = [reward.model for reward in _rewards(judges, RelevanceReward)]
    for name, model in judges.relevance.items():
        if any(same_weights(model, reward_model) for reward_model in reward_models):
            lines.append(
                f"The relevance model of {name}_r1 is the same model as the reward's: it is not an independent judge. Train "
                "another one on other dialogues (configs/relevance_judge_dailydialog_small.yaml)."
            )
        elif not all(are_apart(model.learned_half, reward_model.learned_half) for reward_model in reward_models):
            lines.append(f"The relevance model of {name}_r1 {NOT_KNOWN}")
    if not have_acts(prompts):
        return lines
    reward_halves = [*(x.learned_half for x in reward_classifiers(judges)), *map(learned_half, reward_paths)]
    reward_halves += [x.next_act.learned_half for x in reward_classifiers(judges) if x.next_act]
    if judges.judge and judge_path and is_the_rewards(judges, judge_path, reward_paths):
        lines.append(
            f"The judge {judge_path} is the same model as the reward's own act classifier: the acts have no independent "
            "judge. Train another one on other dialogues (configs/judge_dailydialog_small.yaml)."
        )
    elif judges.judge and judges.intent and same_weights(judges.judge.model, judges.intent.model):
        lines.append(f"The judge {judge_path} is the same model as the classifier of intent_accuracy: it adds nothing.")
    elif judges.judge and not all(are_apart(judges.judge.learned_half, half) for half in reward_halves):
        lines.append(f"The judge {judge_path} {NOT_KNOWN}")
    elif not judges.judge and judges.intent in reward_classifiers(judges):
        lines.append(
            "The acts (intent_accuracy, intent_macro_f1) are judged by the reward's own act classifier; name one that the "
            "reward never saw with --judge."
        )
    return lines


def num_dialogues(prompts: Sequence[Dialogue]) -> int:
    """The number of dialogues that the prompts come from."""
    return len(set(dialogue_numbers(prompts).tolist()))


def is_the_rewards(judges: Judges, judge_path: str, reward_paths: Iterable[str]) -> bool:
    """Whether the judge has the folder or the weights of an act classifier of the reward."""
    judge = judges.judge
    same_folder = Path(judge_path).resolve() in {Path(path).resolve() for path in reward_paths}
    return same_folder or any(judge and same_weights(judge.model, one.model) for one in reward_classifiers(judges))


def reward_classifiers(judges: Judges) -> list[Intent]:
    """The act classifiers in the reward, at any depth."""
    return _rewards(judges, Intent)


def _rewards(judges: Judges, cls: type[R]) -> list[R]:
    return [one for one in walk(judges.scorer.reward) if isinstance(one, cls)] if judges.scorer else []


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    """Whether two models have equal parameters of the same names."""
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(x.cpu(), theirs[name].cpu()) for name, x in ours.items())
