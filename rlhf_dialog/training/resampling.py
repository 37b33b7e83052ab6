"""Other prompts in place of those whose responses all have the same reward: dynamic sampling. B episodes, T response tokens."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.models.generation import join_rows
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.rewards.scoring import Scores
from rlhf_dialog.training.rollout import Collected, without_features

Collect = Callable[
    [int, int], Collected | None
]  # of so many next prompts, whose groups count from the second number on


def resample(collected: Collected, collect: Collect, num_prompts: int, most_rounds: int, world: World) -> Collected:
    """What was collected on `num_prompts` prompts, with other groups in place of those whose episodes were all paid the same.

    This is dynamic sampling (Yu et al. 2025, DAPO, arXiv 2503.14476, section 3.2); after `most_rounds` further rounds, the flat
    groups of the last one stay. All ranks draw the same prompts, as many as are missing on all of them, and divide these anew.
    """
    rounds = [collected]
    flat = flat_groups(collected)
    kept = list(range(len(collected)))
    num_drawn = num_prompts
    num_resampled = 0
    for _ in range(most_rounds):
        (count,) = map(int, world.sum_numbers([len(flat)]))
        if not count:
            break
        given_up = {row for rows in flat for row in rows}
        start = sum(map(len, rounds)) - len(rounds[-1]) if flat else 0
        kept = [row for row in kept if row - start not in given_up]
        more = collect(count, num_drawn)
        num_drawn += count
        num_resampled += count
        flat = []
        if more is not None:
            kept += [sum(map(len, rounds)) + row for row in range(len(more))]
            rounds[0].clock.add(more.clock)
            rounds.append(more)
            flat = flat_groups(more)
    (left,) = map(int, world.sum_numbers([len(flat)]))
    drawn = join_rounds(rounds)
    if len(kept) < len(drawn):
        whole = join_rounds([without_features(one) if one.whole is None else one.whole for one in rounds])
        kept_rows = replace(drawn.select(kept), num_dropped=drawn.num_dropped)
        collected = replace(kept_rows, drawn=without_features(drawn), whole=whole)
    elif len(rounds) > 1:
        collected = drawn
    return replace(collected, num_resampled=num_resampled, num_flat_left=left)


def flat_groups(collected: Collected) -> list[list[int]]:
    """The rows of each group of responses to one prompt that were all paid the same."""
    paid: list[float] = collected.paid.tolist()
    groups: dict[Any, list[int]] = defaultdict(list)
    for row, dialogue in enumerate(collected.dialogues):
        groups[dialogue.origin_of("group", row)].append(row)
    return [rows for rows in groups.values() if len({paid[row] for row in rows}) == 1]


def join_rounds(rounds: Sequence[Collected]) -> Collected:
    """The episodes of several rounds, of one turn each, that one policy sampled for different prompts."""
    full = [one for one in rounds if len(one)] or rounds[:1]
    first = full[0]
    parts = first.reward_scores.parts
    columns: dict[str, Any] = {name: join_rows([one.columns[name] for one in full], 0) for name in first.columns}
    scores = {
        name: replace(
            part,
            raw=[x for one in full for x in one.reward_scores.parts[name].raw],
            weighted=[x for one in full for x in one.reward_scores.parts[name].weighted],
            seconds=sum(one.reward_scores.parts[name].seconds for one in full),
        )
        for name, part in parts.items()
    }
    return replace(
        first,
        dialogues=[dialogue for one in full for dialogue in one.dialogues],
        tokens=join_tokens([one.tokens for one in full]),
        reward_scores=Scores([x for one in full for x in one.reward_scores.total], scores),
        clock=rounds[0].clock,
        num_generated=sum(one.num_generated for one in rounds),
        num_dropped=sum(one.num_dropped for one in rounds),
        whole=None,
        **columns,
    )


def join_tokens(batches: Sequence[TokenBatch]) -> TokenBatch:
    """The rows of all batches, each with prompt groups of its own."""
    first = batches[0]
    groups = []
    number = 0
    for one in batches:
        assert one.prompt_groups is not None
        groups.append(one.prompt_groups + number)
        number += int(one.prompt_groups.max()) + 1
    supports = [one.support for one in batches if one.support is not None]
    return TokenBatch(
        join_rows([one.prompt_ids.flip(1) for one in batches], first.pad_id).flip(1),
        join_rows([one.prompt_mask.flip(1) for one in batches], 0).flip(1),
        join_rows([one.response_ids for one in batches], first.pad_id),
        join_rows([one.response_mask for one in batches], 0),
        torch.cat(groups),
        join_rows(supports, -1) if supports else None,
        first.pad_id,
    )
