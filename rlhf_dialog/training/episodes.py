"""Dialogues of the policy with its environments, turn by turn, as text and as tokens.

B episodes, P prompt tokens, T tokens after the prompt, of both speakers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import repeat

import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.environments.base import Environment, Limits, answer, check_turns, opened
from rlhf_dialog.models.chat_agent import Speaker, num_positions
from rlhf_dialog.models.generation import Responses, as_wide
from rlhf_dialog.models.host import fetch, send, send_all

LIMITS = Limits()


@dataclass
class Episodes:
    """B finished dialogues.

    `responses.mask` is True on what the policy wrote: between two of its replies it has a hole, where `responses.ids` holds the
    user's turn. `responses.truncated`: a reply reached the length limit, or the dialogue was broken off.
    """

    dialogues: list[Dialogue]
    prompt_ids: Tensor  # (B, P), padded left
    prompt_mask: Tensor  # (B, P)
    responses: Responses
    turn_rewards: Tensor | None  # (B, T), the reward of each step on the last token of its reply; None if all are 0


@dataclass(frozen=True)
class _Round:
    """One reply in each of the episodes `rows`; `starts` is the number of tokens between its prompt and the reply."""

    rows: list[int]
    starts: list[int]
    responses: Responses


def play(
    environments: Sequence[Environment],
    speaker: Speaker,
    seeds: Sequence[int] | None = None,
    limits: Limits = LIMITS,
) -> Episodes:
    """Play one episode of each environment; in each round, all dialogues that continue are answered in one batch.

    A dialogue is truncated when the model's positions have no room for another reply. `seeds` holds one seed for each
    environment; without them the environments choose. Raises UserError when an environment does not follow `Environment`,
    or passes the `limits`.
    """
    opening = zip(environments, repeat(None) if seeds is None else seeds, strict=seeds is not None)
    dialogues = [opened(environment, seed, limits) for environment, seed in opening]
    prompts = [speaker.encoder.encode_prompt(d.prompt_turns) for d in dialogues]
    prompt_ids, prompt_mask = inputs = speaker.batch(prompts)
    behind: list[list[int]] = [[] for _ in dialogues]
    rounds, paid, live = [], [], list(range(len(dialogues)))
    while live:
        rounds.append(_Round(live, [len(behind[row]) for row in live], speaker.write(*inputs)))
        live = []
        for row, reply in zip(rounds[-1].rows, speaker.read(rounds[-1].responses), strict=True):
            behind[row] += reply.ids
            text, reward, terminated, cut, _ = answer(environments[row], reply.text, limits)
            paid.append((row, len(behind[row]) - 1, reward))
            heard = [] if terminated or cut else speaker.encoder.encode_heard(reply.ids, text)
            full = bool(heard) and not _has_room(speaker, len(prompts[row] + behind[row] + heard))
            dialogues[row] = dialogues[row].said(reply.text, reply.truncated or cut or full)
            if heard or text:
                dialogues[row] = dialogues[row].heard(text)
            if heard and not full:
                behind[row] += heard
                check_turns(environments[row], len(rounds), limits)
                live.append(row)
        inputs = speaker.batch([prompts[row] + behind[row] for row in live])
    responses = _joined(rounds, behind, speaker.encoder.pad_id)
    responses.truncated = send(torch.tensor([d.truncated for d in dialogues]), prompt_ids.device)
    return Episodes(dialogues, prompt_ids, prompt_mask, responses, _on_tokens(paid, responses))


def _has_room(speaker: Speaker, num_tokens: int) -> bool:
    """Whether the model's positions have room for one more reply after `num_tokens` tokens."""
    positions = num_positions(speaker.policy)
    return positions is None or num_tokens + speaker.sampling.max_new_tokens <= positions


def _on_tokens(paid: list[tuple[int, int, float]], responses: Responses) -> Tensor | None:
    """The rewards `paid` (row, column, reward) as a tensor (B, T); None when all are 0."""
    if not any(reward for *_, reward in paid):
        return None
    rows, columns, rewards = zip(*paid, strict=True)
    found = responses.logprobs.new_zeros(responses.mask.shape)
    at = send_all([torch.tensor(rows), torch.tensor(columns)], found.device)
    return found.index_put_(tuple(at), send(torch.tensor(rewards, dtype=found.dtype), found.device))


def _joined(rounds: list[_Round], behind: list[list[int]], pad_id: int) -> Responses:
    """The replies of each episode in one row, with the user's turns between them."""
    if len(rounds) == 1:
        return rounds[0].responses
    device, shape = rounds[0].responses.ids.device, (len(behind), max(map(len, behind)))
    masks = fetch(*(one.responses.mask for one in rounds))
    places = [_places(one, mask) for one, mask in zip(rounds, masks, strict=True)]
    rows, columns = send_all([torch.cat(x) for x in zip(*places, strict=True)], device)
    written = [send(mask.flatten().nonzero()[:, 0], device) for mask in masks]
    found: dict[str, Tensor | None] = {}
    for name in (field.name for field in fields(Responses) if field.name not in ("ids", "mask", "truncated")):
        of_rounds = [getattr(one.responses, name) for one in rounds]
        if of_rounds[0] is None:
            found[name] = None
            continue
        empty = -1 if name == "support" else 0
        tokens = [x.flatten(0, 1).index_select(0, at) for x, at in zip(of_rounds, written, strict=True)]
        x = torch.cat(as_wide(tokens, empty))
        found[name] = x.new_full((*shape, *x.shape[1:]), empty).index_put_((rows, columns), x)
    ids = send(torch.tensor([row + [pad_id] * (shape[1] - len(row)) for row in behind]), device)
    mask = torch.zeros(shape, dtype=torch.bool, device=device).index_put_((rows, columns), torch.ones_like(rows).bool())
    return Responses(ids, mask, mask.new_zeros(shape[0]), **found)  # type: ignore[arg-type]


def _places(one: _Round, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns, each (n,), of the n tokens of a round, whose mask is on the host, within the joined responses."""
    rows, starts = (torch.tensor(x).unsqueeze(1) for x in (one.rows, one.starts))
    return rows.expand_as(mask)[mask], (starts + mask.cumsum(dim=1) - 1)[mask]
