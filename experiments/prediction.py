"""What of a score can be known without the reference: its prediction from prompt and reply alone.

Ridge regression on the hidden states of the start model, which are what a critic of the run begins with, so that words, order and
the prompt all count. It predicts by how much a reply is above the mean of the replies to its prompt; each prompt is predicted by
a regression that has seen no prompt of its dialogue. N prompts, M draws of a reply to each, F features.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from experiments.divergence import reply_ids
from experiments.users.two_sample import check_scikit_learn
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.intervals import Array, Numbers
from rlhf_dialog.evaluation.measure import dialogue_numbers
from rlhf_dialog.evaluation.replies import Replies, progress
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.policy import packs, run_rows

FOLDS = 5
PENALTIES = tuple(float(penalty) for penalty in np.logspace(1, 7, 7))
ROWS = 64  # replies that the model reads at a time


def predict(agent: ChatAgent, draws: Sequence[Replies], scores: Array) -> Array:
    """The predictions (N, M) of the scores (N, M) of M draws of the agent, less their mean over the draws of each prompt."""
    return cross_validate(reply_features(agent, draws), scores, dialogue_numbers(draws[0].dialogues))


def cross_validate(features: Array, scores: Array, dialogues: Numbers) -> Array:
    """The same from features (N, M, F) and the dialogue of each prompt (N,). Raises UserError for fewer than 7 dialogues.

    Five folds of dialogues; the penalty of each is that with the least error in five folds of the others.
    """
    check_scikit_learn()
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, GroupKFold

    if len(np.unique(dialogues)) <= FOLDS + 1:
        raise UserError(f"the prediction needs prompts of more than {FOLDS + 1} dialogues; give more prompts")
    inputs = (features - features.mean(axis=1, keepdims=True)).reshape(scores.size, -1)
    inputs /= np.maximum(inputs.std(axis=0), 1e-9)
    targets = (scores - scores.mean(axis=1, keepdims=True)).ravel()
    groups, predictions = np.repeat(dialogues, scores.shape[1]), np.zeros(scores.size)
    for known, unknown in GroupKFold(FOLDS).split(inputs, targets, groups):
        search = GridSearchCV(Ridge(fit_intercept=False), {"alpha": PENALTIES}, cv=GroupKFold(FOLDS))
        search.fit(inputs[known], targets[known], groups=groups[known])
        predictions[unknown] = search.predict(inputs[unknown])
    return predictions.reshape(scores.shape)


@torch.no_grad()
def reply_features(agent: ChatAgent, draws: Sequence[Replies]) -> Array:
    """(N, M, F): hidden states of the agent's model behind the prompt, their mean over the tokens of the reply and the last one;
    the number of words and its logarithm, whether the reply was cut off, and whether it asks."""
    rows = [list(row) for row in zip(*(some.dialogues for some in draws), strict=True)]
    size, parts = max(1, ROWS // len(draws)), []
    for start in progress(range(0, len(rows), size), "features"):
        replies = [reply for row in rows[start : start + size] for reply in row]
        parts.append(np.concatenate([_states(agent, replies, len(draws)).cpu().numpy(), _counts(replies)], axis=1))
    return np.concatenate(parts).reshape(len(rows), len(draws), -1).astype(np.float64)


def _states(agent: ChatAgent, replies: list[Dialogue], num_draws: int) -> Tensor:
    """(B, 2 H) for replies of which `num_draws` in a row have the same prompt, which is read once."""
    prompts = agent.encode([one.prompt_turns for one in replies], [one.system for one in replies])
    tokens = replace(prompts, prompt_groups=torch.arange(len(replies)) // num_draws)
    packed = (tokens := tokens.with_replies([reply_ids(agent, one) for one in replies])).pack()
    lm = agent.policy.lm
    with agent.policy.autocast(packed.ids):
        states = run_rows(lm.base_model, packed, packs(lm)).flatten(0, 1)
    kept = packed.scatter(states.index_select(0, packed.keep if packs(lm) else packed.kept_place).float())
    lengths = tokens.mask.sum(dim=1, keepdim=True).clamp(min=1)
    last = kept[torch.arange(len(kept), device=kept.device), lengths[:, 0] - 1]
    return torch.cat([kept.sum(dim=1) / lengths, last], dim=1)


def _counts(replies: list[Dialogue]) -> Array:
    words = np.asarray([len(one.response.split()) for one in replies], dtype=np.float64)
    flags = [[float(one.truncated), float("?" in one.response)] for one in replies]
    return np.column_stack([words, np.log1p(words), flags])
