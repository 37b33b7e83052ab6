"""What a relevance model learns from: true pairs of context and reply, and replies and contexts that do not belong together.

N pairs, T turns of a context, B pairs of a batch, W salads of a pair, V vocabulary.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_dialog.data import word_salad
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.models.relevance import TurnTable

KINDS = 5  # of replies, and of contexts, that each pair brings: its own, a near one, and three for copies
NUM_NEAR = 4  # near prompts of each prompt
BLOCK = 4096  # prompts among which the near ones are searched
SKETCH = 128  # numbers that represent a prompt in that search
NEAR_TURNS = 2  # the last turns of a prompt, which decide what is near


@dataclass
class Pairs:
    """Everything as numbers of `table`; 0 where there is no turn."""

    table: TurnTable
    contexts: Tensor  # (N, T), the last turn first
    replies: Tensor  # (N,) the true replies
    following: (
        Tensor  # (N,) the next reply of the same dialogue, which follows this one; at its end that of a near prompt
    )
    dialogues: Tensor  # (N,) the number of the dialogue
    near: Tensor  # (N, up to NUM_NEAR) rows with near contexts, of other dialogues where there are any
    salads: Tensor  # (N, W) the reply shuffled, and a mixture (`word_salad.salads`); W is 0 where none are wanted


@dataclass
class Batch:
    """B pairs with the candidates of their two questions: which reply fits the context, and which context fits the reply.

    The first B candidates are those of the B pairs themselves; `*_weights` (B, ...) are logarithms of how often a candidate
    counts, -inf where it may be right too.
    """

    contexts: Tensor  # (C, T)
    replies: Tensor  # (R,)
    reply_weights: Tensor  # (B, R)
    context_weights: Tensor  # (B, C)


def number_pairs(pairs: Sequence[Dialogue], table: TurnTable, seed: int, with_salads: bool = False) -> Pairs:
    """The pairs, each with its true reply as `response`, as numbers."""
    contexts = table.contexts([pair.prompt_turns for pair in pairs])
    replies = table.replies([pair.response for pair in pairs])
    dialogues = torch.tensor([pair.origin_of("dialogue") for pair in pairs])
    near = near_prompts(table, contexts, dialogues, seed)
    goes_on = (dialogues.roll(-1) == dialogues) & (contexts[:, 0].roll(-1) == replies)
    following = torch.where(goes_on, replies.roll(-1), replies[near[:, 0]])
    salads = replies.new_zeros(len(pairs), 0)
    if with_salads:
        first = 1 if table.sizes.architecture == "bag" else 0  # a bag cannot see that words were shuffled
        draw, counts = random.Random(seed), Counter(word for pair in pairs for word in pair.response.split())
        made = [word_salad.salads(pair.response, pair.prompt_turns, counts, draw) for pair in pairs]
        salads = torch.stack([table.replies(texts[first:]) for texts in made])
    return Pairs(table, contexts, replies, following, dialogues, near, salads)


def near_prompts(table: TurnTable, contexts: Tensor, dialogues: Tensor, seed: int) -> Tensor:
    """Rows (N, up to NUM_NEAR) of the prompts whose last turns share the most rare words, searched in blocks drawn by `seed`.

    A prompt is the sum of its words' random vectors, each times log(N / number of prompts with the word).
    """
    generator = torch.Generator().manual_seed(seed)
    ids = table.ids
    words = [[w for turn in row[:NEAR_TURNS] for w in ids[turn]] for row in contexts.tolist()]
    counts = torch.zeros(table.sizes.vocab_size)
    for some in words:
        counts[list(set(some))] += 1
    rarity = (len(words) / counts.clamp(min=1)).log().unsqueeze(1)
    vectors = torch.randn(len(counts), SKETCH, generator=generator) * rarity
    sketches = functional.normalize(torch.stack([vectors[some].sum(dim=0) for some in words]), dim=-1)
    order = torch.randperm(len(words), generator=generator)
    num_blocks = max(1, round(len(words) / BLOCK))
    near = torch.zeros(len(words), min(NUM_NEAR, max(len(words) // num_blocks - 1, 1)), dtype=torch.long)
    for rows in order.tensor_split(num_blocks):
        likeness = sketches[rows] @ sketches[rows].T
        likeness[dialogues[rows].unsqueeze(1) == dialogues[rows]] -= 10
        near[rows] = rows[likeness.fill_diagonal_(-100).topk(near.shape[1]).indices] if len(rows) > 1 else rows
    return near


def batch_of(pairs: Pairs, rows: Tensor, copy_weight: float, salad_weight: float = 1.0) -> Batch:
    """The candidates of the pairs in `rows` (B,).

    Replies: the true ones, those to near prompts, the last turn, the turn before it, an older turn, the salads. Contexts: the
    true ones, near ones, and three in which the reply was said: as the last turn, as the turn before that, and in place of the
    older turn. What repeats a pair's own turns counts `copy_weight` times for it, and its salads `salad_weight` times.
    """
    contexts, own_replies = pairs.contexts[rows], pairs.replies[rows]
    near = pairs.near[rows, torch.randint(pairs.near.shape[1], rows.shape)]
    before = contexts[:, 1] if contexts.shape[1] > 1 else torch.zeros_like(own_replies)
    older, said_long_ago = _older(contexts, own_replies)
    salads_of_rows = pairs.salads[rows].T.flatten()
    replies = torch.cat([own_replies, pairs.replies[near], contexts[:, 0], before, older, salads_of_rows])
    said = torch.cat([own_replies.unsqueeze(1), contexts[:, :-1]], dim=1)
    said_before = torch.cat([pairs.following[rows].unsqueeze(1), said[:, :-1]], dim=1)
    candidates = torch.cat([contexts, pairs.contexts[near], said, said_before, said_long_ago])
    reply_weights = _reply_weights(pairs, rows, replies, copy_weight, salad_weight)
    of_contexts = torch.cat([own_replies, pairs.replies[near]])
    context_weights = _context_weights(candidates, own_replies, of_contexts, copy_weight)
    return Batch(candidates, replies, reply_weights, context_weights)


def _older(contexts: Tensor, replies: Tensor) -> tuple[Tensor, Tensor]:
    """Of each context (B, T) a turn (B,) before the last two, at random, and the context with the reply in its place.

    0, and the context unchanged, where there is no such turn.
    """
    number = (contexts != 0).sum(dim=1) - 2
    places = 2 + (torch.rand(len(contexts)) * number.clamp(min=1)).long()
    places = places.clamp(max=contexts.shape[1] - 1).unsqueeze(1)
    long_enough = (number > 0).unsqueeze(1)
    turns = contexts.gather(1, places).where(long_enough, 0).squeeze(1)
    return turns, contexts.scatter(1, places, replies.unsqueeze(1)).where(long_enough, contexts)


def _reply_weights(pairs: Pairs, rows: Tensor, replies: Tensor, copy_weight: float, salad_weight: float) -> Tensor:
    """(B, R): KINDS x B replies of prompts, W x B salads; the true one under another name may be right."""
    count, own = len(rows), pairs.replies[rows].unsqueeze(1)
    of_salads = _own_columns(count, salad_weight, pairs.salads.shape[1])
    weights = torch.cat([_copies_weighted(count, copy_weight), of_salads], dim=1)
    return _exclude(weights, (replies == own) | (replies == 0))


def _context_weights(candidates: Tensor, true_replies: Tensor, replies: Tensor, copy_weight: float) -> Tensor:
    """(B, C): contexts with the same reply, and the own context again, may be right too."""
    count = len(true_replies)
    may_be_right = (candidates.unsqueeze(0) == candidates[:count].unsqueeze(1)).all(dim=-1)
    may_be_right[:, : len(replies)] |= replies == true_replies.unsqueeze(1)
    if candidates.shape[1] == 1:  # a context of one turn cannot hold the turn before the last
        may_be_right[:, 3 * count :] = True
    return _exclude(_copies_weighted(count, copy_weight), may_be_right)


def _copies_weighted(count: int, copy_weight: float) -> Tensor:
    """Zeros (B, KINDS x B), with the logarithm of the weight where the third B columns and later ones are of the row's pair."""
    return torch.cat([torch.zeros(count, 2 * count), _own_columns(count, copy_weight, KINDS - 2)], dim=1)


def _own_columns(count: int, weight: float, times: int) -> Tensor:
    """Zeros (B, times x B), with the logarithm of the weight where a column is of the row's pair."""
    return (torch.eye(count) * torch.tensor(weight).log()).repeat(1, times)


def _exclude(weights: Tensor, may_be_right: Tensor) -> Tensor:
    """The weights with -inf where a candidate may be right, but for the true one, on the diagonal."""
    may_be_right.fill_diagonal_(False)
    return weights.masked_fill(may_be_right, -torch.inf)
